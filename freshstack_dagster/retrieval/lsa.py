"""Latent semantic analysis fitted to the corpus: a second, independent retriever that needs no model weights.

Documents and queries are code-aware tf-idf vectors (1 + ln tf) · ln(N / df), of unit length, projected on the leading
right singular vectors of the corpus matrix (Deerwester et al. 1990, Indexing by Latent Semantic Analysis) and compared
by cosine. The fit is bounded: at most `vocabulary` terms and a sample of at most `sample` documents; every document is
then folded in.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.retrieval.analysis import CODE, Analysis, Vocabulary
from freshstack_dagster.retrieval.base import Corpus, Workspace, building, used
from freshstack_dagster.retrieval.topk import EMPTY, Ranking, search
from freshstack_dagster.settings import Retriever

VERSION = "lsa-1"
DEFAULTS = {"dimensions": 256, "vocabulary": 50_000, "sample": 20_000, "seed": 13}
# Terms of a single document say nothing about other documents; terms of half of all documents say nothing at all.
_RAREST, _COMMONEST = 2, 0.5
_STEP = 2000


class LSA:
    """A fitted model with every document of the corpus in it."""

    def __init__(
        self, terms: dict[str, int], idf: np.ndarray, axes: np.ndarray, documents: np.ndarray, analysis: Analysis = CODE
    ) -> None:
        self.terms, self.idf, self.axes, self.documents = terms, idf, axes, documents
        self._analysis = analysis

    def search(self, queries: Sequence[str], depth: int) -> list[Ranking]:
        """As `Retrieval.search`. Only documents with a positive cosine are retrieved."""
        encoded = [[self.terms[t] for t in self._analysis.terms(query) if t in self.terms] for query in queries]
        vectors = _project(_tfidf(_counts(encoded, len(self.terms)), self.idf), self.axes)
        found = np.flatnonzero(np.linalg.norm(vectors, axis=1) > 0)
        rankings = [EMPTY] * len(queries)
        for query, ranking in zip(found, search(vectors[found], self.documents, depth), strict=True):
            positive = ranking.scores > 0
            rankings[query] = Ranking(ranking.rows[positive], ranking.scores[positive])
        return rankings


def open_lsa(retriever: Retriever, corpus: Corpus, workspace: Workspace) -> LSA:
    """Load the model of `corpus` from the cache or fit it; options `dimensions`, `vocabulary`, `sample`, `seed`.

    Equal corpora and options give equal models: the sample, the start vector and the signs are fixed.
    """
    unknown = sorted(set(retriever.options) - set(DEFAULTS))
    if unknown:
        raise SettingsError(f"retriever {retriever.name}: unknown options {unknown}; lsa takes {', '.join(DEFAULTS)}")
    options = {**DEFAULTS, **retriever.options}
    if retriever.dimensions is not None:
        options["dimensions"] = retriever.dimensions
    key = hashlib.sha256(f"{corpus.fingerprint} {CODE.version} {VERSION} {sorted(options.items())}".encode())
    folder = workspace.cache / "lsa" / key.hexdigest()[:32]
    began = time.perf_counter()
    model, outcome = _load(folder), "loaded"
    if model is None:
        model, outcome = fit(corpus, workspace, **options), "indexed"
        with building(folder) as temporary:
            _save(model, temporary)
    used(folder)
    workspace.report.update(
        documents=len(corpus),
        terms=len(model.terms),
        dimensions=model.axes.shape[1],
        index=outcome,
        index_seconds=time.perf_counter() - began,
    )
    return model


def fit(corpus: Corpus, workspace: Workspace, *, dimensions: int, vocabulary: int, sample: int, seed: int) -> LSA:
    """Fit the model: terms, singular vectors of a sample, and every document projected on them."""
    words = Vocabulary(CODE)
    encoded: list[np.ndarray] = []
    for start in range(0, len(corpus), _STEP):
        encoded.extend(np.array(d, np.int32) for d in words.encode(corpus.texts[start : start + _STEP]))
        workspace.tell("tokenising", len(encoded), len(corpus))
    counts = _counts(encoded, len(words.ids))
    frequency = np.bincount(counts.indices, minlength=len(words.ids))
    kept = _choose(list(words.ids), frequency, len(corpus), vocabulary)
    counts = counts[:, kept]
    idf = np.log(len(corpus) / frequency[kept]).astype(np.float32)
    names = list(words.ids)
    terms = {names[old]: new for new, old in enumerate(kept)}
    matrix = _tfidf(counts, idf)
    workspace.tell("fitting", 0, 1)
    # A sample by content hash does not follow the order of files, and is the same wherever the corpus is.
    rows = np.argsort(np.array(corpus.content_hashes), kind="stable")[:sample]
    axes = _axes(matrix[np.sort(rows)], dimensions, seed)
    documents = _project(matrix, axes)
    workspace.tell("fitting", 1, 1)
    return LSA(terms, idf, axes, documents)


def _choose(names: list[str], frequency: np.ndarray, documents: int, vocabulary: int) -> np.ndarray:
    """Columns of the terms to keep: neither too rare nor too common, the most frequent first if there are too many."""
    rarest = _RAREST if documents > _RAREST else 1
    usable = np.flatnonzero((frequency >= rarest) & (frequency <= max(rarest, _COMMONEST * documents)))
    ordered = sorted(usable, key=lambda column: (-int(frequency[column]), names[column]))[:vocabulary]
    return np.array(sorted(ordered), dtype=np.int64)


def _counts(documents: Sequence[Sequence[int] | np.ndarray], terms: int) -> Any:
    """Sparse counts (documents × terms) in float32."""
    from scipy.sparse import csr_matrix

    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    flat = np.fromiter(chain.from_iterable(documents), dtype=np.int32, count=int(lengths.sum()))
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    counts = csr_matrix((np.ones(len(flat), np.float32), flat, indptr), shape=(len(documents), terms))
    counts.sum_duplicates()
    return counts


def _tfidf(counts: Any, idf: np.ndarray) -> Any:
    matrix = counts.copy()
    matrix.data = (1 + np.log(matrix.data)) * idf[matrix.indices]
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    matrix.data /= np.repeat(np.where(lengths > 0, lengths, 1), np.diff(matrix.indptr)).astype(np.float32)
    return matrix


def _axes(matrix: Any, dimensions: int, seed: int) -> np.ndarray:
    """The leading right singular vectors (terms × dimensions), each with its largest loading positive."""
    from scipy.sparse.linalg import svds

    documents, terms = matrix.shape
    if not matrix.nnz:
        return np.zeros((terms, 1), np.float32)
    smaller = min(documents, terms)
    if smaller <= max(4, dimensions):
        # ARPACK finds fewer vectors than the matrix has rows; small corpora are decomposed whole.
        _, values, right = np.linalg.svd(matrix.toarray().astype(np.float64), full_matrices=False)
        right = right[values > 1e-6 * values[0]][:dimensions]
    else:
        start = np.random.default_rng(seed).standard_normal(smaller).astype(np.float32)
        _, values, right = svds(matrix, k=dimensions, v0=start, return_singular_vectors="vh")
        right = right[np.argsort(-values, kind="stable")]
    # The sign of a singular vector is arbitrary: fix it.
    largest = np.take_along_axis(right, np.abs(right).argmax(axis=1)[:, None], axis=1)
    return np.ascontiguousarray((right * np.where(largest < 0, -1, 1)).T, dtype=np.float32)


def _project(matrix: Any, axes: np.ndarray) -> np.ndarray:
    """Rows on the axes, of unit length; a row without known terms stays zero."""
    vectors = np.asarray(matrix @ axes, dtype=np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    # What is left of a row that lies outside the axes is rounding, not a direction.
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 1e-6)


def _save(model: LSA, folder: Path) -> None:
    (folder / "terms.json").write_text(json.dumps(list(model.terms), ensure_ascii=False), encoding="utf-8")
    for name in ("idf", "axes", "documents"):
        np.save(folder / f"{name}.npy", getattr(model, name))


def _load(folder: Path) -> LSA | None:
    if not folder.is_dir():
        return None
    try:
        terms = {term: i for i, term in enumerate(json.loads((folder / "terms.json").read_text(encoding="utf-8")))}
        return LSA(terms, *(np.load(folder / f"{name}.npy") for name in ("idf", "axes", "documents")))
    except (OSError, ValueError, EOFError):
        return None

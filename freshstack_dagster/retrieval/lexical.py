"""BM25 as Lucene and Anserini compute it, through bm25s, with the index cached by content."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.retrieval.analysis import CODE, ENGLISH, Analysis, Vocabulary
from freshstack_dagster.retrieval.base import Corpus, Workspace, building, used
from freshstack_dagster.retrieval.topk import EMPTY, Ranking, top_rows
from freshstack_dagster.settings import Retriever

# Anserini's defaults.
K1 = 0.9
B = 0.4
ANALYSES = {"bm25": ENGLISH, "bm25_code": CODE}
_STEP = 2000


class BM25:
    """A BM25 index over a corpus. Scores are sums over the query's terms, repeated terms counted each time.

    A document without any term of the query is not retrieved; a query without terms retrieves nothing.
    """

    def __init__(self, index: Any, analysis: Analysis, report: dict[str, Any] | None = None) -> None:
        self._index, self._analysis = index, analysis
        self._report: dict[str, Any] = {} if report is None else report

    def search(self, queries: Sequence[str], depth: int) -> list[Ranking]:
        """As `Retrieval.search`."""
        return [self._one(query, depth) for query in queries]

    def _one(self, query: str, depth: int) -> Ranking:
        terms = self._analysis.terms(query)
        if not terms:
            self._report["queries_without_terms"] = self._report.get("queries_without_terms", 0) + 1
        numbers = self._index.get_tokens_ids(terms)
        return top_rows(self._index.get_scores_from_ids(numbers), depth, positive=True) if numbers else EMPTY


def open_bm25(retriever: Retriever, corpus: Corpus, workspace: Workspace) -> BM25:
    """Load the index of `corpus` from the cache or build it.

    Options `k1` and `b` replace 0.9 and 0.4. The index is kept under the hash of the chunks' content hashes in order,
    the version of the analysis and the parameters, so unchanged content is never indexed again. The report gets
    `indexed` or `loaded` with the number of documents and seconds.
    """
    import bm25s

    analysis = ANALYSES[retriever.kind]
    unknown = sorted(set(retriever.options) - {"k1", "b"})
    if unknown:
        raise SettingsError(f"retriever {retriever.name}: unknown options {unknown}; bm25 takes k1 and b")
    k1, b = float(retriever.options.get("k1", K1)), float(retriever.options.get("b", B))
    key = hashlib.sha256(f"{corpus.fingerprint} {analysis.version} {k1} {b} {bm25s.__version__}".encode()).hexdigest()
    folder = workspace.cache / "bm25" / key[:32]
    began = time.perf_counter()
    index, outcome = _load(folder), "loaded"
    if index is None:
        index, outcome = _build(corpus, analysis, k1, b, workspace), "indexed"
        with building(folder) as temporary:
            index.save(str(temporary), show_progress=False)
    used(folder)
    workspace.report.update(
        documents=len(corpus), terms=len(index.vocab_dict), index=outcome, index_seconds=time.perf_counter() - began
    )
    return BM25(index, analysis, workspace.report)


def _build(corpus: Corpus, analysis: Analysis, k1: float, b: float, workspace: Workspace) -> Any:
    import bm25s

    vocabulary = Vocabulary(analysis)
    documents: list[list[int]] = []
    for start in range(0, len(corpus), _STEP):
        documents.extend(vocabulary.encode(corpus.texts[start : start + _STEP]))
        workspace.tell("tokenising", len(documents), len(corpus))
    index = bm25s.BM25(k1=k1, b=b, method="lucene")
    if not vocabulary.ids:
        # bm25s cannot index a corpus without a single term; one that no query can hold stands in.
        vocabulary.ids[""], documents = 0, [[0]] * len(corpus)
    index.index((documents, vocabulary.ids), show_progress=False, create_empty_token=False)
    return index


def _load(folder: Path) -> Any:
    """The cached index, or None if there is none that can be read."""
    import bm25s

    if not folder.is_dir():
        return None
    try:
        index = bm25s.BM25.load(str(folder), mmap=True)
    except (OSError, ValueError, KeyError, EOFError):
        return None
    # The index may come back as a list-like vocabulary of another version; a dictionary is what searching needs.
    return index if isinstance(index.vocab_dict, dict) and np.ndim(index.scores["indptr"]) == 1 else None

"""Exact top-k: score descending, then row ascending, also where scores tie at the cut.

Rows stand in the order of their doc_id, so the lower row is the smaller doc_id: the project's one order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from freshstack_dagster.errors import EvaluationError

BLOCK_BYTES = 128 << 20
# Candidates a query may hold, in multiples of the depth, before they are scored exactly and cut (many equal vectors).
SLACK = 8


class Ranking(NamedTuple):
    """One query's result: rows of the corpus and their scores, best first."""

    rows: np.ndarray
    scores: np.ndarray


EMPTY = Ranking(np.empty(0, np.int64), np.empty(0, np.float64))


class Vectors(Protocol):
    """Rows of vectors that need not be in memory: a NumPy array, a memory map, a view over shards."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and dimensions."""
        ...

    def __getitem__(self, rows: Any, /) -> np.ndarray:
        """The vectors of a slice or of an array of rows."""
        ...


class _Candidates(NamedTuple):
    """Rows that may belong to the top of a query, one entry a query and row."""

    query: np.ndarray
    row: np.ndarray
    score: np.ndarray


def top_rows(scores: np.ndarray, depth: int, *, positive: bool = False) -> Ranking:
    """The best `depth` of a vector of scores; with `positive`, only rows that score above 0."""
    rows = np.flatnonzero(scores > 0) if positive else np.arange(len(scores))
    values = scores[rows]
    if len(rows) > depth:
        cut = np.partition(values, len(values) - depth)[len(values) - depth]
        # Everything that ties with the last place stays until the order by row has been applied.
        kept = values >= cut
        rows, values = rows[kept], values[kept]
    order = np.lexsort((rows, -values))[:depth]
    return Ranking(rows[order], values[order].astype(np.float64))


def search(queries: np.ndarray, vectors: Vectors, depth: int, *, block_bytes: int = BLOCK_BYTES) -> list[Ranking]:
    """The best `depth` rows by inner product for each query, equal to a ranking by float64 products.

    `queries` is (queries × dimensions), `vectors` (rows × dimensions) in float16 or float32. One block of rows of
    about `block_bytes` is in memory at a time. Products are taken in float32; a row is dropped only if even the
    largest rounding error of a product, n·eps·|q|·|x| (Higham, Accuracy and Stability of Numerical Algorithms, section
    3.1), could not bring it in; what is left is scored again in float64.

    Raises EvaluationError if a value is not finite or the dimensions differ.
    """
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    count, dimensions = vectors.shape
    if queries.ndim != 2 or queries.shape[1] != dimensions:
        raise EvaluationError(
            f"passages have {dimensions} dimensions and queries {queries.shape[-1]}; embed both with one model"
        )
    if not np.isfinite(queries).all():
        raise EvaluationError("the embedding of a query holds a value that is not finite; embed the queries again")
    if depth < 1 or not count or not len(queries):
        return [EMPTY] * len(queries)

    unit = dimensions * float(np.finfo(np.float32).eps) * np.linalg.norm(queries.astype(np.float64), axis=1)
    longest = 0.0
    kept = _Candidates(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float64))
    cut = np.full(len(queries), -np.inf)
    rows = max(1, block_bytes // (4 * max(dimensions, len(queries))))
    for start in range(0, count, rows):
        block = np.ascontiguousarray(vectors[start : min(count, start + rows)], dtype=np.float32)
        longest = max(longest, _longest(block, start))
        products = queries @ block.T
        if start == 0 and len(block) > depth:
            cut = np.partition(products, len(block) - depth, axis=1)[:, len(block) - depth].astype(np.float64)
        # Two products may both be off, in opposite directions.
        margin = 2 * unit * longest
        query, column = np.nonzero(products >= (cut - margin).astype(np.float32)[:, None])
        if not len(query):
            continue
        kept = _Candidates(
            np.concatenate([kept.query, query.astype(np.int32)]),
            np.concatenate([kept.row, column + start]),
            np.concatenate([kept.score, products[query, column].astype(np.float64)]),
        )
        if len(kept.row) > SLACK * depth * len(queries):
            kept = _exactly(kept, queries, vectors, depth)
        kept, cut = _cut(kept, depth, margin, len(queries))
    return _rankings(_exactly(kept, queries, vectors, depth), len(queries))


def _longest(block: np.ndarray, start: int) -> float:
    lengths = np.sqrt(np.einsum("ij,ij->i", block, block))
    if not np.isfinite(lengths).all():
        bad = start + int(np.flatnonzero(~np.isfinite(lengths))[0])
        raise EvaluationError(f"the embedding of passage {bad} holds a value that is not finite; embed it again")
    return float(lengths.max(initial=0.0))


def _cut(kept: _Candidates, depth: int, margin: np.ndarray, queries: int) -> tuple[_Candidates, np.ndarray]:
    """Drop what can no longer reach a query's top; also the score of each query's last place so far."""
    kept = _sorted(kept)
    first = np.searchsorted(kept.query, np.arange(queries + 1))
    last = first[:-1] + depth - 1
    full = last < first[1:]
    cut = np.full(queries, -np.inf)
    cut[full] = kept.score[last[full]]
    keep = kept.score >= (cut - margin)[kept.query]
    return _Candidates(kept.query[keep], kept.row[keep], kept.score[keep]), cut


def _exactly(kept: _Candidates, queries: np.ndarray, vectors: Vectors, depth: int) -> _Candidates:
    """The candidates scored in float64 and cut to each query's exact top."""
    score = np.empty(len(kept.row), np.float64)
    order = np.argsort(kept.query, kind="stable")
    first = np.searchsorted(kept.query[order], np.arange(len(queries) + 1))
    wide = queries.astype(np.float64)
    for query in range(len(queries)):
        for start in range(first[query], first[query + 1], 4096):
            at = order[start : min(first[query + 1], start + 4096)]
            # Elementwise product and sum: equal vectors get equal scores wherever they stand, unlike in BLAS.
            score[at] = (np.asarray(vectors[kept.row[at]], dtype=np.float64) * wide[query]).sum(axis=1)
    exact = _sorted(_Candidates(kept.query, kept.row, score))
    place = np.arange(len(exact.row)) - np.searchsorted(exact.query, exact.query)
    keep = place < depth
    return _Candidates(exact.query[keep], exact.row[keep], exact.score[keep])


def _sorted(kept: _Candidates) -> _Candidates:
    order = np.lexsort((kept.row, -kept.score, kept.query))
    return _Candidates(kept.query[order], kept.row[order], kept.score[order])


def _rankings(kept: _Candidates, queries: int) -> list[Ranking]:
    first = np.searchsorted(kept.query, np.arange(queries + 1))
    return [Ranking(kept.row[a:b], kept.score[a:b]) for a, b in pairwise(first)]

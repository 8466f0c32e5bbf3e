from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.retrieval import topk


def brute_force(queries: np.ndarray, matrix: np.ndarray, depth: int) -> list[list[int]]:
    """Full float64 products, sorted by score descending, then row."""
    wide = matrix.astype(np.float64)
    scores = [(wide * query.astype(np.float64)).sum(axis=1) for query in queries]
    return [sorted(range(len(matrix)), key=lambda row: (-s[row], row))[:depth] for s in scores]


def found(queries: np.ndarray, matrix: np.ndarray, depth: int, **settings: int) -> list[list[int]]:
    return [ranking.rows.tolist() for ranking in topk.search(queries, matrix, depth, **settings)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("depth", [1, 10, 100, 5000])
def test_equals_a_float64_ranking_on_random_vectors(dtype: type, depth: int) -> None:
    random = np.random.default_rng(1)
    matrix = random.standard_normal((3000, 96)).astype(dtype)
    queries = random.standard_normal((7, 96)).astype(np.float32)
    assert found(queries, matrix, depth, block_bytes=96 * 4 * 257) == brute_force(queries, matrix, depth)


@pytest.mark.parametrize("block_rows", [1, 3, 64, 10_000])
def test_equals_a_float64_ranking_where_scores_tie_at_the_cut(block_rows: int) -> None:
    random = np.random.default_rng(2)
    matrix = random.integers(-1, 2, (500, 4)).astype(np.float16)
    queries = random.integers(-1, 2, (5, 4)).astype(np.float32)
    for depth in (1, 7, 50, 499, 500):
        assert found(queries, matrix, depth, block_bytes=block_rows * 5 * 4) == brute_force(queries, matrix, depth)


def test_equal_vectors_tie_and_the_lower_row_wins() -> None:
    random = np.random.default_rng(3)
    one = random.standard_normal((1, 333)).astype(np.float32)
    matrix = np.repeat(one, 5000, axis=0)
    [ranking] = topk.search(random.standard_normal((1, 333)), matrix, 20, block_bytes=333 * 4 * 700)
    assert ranking.rows.tolist() == list(range(20))
    assert len(set(ranking.scores.tolist())) == 1


def test_products_that_float32_cannot_tell_apart_are_ordered_by_float64() -> None:
    random = np.random.default_rng(4)
    base = random.standard_normal(256).astype(np.float32)
    matrix = np.repeat(base[None], 2000, axis=0)
    # The last bit of one component differs: far below what a float32 product of 256 components resolves.
    matrix[:, 0] = np.nextafter(matrix[:, 0], random.choice([-np.inf, np.inf], 2000).astype(np.float32))
    queries = (100 * random.standard_normal((3, 256))).astype(np.float32)
    assert found(queries, matrix, 50, block_bytes=256 * 4 * 128) == brute_force(queries, matrix, 50)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 45), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_equals_a_float64_ranking_whatever_the_sizes(rows: int, dims: int, depth: int, block: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = random.integers(-2, 3, (rows, dims)).astype(np.float32)
    queries = random.integers(-2, 3, (3, dims)).astype(np.float32)
    assert found(queries, matrix, depth, block_bytes=4 * block * dims) == brute_force(queries, matrix, depth)


def test_a_memory_map_gives_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    matrix = random.standard_normal((1000, 32)).astype(np.float16)
    np.save(tmp_path / "m.npy", matrix)
    queries = random.standard_normal((4, 32)).astype(np.float32)
    mapped = np.load(tmp_path / "m.npy", mmap_mode="r")
    assert found(queries, mapped, 20) == found(queries, matrix, 20) == brute_force(queries, matrix, 20)


def test_no_rows_no_queries_no_depth() -> None:
    queries = np.ones((2, 3), np.float32)
    assert [len(r.rows) for r in topk.search(queries, np.ones((0, 3), np.float32), 5)] == [0, 0]
    assert topk.search(queries[:0], np.ones((4, 3), np.float32), 5) == []
    assert [len(r.rows) for r in topk.search(queries, np.ones((4, 3), np.float32), 0)] == [0, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    matrix = np.ones((4, 3), np.float32)
    matrix[2, 1] = bad
    with pytest.raises(EvaluationError, match="passage 2"):
        topk.search(np.ones((1, 3)), matrix, 2)
    with pytest.raises(EvaluationError, match="query"):
        topk.search(matrix[2:3], np.ones((4, 3), np.float32), 2)


def test_dimensions_that_differ_are_refused() -> None:
    with pytest.raises(EvaluationError, match="3 dimensions and queries 4"):
        topk.search(np.ones((1, 4)), np.ones((2, 3), np.float32), 2)


@given(st.lists(st.integers(-2, 3), max_size=30), st.integers(1, 35), st.booleans())
def test_top_rows_of_a_score_vector(scores: list[int], depth: int, positive: bool) -> None:
    expected = sorted((row for row, s in enumerate(scores) if s > 0 or not positive), key=lambda r: (-scores[r], r))
    ranking = topk.top_rows(np.array(scores, np.float32), depth, positive=positive)
    assert ranking.rows.tolist() == expected[:depth]
    assert ranking.scores.tolist() == [scores[row] for row in expected[:depth]]

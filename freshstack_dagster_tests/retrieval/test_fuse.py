from __future__ import annotations

import math
import random

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.retrieval import fuse
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.retrieval import made

Lists = dict[tuple[str, str, str], list[tuple[str, float]]]


def fused(lists: Lists, method: str = "min_max", **settings: int | None) -> list[tuple[str, float]]:
    return list(fuse(made.runs(lists), method, **settings).select("doc_id", "score").iter_rows())  # type: ignore[arg-type]


def test_scores_are_min_max_normalised_and_summed() -> None:
    lists: Lists = {
        ("q", "question", "a"): [("x", 10.0), ("y", 6.0), ("z", 2.0)],
        ("q", "question", "b"): [("y", 0.9), ("w", 0.5), ("x", 0.1)],
    }
    assert fused(lists) == [("y", 1.5), ("x", 1.0), ("w", 0.5), ("z", 0.0)]


def test_a_list_of_one_document_or_of_equal_scores_gives_one_to_each() -> None:
    lists: Lists = {("q", "question", "a"): [("x", -3.0)], ("q", "question", "b"): [("y", 5.0), ("x", 5.0)]}
    assert fused(lists) == [("x", 2.0), ("y", 1.0)]


def test_reciprocal_ranks_are_summed() -> None:
    lists: Lists = {("q", "question", "a"): [("x", 9.0), ("y", 1.0)], ("q", "question", "b"): [("y", 0.3)]}
    assert fused(lists, "rrf") == [("y", pytest.approx(1 / 62 + 1 / 61)), ("x", pytest.approx(1 / 61))]


def test_a_document_twice_in_a_list_keeps_its_best_place() -> None:
    lists: Lists = {("q", "question", "a"): [("x", 3.0), ("x", 2.0), ("y", 1.0)]}
    assert fused(lists) == [("x", 1.0), ("y", 0.0)]
    assert fused(lists, "rrf") == [("x", 1 / 61), ("y", 1 / 62)]


def test_only_the_top_counts_and_ties_at_the_cut_go_by_doc_id() -> None:
    lists: Lists = {("q", "question", "a"): [("d", 5.0), ("c", 4.0), ("b", 4.0), ("a", 1.0)]}
    assert fused(lists, depth=2) == [("d", 1.0), ("b", 0.0)]
    assert [doc for doc, _ in fused(lists, keep=3)] == ["d", "b", "c"]


def test_fusing_twice_changes_nothing_and_rerankers_do_not_count() -> None:
    lists: Lists = {
        ("q", "question", "a"): [("x", 2.0), ("y", 1.0)],
        ("q", "question", "a+rerank"): [("y", 9.0), ("x", 1.0)],
        ("q", "question", "c++"): [("z", 1.0)],
    }
    once = fuse(made.runs(lists))
    assert once["doc_id"].to_list() == ["x", "z", "y"]
    assert fuse(pl.concat([made.runs(lists), once])).equals(once)


def test_questions_and_variants_are_fused_apart() -> None:
    lists: Lists = {
        ("q1", "question", "a"): [("x", 2.0)],
        ("q2", "question", "a"): [("y", 2.0)],
        ("q1", "answer", "a"): [("z", 2.0)],
    }
    rows = fuse(made.runs(lists)).select("variant", "question_id", "doc_id", "rank").rows()
    assert rows == [("answer", "q1", "z", 1), ("question", "q1", "x", 1), ("question", "q2", "y", 1)]


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_refused(score: float) -> None:
    with pytest.raises(EvaluationError, match="question q, variant question, retriever a: document x"):
        fused({("q", "question", "a"): [("x", score)]})


lists_of_documents = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.floats(-1e3, 1e3, allow_subnormal=False)), max_size=12
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["r1", "r2", "r3", "r4"]), lists_of_documents, max_size=4),
    st.sampled_from(["min_max", "rrf"]),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_fusion_does_not_depend_on_the_order_of_rows_or_lists(
    lists: dict[str, list[tuple[str, float]]], method: str, depth: int, shuffle: random.Random
) -> None:
    rows = made.runs({("q", "question", name): documents for name, documents in lists.items()})
    order = list(range(rows.height))
    shuffle.shuffle(order)
    expected = fuse(rows, method, depth)  # type: ignore[arg-type]
    assert fuse(rows[order], method, depth).equals(expected)  # type: ignore[arg-type]
    assert expected.equals(TABLES["runs"].conform(expected))

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.errors import SchemaError
from freshstack_dagster.retrieval import build_pools, fuse
from freshstack_dagster.settings import VARIANTS, Pooling
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.retrieval import made

Lists = dict[tuple[str, str, str], list[tuple[str, float]]]
LISTS: Lists = {
    ("q", "question", "bm25"): [("a", 9.0), ("b", 8.0), ("c", 1.0)],
    ("q", "question", "lsa"): [("b", 0.9), ("d", 0.8), ("a", 0.1)],
    ("q", "answer", "bm25"): [("e", 4.0), ("a", 2.0)],
}


def with_fusion(lists: Lists) -> pl.DataFrame:
    runs = made.runs(lists)
    return pl.concat([runs, fuse(runs)])


def test_a_pool_is_the_fused_top_of_every_variant() -> None:
    pools = build_pools(with_fusion(LISTS), Pooling(depth=2))
    assert pools.select("question_id", "doc_id", "rank").rows() == [("q", "b", 1), ("q", "e", 1), ("q", "a", 2)]
    assert pools["score"].to_list() == [1.875, 1.0, 1.0]
    assert pools.filter(doc_id="a")["found_by"].to_list() == [
        [
            {"variant": "question", "retriever": "bm25", "rank": 1},
            {"variant": "question", "retriever": "fusion", "rank": 2},
            {"variant": "answer", "retriever": "bm25", "rank": 2},
            {"variant": "answer", "retriever": "fusion", "rank": 2},
        ]
    ]
    assert pools.schema == TABLES["pools"].schema


def test_only_the_variants_of_the_setting_are_pooled() -> None:
    pools = build_pools(with_fusion(LISTS), Pooling(depth=1, variants=("answer",)))
    assert pools["doc_id"].to_list() == ["e"]


def test_the_stored_fusion_is_not_needed() -> None:
    assert build_pools(made.runs(LISTS), Pooling(depth=2)).equals(build_pools(with_fusion(LISTS), Pooling(depth=2)))


def test_the_first_of_every_list_enters_even_below_the_fused_top() -> None:
    agreed = [(name, 10.0 - place) for place, name in enumerate("abcd")]
    lists: Lists = {("q", "question", name): [*agreed, ("y", 0.0)] for name in ("r1", "r2")}
    lists["q", "question", "r3"] = [("z", 50.0), *agreed[:2], ("w", -9.0)]
    pools = build_pools(made.runs(lists), Pooling(depth=2))
    assert set(pools["doc_id"]) == {"a", "b", "z"}
    assert pools.filter(doc_id="z")["found_by"].to_list() == [[{"variant": "question", "retriever": "r3", "rank": 1}]]


def test_a_submitted_run_tops_the_pool_up() -> None:
    before = build_pools(with_fusion(LISTS), Pooling(depth=2))
    submitted = pl.DataFrame(
        {"question_id": ["q"] * 3, "system": ["mine"] * 3, "doc_id": ["n", "b", "m"], "score": [3.0, 2.0, 1.0]}
    )
    after = build_pools(with_fusion(LISTS), Pooling(depth=2), submitted)
    assert set(after["doc_id"]) - set(before["doc_id"]) == {"n"}
    assert after.filter(doc_id="n").select("rank", "score").row(0) == (1, 1.0)
    assert {"variant": "question", "retriever": "mine", "rank": 2} in after.filter(doc_id="b")["found_by"][0]
    kept = after.filter(pl.col("doc_id") != "n").select("question_id", "doc_id", "rank", "score")
    assert kept.equals(before.select("question_id", "doc_id", "rank", "score"))


def test_a_submitted_run_without_its_columns_is_refused() -> None:
    with pytest.raises(SchemaError, match="score"):
        build_pools(made.runs(LISTS), Pooling(), pl.DataFrame({"question_id": ["q"], "doc_id": ["a"], "system": ["m"]}))


def test_a_submitted_run_with_a_retrievers_name_is_refused() -> None:
    submitted = pl.DataFrame({"question_id": ["q"], "system": ["bm25"], "doc_id": ["n"], "score": [3.0]})
    with pytest.raises(SchemaError, match="called bm25"):
        build_pools(with_fusion(LISTS), Pooling(), submitted)


def test_nothing_found_is_an_empty_pool() -> None:
    assert build_pools(TABLES["runs"].empty(), Pooling()).equals(TABLES["pools"].empty())


documents = st.lists(
    st.tuples(st.sampled_from("abcdefghij"), st.floats(0, 100)), min_size=1, max_size=10, unique_by=lambda d: d[0]
)
many_lists = st.dictionaries(
    st.tuples(st.sampled_from(["q1", "q2"]), st.sampled_from(VARIANTS), st.sampled_from(["r1", "r2", "r3"])),
    documents.map(lambda found: sorted(found, key=lambda d: (-d[1], d[0]))),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(many_lists, st.integers(1, 4), st.sampled_from(["min_max", "rrf"]))
def test_a_pool_contains_every_lists_first_and_every_fused_top(lists: Lists, depth: int, fusion: str) -> None:
    runs = made.runs(lists)
    pooling = Pooling(depth=depth, fusion=fusion)  # type: ignore[arg-type]
    pools = build_pools(runs, pooling)
    pooled = set(pools.select("question_id", "doc_id").rows())
    assert {(key[0], found[0][0]) for key, found in lists.items()} <= pooled
    tops = fuse(runs, fusion).filter(pl.col("rank") <= depth)  # type: ignore[arg-type]
    assert set(tops.select("question_id", "doc_id").rows()) <= pooled
    assert pools["found_by"].list.len().min() >= 1  # type: ignore[operator]
    assert build_pools(runs.reverse(), pooling).equals(pools)

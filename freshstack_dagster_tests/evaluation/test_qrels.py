"""Judgments to qrels: the two filters, and errors that stay unjudged."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.evaluation import build_qrels
from freshstack_dagster.tables import TABLES


def judgments_of(rows: list[tuple[str, str, str]], judge: str = "openai/gpt", kind: str = "llm") -> pl.DataFrame:
    """Verdicts (nugget, document, verdict); a nugget is `{question}_{number}`."""
    frame = pl.DataFrame(rows, schema=["nugget_id", "doc_id", "verdict"], orient="row")
    frame = frame.with_columns(pl.all().cast(pl.String())).with_columns(
        question_id=pl.col("nugget_id").str.extract("^(.+)_"), judge=pl.lit(judge), judge_kind=pl.lit(kind)
    )
    table = TABLES["judgments"]
    fill = {
        name: pl.lit(None if column.nullable else "-", dtype=column.dtype)
        for name, column in table.columns.items()
        if name not in frame.columns
    }
    return table.conform(frame.with_columns(**fill))


def nuggets_of(*ids: str) -> pl.DataFrame:
    return pl.DataFrame({"nugget_id": ids}, schema={"nugget_id": pl.String()}).with_columns(
        question_id=pl.col("nugget_id").str.extract("^(.+)_")
    )


def questions_of(*ids: str) -> pl.DataFrame:
    return pl.DataFrame({"question_id": ids}, schema={"question_id": pl.String()})


YES, NO, ERROR = "supported", "unsupported", "error"


def test_a_question_for_which_nothing_was_retrieved_has_no_support() -> None:
    judgments = judgments_of([("kept_0", "a", YES)])
    nuggets = nuggets_of("kept_0", "lost_0", "open_0")
    asked = questions_of("kept", "lost", "open", "bare")
    _, outcomes = build_qrels(judgments, nuggets, asked, unretrieved=["lost", "bare"])
    assert dict(outcomes.select("question_id", "outcome").iter_rows()) == {
        "kept": "kept",
        "lost": "no_support",
        "open": "not_judged",
        "bare": "not_judged",
    }


def test_both_filters_of_section_4() -> None:
    judgments = judgments_of(
        [
            *[("kept_0", "a", YES), ("kept_0", "b", NO), ("kept_1", "a", NO), ("kept_1", "b", YES)],
            *[("part_0", "a", YES), ("part_1", "a", NO)],
            *[("none_0", "a", NO), ("none_1", "a", NO)],
        ]
    )
    nuggets = nuggets_of("kept_0", "kept_1", "part_0", "part_1", "none_0", "none_1", "open_0")
    qrels, outcomes = build_qrels(judgments, nuggets, questions_of("kept", "part", "none", "open", "bare"))
    assert qrels.rows() == [
        ("kept", "kept_0", "a", 1, "llm"),
        ("kept", "kept_0", "b", 0, "llm"),
        ("kept", "kept_1", "a", 0, "llm"),
        ("kept", "kept_1", "b", 1, "llm"),
    ]
    assert outcomes.rows() == [
        ("bare", 0, 0, 0, "not_judged"),
        ("kept", 2, 2, 2, "kept"),
        ("none", 2, 0, 0, "no_support"),
        ("open", 1, 0, 0, "not_judged"),
        ("part", 2, 1, 1, "partial_support"),
    ]


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        ([("q_0", "a", YES), ("q_1", "a", ERROR)], "not_judged"),
        ([("q_0", "a", YES), ("q_1", "a", ERROR), ("q_1", "b", NO)], "not_judged"),
        ([("q_0", "a", YES), ("q_1", "a", ERROR), ("q_1", "b", YES)], "kept"),
        ([("q_0", "a", NO), ("q_1", "a", ERROR)], "not_judged"),
        ([("q_0", "a", ERROR), ("q_1", "a", ERROR)], "not_judged"),
        ([("q_0", "a", YES)], "not_judged"),
    ],
)
def test_an_error_decides_no_question(verdicts: list[tuple[str, str, str]], outcome: str) -> None:
    qrels, outcomes = build_qrels(judgments_of(verdicts), nuggets_of("q_0", "q_1"), questions_of("q"))
    assert outcomes["outcome"].to_list() == [outcome]
    errors = {(nugget, document) for nugget, document, verdict in verdicts if verdict == ERROR}
    assert not errors & set(qrels.select("nugget_id", "doc_id").rows())


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["1_0", "1_1", "12_0", "so_12_0"]), st.sampled_from(["a", "b", "c"])),
        st.sampled_from([YES, NO, ERROR]),
    )
)
def test_qrels_say_what_judges_said_and_nothing_else(verdicts: dict[tuple[str, str], str]) -> None:
    judgments = judgments_of([(*pair, verdict) for pair, verdict in verdicts.items()])
    nuggets = nuggets_of("1_0", "1_1", "12_0", "so_12_0")
    qrels, outcomes = build_qrels(judgments, nuggets, questions_of("1", "12", "so_12"), doc_ids=["a", "b", "c"])
    assert outcomes.height == 3
    kept = set(outcomes.filter(pl.col("outcome") == "kept")["question_id"])
    assert set(qrels["question_id"]) == kept
    for question, nugget, document, relevance, _ in qrels.rows():
        assert nugget.rpartition("_")[0] == question
        assert verdicts[nugget, document] == (YES if relevance else NO)
    for (nugget, document), verdict in verdicts.items():
        found = qrels.filter((pl.col("nugget_id") == nugget) & (pl.col("doc_id") == document)).height
        assert found == (verdict != ERROR and nugget.rpartition("_")[0] in kept)


def test_questions_after_the_snapshot_are_left_out() -> None:
    judgments = judgments_of([("1_0", "a", YES), ("2_0", "a", YES)])
    qrels, outcomes = build_qrels(judgments, nuggets_of("1_0", "2_0"), questions_of("1"))
    assert qrels["question_id"].to_list() == outcomes["question_id"].to_list() == ["1"]


def test_several_judges_need_a_word_which_counts() -> None:
    judgments = pl.concat(
        [
            judgments_of([("1_0", "a", YES), ("1_0", "b", NO), ("1_0", "c", YES)], "x/one"),
            judgments_of([("1_0", "a", NO), ("1_0", "b", ERROR), ("1_0", "c", YES)], "y/two"),
            judgments_of([("1_0", "a", NO), ("1_0", "b", YES), ("1_0", "c", ERROR)], "person", "human"),
        ]
    )
    nuggets, questions = nuggets_of("1_0"), questions_of("1")
    with pytest.raises(EvaluationError, match=r"judgments come from person, x/one, y/two; name the judge"):
        build_qrels(judgments, nuggets, questions)
    one, _ = build_qrels(judgments, nuggets, questions, judge="x/one")
    assert one.select("doc_id", "relevance", "judge_kind").rows() == [("a", 1, "llm"), ("b", 0, "llm"), ("c", 1, "llm")]
    most, _ = build_qrels(judgments, nuggets, questions, judge="majority")
    # b is split between yes and no: unjudged.
    assert most.select("doc_id", "relevance", "judge_kind").rows() == [("a", 0, "human+llm"), ("c", 1, "human+llm")]
    with pytest.raises(EvaluationError, match="judge 'z/three' judged nothing here"):
        build_qrels(judgments, nuggets, questions, judge="z/three")


def test_ids_that_do_not_exist_are_named() -> None:
    judgments = judgments_of([("1_0", "gone_0_9", YES)])
    with pytest.raises(EvaluationError, match="1 doc_ids that chunks lack: gone_0_9"):
        build_qrels(judgments, nuggets_of("1_0"), questions_of("1"), doc_ids=["a"])
    with pytest.raises(EvaluationError, match="1 nuggets that the table nuggets lacks, such as 1_0"):
        build_qrels(judgments, nuggets_of("1_1"), questions_of("1"))


def test_nothing_judged_is_no_error() -> None:
    qrels, outcomes = build_qrels(TABLES["judgments"].empty(), nuggets_of("1_0"), questions_of("1"))
    assert qrels.height == 0
    assert outcomes.rows() == [("1", 1, 0, 0, "not_judged")]

"""Generated and closed-book answers, scored by the nuggets they state."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.evaluation.answers import answer_documents, answer_results
from freshstack_dagster.evaluation.contamination import closed_book_documents, contamination
from freshstack_dagster_tests.evaluation.test_qrels import ERROR, NO, YES, judgments_of, nuggets_of

NUGGETS = nuggets_of("1_0", "1_1", "2_0")


def answers_of(*rows: tuple[str, str, str | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["system", "question_id", "text"], orient="row")


def test_answers_become_documents_for_the_judge() -> None:
    chunks, pools = answer_documents(answers_of(("a", "1", "x"), ("b", "1", "x"), ("a", "2", "  ")))
    assert chunks["doc_id"].to_list() == ["a/1", "b/1"]
    assert chunks["content_hash"].n_unique() == 1
    assert pools.rows() == [("1", "a/1"), ("1", "b/1")]


def test_nugget_recall_by_system() -> None:
    answers = answers_of(("a", "1", "x"), ("a", "2", "y"), ("b", "1", "z"), ("b", "2", ""))
    judgments = judgments_of(
        [("1_0", "a/1", YES), ("1_1", "a/1", NO), ("2_0", "a/2", YES), ("1_0", "b/1", ERROR), ("1_1", "b/1", YES)]
    )
    results = answer_results(answers, judgments, NUGGETS)
    assert results.select("system", "question_id", "nuggets", "stated", "unjudged", "value", "upper").rows() == [
        ("a", "1", 2, 1, 0, 0.5, 0.5),
        ("a", "2", 1, 1, 0, 1.0, 1.0),
        ("a", "all", 3, 2, 0, 0.75, 0.75),
        # An error is unjudged: it opens the interval. An empty answer states nothing.
        ("b", "1", 2, 1, 1, 0.5, 1.0),
        ("b", "2", 1, 0, 0, 0.0, 0.0),
        ("b", "all", 3, 1, 1, 0.25, 0.5),
    ]
    assert results["lower"].equals(results["value"].alias("lower"))


def test_a_question_without_an_answer_is_named() -> None:
    answers, judgments = answers_of(("a", "1", "x")), judgments_of([("1_0", "a/1", YES), ("1_1", "a/1", YES)])
    with pytest.raises(EvaluationError, match="system a has no answer to 1 questions, such as 2"):
        answer_results(answers, judgments, NUGGETS)
    results = answer_results(answers, judgments, NUGGETS, missing="zero")
    assert results["value"].to_list() == [1.0, 0.0, 0.5]
    with pytest.raises(EvaluationError, match="system a answers question 1 twice"):
        answer_documents(pl.concat([answers, answers]))


def test_contamination_by_month() -> None:
    variants = pl.DataFrame(
        [
            ("1", "closed_book_answer", "x", "openai/gpt"),
            ("2", "closed_book_answer", "y", "openai/gpt"),
            ("3", "closed_book_answer", "z", "heuristic"),
            ("1", "question", "q", "source"),
        ],
        schema=["question_id", "variant", "text", "model"],
        orient="row",
    )
    questions = pl.DataFrame(
        {"question_id": ["1", "2", "3"], "asked_at": [datetime(2023, 5, 2, tzinfo=UTC), None, None]},
        schema={"question_id": pl.String(), "asked_at": pl.Datetime("us", "UTC")},
    )
    chunks, _ = closed_book_documents(variants)
    assert chunks["doc_id"].to_list() == ["closed_book_answer/1", "closed_book_answer/2"]
    judgments = judgments_of(
        [
            ("1_0", "closed_book_answer/1", YES),
            ("1_1", "closed_book_answer/1", NO),
            ("2_0", "closed_book_answer/2", ERROR),
        ]
    )
    nuggets = nuggets_of("1_0", "1_1", "2_0", "3_0")
    results = contamination(variants, judgments, nuggets, questions)
    assert results.select("asked", "questions", "skipped", "nuggets", "stated", "unjudged", "share").rows() == [
        ("2023-05", 1, 0, 2, 1, 0, 0.5),
        ("undated", 1, 1, 1, 0, 1, None),
        ("all", 2, 1, 3, 1, 1, 0.5),
    ]
    assert results["share_low"][0] == pytest.approx(0.0945, abs=1e-3)
    assert results["share_high"][0] == pytest.approx(0.9055, abs=1e-3)
    skipped = contamination(variants.filter(pl.col("model") == "heuristic"), judgments, nuggets, questions)
    assert skipped.select("asked", "questions", "skipped", "share", "judge_kind").rows()[-1] == (
        "all", 0, 3, None, "none"
    )  # fmt: skip

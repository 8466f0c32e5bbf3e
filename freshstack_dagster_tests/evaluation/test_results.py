"""Systems and query variants scored on a collection."""

from __future__ import annotations

import polars as pl
import pytest

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.evaluation import evaluate, pooling_results, retrieval_results
from freshstack_dagster.evaluation.results import incomplete_variants
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.evaluation.test_qrels import NO, YES, judgments_of

QRELS = pl.DataFrame(
    [
        ("1", "1_0", "a", 1, "llm"),
        ("1", "1_1", "b", 1, "llm"),
        ("2", "2_0", "a", 1, "llm"),
        ("2", "2_0", "b", 0, "llm"),
    ],
    schema=TABLES["qrels"].schema,
    orient="row",
)
JUDGMENTS = judgments_of([("1_0", "a", YES), ("1_1", "b", YES), ("2_0", "a", YES), ("2_0", "b", NO), ("2_0", "c", NO)])
RUNS = pl.DataFrame(
    [
        *[("1", "question", "bm25", "a", 1, 2.0), ("1", "question", "bm25", "c", 2, 1.0)],
        *[("2", "question", "bm25", "b", 1, 2.0), ("2", "question", "bm25", "c", 2, 1.0)],
        *[("1", "question", "fusion", "b", 1, 2.0)],
        *[("1", "answer", "bm25", "a", 1, 2.0), ("2", "answer", "bm25", "a", 1, 2.0)],
        *[("1", "sub_questions", "bm25", "a", 1, 2.0)],
        *[("9", "question", "bm25", "a", 1, 2.0)],
    ],
    schema=TABLES["runs"].schema,
    orient="row",
)
VARIANTS = pl.DataFrame(
    [("1", "question"), ("2", "question"), ("1", "answer"), ("2", "answer"), ("1", "sub_questions")],
    schema=["question_id", "variant"],
    orient="row",
)


def test_retrieval_results_hold_questions_and_means() -> None:
    results = retrieval_results(RUNS, QRELS, JUDGMENTS)
    assert results["system"].unique().sort().to_list() == ["bm25", "fusion"]
    assert results["question_id"].unique().sort().to_list() == ["1", "2", "all"]
    assert results["judge_kind"].unique().to_list() == ["llm"]
    coverage = (
        results.filter(pl.col("measure") == "coverage@20").select("system", "question_id", "value", "holes").rows()
    )
    # Question 1 has a hole (c); question 2 has none, since c was judged there though the qrels do not list it. Fusion
    # found nothing for question 2: that is 0, not a shorter mean.
    assert coverage == [
        ("bm25", "1", 0.5, 0.5),
        ("bm25", "2", 0.0, 0.0),
        ("bm25", "all", 0.25, 0.25),
        ("fusion", "1", 0.5, 0.0),
        ("fusion", "2", 0.0, None),
        ("fusion", "all", 0.25, 0.0),
    ]


def test_submitted_runs_stand_beside_the_retrievers() -> None:
    run = pl.DataFrame({"question_id": ["1", "2"], "doc_id": ["a", "a"], "score": [1.0, 1.0]})
    results = retrieval_results(RUNS, QRELS, JUDGMENTS, {"mine": run})
    mine = results.filter((pl.col("system") == "mine") & (pl.col("question_id") != "all"))
    ours = evaluate(QRELS, run).sort("measure", "question_id")
    assert mine.sort("measure", "question_id")["value"].equals(ours["value"])
    with pytest.raises(EvaluationError, match="submitted run mine: the run lacks 1 of 2 questions"):
        retrieval_results(RUNS, QRELS, JUDGMENTS, {"mine": run.head(1)})
    zero = retrieval_results(RUNS, QRELS, JUDGMENTS, {"mine": run.head(1)}, missing="zero")
    mean = zero.filter((pl.col("system") == "mine") & (pl.col("question_id") == "all"))
    assert mean.filter(pl.col("measure") == "success@10")["value"].to_list() == [0.5]
    with pytest.raises(EvaluationError, match="submitted run bm25 bears the name of a retriever"):
        retrieval_results(RUNS, QRELS, JUDGMENTS, {"bm25": run})


def test_pooling_results_never_average_over_fewer_questions() -> None:
    results = pooling_results(RUNS, QRELS, JUDGMENTS, VARIANTS)
    assert results.filter(pl.col("variant") == "answer")["setting"].unique().to_list() == ["oracle"]
    assert results.filter(pl.col("variant") == "sub_questions")["setting"].unique().to_list() == ["inference"]
    answers = results.filter((pl.col("variant") == "answer") & (pl.col("measure") == "success@10"))
    assert answers.select("question_id", "value").rows() == [("1", 1), ("2", 1), ("all", 1)]
    # No sub-questions were written for question 2: it is not scored as if nothing had been found.
    assert results.filter(pl.col("variant") == "sub_questions")["question_id"].unique().to_list() == ["1"]
    assert incomplete_variants(VARIANTS, QRELS) == {"sub_questions": ["2"]}


def test_runs_of_another_day_are_refused() -> None:
    with pytest.raises(EvaluationError, match="no run ranks anything for 1 questions of the qrels, such as 2"):
        retrieval_results(RUNS.filter(pl.col("question_id") != "2"), QRELS, JUDGMENTS)


def test_without_a_kept_question_there_are_no_results() -> None:
    nothing = TABLES["qrels"].empty()
    assert retrieval_results(RUNS, nothing, JUDGMENTS).height == 0
    assert pooling_results(RUNS, nothing, JUDGMENTS, VARIANTS).height == 0

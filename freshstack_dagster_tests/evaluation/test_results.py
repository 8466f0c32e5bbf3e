"""Systems and query variants scored on a collection."""

from __future__ import annotations

import polars as pl
import pytest

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.evaluation import build_qrels, evaluate, pooling_results, retrieval_results
from freshstack_dagster.evaluation.results import incomplete_variants
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.evaluation.test_qrels import ERROR, NO, YES, judgments_of, nuggets_of

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


def test_a_question_that_only_a_submitted_run_found_is_scored() -> None:
    """Its pool was topped up: the retrievers have nothing for it, which is 0 and no fault of the runs."""
    run = pl.DataFrame({"question_id": ["1", "2"], "doc_id": ["a", "a"], "score": [1.0, 1.0]})
    runs = RUNS.filter(pl.col("question_id") != "2")
    results = retrieval_results(runs, QRELS, JUDGMENTS, {"mine": run})
    success = results.filter((pl.col("measure") == "success@10") & (pl.col("question_id") == "2"))
    assert dict(success.select("system", "value").iter_rows()) == {"bm25": 0.0, "fusion": 0.0, "mine": 1.0}
    assert pooling_results(runs, QRELS, JUDGMENTS, VARIANTS).height


def test_a_verdict_that_is_missing_stands_in_the_bounds() -> None:
    """Of two nuggets of question 1 the judge failed on one, for the chunks a and c."""
    judgments = judgments_of(
        [
            ("1_0", "a", YES),
            ("1_1", "a", ERROR),
            ("1_0", "b", NO),
            ("1_1", "b", YES),
            ("1_0", "c", NO),
            ("1_1", "c", ERROR),
        ]
    )
    qrels, _ = build_qrels(judgments, nuggets_of("1_0", "1_1"), pl.DataFrame({"question_id": ["1"]}))

    def scored(*ranking: str) -> dict[str, tuple[float, float, float]]:
        rows = [("1", "question", "bm25", doc, place, -place) for place, doc in enumerate(ranking, 1)]
        runs = pl.DataFrame(rows, schema=TABLES["runs"].schema, orient="row", strict=False)
        results = retrieval_results(runs, qrels, judgments).filter(question_id="1")
        return {row[0]: row[1:] for row in results.select("measure", "value", "upper", "holes").iter_rows()}

    one = scored("a")
    assert one["coverage@20"] == (0.5, 1.0, 0.0)
    assert one["recall@50"][:2] == (0.5, 0.5)
    # Of c nobody knows whether it supports anything.
    other = scored("c")
    assert other["coverage@20"] == (0.0, 1.0, 1.0)
    assert other["success@10"][:2] == (0.0, 1.0)
    assert other["judged@10"][0] == 0.0
    full = build_qrels(
        judgments.with_columns(verdict=pl.col("verdict").replace(ERROR, YES)),
        nuggets_of("1_0", "1_1"),
        pl.DataFrame({"question_id": ["1"]}),
    )[0]
    for ranking in (["a", "c", "b"], ["c", "a"], ["b", "a", "c"]):
        run = pl.DataFrame({"question_id": "1", "doc_id": ranking, "score": [-float(n) for n in range(len(ranking))]})
        best = dict(evaluate(full, run).select("measure", "value").iter_rows())
        for measure, (value, upper, _) in scored(*ranking).items():
            if not measure.startswith(("judged", "recall")):
                assert value - 1e-9 <= upper
                assert best[measure] <= upper + 1e-9, (measure, ranking)


def test_without_a_kept_question_there_are_no_results() -> None:
    nothing = TABLES["qrels"].empty()
    assert retrieval_results(RUNS, nothing, JUDGMENTS).height == 0
    assert pooling_results(RUNS, nothing, JUDGMENTS, VARIANTS).height == 0

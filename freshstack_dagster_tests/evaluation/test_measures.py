"""Measures against the field's programs, against their definitions, and their bounds against every completion."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.evaluation import DEFAULT, evaluate
from freshstack_dagster.evaluation.measures import Qrels, parse_measure, score_runs

QRELS = {"question_id": pl.String(), "nugget_id": pl.String(), "doc_id": pl.String(), "relevance": pl.Int64()}
RUN = {"question_id": pl.String(), "doc_id": pl.String(), "score": pl.Float64()}


def qrels_of(rows: list[tuple[str, str, str, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=QRELS, orient="row")


def run_of(rows: list[tuple[str, str, float]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=RUN, orient="row")


def value(results: pl.DataFrame, measure: str, column: str = "value", question: str | None = None) -> float:
    rows = results.filter(pl.col("measure") == measure)
    if question is not None:
        rows = rows.filter(pl.col("question_id") == question)
    assert rows.height == 1
    return rows[column][0]


def random_collection(
    seed: int, questions: int, depth: int, documents: int, *, binary: bool = True, tied: bool = True
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Qrels and a run over few documents, with many ties, unjudged documents and nuggets without support."""
    rng = np.random.default_rng(seed)
    judged: list[tuple[str, str, str, int]] = []
    ranked: list[tuple[str, str, float]] = []
    for question in range(questions):
        name = f"q{question}"
        pool = [f"d{number}" for number in rng.permutation(documents)]
        for nugget in range(rng.integers(1, 5)):
            for document in pool[: rng.integers(1, documents)]:
                relevance = int(rng.random() < 0.3) if binary else int(rng.integers(0, 4))
                judged.append((name, f"{name}_{nugget}", document, relevance))
        if not any(row[0] == name and row[3] for row in judged[-200:]):
            judged.append((name, f"{name}_9", "d0", 1))
        found = rng.permutation(documents)[: rng.integers(1, depth + 1)]
        scores = rng.integers(0, 4, found.size) / 2 if tied else rng.permutation(found.size)
        ranked += [(name, f"d{number}", float(score)) for number, score in zip(found, scores, strict=True)]
    return qrels_of(judged), run_of(ranked)


def untied(run: pl.DataFrame) -> pl.DataFrame:
    """The same order without ties, for programs that break them otherwise."""
    ordered = run.sort("question_id", "score", "doc_id", descending=[False, True, False])
    return ordered.with_columns(score=-pl.int_range(pl.len()).over("question_id").cast(pl.Float64()))


# The field's programs


@pytest.mark.parametrize(("topics", "alpha", "strec"), [("201-250", 0.869079, 0.961), ("251-300", 0.839973, 0.973381)])
def test_equals_ndeval_on_trec_web(shared: Path, topics: str, alpha: float, strec: float) -> None:
    folder = shared / "data" / "ndeval"
    columns = {f"alpha_ndcg@{k}": f"alpha-nDCG@{k}" for k in (5, 10, 20)}
    columns |= {f"coverage@{k}": f"strec@{k}" for k in (5, 10, 20)}
    results = evaluate(folder / f"qrels.web.{topics}.ndeval.txt.gz", folder / f"pseudo.{topics}.run", list(columns))
    printed = pl.read_csv(folder / f"ndeval.{topics}.csv").filter(pl.col("topic") != "amean")
    for measure, column in columns.items():
        ours = results.filter(pl.col("measure") == measure)
        both = ours.join(printed.select(pl.col("topic").alias("question_id"), column), on="question_id")
        assert both.height == 50
        assert (both["value"] - both[column]).abs().max() < 1e-6
    means = dict(results.group_by("measure").agg(pl.col("value").mean()).rows())
    assert means["alpha_ndcg@10"] == pytest.approx(alpha, abs=5e-7)
    assert means["coverage@20"] == pytest.approx(strec, abs=5e-7)


def test_equals_pyndeval_on_3000_random_cases_with_ties() -> None:
    pyndeval = pytest.importorskip("pyndeval")
    depths, batch = (5, 10, 20), 50
    names = {f"alpha_ndcg@{k}": f"alpha-nDCG@{k}" for k in depths} | {f"coverage@{k}": f"strec@{k}" for k in depths}
    worst = 0.0
    for seed in range(3000 // batch):
        qrels, run = random_collection(seed, batch, depth=30, documents=40)
        judged = [pyndeval.SubtopicQrel(*row) for row in qrels.rows()]
        ranked = [pyndeval.ScoredDoc(*row) for row in run.rows()]
        theirs = pyndeval.RelevanceEvaluator(judged, measures=list(names.values())).evaluate(ranked)
        for question, measure, ours in (
            evaluate(qrels, run, list(names)).select("question_id", "measure", "value").rows()
        ):
            worst = max(worst, abs(ours - theirs[question][names[measure]]))
    assert worst < 1e-9


@pytest.mark.parametrize("binary", [True, False])
def test_equals_trec_eval_on_random_cases(binary: bool) -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval")
    theirs_of = {
        "recall@5": "recall_5",
        "recall@50": "recall_50",
        "precision@10": "P_10",
        "success@5": "success_5",
        "success@10": "success_10",
        "ndcg@5": "ndcg_cut_5",
        "ndcg@20": "ndcg_cut_20",
        "mrr@1000": "recip_rank",
    }
    for seed in range(10):
        qrels, run = random_collection(seed, 60, depth=60, documents=70, binary=binary)
        flat = qrels.group_by("question_id", "doc_id").agg(pl.col("relevance").sum())
        judged = {
            name: dict(rows.select("doc_id", "relevance").rows()) for (name,), rows in flat.group_by(["question_id"])
        }
        ranked = {
            name: dict(rows.select("doc_id", "score").rows()) for (name,), rows in untied(run).group_by(["question_id"])
        }
        evaluator = pytrec_eval.RelevanceEvaluator(
            judged, {"recall.5,50", "P.10", "success.5,10", "ndcg_cut.5,20", "recip_rank"}
        )
        theirs = evaluator.evaluate(ranked)
        for question, measure, ours in (
            evaluate(qrels, run, list(theirs_of)).select("question_id", "measure", "value").rows()
        ):
            assert ours == pytest.approx(theirs[question][theirs_of[measure]], abs=1e-9), (question, measure)


def test_equals_ir_measures_on_judged_and_reciprocal_rank() -> None:
    ir_measures = pytest.importorskip("ir_measures")
    theirs_of = {
        "judged@10": ir_measures.Judged @ 10,
        "mrr@10": ir_measures.RR @ 10,
        "mrr@3": ir_measures.RR @ 3,
        "ndcg@10": ir_measures.nDCG @ 10,
    }
    qrels, run = random_collection(3, 80, depth=30, documents=60)
    flat = qrels.group_by("question_id", "doc_id").agg(pl.col("relevance").sum())
    judged = [ir_measures.Qrel(*row) for row in flat.rows()]
    ranked = [ir_measures.ScoredDoc(*row) for row in untied(run).rows()]
    theirs = {
        (row.query_id, row.measure): row.value for row in ir_measures.iter_calc(theirs_of.values(), judged, ranked)
    }
    for question, measure, ours in (
        evaluate(qrels, run, list(theirs_of)).select("question_id", "measure", "value").rows()
    ):
        assert ours == pytest.approx(theirs[question, theirs_of[measure]], abs=1e-9), (question, measure)


# Definitions


def plain_alpha_ndcg(qrels: pl.DataFrame, run: pl.DataFrame, depth: int) -> float:
    """Alpha-nDCG of one question straight from its definition."""
    supports: dict[str, set[str]] = {}
    for _, nugget, document, relevance in qrels.rows():
        if relevance > 0:
            supports.setdefault(document, set()).add(nugget)

    def gain(ranking: list[str]) -> float:
        seen: dict[str, int] = {}
        total = 0.0
        for rank, document in enumerate(ranking[:depth], start=1):
            for nugget in supports.get(document, ()):
                total += 0.5 ** seen.get(nugget, 0) / math.log2(rank + 1)
                seen[nugget] = seen.get(nugget, 0) + 1
        return total

    ideal: list[str] = []
    seen: dict[str, int] = {}
    left = sorted(supports, reverse=True)
    while left and len(ideal) < depth:
        best = max(left, key=lambda document: sum(0.5 ** seen.get(nugget, 0) for nugget in supports[document]))
        left.remove(best)
        ideal.append(best)
        for nugget in supports[best]:
            seen[nugget] = seen.get(nugget, 0) + 1
    ranking = [row[1] for row in sorted(run.rows(), key=lambda row: (-row[2], row[1]))]
    return gain(ranking) / gain(ideal) if ideal else 0.0


def test_alpha_ndcg_is_right_beyond_depth_20() -> None:
    for seed in range(40):
        qrels, run = random_collection(seed, 1, depth=150, documents=160)
        for depth in (21, 50, 100, 1000):
            ours = value(evaluate(qrels, run, [f"alpha_ndcg@{depth}"]), f"alpha_ndcg@{depth}")
            assert ours == pytest.approx(plain_alpha_ndcg(qrels, run, depth), abs=1e-9)


def test_a_worked_example() -> None:
    qrels = qrels_of([("q", "q_0", "a", 1), ("q", "q_1", "a", 1), ("q", "q_0", "b", 1), ("q", "q_2", "c", 1)])
    results = evaluate(qrels, run_of([("q", "b", 3.0), ("q", "x", 2.0), ("q", "a", 1.0)]), ["alpha_ndcg@10", *DEFAULT])
    gain = 1 + (0.5 + 1) / math.log2(4)
    ideal = 2 + 1 / math.log2(3) + 0.5 / math.log2(4)
    assert value(results, "alpha_ndcg@10") == pytest.approx(gain / ideal)
    assert value(results, "coverage@20") == pytest.approx(2 / 3)
    assert value(results, "recall@50") == pytest.approx(2 / 3)
    assert value(results, "recall@50", "upper") == pytest.approx(3 / 4)
    assert value(results, "mrr@10") == 1
    assert value(results, "judged@10") == value(results, "judged@10", "upper") == pytest.approx(2 / 3)
    assert value(results, "coverage@20", "holes") == pytest.approx(1 / 3)


def test_ties_are_broken_by_doc_id_whatever_the_order_of_rows() -> None:
    # Public bug reports: insertion order or descending ids decided a tie.
    qrels = qrels_of([("q", "q_0", "b", 1)])
    rows = [("q", "a", 1.0), ("q", "b", 1.0)]
    for run in (run_of(rows), run_of(rows[::-1])):
        results = evaluate(qrels, run, ["mrr@10", "success@1", "ndcg@10", "alpha_ndcg@10", "recall@1"])
        assert value(results, "mrr@10") == 0.5
        assert value(results, "success@1") == value(results, "recall@1") == 0
        assert value(results, "ndcg@10") == value(results, "alpha_ndcg@10") == pytest.approx(1 / math.log2(3))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_order_of_rows_changes_nothing(seed: int) -> None:
    qrels, run = random_collection(seed, 4, depth=20, documents=25)
    measures = ["alpha_ndcg@3", "ndcg@3", "recall@3", "mrr@3", "coverage@3", "judged@3"]
    shuffled = evaluate(
        qrels.sample(fraction=1, shuffle=True, seed=seed), run.sample(fraction=1, shuffle=True, seed=1), measures
    )
    assert shuffled.equals(evaluate(qrels, run, measures))


def test_depth_cut_agrees_with_a_full_sort() -> None:
    # Long rankings are cut before they are sorted; ties at the cut must all survive it.
    qrels, run = random_collection(5, 20, depth=400, documents=500)
    for order in (run, run.sort("question_id", "score", descending=[False, True])):
        for depth in (1, 2, 7):
            short = evaluate(qrels, order, [f"ndcg@{depth}", f"judged@{depth}"])
            full = evaluate(qrels, order, [f"ndcg@{depth}", f"judged@{depth}", "recall@1000"])
            assert short.equals(full.filter(pl.col("measure") != "recall@1000"))


def test_systems_together_equal_systems_alone() -> None:
    qrels, _ = random_collection(1, 12, depth=10, documents=20)
    runs = {name: random_collection(seed, 12, depth=20, documents=20)[1] for seed, name in enumerate("abc")}
    together = score_runs(
        Qrels(qrels), pl.concat(run.with_columns(system=pl.lit(name)) for name, run in runs.items()), by=["system"]
    )
    for name, run in runs.items():
        assert together.filter(pl.col("system") == name).drop("system").equals(evaluate(qrels, run))


def test_changed_qrels_are_read_anew() -> None:
    qrels = qrels_of([("q", "q_0", "a", 1), ("q", "q_0", "b", 0)])
    run = run_of([("q", "a", 1.0)])
    assert value(evaluate(qrels, run, ["success@1"]), "success@1") == 1
    qrels[0, "relevance"] = 0
    assert value(evaluate(qrels, run, ["success@1"]), "success@1") == 0


def test_without_nuggets_a_question_is_one_nugget() -> None:
    qrels = pl.DataFrame({"question_id": ["q", "q"], "doc_id": ["a", "b"], "relevance": [2, 1]})
    results = evaluate(qrels, run_of([("q", "b", 2.0), ("q", "a", 1.0)]), ["ndcg@10", "coverage@10"])
    assert value(results, "ndcg@10") == pytest.approx((1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3)))
    assert value(results, "coverage@10") == 1


def test_questions_are_read_from_nugget_ids() -> None:
    # A public reader took what stands before the first underscore, and prefixes.
    qrels = qrels_of([("", nugget, "a", 1) for nugget in ("123_0", "1234_0", "so_12_0")]).drop("question_id")
    results = evaluate(qrels, run_of([(name, "a", 1.0) for name in ("123", "1234", "so_12")]), ["success@1"])
    assert results["question_id"].to_list() == ["123", "1234", "so_12"]
    assert results["value"].to_list() == [1, 1, 1]


# Holes and bounds


def test_a_document_judged_for_another_question_is_a_hole() -> None:
    qrels = qrels_of([("1", "1_0", "a", 1), ("2", "2_0", "b", 1)])
    results = evaluate(qrels, run_of([("1", "b", 1.0), ("2", "b", 1.0)]), ["judged@10", "recall@50"])
    assert value(results, "recall@50", "holes", "1") == 1
    assert value(results, "recall@50", "holes", "2") == 0
    assert value(results, "judged@10", question="1") == 0


def test_without_holes_the_bounds_are_the_value() -> None:
    qrels, _ = random_collection(8, 30, depth=10, documents=20)
    run = qrels.select("question_id", "doc_id").unique().with_columns(score=pl.lit(1.0))
    results = evaluate(qrels, run)
    assert results["holes"].to_list() == [0.0] * results.height
    assert (results["lower"] == results["value"]).all()
    assert (results["upper"] == results["value"]).all()


def completions(qrels: pl.DataFrame, holes: list[str]) -> list[pl.DataFrame]:
    """Every way in which the holes may support the nuggets."""
    nuggets = qrels["nugget_id"].unique().sort().to_list()
    pairs = [(document, nugget) for document in holes for nugget in nuggets]
    return [
        pl.concat(
            [
                qrels,
                qrels_of(
                    [("q", nugget, document, int(bit)) for (document, nugget), bit in zip(pairs, bits, strict=True)]
                ),
            ]
        )
        for bits in itertools.product([0, 1], repeat=len(pairs))
    ]


EXACT = ("coverage@3", "recall@3", "precision@3", "success@3", "mrr@3", "coverage@4", "recall@2", "mrr@2")
BOUNDED = ("alpha_ndcg@3", "alpha_ndcg@4", "ndcg@3", "ndcg@4")


@pytest.mark.parametrize("seed", range(60))
def test_upper_is_the_best_over_every_completion(seed: int) -> None:
    rng = np.random.default_rng(seed)
    documents = [f"d{number}" for number in range(7)]
    holes = list(rng.permutation(documents[:5])[: rng.integers(1, 4)])
    nuggets = [f"q_{number}" for number in range(rng.integers(1, 4 if len(holes) < 3 else 3))]
    judged = [document for document in documents if document not in holes]
    rows = [("q", nugget, document, int(rng.random() < 0.45)) for nugget in nuggets for document in judged]
    qrels = qrels_of(rows)
    run = run_of([("q", document, float(rng.integers(0, 3))) for document in rng.permutation(documents[:5])])
    measures = [*EXACT, *BOUNDED]
    bounds = evaluate(qrels, run, measures)
    # One question a completion, scored together.
    together = [
        completed.with_columns(question_id=pl.lit(str(number)), nugget_id=pl.lit(f"{number}_") + pl.col("nugget_id"))
        for number, completed in enumerate(completions(qrels, holes))
    ]
    runs = pl.concat(run.with_columns(question_id=pl.lit(str(number))) for number in range(len(together)))
    best = dict(evaluate(pl.concat(together), runs, measures).group_by("measure").agg(pl.col("value").max()).rows())
    for measure in measures:
        upper, now = value(bounds, measure, "upper"), value(bounds, measure)
        # A hole below the depth may be relevant in a completion, which only lowers a score: the best leaves it alone.
        assert upper >= min(best[measure], 1) - 1e-12, measure
        assert now == value(bounds, measure, "lower") <= upper <= 1 + 1e-12
        if measure in EXACT:
            assert upper == pytest.approx(best[measure]), measure


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_bounds_hold_the_value_between_0_and_1(seed: int) -> None:
    qrels, run = random_collection(seed, 6, depth=30, documents=60)
    results = evaluate(qrels, run, ["alpha_ndcg@10", "coverage@5", "recall@5", "ndcg@10", "mrr@4", "precision@7"])
    assert (results["lower"] == results["value"]).all()
    assert (results["value"] <= results["upper"]).all()
    assert (results["value"] >= 0).all()
    assert (results["upper"] <= 1 + 1e-12).all()


# What cannot be scored


def test_a_missing_question_is_an_error_or_zero_and_never_leaves_the_mean() -> None:
    qrels = qrels_of([("1", "1_0", "a", 1), ("2", "2_0", "a", 1)])
    run = run_of([("1", "a", 1.0)])
    with pytest.raises(EvaluationError, match=r"lacks 1 of 2 questions of the qrels: 2;"):
        evaluate(qrels, run)
    results = evaluate(qrels, run, ["success@1"], missing="zero")
    assert results["value"].to_list() == [1, 0]
    assert results["holes"].to_list() == [0, None]


def test_an_empty_ranking_scores_zero() -> None:
    qrels = qrels_of([("1", "1_0", "a", 1), ("2", "2_0", "a", 1)])
    results = evaluate(qrels, run_of([("1", "a", 1.0), ("2", None, None)]))  # type: ignore[list-item]
    assert results.filter(pl.col("question_id") == "2")["value"].to_list() == [0.0] * len(DEFAULT)
    empty = evaluate(qrels, run_of([]), ["recall@5"], missing="zero")
    assert empty["value"].to_list() == [0, 0]


def test_only_the_qrels_questions_are_scored() -> None:
    qrels = qrels_of([("1", "1_0", "a", 1)])
    results = evaluate(qrels, run_of([("1", "a", 1.0), ("7", "a", 1.0)]), ["success@1"])
    assert results["question_id"].to_list() == ["1"]


def test_a_document_listed_twice_is_named() -> None:
    qrels = qrels_of([("1", "1_0", "a", 1)])
    with pytest.raises(EvaluationError, match="question 1 lists document x y twice"):
        evaluate(qrels, run_of([("1", "x y", 1.0), ("1", "a", 0.5), ("1", "x y", 0.2)]))


@pytest.mark.parametrize(
    ("qrels", "run", "message"),
    [
        (qrels_of([]), run_of([("1", "a", 1.0)]), "no rows"),
        (qrels_of([("1", "1_0", "a", 1), ("1", "1_0", "a", 0)]), run_of([("1", "a", 1.0)]), "more than one relevance"),
        (qrels_of([("1", "1_0", "a", 1)]), run_of([("1", "a", float("nan"))]), "question 1, document a: the score"),
        (qrels_of([("1", "1_0", "a", 1)]), run_of([("1", "a", 1.0)]).drop("score"), "missing columns score"),
        (qrels_of([("1", "1_0", "a", 1)]).drop("relevance"), run_of([("1", "a", 1.0)]), "missing columns relevance"),
        (
            qrels_of([("1", "1_0", "a", 1)]).with_columns(relevance=pl.lit(0.5)),
            run_of([("1", "a", 1.0)]),
            "relevance holds fractions",
        ),
        (qrels_of([("1", "nugget", "a", 1)]).drop("question_id"), run_of([("1", "a", 1.0)]), "'nugget' does not name"),
    ],
)
def test_wrong_input_is_refused_in_one_line(qrels: pl.DataFrame, run: pl.DataFrame, message: str) -> None:
    with pytest.raises(EvaluationError, match=message) as error:
        evaluate(qrels, run)
    assert "\n" not in str(error.value)


def test_names_of_measures() -> None:
    assert parse_measure("alpha-nDCG@10").name == "alpha_ndcg@10"
    assert parse_measure("strec@20").name == "coverage@20"
    assert parse_measure("Recall@50").name == "recall@50"
    for name in ("ndcg", "ndcg@0", "bpref@10", "ndcg@-1"):
        with pytest.raises(EvaluationError, match="is not known"):
            parse_measure(name)


@pytest.mark.slow
def test_time_grows_with_rows_and_not_with_their_square() -> None:
    from freshstack_dagster_tests.benchmarks.measures import collection

    def processor_seconds(questions: int) -> float:
        qrels, runs = collection(questions, 1, 1_000)
        start = time.process_time()
        evaluate(qrels, runs.drop("system"))
        return time.process_time() - start

    processor_seconds(100)
    small, large = processor_seconds(500), processor_seconds(2_000)
    assert large < 12 * small
    assert large < 4

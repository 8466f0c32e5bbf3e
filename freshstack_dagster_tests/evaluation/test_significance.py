"""Paired tests: against exact enumeration, scipy, and what must always hold."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshstack_dagster.evaluation import compare_systems
from freshstack_dagster.evaluation.significance import holm


def results_of(scores: dict[str, list[float]], measure: str = "alpha_ndcg@10") -> pl.DataFrame:
    rows = [
        (system, measure, f"q{number:03}", score, "llm")
        for system, values in scores.items()
        for number, score in enumerate(values)
    ] + [(system, measure, "all", 9.0, "llm") for system in scores]
    return pl.DataFrame(rows, schema=["system", "measure", "question_id", "value", "judge_kind"], orient="row")


def random_scores(seed: int, questions: int, systems: str = "abc") -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    return {name: (rng.random(questions) + 0.1 * number).round(3).tolist() for number, name in enumerate(systems)}


def test_few_questions_are_enumerated_exactly() -> None:
    scores = random_scores(0, 9)
    for row in compare_systems(results_of(scores)).to_dicts():
        difference = np.array(scores[row["system_a"]]) - np.array(scores[row["system_b"]])
        sums = [abs(np.dot(signs, difference)) for signs in itertools.product([1, -1], repeat=9)]
        assert row["p_value"] == np.mean([total >= abs(difference.sum()) - 1e-9 for total in sums])
        assert row["difference"] == pytest.approx(difference.mean())
        assert row["effect_size"] == pytest.approx(difference.mean() / difference.std(ddof=1))
        assert row["questions"] == 9


def test_agrees_with_scipy_on_many_questions() -> None:
    stats = pytest.importorskip("scipy.stats")
    scores = random_scores(4, 120, "ab")
    row = compare_systems(results_of(scores)).to_dicts()[0]
    difference = np.array(scores["a"]) - np.array(scores["b"])
    theirs = stats.permutation_test(
        (difference,), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(1)
    )
    assert row["p_value"] == pytest.approx(theirs.pvalue, abs=0.015)
    interval = stats.bootstrap(
        (difference,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert row["interval_low"] == pytest.approx(interval.low, abs=0.01)
    assert row["interval_high"] == pytest.approx(interval.high, abs=0.01)


def test_order_of_rows_changes_nothing_and_the_seed_decides() -> None:
    results = results_of(random_scores(2, 60, "abcd"))
    first = compare_systems(results)
    assert first.equals(compare_systems(results.sample(fraction=1, shuffle=True, seed=7)))
    assert first.height == 6
    assert not first["p_value"].equals(compare_systems(results, seed=14)["p_value"])


def test_equal_systems_do_not_differ() -> None:
    for questions in (5, 200):
        values = random_scores(1, questions, "a")["a"]
        row = compare_systems(results_of({"a": values, "b": values})).to_dicts()[0]
        assert (row["difference"], row["p_value"], row["p_corrected"]) == (0, 1, 1)
        assert (row["interval_low"], row["interval_high"], row["effect_size"]) == (0, 0, None)


def test_a_clear_difference_is_found_and_never_impossible() -> None:
    row = compare_systems(results_of({"a": [0.9] * 300, "b": [0.1] * 300})).to_dicts()[0]
    assert 0 < row["p_value"] < 0.001
    assert row["interval_low"] == pytest.approx(0.8)


def test_pairs_are_compared_on_the_questions_both_have() -> None:
    results = results_of(random_scores(3, 40, "abc")).filter(
        ~((pl.col("system") == "c") & (pl.col("question_id") >= "q030"))
    )
    compared = {(row["system_a"], row["system_b"]): row for row in compare_systems(results).to_dicts()}
    assert {pair: row["questions"] for pair, row in compared.items()} == {
        ("a", "b"): 40,
        ("a", "c"): 30,
        ("b", "c"): 30,
    }
    scores = random_scores(3, 40, "abc")
    difference = np.mean(np.array(scores["a"][:30]) - np.array(scores["c"][:30]))
    row = compared["a", "c"]
    assert row["difference"] == pytest.approx(difference)
    assert row["interval_low"] < difference < row["interval_high"]


def test_one_system_or_none_is_compared_with_nothing() -> None:
    results = results_of(random_scores(0, 5, "a"))
    assert compare_systems(results).height == 0
    assert compare_systems(results.clear()).height == 0


def test_type_one_errors_are_as_rare_as_said() -> None:
    # Exchangeable systems: the share of p-values up to 0.1 must be about 0.1.
    rng = np.random.default_rng(5)
    parts = [
        results_of({"a": rng.random(8).tolist(), "b": rng.random(8).tolist()}, f"ndcg@{number}")
        for number in range(1, 400)
    ]
    p_values = compare_systems(pl.concat(parts), rounds=256)["p_value"]
    assert 0.05 < (p_values <= 0.1).mean() < 0.15


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_orders_and_bounds(values: list[float]) -> None:
    p_values = np.array(values)
    corrected = holm(p_values)
    assert ((corrected >= p_values) & (corrected <= 1)).all()
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(corrected[order]) >= 0).all()
    assert corrected[order[0]] == min(1.0, p_values.min() * len(values))


def test_holm_on_a_worked_example() -> None:
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])

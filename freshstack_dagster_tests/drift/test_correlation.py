from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.stats import kendalltau

from freshstack_dagster.drift.correlation import agreement, kendall_tau_b, ranking_correlation, system_drift


def test_tau_b_equals_scipy_with_ties():
    random = np.random.default_rng(1)
    for _ in range(200):
        n = int(random.integers(2, 12))
        a, b = random.integers(0, 5, n).astype(float), random.integers(0, 5, n).astype(float)
        expected = kendalltau(a, b).statistic
        ours = kendall_tau_b(a, b)
        assert np.isnan(ours) == np.isnan(expected)
        assert np.isnan(ours) or ours == pytest.approx(expected, abs=1e-12)


def test_published_rankings(shared: Path):
    """The second paper's Table 2: tau-b as published where rounding made no tie, bounds that hold it where it did."""
    table = pl.read_csv(shared / "reference" / "driftbench_table2_retrieval.csv")

    def between(measure: str):
        return agreement(table[f"{measure}_2024"].to_numpy(), table[f"{measure}_2025"].to_numpy())

    assert between("alpha_ndcg_10").tau_b == pytest.approx(0.846, abs=5e-4)
    assert between("recall_50").tau_b == pytest.approx(0.978, abs=5e-4)
    coverage = between("coverage_20")
    assert coverage.tau_b == pytest.approx(0.722, abs=5e-4)
    assert coverage.tie_low == pytest.approx(0.692, abs=5e-4)
    assert coverage.tie_high == pytest.approx(0.736, abs=5e-4)


def test_tie_bounds_hold_every_breaking_of_the_ties():
    random = np.random.default_rng(2)
    for _ in range(100):
        a, b = random.integers(0, 4, 7).astype(float), random.integers(0, 4, 7).astype(float)
        found = agreement(a, b)
        broken = [kendall_tau_b(a + random.uniform(0, 0.1, 7), b + random.uniform(0, 0.1, 7)) for _ in range(50)]
        assert found.tie_low - 1e-12 <= min(broken)
        assert max(broken) <= found.tie_high + 1e-12


def test_rbo_by_hand():
    scores = np.arange(10, dtype=float)
    assert agreement(scores, scores).rbo == pytest.approx(1.0)
    # Two systems swapped: overlap 0 at depth 1 and 1 from depth 2 on, so 1 - (1 - p) with p = 0.9.
    assert agreement([1.0, 2.0], [2.0, 1.0]).rbo == pytest.approx(0.9)


def _results(values: dict[str, list[float]]) -> pl.DataFrame:
    rows = [
        {"system": system, "measure": "recall@50", "question_id": f"q{i}", "value": value, "judge_kind": "llm"}
        for system, scores in values.items()
        for i, value in enumerate(scores)
    ]
    return pl.DataFrame(rows)


def test_only_what_both_snapshots_have_is_compared():
    old = _results({"a": [0.9, 0.8, 0.7], "b": [0.5, 0.4, 0.9], "gone": [1.0, 1.0, 1.0]})
    new = _results({"a": [0.9, 0.7], "b": [0.6, 0.1]})
    row = ranking_correlation({"2024-10": old, "2025-10": new}).row(0, named=True)
    assert (row["systems"], row["questions"], row["tau_b"]) == (2, 2, 1.0)


def test_one_system_has_no_agreement():
    one = _results({"a": [0.9, 0.8]})
    assert ranking_correlation({"2024-10": one, "2025-10": one}).row(0, named=True)["tau_b"] is None


def test_shares_of_what_was_judged_rank_nothing():
    results = _results({"a": [0.9, 0.8], "b": [0.1, 0.2]})
    judged = results.with_columns(measure=pl.lit("judged@10"))
    both = pl.concat([results, judged])
    assert ranking_correlation({"2024-10": both, "2025-10": both})["measure"].to_list() == ["recall@50"]
    assert set(system_drift({"2024-10": both, "2025-10": both}, baseline="2024-10")["measure"]) == {"recall@50"}


def test_a_system_that_fell_is_significant_and_one_that_wavers_is_not():
    random = np.random.default_rng(3)
    steady, wavering = random.uniform(0.4, 0.6, 30), random.uniform(0.4, 0.6, 30)
    before = _results({"falls": (steady + 0.3).tolist(), "wavers": wavering.tolist()})
    after = _results({"falls": steady.tolist(), "wavers": random.permutation(wavering).tolist()})
    drift = system_drift({"2024-10": before, "2025-10": after}, baseline="2024-10")
    falls, wavers = drift.sort("system").to_dicts()
    assert falls["difference"] == pytest.approx(-0.3)
    assert falls["interval_low"] <= -0.29 <= falls["interval_high"] <= 0 or falls["interval_high"] < 0
    assert falls["p_corrected"] < 0.01 <= 0.05 < wavers["p_corrected"]
    assert falls["score_b"] - falls["score_a"] == pytest.approx(falls["difference"])
    assert wavers["difference"] == pytest.approx(0, abs=1e-12)


def test_each_month_is_held_against_the_baseline_and_the_month_before():
    months = {month: _results({"a": [0.9, 0.8], "b": [0.1, 0.2]}) for month in ("2024-08", "2024-09", "2024-10")}
    pairs = system_drift(months, baseline="2024-08").select("snapshot_a", "snapshot_b").unique().sort("snapshot_b")
    assert set(pairs.rows()) == {("2024-08", "2024-09"), ("2024-09", "2024-10"), ("2024-08", "2024-10")}
    late = system_drift(months, baseline="2024-10").select("snapshot_a", "snapshot_b").unique()
    assert set(late.rows()) == {("2024-08", "2024-09"), ("2024-09", "2024-10"), ("2024-08", "2024-10")}


def test_one_snapshot_has_no_drift():
    assert system_drift({"2024-10": _results({"a": [0.9]})}, baseline="2024-10").is_empty()


def test_published_intervals_over_systems(shared: Path):
    """With 14 systems even tau-b of 0.846 is uncertain: the 95% interval over systems is wide."""
    table = pl.read_csv(shared / "reference" / "driftbench_table2_retrieval.csv")
    random = np.random.default_rng(13)
    for measure, tau in (("alpha_ndcg_10", 0.846), ("recall_50", 0.978)):
        a, b = table[f"{measure}_2024"].to_numpy(), table[f"{measure}_2025"].to_numpy()
        drawn = random.integers(0, len(a), size=(2000, len(a)))
        low, high = np.nanpercentile(kendall_tau_b(a[drawn], b[drawn]), [2.5, 97.5])
        assert low < tau <= high
        assert len(a) == 14


def test_means_that_differ_by_rounding_are_tied():
    # The mean of the same three values in two orders.
    one, other = (0.1 + 0.2 + 0.3) / 3, (0.3 + 0.2 + 0.1) / 3
    assert one != other
    found = agreement([one, other, 0.5], [1.0, 2.0, 3.0])
    assert (found.tie_low, found.tie_high) == (pytest.approx(1 / 3), 1.0)

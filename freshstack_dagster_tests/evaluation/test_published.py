"""Published figures that can be recomputed are."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster_tests.evaluation.experts import judgment_quality, nugget_quality

TOPICS = ("langchain", "yolo", "laravel", "angular", "godot")
MEASURES = ("alpha_ndcg_10", "coverage_20", "recall_50")


@pytest.fixture
def reference(project: Path) -> Path:
    return project / "data" / "reference"


def with_mean(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        pl.mean_horizontal(f"{topic}_{measure}" for topic in TOPICS).alias(f"mean_{measure}") for measure in MEASURES
    )


def test_leaderboard_averages_are_means_of_the_topics(reference: Path) -> None:
    board = with_mean(pl.read_csv(reference / "freshstack_leaderboard.csv"))
    assert board.height == 40
    for measure in MEASURES:
        assert (board[f"average_{measure}"] - board[f"mean_{measure}"]).abs().max() < 0.0011


def test_table_4_averages_are_those_of_the_leaderboard(reference: Path) -> None:
    table = with_mean(pl.read_csv(reference / "freshstack_table4_pooling.csv")).filter(
        pl.col("technique") == "Stack Overflow Nuggets"
    )
    board = pl.read_csv(reference / "freshstack_leaderboard.csv")
    names = {
        "BM25": "Oracle: BM25 (Nuggets)",
        "BGE (Gemma-2)": "Oracle: BGE (Gemma-2) (Nuggets)",
        "E5 Mistral (7B)": "Oracle: E5 (Mistral-7B) (Nuggets)",
        "Voyage-large-2": "Oracle: Voyage Large 2 (Nuggets)",
        "Fusion (4 models)": "Oracle: Fusion (BM25, ...) (Nuggets)",
    }
    both = table.with_columns(system=pl.col("model").replace_strict(names)).join(board, on="system")
    assert both.height == 5
    for measure in MEASURES:
        assert (both[f"mean_{measure}"] - both[f"average_{measure}"]).abs().max() < 0.0011
        for topic in TOPICS:
            assert (both[f"{topic}_{measure}"] - both[f"{topic}_{measure}_right"]).abs().max() < 0.0011


def test_table_4_fusion_pools_best(reference: Path) -> None:
    # What the pooling rests on: the fusion of four models covers more nuggets than any of them.
    table = with_mean(pl.read_csv(reference / "freshstack_table4_pooling.csv"))
    assert table.height == 20
    for _, rows in table.group_by("technique"):
        best = rows.sort("mean_coverage_20", descending=True)["model"][0]
        assert best == "Fusion (4 models)"


def test_table_3_counts_672_questions(reference: Path) -> None:
    table = pl.read_csv(reference / "freshstack_table3_statistics.csv")
    assert table["queries"].sum() == 672
    # Unique documents a question: fewer than nuggets times documents a nugget, more than those of one nugget.
    assert (table["relevant_docs_per_query"] < table["nuggets_per_query"] * table["relevant_docs_per_nugget"]).all()
    assert (table["relevant_docs_per_query"] > table["relevant_docs_per_nugget"]).all()


def test_table_1_shares_of_driftbench(reference: Path) -> None:
    table = pl.read_csv(reference / "driftbench_table1_repositories.csv")
    sums = table.select(pl.col(f"{what}_{year}").sum() for year in (2024, 2025) for what in ("docs", "supporting"))
    assert sums.row(0) == (43_558, 3_931, 39_165, 3_719)
    for year in (2024, 2025):
        share = 100 * table[f"supporting_{year}"] / table[f"supporting_{year}"].sum()
        assert (share.round(1) - table[f"supporting_pct_{year}"]).abs().max() < 1e-9


def test_table_5_formulas(reference: Path) -> None:
    published = dict(pl.read_csv(reference / "freshstack_table5_quality.csv").rows())
    # The three shares are 43, 7 and 10 of 60, the last one rounded down so that they sum to 100.
    shares = judgment_quality({"relevant": 43, "partially_relevant": 7, "non_relevant": 10})
    assert sum(value for value in shares.values() if value is not None) == pytest.approx(100)
    for name, value in shares.items():
        assert value == pytest.approx(published[name], abs=0.07)
    assert judgment_quality(["relevant", "relevant", "non_relevant", "relevant"])["judgment_relevant"] == 75
    # Precision and recall share their numerator, so the published pair fixes missed facts to written nuggets.
    missed = published["nugget_precision"] * (100 / published["nugget_recall"] - 1)
    quality = nugget_quality(1000, correct=901, grounded=964, missed=round(10 * missed))
    for name, value in quality.items():
        assert value == pytest.approx(published[name], abs=0.05)


def test_expert_counts_that_cannot_be_are_refused() -> None:
    assert nugget_quality(0, correct=0, grounded=0, missed=0)["nugget_recall"] is None
    assert judgment_quality([])["judgment_relevant"] is None
    with pytest.raises(EvaluationError, match="cannot be"):
        nugget_quality(3, correct=4, grounded=1, missed=0)
    with pytest.raises(EvaluationError, match="label 'maybe' is not known"):
        judgment_quality(["maybe"])

from __future__ import annotations

import polars as pl

from freshstack_dagster.drift.support import support_drift

NUGGETS = pl.DataFrame({"question_id": ["1", "1", "2"], "nugget_id": ["1_0", "1_1", "2_0"]})


def _judgments(*rows: tuple[str, str, str]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=dict.fromkeys(["nugget_id", "doc_id", "verdict"], pl.String()), orient="row")
    return frame.with_columns(question_id=pl.col("nugget_id").str.split("_").list.first(), judge_kind=pl.lit("llm"))


def _by_key(frame: pl.DataFrame) -> dict[tuple[str, str], dict]:
    return {(row["nugget_id"], row["snapshot"]): row for row in frame.iter_rows(named=True)}


def test_a_lost_nugget_makes_its_question_partly_supported():
    before = _judgments(("1_0", "lib/a_0_9", "supported"), ("1_1", "docs/b_0_9", "supported"))
    after = _judgments(("1_0", "docs/a_0_9", "supported"), ("1_1", "docs/b_0_9", "unsupported"))
    rows = _by_key(support_drift(NUGGETS, {"2024-10": before, "2025-10": after}, baseline="2024-10"))
    assert rows["1_1", "2025-10"]["change_from_baseline"] == "lost"
    assert rows["1_0", "2025-10"]["change_from_baseline"] == "same"
    assert rows["1_0", "2025-10"]["supporting_repositories"] == ["docs"]
    assert {key: row["question_support"] for key, row in rows.items()} == {
        ("1_0", "2024-10"): "fully",
        ("1_1", "2024-10"): "fully",
        ("1_0", "2025-10"): "partly",
        ("1_1", "2025-10"): "partly",
    }


def test_a_question_for_which_nothing_is_retrieved_any_more_lost_its_support():
    before = _judgments(("2_0", "lib/a_0_9", "supported"))
    months = {"2024-10": before, "2025-10": _judgments()}
    rows = _by_key(support_drift(NUGGETS, months, baseline="2024-10", unretrieved={"2025-10": ["2"]}))
    assert set(rows) == {("2_0", "2024-10"), ("2_0", "2025-10")}
    row = rows["2_0", "2025-10"]
    assert (row["supporting_chunks"], row["nugget_supported"], row["supporting_repositories"]) == (0, False, [])
    assert (row["question_support"], row["change_from_baseline"]) == ("none", "lost")


def test_an_error_is_never_a_loss():
    before = _judgments(("2_0", "lib/a_0_9", "supported"))
    after = _judgments(("2_0", "lib/a_0_9", "error"), ("2_0", "lib/c_0_9", "unsupported"))
    row = _by_key(support_drift(NUGGETS, {"2024-10": before, "2025-10": after}, baseline="2024-10"))["2_0", "2025-10"]
    assert row["nugget_supported"] is None
    assert row["supporting_chunks"] is None
    assert row["question_support"] == "not_judged"
    assert row["change_from_baseline"] == "unknown"


def test_previous_is_the_snapshot_before_and_baseline_may_be_any():
    months = {
        "2024-10": _judgments(("2_0", "a/a_0_9", "unsupported")),
        "2025-04": _judgments(("2_0", "a/a_0_9", "supported")),
        "2025-10": _judgments(("2_0", "a/a_0_9", "supported")),
    }
    rows = _by_key(support_drift(NUGGETS, months, baseline="2025-10"))
    assert rows["2_0", "2024-10"]["change_from_baseline"] == "lost"
    assert rows["2_0", "2025-04"]["change_from_previous"] == "gained"
    assert rows["2_0", "2025-10"]["change_from_previous"] == "same"


def test_a_question_asked_later_has_no_row_before():
    months = {
        "2024-10": _judgments(("1_0", "a/a_0_9", "supported")),
        "2025-10": _judgments(("2_0", "a/a_0_9", "supported")),
    }
    rows = _by_key(support_drift(NUGGETS, months, baseline="2024-10"))
    assert ("2_0", "2024-10") not in rows
    assert rows["2_0", "2025-10"]["change_from_baseline"] == "unknown"
    assert rows["1_1", "2024-10"]["question_support"] == "not_judged"


def test_a_month_in_which_the_question_is_missing_is_not_skipped_over():
    supported = _judgments(("1_0", "a/a_0_9", "supported"), ("2_0", "a/a_0_9", "supported"))
    months = {
        "2024-10": supported,
        "2025-04": _judgments(("2_0", "a/a_0_9", "supported")),
        "2025-10": _judgments(("1_0", "a/a_0_9", "unsupported")),
    }
    rows = _by_key(support_drift(NUGGETS, months, baseline="2024-10"))
    assert ("1_0", "2025-04") not in rows
    assert rows["1_0", "2025-10"]["change_from_previous"] == "unknown"
    assert rows["1_0", "2025-10"]["change_from_baseline"] == "lost"
    assert rows["1_0", "2024-10"]["change_from_previous"] == "same"

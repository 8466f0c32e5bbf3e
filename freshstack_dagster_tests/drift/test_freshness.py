from __future__ import annotations

from datetime import UTC, datetime

import polars as pl

from freshstack_dagster.drift.freshness import question_freshness
from freshstack_dagster.drift.support import support_drift

NUGGETS = pl.DataFrame({"question_id": ["1", "2"], "nugget_id": ["1_0", "2_0"]})
QUESTIONS = pl.DataFrame(
    {
        "question_id": ["1", "2"],
        "asked_at": [datetime(2024, 10, 1, tzinfo=UTC), None],
        "answer_edited_at": [datetime(2024, 11, 1, tzinfo=UTC), None],
    },
    schema_overrides={"asked_at": pl.Datetime("us", "UTC"), "answer_edited_at": pl.Datetime("us", "UTC")},
)
TEXTS = {
    "a/x_0_9": "class Old:\n    .. deprecated:: 1.0\n",
    "a/y_0_9": "plain\n@deprecated use z\nThe option has been removed.\n",
    "a/z_0_9": "nothing of the kind: depreciation, removed the lid\n",
}


def _freshness(verdicts: list[tuple[str, str, str]]) -> dict[tuple[str, str], dict]:
    frame = pl.DataFrame(verdicts, schema=["nugget_id", "doc_id", "verdict"], orient="row").with_columns(
        question_id=pl.col("nugget_id").str.split("_").list.first(), judge_kind=pl.lit("llm")
    )
    judgments = {"2024-10": frame, "2025-10": frame}
    chunks = pl.DataFrame({"doc_id": list(TEXTS), "text": list(TEXTS.values())})
    support = support_drift(NUGGETS, judgments, baseline="2024-10")
    rows = question_freshness(QUESTIONS, judgments, dict.fromkeys(judgments, chunks), support)
    return {(row["question_id"], row["snapshot"]): row for row in rows.iter_rows(named=True)}


def test_age_and_edits_are_counted_from_the_end_of_the_month():
    rows = _freshness([("1_0", "a/z_0_9", "supported"), ("2_0", "a/z_0_9", "unsupported")])
    assert [rows["1", month]["age_days"] for month in ("2024-10", "2025-10")] == [31, 396]
    assert [rows["1", month]["answer_edited_after"] for month in ("2024-10", "2025-10")] == [True, False]
    assert (rows["2", "2024-10"]["age_days"], rows["2", "2024-10"]["answer_edited_after"]) == (None, None)
    assert rows["2", "2024-10"]["supporting_chunks"] == 0


def test_markers_of_supporting_chunks_alone():
    rows = _freshness(
        [
            ("1_0", "a/x_0_9", "supported"),
            ("1_0", "a/y_0_9", "supported"),
            ("1_0", "a/z_0_9", "supported"),
            ("2_0", "a/x_0_9", "unsupported"),
            ("2_0", "a/z_0_9", "supported"),
        ]
    )
    one = rows["1", "2025-10"]
    assert (one["supporting_chunks"], one["deprecated_chunks"]) == (3, 2)
    assert one["markers"] == [".. deprecated:: 1.0", "@deprecated use z", "The option has been removed."]
    assert (rows["2", "2025-10"]["deprecated_chunks"], rows["2", "2025-10"]["markers"]) == (0, [])


def test_what_was_not_judged_has_no_count():
    rows = _freshness([("1_0", "a/x_0_9", "error"), ("2_0", "a/z_0_9", "unsupported")])
    assert (rows["1", "2024-10"]["supporting_chunks"], rows["1", "2024-10"]["deprecated_chunks"]) == (None, None)
    assert (rows["2", "2024-10"]["supporting_chunks"], rows["2", "2024-10"]["deprecated_chunks"]) == (0, 0)

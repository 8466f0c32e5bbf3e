"""How old the questions are, and signs that their answers have aged."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import polars as pl

from freshstack_dagster.settings import snapshot_end
from freshstack_dagster.tables import TABLES

# Markers of documentation tools and languages (Sphinx, JSDoc and Javadoc, Python, Rust, C#), and the words themselves.
MARKER = (
    r"(?i)[^\n]*(?:@deprecated|\.\. deprecated::|DeprecationWarning|#\[deprecated|\[Obsolete|\bdeprecat(?:ed|ion)\b|"
    r"\b(?:has|have|was|were) been removed\b|\bwill be removed\b|\bno longer supported\b)[^\n]*"
)
MOST_MARKERS = 3
MARKER_CHARACTERS = 160


def question_freshness(
    questions: pl.DataFrame,
    judgments: Mapping[str, pl.DataFrame],
    texts: Mapping[str, pl.LazyFrame | pl.DataFrame],
    support: pl.DataFrame,
) -> pl.DataFrame:
    """Age and signs of ageing of each question in each snapshot in which it was judged.

    In: `questions` (question_id, asked_at, answer_edited_at); by snapshot the table `judgments` and chunks (doc_id,
    text); the table `support_drift`. Out: the table `question_freshness`. A marker is a line of a supporting chunk that
    speaks of a deprecation or removal, of whatever thing: it says where to look, not that the answer is wrong.
    """
    parts = [TABLES["question_freshness"].empty()]
    judged = pl.col("question_support") != "not_judged"
    for snapshot, verdicts in sorted(judgments.items()):
        end = snapshot_end(snapshot)
        supporting = verdicts.filter(pl.col("verdict") == "supported").select("question_id", "doc_id").unique()
        marked = _marked(supporting, texts[snapshot])
        counts = supporting.group_by("question_id").agg(supporting_chunks=pl.len())
        asked = support.filter(pl.col("snapshot") == snapshot).unique("question_id")
        parts.append(
            asked.select("question_id", "snapshot", "question_support", "judge_kind")
            .join(questions.select("question_id", "asked_at", "answer_edited_at"), on="question_id", how="left")
            .join(counts, on="question_id", how="left")
            .join(marked, on="question_id", how="left")
            .select(
                "question_id",
                "snapshot",
                age_days=_days_before(end, "asked_at"),
                answer_edited_after=pl.col("answer_edited_at") >= end,
                supporting_chunks=pl.when(judged).then(pl.col("supporting_chunks").fill_null(0)),
                deprecated_chunks=pl.when(judged).then(pl.col("deprecated_chunks").fill_null(0)),
                markers=pl.col("markers").fill_null([]),
                question_support="question_support",
                judge_kind="judge_kind",
            )
            .pipe(TABLES["question_freshness"].conform)
        )
    return TABLES["question_freshness"].conform(pl.concat(parts))


def _days_before(end: datetime, column: str) -> pl.Expr:
    return (pl.lit(end) - pl.col(column)).dt.total_days()


def _marked(supporting: pl.DataFrame, chunks: pl.LazyFrame | pl.DataFrame) -> pl.DataFrame:
    """By question: how many supporting chunks hold a marker, and a few of the marked lines."""
    lines = pl.col("text").str.extract_all(MARKER)
    shortened = pl.element().str.strip_chars().str.slice(0, MARKER_CHARACTERS)
    found = (
        chunks.lazy()
        .join(supporting.lazy().select("doc_id").unique(), on="doc_id", how="semi")
        .select("doc_id", lines=lines.list.head(MOST_MARKERS).list.eval(shortened))
        .filter(pl.col("lines").list.len() > 0)
        .collect()
    )
    return (
        supporting.join(found, on="doc_id")
        .sort("question_id", "doc_id")
        .group_by("question_id", maintain_order=True)
        .agg(
            deprecated_chunks=pl.len().cast(pl.Int64),
            markers=pl.col("lines").explode().unique(maintain_order=True).head(MOST_MARKERS),
        )
    )

"""Closed-book contamination: how much of the answers a model knows without retrieval, by the question's date.

The closed-book answer is written from the question alone. If it states a question's nuggets, the model may have seen
the answer, and what retrieval adds on that question is not measured. Newer questions than the model's training should
state fewer: the figure to look at is the course over months, not one share.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from freshstack_dagster.evaluation.answers import answer_documents, answer_results
from freshstack_dagster.evaluation.results import ALL

VARIANT = "closed_book_answer"
HEURISTIC = "heuristic"

RESULTS: Mapping[str, pl.DataType] = {
    "asked": pl.String(),
    "questions": pl.Int64(),
    "skipped": pl.Int64(),
    "nuggets": pl.Int64(),
    "stated": pl.Int64(),
    "unjudged": pl.Int64(),
    "share": pl.Float64(),
    "share_low": pl.Float64(),
    "share_high": pl.Float64(),
    "fully_stated": pl.Int64(),
    "judge_kind": pl.String(),
}


def closed_book_documents(query_variants: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Closed-book answers as chunks and pools for `judging.support.judge_support`.

    Reads the table `query_variants`. Answers that no model wrote are left out: they know nothing.
    """
    return answer_documents(_answers(query_variants))


def contamination(
    query_variants: pl.DataFrame, judgments: pl.DataFrame, nuggets: pl.DataFrame, questions: pl.DataFrame
) -> pl.DataFrame:
    """How many nuggets closed-book answers state, by the month in which the question was asked.

    `judgments` are the verdicts on what `closed_book_documents` returned; the others are the tables of those names.
    Returns the columns of `RESULTS`, by month, `undated` for questions without a date, and last `all`: `share` is the
    stated part of the judged nuggets (null if none was), with its 95% Wilson interval (Wilson, JASA 1927), and
    `fully_stated` counts questions with every nugget stated. Errors are unjudged and stand in no share. Questions with
    nuggets but without a closed-book answer by a model are counted as `skipped` and stand in no other figure;
    `judge_kind` is `none` where all are.
    """
    answers = _answers(query_variants)
    answered = nuggets.join(answers, on="question_id", how="semi")
    scores = answer_results(answers, judgments, answered, missing="zero").filter(pl.col("question_id") != ALL)
    asked = questions.select("question_id", asked=pl.col("asked_at").dt.strftime("%Y-%m").cast(pl.String()))
    dated = (
        nuggets.select("question_id")
        .unique()
        .join(scores, on="question_id", how="left")
        .join(asked, on="question_id", how="left")
        .with_columns(pl.col("asked").fill_null("undated"))
    )
    by_month = (
        pl.concat([dated, dated.with_columns(asked=pl.lit(ALL))])
        .group_by("asked")
        .agg(
            questions=pl.col("nuggets").count(),
            skipped=pl.col("nuggets").null_count(),
            nuggets=pl.col("nuggets").sum(),
            stated=pl.col("stated").sum(),
            unjudged=pl.col("unjudged").sum(),
            fully_stated=(pl.col("stated") == pl.col("nuggets")).sum(),
            judge_kind=pl.col("judge_kind").drop_nulls().first().fill_null("none"),
        )
    )
    judged = pl.col("nuggets") - pl.col("unjudged")
    share = pl.when(judged > 0).then(pl.col("stated") / judged)
    squared = 1.959964**2
    middle = (share + squared / (2 * judged)) / (1 + squared / judged)
    half = (share * (1 - share) / judged + squared / (4 * judged**2)).sqrt() * squared**0.5 / (1 + squared / judged)
    return (
        by_month.with_columns(share=share, share_low=middle - half, share_high=middle + half)
        .sort(pl.col("asked") == ALL, "asked")
        .select(pl.col(name).cast(dtype) for name, dtype in RESULTS.items())
    )


def _answers(query_variants: pl.DataFrame) -> pl.DataFrame:
    written = (pl.col("variant") == VARIANT) & ~pl.col("model").str.starts_with(HEURISTIC)
    return query_variants.filter(written).select(pl.lit(VARIANT).alias("system"), "question_id", "text")

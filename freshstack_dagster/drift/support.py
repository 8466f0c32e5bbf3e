"""Is each question still answerable? Support of every nugget in every snapshot."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from types import MappingProxyType

import polars as pl

from freshstack_dagster.tables import TABLES


def support_drift(
    nuggets: pl.DataFrame,
    judgments: Mapping[str, pl.DataFrame],
    *,
    baseline: str,
    unretrieved: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> pl.DataFrame:
    """Follow the support of each nugget over the snapshots.

    In: the table `nuggets`; the table `judgments` by snapshot; the baseline's month; by snapshot the questions for
    which nothing was retrieved, so that nothing was judged and nothing supports them. Out: the table `support_drift`, a
    row for each nugget and snapshot in which its question was asked.

    A nugget is supported if any chunk supports it. Without support it is unsupported only if no verdict on it is an
    error: an error is unjudged, and so is then the nugget. A question with an unjudged nugget is `not_judged`.
    """
    by_snapshot = [
        _support(nuggets, frame, snapshot, list(unretrieved.get(snapshot, ())))
        for snapshot, frame in sorted(judgments.items())
    ]
    if not by_snapshot:
        return TABLES["support_drift"].empty()
    support = pl.concat(by_snapshot).sort("nugget_id", "snapshot")
    at_baseline = support.filter(pl.col("snapshot") == baseline).select("nugget_id", at_baseline="nugget_supported")
    months = sorted(judgments)
    following = dict(pairwise(months))
    at_previous = support.filter(pl.col("snapshot").is_in(list(following))).select(
        "nugget_id", pl.col("snapshot").replace(following), at_previous="nugget_supported"
    )
    return TABLES["support_drift"].conform(
        support.join(at_baseline, on="nugget_id", how="left")
        .join(at_previous, on=["nugget_id", "snapshot"], how="left")
        .with_columns(
            # The first snapshot is its own predecessor.
            at_previous=pl.when(pl.col("snapshot") == months[0]).then("nugget_supported").otherwise("at_previous"),
        )
        .with_columns(
            question_support=_question_support().over("question_id", "snapshot"),
            change_from_baseline=_change(pl.col("at_baseline")),
            change_from_previous=_change(pl.col("at_previous")),
        )
        .drop("at_baseline", "at_previous")
    )


def _support(nuggets: pl.DataFrame, judgments: pl.DataFrame, snapshot: str, unretrieved: list[str]) -> pl.DataFrame:
    """Support of each nugget whose question has judgments in the snapshot, or found nothing to judge."""
    supported = pl.col("verdict") == "supported"
    repository = pl.col("doc_id").str.split("/").list.first()
    verdicts = judgments.group_by("nugget_id").agg(
        supporting_chunks=pl.col("doc_id").filter(supported).n_unique().cast(pl.Int64),
        supporting_repositories=repository.filter(supported).unique().sort(),
        errors=(pl.col("verdict") == "error").sum(),
        judge_kind=pl.col("judge_kind").unique().sort().str.join(" + "),
    )
    nothing = pl.col("question_id").is_in(unretrieved)
    unknown = ~nothing & (pl.col("errors").is_null() | ((pl.col("supporting_chunks") == 0) & (pl.col("errors") > 0)))
    kind = " + ".join(sorted(judgments["judge_kind"].unique())) or "none"
    asked = judgments["question_id"].unique().to_list()
    return (
        nuggets.select("question_id", "nugget_id")
        .filter(nothing | pl.col("question_id").is_in(asked))
        .join(verdicts, on="nugget_id", how="left")
        .with_columns(supporting_chunks=pl.when(nothing).then(0).otherwise("supporting_chunks"))
        .select(
            "question_id",
            "nugget_id",
            pl.lit(snapshot).alias("snapshot"),
            pl.when(~unknown).then("supporting_chunks"),
            pl.col("supporting_repositories").fill_null([]),
            pl.when(~unknown).then(pl.col("supporting_chunks") > 0).alias("nugget_supported"),
            pl.col("judge_kind").fill_null(kind),
        )
    )


def _question_support() -> pl.Expr:
    supported = pl.col("nugget_supported")
    return (
        pl.when(supported.is_null().any())
        .then(pl.lit("not_judged"))
        .when(supported.all())
        .then(pl.lit("fully"))
        .when(supported.any())
        .then(pl.lit("partly"))
        .otherwise(pl.lit("none"))
    )


def _change(before: pl.Expr) -> pl.Expr:
    now = pl.col("nugget_supported")
    return (
        pl.when(before.is_null() | now.is_null())
        .then(pl.lit("unknown"))
        .when(before == now)
        .then(pl.lit("same"))
        .when(now)
        .then(pl.lit("gained"))
        .otherwise(pl.lit("lost"))
    )

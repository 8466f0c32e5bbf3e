"""Where documents and support stand, by repository and snapshot ("Still Fresh?", Table 1)."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from freshstack_dagster.tables import TABLES


def repository_shift(
    chunks: Mapping[str, pl.DataFrame],
    judgments: Mapping[str, pl.DataFrame],
    *,
    baseline: str,
    renamed: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """Count documents and supporting documents of each repository in each snapshot.

    In: by snapshot, frames with `doc_id` and `repository`, and the table `judgments`; the baseline's month; aliases
    that a repository had before, each with the one it has now, so that a renaming is not read as a loss and a gain.
    Out: the table `repository_shift`, a row for each repository of any snapshot in every snapshot. Where nothing was
    judged in a snapshot, or only errors came of it, support is null and not zero.
    """
    counts = [
        _counts(frame, judgments.get(snapshot), snapshot, renamed or {}) for snapshot, frame in sorted(chunks.items())
    ]
    if not counts:
        return TABLES["repository_shift"].empty()
    found = pl.concat(counts)
    every = found.select("snapshot").unique().join(found.select("repository").unique(), how="cross")
    judged = [month for month, verdicts in judgments.items() if _says_something(verdicts)]
    shift = every.join(found, on=["snapshot", "repository"], how="left").with_columns(
        pl.col("documents").fill_null(0),
        supporting=pl.when(pl.col("snapshot").is_in(judged)).then(pl.col("supporting").fill_null(0)),
    )
    before = shift.filter(pl.col("snapshot") == baseline).select(
        "repository", documents_before="documents", supporting_before="supporting"
    )
    return TABLES["repository_shift"].conform(
        shift.join(before, on="repository", how="left").select(
            "snapshot",
            "repository",
            "documents",
            _share("documents"),
            "supporting",
            _share("supporting"),
            _growth("documents"),
            _growth("supporting"),
        )
    )


def _says_something(verdicts: pl.DataFrame) -> bool:
    return bool(verdicts["verdict"].is_in(["supported", "unsupported"]).any())


def _counts(
    chunks: pl.DataFrame, judgments: pl.DataFrame | None, snapshot: str, renamed: Mapping[str, str]
) -> pl.DataFrame:
    if judgments is None:
        judgments = TABLES["judgments"].empty()
    supporting = judgments.filter(pl.col("verdict") == "supported").select("doc_id").unique()
    return (
        chunks.select("doc_id", pl.col("repository").replace(dict(renamed)))
        .join(supporting.with_columns(supports=pl.lit(True)), on="doc_id", how="left")
        .group_by("repository")
        .agg(documents=pl.len().cast(pl.Int64), supporting=pl.col("supports").sum().cast(pl.Int64))
        .select(pl.lit(snapshot).alias("snapshot"), "repository", "documents", "supporting")
    )


def _share(column: str) -> pl.Expr:
    total = pl.col(column).sum().over("snapshot")
    share = pl.when(total > 0).then(pl.col(column) / total).otherwise(0.0)
    return pl.when(pl.col(column).is_not_null()).then(share).alias(f"{column}_share")


def _growth(column: str) -> pl.Expr:
    before = pl.col(f"{column}_before")
    return pl.when(before > 0).then(pl.col(column) / before - 1).alias(f"{column}_growth")

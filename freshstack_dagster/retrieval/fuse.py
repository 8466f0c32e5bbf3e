"""Fusion of rankings: min-max normalised scores summed, or reciprocal ranks summed."""

from __future__ import annotations

from typing import Literal

import polars as pl

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.tables import TABLES

FUSION = "fusion"
# The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009).
RRF_K = 60
_LIST = ("question_id", "variant", "retriever")
_SCHEMA = TABLES["runs"].schema


def fuse(
    runs: pl.DataFrame,
    method: Literal["min_max", "rrf"] = "min_max",
    depth: int = 100,
    keep: int | None = None,
) -> pl.DataFrame:
    """Fuse the rankings of all retrievers for each question and variant.

    `runs` has the columns of table `runs`; rows of earlier fusions and of rerankers are left out, so that fusing twice
    changes nothing. In each list a document that stands twice keeps its best place, the order is score descending,
    then doc_id ascending, and the first `depth` count. `min_max` maps the lists' scores to 0 to 1 and sums them
    (FreshStack, section 4; a list of one document, or whose scores are all equal, gives 1.0 to each); `rrf` sums
    1 / (60 + rank). The result has the columns of `runs` with retriever `fusion`, cut to `keep` documents (None for
    all), in the table's order, and depends neither on the order of rows nor of lists.

    Raises EvaluationError if a score is not finite.
    """
    lists = ranked(base_runs(runs), depth)
    score = pl.col("score")
    low, high = score.min().over(_LIST), score.max().over(_LIST)
    worth = {
        "min_max": pl.when(high > low).then((score - low) / (high - low)).otherwise(1.0),
        "rrf": 1.0 / (RRF_K + pl.col("rank")),
    }[method]
    fused = (
        lists.with_columns(worth=worth)
        .group_by("question_id", "variant", "doc_id")
        # Floating-point sums depend on their order: sum in the order of the retrievers' names.
        .agg(pl.col("worth").sort_by("retriever").alias("score"))
        .with_columns(pl.col("score").list.sum(), retriever=pl.lit(FUSION), rank=pl.lit(0, pl.Int64))
    )
    return ranked(fused.select(_SCHEMA.names()), keep)


def base_runs(runs: pl.DataFrame) -> pl.DataFrame:
    """The rows of first-stage retrievers: without fusions and without rerankers, `{base}+{reranker}`."""
    names = set(runs["retriever"].unique())
    derived = [n for n in names if n == FUSION or ("+" in n and n.rsplit("+", 1)[0] in names | {FUSION})]
    return runs.filter(~pl.col("retriever").is_in(derived)) if derived else runs


def ranked(runs: pl.DataFrame, depth: int | None = None) -> pl.DataFrame:
    """Bring rankings to the one order: no document twice, score descending, doc_id ascending, ranks from 1.

    Returns the first `depth` rows of each list (None for all) in the order of table `runs`. Raises EvaluationError if
    a score is missing or not finite.
    """
    runs = runs.select(_SCHEMA.names()).cast(dict(_SCHEMA))  # type: ignore[arg-type]
    bad = runs.filter(~pl.col("score").is_finite().fill_null(False)).head(1)
    if bad.height:
        row = bad.row(0, named=True)
        raise EvaluationError(
            f"question {row['question_id']}, variant {row['variant']}, retriever {row['retriever']}: "
            f"document {row['doc_id']} has the score {row['score']}; every score must be a finite number"
        )
    order = runs.sort([*_LIST, "score", "doc_id"], descending=[False] * 3 + [True, False])
    order = order.unique([*_LIST, "doc_id"], keep="first", maintain_order=True)
    order = order.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(_LIST))
    if depth is not None:
        order = order.filter(pl.col("rank") <= depth)
    return order.sort("variant", "retriever", "question_id", "rank")

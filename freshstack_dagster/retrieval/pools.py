"""Pools: what is judged for each question."""

from __future__ import annotations

import polars as pl

from freshstack_dagster.errors import SchemaError
from freshstack_dagster.retrieval.fuse import FUSION, base_runs, fuse, ranked
from freshstack_dagster.settings import Pooling
from freshstack_dagster.tables import TABLES

_KEY = ("question_id", "doc_id")


def build_pools(runs: pl.DataFrame, pooling: Pooling, submitted: pl.DataFrame | None = None) -> pl.DataFrame:
    """The candidates of each question: table `pools`.

    For every variant of `pooling.variants` the fused top `pooling.depth` enters the pool (FreshStack, section 4), and
    the first of every retriever's own list, which a sum of scores could otherwise leave out. `submitted` runs top the
    pool up: the first `pooling.depth` of each of them enter too. They have the columns of `runs`; `variant` may be
    absent and is then `question`, `retriever` may be called `system`, and `rank` may be absent.

    Raises SchemaError for a submitted run without its columns or with the name of a retriever.

    `rank` and `score` are the best over the variants' whole fused lists; a document that only a submitted run found
    has the best rank there and the score min-max normalised in that list. `found_by` names every list, fusions
    included, in whose first `pooling.depth` the document stands, with its rank there, in the order of the variants in
    `pooling`, then by name.
    """
    lists = ranked(base_runs(runs).filter(pl.col("variant").is_in(pooling.variants)))
    extra = _submitted(submitted)
    if taken := sorted(set(_names(extra)) & {FUSION, *_names(runs)}):
        raise SchemaError(f"a submitted run is called {taken[0]}, as a retriever of the runs is; rename it")
    fused = pl.concat([fuse(lists, pooling.fusion), _normalised(extra)])
    tops = pl.concat([lists, fused.filter(pl.col("retriever") == FUSION), extra]).filter(
        pl.col("rank") <= pooling.depth
    )
    entering = tops.filter(
        (pl.col("retriever") == FUSION) | (pl.col("rank") == 1) | pl.col("retriever").is_in(_names(extra))
    )
    variants = {variant: place for place, variant in enumerate(pooling.variants)}
    place = pl.col("variant").replace_strict(variants, default=len(variants), return_dtype=pl.Int64)
    found_by = (
        tops.with_columns(place=place)
        .sort("place", "variant", "retriever")
        .group_by(_KEY, maintain_order=True)
        .agg(found_by=pl.struct("variant", "retriever", "rank"))
    )
    best = fused.group_by(_KEY).agg(pl.col("rank").min(), pl.col("score").max())
    pools = entering.select(_KEY).unique().join(best, on=_KEY).join(found_by, on=_KEY)
    return TABLES["pools"].conform(pools)


def _submitted(frame: pl.DataFrame | None) -> pl.DataFrame:
    """Submitted runs as rows of `runs`, in the one order."""
    if frame is None:
        return TABLES["runs"].empty()
    if "retriever" not in frame.columns and "system" in frame.columns:
        frame = frame.rename({"system": "retriever"})
    missing = [name for name in ("question_id", "retriever", "doc_id", "score") if name not in frame.columns]
    if missing:
        raise SchemaError(f"a submitted run lacks columns {missing}; it needs question_id, retriever, doc_id, score")
    if "variant" not in frame.columns:
        frame = frame.with_columns(variant=pl.lit("question"))
    # A row without doc_id says that a run found nothing for a question.
    return ranked(frame.filter(pl.col("doc_id").is_not_null()).with_columns(rank=pl.lit(0, pl.Int64)))


def _normalised(extra: pl.DataFrame) -> pl.DataFrame:
    """Submitted lists with their scores min-max normalised, each on its own, to stand beside fused scores."""
    parts = []
    for part in extra.partition_by("retriever"):
        # Under a name of its own: fusing leaves out what is called like a fusion or a reranked run.
        fused = fuse(part.with_columns(retriever=pl.lit("submitted")), "min_max", keep=None)
        parts.append(fused.with_columns(retriever=pl.lit(part["retriever"][0], dtype=pl.String)))
    return pl.concat([TABLES["runs"].empty(), *parts])


def _names(runs: pl.DataFrame) -> list[str]:
    return runs["retriever"].unique().to_list()

"""Rankings of every query variant by every retriever, fused, and the candidates for judging."""

from __future__ import annotations

from typing import Any

import polars as pl

from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic


def _retrieval(topic: Topic) -> Any:
    return (
        [retriever.model_dump(mode="json") for retriever in topic.retrievers],
        [reranker.model_dump(mode="json") for reranker in topic.rerankers],
        topic.pooling.model_dump(mode="json"),
        str(topic.asked_before),
    )


def _pooling(topic: Topic) -> Any:
    return topic.pooling.model_dump(mode="json")


@table_assets(
    "runs",
    group="pools",
    rooms=["retrieval"],
    reads=["chunks", "questions", "query_variants"],
    settings=_retrieval,
    kinds={"bm25s", "scipy", "parquet"},
    pool="embeddings",
)
def retrieve(stage: Stage) -> Built:
    """Each query variant against the corpus by each retriever, their fusion, and rerankers over the question's run."""
    from freshstack_dagster.retrieval.retrieve import retrieve as retrieve_all

    asked = stage.read_questions()["question_id"]
    queries = stage.read("query_variants").filter(pl.col("question_id").is_in(asked.implode()))
    chunks = stage.scan("chunks").select("doc_id", "path", "content_hash", "text").collect()
    report: dict[str, Any] = {}
    runs = retrieve_all(
        queries, chunks, stage.topic, cache=stage.places.cache, progress=stage.progress(), report=report
    )
    if stage.topic.rerankers:
        from freshstack_dagster.retrieval.rerank import rerank

        runs = pl.concat([runs, rerank(runs, queries, chunks, stage.topic, cache=stage.places.cache)])
    rankings = (
        runs.group_by("variant", "retriever")
        .agg(pl.col("question_id").n_unique().alias("questions"), pl.len().alias("documents"))
        .sort("variant", "retriever")
    )
    return Built({"runs": runs}, {"rankings": rankings.to_dicts(), "report": report})


@table_assets(
    "pools",
    group="pools",
    rooms=["retrieval"],
    reads=["runs"],
    settings=_pooling,
)
def pool_candidates(stage: Stage) -> Built:
    """The fused top of every query variant, the question included; each row knows what found it."""
    from freshstack_dagster.retrieval.pools import build_pools

    pools = build_pools(stage.read("runs"), stage.topic.pooling)
    sizes = pools.group_by("question_id").len("documents")["documents"]
    facts = {
        "questions": len(sizes),
        "documents a question": round(float(sizes.mean() or 0), 1),  # type: ignore[arg-type]
        "depth": stage.topic.pooling.depth,
        "fusion": stage.topic.pooling.fusion,
    }
    return Built({"pools": pools}, facts)

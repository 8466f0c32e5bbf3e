"""Rankings of every query variant by every retriever, fused, and the candidates for judging."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import polars as pl

from freshstack_dagster.assets.models import cost_panel, open_models
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


def submitted_files(stage: Stage) -> list[tuple[str, int, int]]:
    """Names, sizes and times of the runs that were dropped into the snapshot's folder."""
    folder = stage.places.submitted_runs / stage.topic.name / stage.month
    return [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.glob("[!.]*"))
        if path.is_file()
    ]


def _topping_up(stage: Stage) -> Any:
    return submitted_files(stage) if stage.topic.pooling.top_up else None


@table_assets(
    "runs",
    group="pools",
    rooms=["retrieval", "language_models"],
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
    progress = stage.progress()
    runs = retrieve_all(queries, chunks, stage.topic, cache=stage.places.cache, progress=progress, report=report)
    facts: dict[str, Any] = {}
    if stage.topic.rerankers:
        from freshstack_dagster.retrieval.rerank import rerank

        # Only a language model has calls to record; without one no replies and no ledger are opened.
        asks = any(reranker.kind == "llm" for reranker in stage.topic.rerankers)
        with open_models(stage) if asks else nullcontext() as models:
            reranked = rerank(
                runs,
                queries,
                chunks,
                stage.topic,
                cache=stage.places.cache,
                progress=progress,
                report=report,
                models=models,
            )
        runs = pl.concat([runs, reranked])
        facts = {} if models is None else cost_panel(models)
    rankings = (
        runs.group_by("variant", "retriever")
        .agg(pl.col("question_id").n_unique().alias("questions"), pl.len().alias("documents"))
        .sort("variant", "retriever")
    )
    return Built({"runs": runs}, {"rankings": rankings.to_dicts(), "report": report, **facts})


@table_assets(
    "pools",
    group="pools",
    rooms=["retrieval", "evaluation/runs.py"],
    reads=["runs", "chunks", "questions"],
    settings=_pooling,
    external=_topping_up,
)
def pool_candidates(stage: Stage) -> Built:
    """The fused top of every query variant, the question included; each row knows what found it.

    With `pooling.top_up` the top of every run in the snapshot's folder of submitted runs enters too, so that what it
    retrieves is judged; verdicts that stand are kept.
    """
    from freshstack_dagster.retrieval.pools import build_pools

    submitted = _read_submitted(stage) if stage.topic.pooling.top_up else {}
    frames = [run.with_columns(system=pl.lit(name)) for name, run in submitted.items()]
    pools = build_pools(stage.read("runs"), stage.topic.pooling, pl.concat(frames) if frames else None)
    sizes = pools.group_by("question_id").len("documents")["documents"]
    facts: dict[str, Any] = {
        "questions": len(sizes),
        "documents a question": round(float(sizes.mean() or 0), 1),  # type: ignore[arg-type]
        "depth": stage.topic.pooling.depth,
        "fusion": stage.topic.pooling.fusion,
    }
    if stage.topic.pooling.top_up:
        finders = pl.col("found_by").list.eval(pl.element().struct.field("retriever"))
        only = pools.filter(finders.list.set_difference(pl.lit(sorted(submitted), pl.List(pl.String))).list.len() == 0)
        facts["submitted runs"] = ", ".join(sorted(submitted)) or "none"
        facts["documents that only submitted runs found"] = only.height
    return Built({"pools": pools}, facts)


def _read_submitted(stage: Stage) -> dict[str, pl.DataFrame]:
    """The submitted runs by name, checked against the snapshot's chunks and questions."""
    from freshstack_dagster.evaluation.runs import read_submitted

    folder = stage.places.submitted_runs / stage.topic.name / stage.month
    return read_submitted(folder, stage.scan("chunks"), stage.read_questions())

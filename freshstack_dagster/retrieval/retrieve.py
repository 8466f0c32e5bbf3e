"""Runs: every query variant through every retriever of a topic, and their fusion."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from freshstack_dagster.errors import FreshstackError, SchemaError, SettingsError
from freshstack_dagster.retrieval.base import Corpus, Opener, Progress, Retrieval, Workspace
from freshstack_dagster.retrieval.fuse import fuse, ranked
from freshstack_dagster.retrieval.topk import Ranking
from freshstack_dagster.settings import Retriever, Topic
from freshstack_dagster.tables import TABLES

PLUGINS = "freshstack_dagster.retrievers"
# Each batch of a dense retriever reads all passages once.
_BATCH = 1000


def retrieve(
    queries: pl.DataFrame,
    chunks: pl.DataFrame,
    topic: Topic,
    *,
    cache: Path,
    progress: Progress | None = None,
    report: dict[str, Any] | None = None,
) -> pl.DataFrame:
    """Rank `chunks` for every query with every retriever of the topic and with their fusion: table `runs`.

    `queries` has the columns question_id, variant and text of table `query_variants`, for the questions of the
    snapshot; `chunks` has doc_id, content_hash and text. Each list holds at most `topic.pooling.run_depth` documents.
    A variant of several lines (`sub_questions`, `nuggets`) is one query of all its lines: FreshStack's Table 4 has one
    ranking a technique and model, and fuses over models only.

    What can be used again is kept under `cache`; `progress` is called with the stage, what is done and the total;
    `report` gets an entry a retriever with counts (documents, queries, queries without terms, truncated inputs) and
    seconds. Raises SchemaError for queries or chunks that do not fit, SettingsError for a retriever that cannot be
    opened.
    """
    corpus = Corpus.of(chunks)
    queries = _checked(queries)
    texts = queries["text"].to_list()
    parts = [TABLES["runs"].empty()]
    for retriever in topic.retrievers if len(corpus) and texts else ():
        counts: dict[str, Any] = {"kind": retriever.kind, "queries": len(texts)}
        if report is not None:
            report[retriever.name] = counts
        workspace = Workspace(cache, _named(retriever.name, progress), counts)
        began = time.perf_counter()
        rankings = search_all(open_retriever(retriever, corpus, workspace), texts, topic.pooling.run_depth, workspace)
        counts["seconds"] = time.perf_counter() - began
        counts["queries_without_results"] = sum(not len(ranking.rows) for ranking in rankings)
        parts.append(ranked(_rows(queries, retriever.name, rankings, corpus), topic.pooling.run_depth))
    runs = pl.concat(parts)
    runs = pl.concat([runs, fuse(runs, topic.pooling.fusion, keep=topic.pooling.run_depth)])
    return TABLES["runs"].conform(runs)


def open_retriever(retriever: Retriever, corpus: Corpus, workspace: Workspace) -> Retrieval:
    """Open a retriever of any kind on a corpus.

    Kind `plugin` is an installed entry point of group `freshstack_dagster.retrievers`, named by `model` or else by the
    retriever's name: a function of retriever, corpus and workspace that returns an object with `search`.
    """
    return _opener(retriever)(retriever, corpus, workspace)


def search_all(retrieval: Retrieval, texts: Sequence[str], depth: int, workspace: Workspace) -> list[Ranking]:
    """Search for all texts in batches, telling how many are done."""
    rankings: list[Ranking] = []
    for start in range(0, len(texts), _BATCH):
        rankings.extend(retrieval.search(texts[start : start + _BATCH], depth))
        workspace.tell("searching", len(rankings), len(texts))
    return rankings


def _opener(retriever: Retriever) -> Opener:
    match retriever.kind:
        case "bm25" | "bm25_code":
            from freshstack_dagster.retrieval.lexical import open_bm25

            return open_bm25
        case "lsa":
            from freshstack_dagster.retrieval.lsa import open_lsa

            return open_lsa
        case "dense":
            from freshstack_dagster.retrieval.dense import open_dense

            return open_dense
        case "api":
            from freshstack_dagster.retrieval.api import open_api

            return open_api
        case "multi_vector":
            from freshstack_dagster.retrieval.multi_vector import open_multi_vector

            return open_multi_vector
        case "plugin":
            return _plugin(retriever)


def _plugin(retriever: Retriever) -> Opener:
    name = retriever.model or retriever.name
    found = {point.name: point for point in entry_points(group=PLUGINS)}
    if name not in found:
        raise SettingsError(
            f"retriever {retriever.name}: no entry point {name} in group {PLUGINS}; "
            f"installed are {', '.join(sorted(found)) or 'none'}"
        )
    try:
        return found[name].load()
    except Exception as error:
        raise SettingsError(f"retriever {retriever.name}: entry point {name} cannot be loaded: {error}") from error


def _checked(queries: pl.DataFrame) -> pl.DataFrame:
    key = ["question_id", "variant"]
    missing = [name for name in (*key, "text") if name not in queries.columns]
    if missing:
        raise SchemaError(f"queries lack columns {missing}; they need question_id, variant and text")
    queries = queries.select(*key, "text").sort(key)
    repeated = queries.filter(pl.struct(key).is_duplicated()).select(key).head(1).rows()
    if repeated:
        raise SchemaError(f"question {repeated[0][0]} has variant {repeated[0][1]} twice; give each variant once")
    return queries


def _rows(queries: pl.DataFrame, name: str, rankings: list[Ranking], corpus: Corpus) -> pl.DataFrame:
    if len(rankings) != queries.height:
        raise FreshstackError(
            f"retriever {name} answered {len(rankings)} of {queries.height} queries; it must answer each"
        )
    lengths = np.array([len(ranking.rows) for ranking in rankings], dtype=np.int64)
    rows = np.concatenate([ranking.rows for ranking in rankings]).astype(np.int64)
    scores = np.concatenate([ranking.scores for ranking in rankings])
    if len(scores) != len(rows) or ((rows < 0) | (rows >= len(corpus))).any():
        raise FreshstackError(
            f"retriever {name} returned rows outside 0 to {len(corpus) - 1}, or not one score a row; mend the retriever"
        )
    of_query = np.repeat(np.arange(queries.height), lengths)
    ranks = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
    ids = pl.Series("doc_id", corpus.doc_ids, dtype=pl.String)
    return queries[of_query].select(
        "question_id",
        "variant",
        retriever=pl.lit(name),
        doc_id=ids[rows],
        rank=pl.Series(ranks, dtype=pl.Int64),
        score=pl.Series(scores, dtype=pl.Float64),
    )


def _named(name: str, progress: Progress | None) -> Progress | None:
    if progress is None:
        return None
    return lambda stage, done, total: progress(f"{name}: {stage}", done, total)

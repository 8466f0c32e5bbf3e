"""The corpus: each repository's commit at the snapshot, every file of its tree, and the chunks."""

from __future__ import annotations

from typing import Any

import polars as pl

from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic


def _repositories(topic: Topic) -> Any:
    return [repository.model_dump(mode="json") for repository in topic.repositories]


def _chunking(topic: Topic) -> Any:
    return _repositories(topic), topic.max_tokens, topic.seconds_per_file, topic.max_file_bytes


@table_assets(
    "commits",
    group="corpus",
    rooms=["corpus"],
    settings=_repositories,
    always=True,
    kinds={"git", "parquet"},
    pool="git",
)
def resolve_commits(stage: Stage) -> Built:
    """The last first-parent commit of the branch of the time, by committer date, before the month's end in UTC."""
    from freshstack_dagster.corpus.build import commit_url
    from freshstack_dagster.corpus.build import resolve_commits as resolve

    commits = resolve(stage.topic, stage.month, stage.places.mirrors)
    of_alias = {repository.alias: repository for repository in stage.topic.repositories}
    pages = [
        {
            "repository": row["repository"],
            "committed_at": str(row["committed_at"]),
            "commit": commit_url(of_alias[row["repository"]], row["commit"][:12]) or row["commit"][:12],
        }
        for row in commits.iter_rows(named=True)
    ]
    later = [f"{r.name} since {r.since}" for r in stage.topic.repositories if not r.is_part_of(stage.month)]
    return Built({"commits": commits}, {"commits": pages, "not yet a part": ", ".join(later) or "none"})


@table_assets(
    "files",
    "chunks",
    group="corpus",
    rooms=["corpus"],
    reads=["commits"],
    settings=_chunking,
    kinds={"git", "treesitter", "parquet"},
    pool="git",
)
def cut_chunks(stage: Stage) -> Built:
    """Every file of every tree has a row; what is text is cut into chunks, cached by blob and chunker version."""
    from freshstack_dagster.corpus.build import build_corpus

    corpus = build_corpus(
        stage.topic, stage.read("commits"), stage.places.mirrors, stage.places.cache, progress=stage.progress()
    )
    outcomes = corpus.files.group_by("outcome").agg(pl.len().alias("files"), pl.col("chunks").sum()).sort("outcome")
    by_repository = (
        corpus.chunks.group_by("repository").agg(pl.len().alias("chunks"), pl.col("tokens").sum()).sort("repository")
    )
    facts = {
        "files, by outcome": outcomes.to_dicts(),
        "chunks, by repository": by_repository.to_dicts(),
        "tokens": int(corpus.chunks["tokens"].sum()),
        "report": corpus.report,
    }
    return Built({"files": corpus.files, "chunks": corpus.chunks}, facts)

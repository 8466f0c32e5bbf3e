"""Community questions with accepted answers, and the posts that did not become one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl

from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic


def _settings(topic: Topic) -> Any:
    source = topic.questions.model_dump(mode="json") if topic.questions else None
    return source, sorted(topic.tags), str(topic.asked_from), str(topic.asked_before)


def _source(stage: Stage) -> Any:
    """Sizes and times of the source's files. What lies elsewhere, an API or a hub, is asked again once a day."""
    from freshstack_dagster.stackexchange.sources import source_files

    files = source_files(stage.topic.questions) if stage.topic.questions else []
    if files is None:
        return f"{datetime.now(UTC):%Y-%m-%d}"
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


@table_assets(
    "questions",
    "question_ledger",
    group="questions",
    rooms=["stackexchange"],
    settings=_settings,
    external=_source,
    kinds={"stackexchange", "parquet"},
)
def read_questions(stage: Stage) -> Built:
    """Read from the topic's source: exact tags, asked from the floor on, with the accepted answer present."""
    from freshstack_dagster.stackexchange.sources import load_questions

    found = load_questions(stage.topic, cache=stage.places.cache, progress=stage.say)
    reasons = found.ledger.group_by("reason").len("posts").sort("posts", descending=True)
    dates = found.questions["asked_at"].drop_nulls()
    facts = {
        "questions": found.questions.height,
        "read": dict(found.counts),
        "left out, by reason": reasons.to_dicts(),
        "asked from": str(dates.min()) if len(dates) else "no dates",
        "asked to": str(dates.max()) if len(dates) else "no dates",
        "with code": found.questions.filter(pl.col("body_text").str.contains("```", literal=True)).height,
    }
    return Built({"questions": found.questions, "question_ledger": found.ledger}, facts)


@table_assets(
    "tag_statistics",
    "co_occurring_tags",
    group="questions",
    rooms=["stackexchange"],
    settings=_settings,
    external=_source,
    kinds={"stackexchange", "parquet"},
)
def count_tags(stage: Stage) -> Built:
    """To choose topics and repositories as the paper did: tags first seen since the floor by their questions, and what
    stands beside the topic's own tags. Empty for a source that is no dump."""
    from freshstack_dagster.stackexchange.sources import tag_tables

    statistics, beside = tag_tables(stage.topic, cache=stage.places.cache, progress=stage.say)
    recent = statistics.filter("first_seen_since_floor").sort(["questions", "tag"], descending=[True, False])
    facts = {
        "tags": statistics.height,
        "first seen since the floor, most questions first": recent.head(25).select("tag", "questions").to_dicts(),
        "beside the topic's tags": beside.sort(["questions", "tag"], descending=[True, False]).head(25).to_dicts(),
    }
    return Built({"tag_statistics": statistics, "co_occurring_tags": beside}, facts)

"""The questions of a topic, from whichever source it names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.settings import QuestionSource, Topic
from freshstack_dagster.stackexchange.collection import HUB, collection_files
from freshstack_dagster.stackexchange.questions import QuestionFilter, Questions, as_utc
from freshstack_dagster.tables import TABLES

if TYPE_CHECKING:
    from freshstack_dagster.stackexchange.collection import PublishedJudgments

INDEX_FOLDER = "dump_index"
KEY_VARIABLE = "STACKEXCHANGE_KEY"


def load_questions(topic: Topic, *, cache: Path, progress: Callable[[str], None]) -> Questions:
    """Read the topic's questions and the ledger of posts that did not become one.

    In: the topic's settings; a folder for what a source keeps between runs (the dump's index, the API's replies); a
    function that is told one line now and then. Raises SettingsError if the topic has no source, SourceError for a
    file or an answer that cannot be read.
    """
    source = topic.questions
    if source is None:
        raise SettingsError(f"topic {topic.name} has no source of questions; set `questions` in its file")
    wanted = QuestionFilter(
        tags=topic.tags,
        asked_from=topic.asked_from,
        asked_before=topic.asked_before,
        min_score=source.min_score,
        exclude_closed=source.exclude_closed,
        exclude_duplicates=source.exclude_duplicates,
        max_characters=source.max_characters,
    )
    if source.kind == "api":
        from freshstack_dagster.stackexchange.api import ApiSettings, load_api

        settings = ApiSettings(
            state_dir=cache / "stackexchange",
            site=source.site.removesuffix(".com").removesuffix(".stackexchange"),
            key=os.environ.get(KEY_VARIABLE),
        )
        return load_api(settings, wanted, progress=progress)
    assert source.path is not None
    if source.kind == "dump":
        from freshstack_dagster.stackexchange.dump import index_place, load_dump

        place = index_place(source.path, cache / INDEX_FOLDER)
        return load_dump(
            source.path, wanted, site=source.site, index_dir=place, progress=lambda state: progress(str(state))
        )
    if source.kind == "jsonl":
        from freshstack_dagster.stackexchange.jsonl import load_jsonl

        return load_jsonl(source.path, wanted)
    from freshstack_dagster.stackexchange.collection import load_collection

    return load_collection(collection_place(source.path), wanted)


def source_files(source: QuestionSource) -> list[Path] | None:
    """The files that a source reads and that are there, sorted; None for one that lies elsewhere: an API or a hub."""
    if source.kind == "api" or source.path is None:
        return None
    if source.kind == "dump":
        from freshstack_dagster.stackexchange.dump import POST_LINKS

        return [path for path in (source.path, source.path.with_name(POST_LINKS)) if path.is_file()]
    if source.kind == "jsonl":
        return [source.path] if source.path.is_file() else []
    place = collection_place(source.path)
    return None if place.startswith(HUB) else [Path(file) for file in collection_files(place)]


def collection_place(path: Path) -> str:
    """A collection's path or hub address as text: a Path has lost one of the two slashes of `hf://`."""
    text = str(path)
    return f"{HUB}{text.removeprefix('hf:/').lstrip('/')}" if text.startswith("hf:/") else text


def published_nuggets(topic: Topic) -> PublishedJudgments:
    """The nuggets (and qrels) that the topic's published collection carries, whatever questions the topic keeps.

    Raises SettingsError if the topic's source is not a collection, SourceError for a file without nuggets.
    """
    from freshstack_dagster.stackexchange.collection import load_collection_judgments

    source = topic.questions
    if source is None or source.kind != "collection" or source.path is None:
        raise SettingsError(f"topic {topic.name}: published nuggets come from questions of kind `collection` only")
    return load_collection_judgments(collection_place(source.path))


def tag_tables(topic: Topic, *, cache: Path, progress: Callable[[str], None]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables `tag_statistics` and `co_occurring_tags`, counted from the index of the topic's dump.

    Both are empty for a source that is no dump: the others hold questions that were chosen already. Raises SourceError
    for a dump that cannot be read.
    """
    statistics, beside = TABLES["tag_statistics"], TABLES["co_occurring_tags"]
    source = topic.questions
    if source is None or source.kind != "dump" or source.path is None:
        return statistics.empty(), beside.empty()
    from freshstack_dagster.stackexchange.dump import tag_index_place
    from freshstack_dagster.stackexchange.select import all_tags, co_occurring_tags

    place = tag_index_place(source.path, cache / INDEX_FOLDER)
    tags = all_tags(source.path, index_dir=place, progress=lambda state: progress(str(state)))
    floor = topic.asked_from
    recent = pl.lit(True) if floor is None else pl.col("first_asked_at") >= pl.lit(as_utc(floor))
    tags = tags.with_columns(first_seen_since_floor=recent.fill_null(False))
    co_occurring = co_occurring_tags(source.path, topic.tags, limit=None, asked_from=floor, index_dir=place)
    return statistics.conform(tags), beside.conform(co_occurring)

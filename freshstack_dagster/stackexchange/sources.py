"""The questions of a topic, from whichever source it names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.settings import Topic
from freshstack_dagster.stackexchange.questions import QuestionFilter, Questions

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
        from freshstack_dagster.stackexchange.dump import load_dump

        return load_dump(source.path, wanted, site=source.site, progress=lambda state: progress(str(state)))
    if source.kind == "jsonl":
        from freshstack_dagster.stackexchange.jsonl import load_jsonl

        return load_jsonl(source.path, wanted)
    from freshstack_dagster.stackexchange.collection import load_collection

    return load_collection(source.path, wanted)

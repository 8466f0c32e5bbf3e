"""Opening the language models for a stage, so that every call is recorded whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from freshstack_dagster.assets.tables import Stage

if TYPE_CHECKING:
    from freshstack_dagster.language_models.client import Models


@contextmanager
def open_models(stage: Stage) -> Iterator[Models]:
    """The models of a stage; their calls are added to `model_calls` also when the stage fails."""
    from freshstack_dagster.language_models.client import Models

    models = Models(
        cache=stage.places.cache / "replies",
        budget=stage.topic.budget,
        snapshot=stage.snapshot,
        progress=stage.say,
    )
    try:
        yield models
    finally:
        calls = models.calls()
        if calls.height:
            stage.lake.append("model_calls", calls, topic=stage.topic.name, run=stage.run)

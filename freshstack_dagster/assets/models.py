"""Opening the language models for a stage, so that every call is recorded whatever happens, and what it cost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from freshstack_dagster.assets.tables import Stage
from freshstack_dagster.settings import ModelRole

if TYPE_CHECKING:
    from freshstack_dagster.language_models.client import Models


@contextmanager
def open_models(stage: Stage) -> Iterator[Models]:
    """The models of a stage; their calls are added to `model_calls` also when the stage fails."""
    from freshstack_dagster.language_models.client import Models

    models = Models(
        cache=stage.places.cache / "language_models",
        budget=stage.topic.budget,
        snapshot=stage.snapshot,
        progress=stage.say,
        run=stage.run or None,
    )
    try:
        yield models
    finally:
        calls = models.calls()
        if calls.height:
            stage.lake.append("model_calls", calls, topic=stage.topic.name, run=stage.run)


# Outcomes that say nothing of the question: the next run may well get an answer.
PASSING = ("transport", "missing")


def unfinished(models: Models | None) -> str | None:
    """What of a stage's requests got no answer for a reason that may pass, in words; None if there is nothing."""
    errors = {} if models is None else models.summary()["errors"]
    lost = {kind: errors[kind] for kind in PASSING if kind in errors}
    if not lost:
        return None
    return (
        f"{sum(lost.values())} requests got no answer ({', '.join(f'{count} {kind}' for kind, count in lost.items())})"
    )


def role_settings(role: ModelRole) -> Any:
    """A role as a stage's fingerprint takes it: of a prompt file its words, for the path alone would hide an edit."""
    settings = role.model_dump(mode="json")
    if role.prompt is not None and role.prompt.is_file():
        settings["prompt"] = hashlib.sha256(role.prompt.read_bytes()).hexdigest()
    return settings


def cost_panel(models: Models) -> dict[str, Any]:
    """What the calls of a stage cost, for its facts: a row a role, and sums as numbers, which the UI plots over time.

    Dollars are those of this run; replies from the cache cost nothing. A price that is unknown is named in a line of
    its own, and where no price is known there is no sum: it is never shown as zero.
    """
    summary = models.summary()
    parts = summary["roles"]
    rows = [
        {
            "role": name,
            "model": part["model"],
            "requests": part["requests"],
            "calls": part["calls"],
            "from the cache": part["cached"],
            "tokens in": part["input_tokens"],
            "tokens out": part["output_tokens"],
            "dollars": "price unknown" if part["dollars"] is None else f"{part['dollars']:.4f}",
            "failed": ", ".join(f"{count} {kind}" for kind, count in part["errors"].items()) or "none",
        }
        for name, part in parts.items()
    ]
    panel = {"model calls": rows, "tokens in": summary["input_tokens"], "tokens out": summary["output_tokens"]}
    known = [part["dollars"] for part in parts.values() if part["dollars"] is not None]
    if known or not parts:
        panel["dollars"] = float(sum(known))
    left_out = sorted({part["model"] for part in parts.values() if part["dollars"] is None})
    if left_out:
        panel["dollars leave out"] = (
            f"the calls of {', '.join(left_out)}, whose price is unknown: name it in a file, that in budget.prices"
        )
    if summary["unconfirmed_dollars"]:
        panel["dollars that may be billed besides"] = summary["unconfirmed_dollars"]
    return panel

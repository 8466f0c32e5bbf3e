"""Opening the language models for a stage, so that every call is recorded whatever happens, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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


def cost_panel(models: Models) -> dict[str, Any]:
    """What the calls of a stage cost, for its facts: a row a role, and a line that says what the dollars leave out.

    Dollars are those of this run; replies from the cache cost nothing. An unknown price is named, never shown as zero.
    """
    summary = models.summary()
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
        for name, part in summary["roles"].items()
    ]
    return {"model calls": rows, "dollars": _dollars(summary)}


def _dollars(summary: dict[str, Any]) -> str:
    unknown = sorted({part["model"] for part in summary["roles"].values() if part["dollars"] is None})
    known = sum(part["dollars"] or 0.0 for part in summary["roles"].values())
    line = f"{known:.4f}"
    if unknown:
        line += f", and the calls of {', '.join(unknown)}, whose price is unknown: name it in a file for budget.prices"
    if summary["unconfirmed_dollars"]:
        line += f", and up to {summary['unconfirmed_dollars']:.4f} for calls whose answer never came"
    return line

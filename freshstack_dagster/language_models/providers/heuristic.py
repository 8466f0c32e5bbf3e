"""The embedded default: rules in this process, no key, no network. It runs the pipeline; it is no judge."""

from __future__ import annotations

from typing import Any

from freshstack_dagster.language_models.request import Request


def answer(request: Request) -> dict[str, Any] | None:
    """What the rules say to a request, in the shape of its schema; None for a task that has no rule."""
    from freshstack_dagster.judging.heuristic import REPLIES

    rule = REPLIES.get(request.task)
    return None if rule is None else rule(request.inputs)

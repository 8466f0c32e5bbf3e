"""What is asked of a model and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One question to a model.

    `id` is unique in a run. `task` is nuggets, sub_questions, closed_book_answer or support. `system` and `user` are
    the rendered prompt, `schema` is the JSON schema of the reply and `prompt` the version of the prompt's text.
    `inputs` are the facts that the prompt was rendered from: the heuristic provider works from these.
    """

    id: str
    task: str
    system: str
    user: str
    schema: dict[str, Any]
    prompt: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    question_id: str | None = None


@dataclass(frozen=True)
class Asked:
    """What the records keep of a request: enough to know it again, nothing of its text."""

    id: str
    task: str
    prompt: str
    question_id: str | None
    attempt: int

    @classmethod
    def of(cls, request: Request, attempt: int) -> Asked:
        """The record of a request's n-th attempt."""
        return cls(request.id, request.task, request.prompt, request.question_id, attempt)


class ReplyError(ValueError):
    """A reply's content is wrong: a nugget left out, an unknown document, a doubled id. Raised by a reader."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of a request: a value, or an error with its kind; never both, never neither.

    `kind` is ok, length (truncated), refusal, content_filter, malformed, transport, missing (a batch did not return it)
    or skipped (the provider does not do this task). `reply` is the key of the reply in the cache.
    """

    value: T | None
    error: str | None
    kind: str
    reply: str | None = None

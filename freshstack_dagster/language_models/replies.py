"""Strict reading of replies: a reply is right as it stands, or it is an error. Nothing is repaired or guessed."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

Finish = Literal["stop", "length", "refusal", "content_filter"]

_FENCE = re.compile(r"\A```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?```\Z", re.DOTALL)
_SHOWN = 160
_LENGTHS = {"minItems": "at least", "maxItems": "at most"}


class MalformedReply(ValueError):
    """The reply is not the one JSON object that its schema describes."""


@dataclass(frozen=True)
class Reply:
    """A provider's reply in one shape for all providers; this is what the cache holds.

    `finish` says how it ended, `finish_reason` the same in the provider's word. `input_tokens` are all tokens in,
    `cached_tokens` those of them that the provider charges as read from its own cache.
    """

    text: str
    finish: Finish
    finish_reason: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    served_model: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The reply as plain data."""
        return asdict(self)


def read_object(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Read a reply as the one JSON object that `schema` describes.

    Accepted are a JSON object and a JSON object in one whole Markdown fence; white space around is ignored. Raises
    MalformedReply for anything else: text beside it, a doubled key, NaN, half a surrogate pair, the wrong shape.
    """
    text = text.strip().removeprefix("\ufeff")
    if not text:
        raise MalformedReply("the reply is empty")
    if fence := _FENCE.match(text):
        text = fence[1]
    try:
        data = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except MalformedReply:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"the reply is not JSON ({error}): {shown(text)}") from None
    if not isinstance(data, dict):
        raise MalformedReply(f"the reply is not a JSON object: {shown(text)}")
    _check_text(data)
    _check_shape(data, schema)
    return data


def shown(text: str) -> str:
    """The beginning of a text as one line, for a message."""
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN else line[:_SHOWN] + "…")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = sorted({name for name in names if names.count(name) > 1})
        raise MalformedReply(f"the reply has a key twice: {', '.join(doubled)}")
    return found


def _no_constant(name: str) -> Any:
    raise MalformedReply(f"the reply has {name}, which is not JSON")


def _check_text(data: Any) -> None:
    # json.loads lets half a surrogate pair through, which no table can store.
    try:
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise MalformedReply(f"the reply has half a surrogate pair: {error.reason}") from None


def _check_shape(data: dict[str, Any], schema: dict[str, Any]) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(schema).iter_errors(data))
    if error is not None:
        where = error.json_path.removeprefix("$").removeprefix(".")
        message = _LENGTHS.get(str(error.validator), error.message)
        if message is not error.message:
            message = f"{len(error.instance)} entries, {message} {error.validator_value} are asked for"
        message = " ".join(message.split())
        message = message if len(message) <= 2 * _SHOWN else message[: 2 * _SHOWN] + "…"
        raise MalformedReply(f"the reply has the wrong shape{f' at {where}' if where else ''}: {message}")

"""What a role's reply looks like (JSON schema) and its strict reading.

A reader takes a reply whose shape the caller has held against the schema, and returns values, or raises ReplyError with
a text that says what is wrong. Nothing is guessed, completed or dropped: a nugget left out, a document named twice or
never given are errors, because a reply that is wrong in one place cannot be trusted in the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from freshstack_dagster.language_models.request import ReplyError

MOST_NUGGETS = 20
MOST_SUB_QUESTIONS = 12
LONGEST_STATEMENT = 1_000
"""Characters of a nugget or sub-question; a longer one is the answer or the prompt given back."""


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}

# The order of the keys is the order of writing: reasons come before what follows from them.
SCHEMAS: dict[str, dict[str, Any]] = {
    "nuggets": _object(summary=_STRING, nuggets=_array(_STRING)),
    "sub_questions": _object(reasoning=_STRING, sub_questions=_array(_STRING)),
    "closed_book_answer": _object(answer=_STRING),
}


def support_schema(documents: int, nuggets: int) -> dict[str, Any]:
    """The schema of a reply on so many documents and nuggets.

    A model that is held to it cannot name another document or nugget, or leave out a document; small models otherwise
    write numbers at random, and lists without end.
    """
    of_documents, of_nuggets = ({**_INTEGER, "enum": list(range(1, count + 1))} for count in (documents, nuggets))
    entry = _object(
        document=of_documents,
        reason=_STRING,
        supported={**_array(_object(nugget=of_nuggets, quote=_STRING)), "maxItems": nuggets},
        unsupported={**_array(of_nuggets), "maxItems": nuggets},
    )
    return _object(documents={**_array(entry), "minItems": documents, "maxItems": documents})


@dataclass(frozen=True)
class DocumentVerdict:
    """What a judge says of one document: its reason, and the quote for each nugget (by position) that it supports."""

    reason: str
    quotes: Mapping[int, str]


def read_nuggets(reply: Mapping[str, Any]) -> tuple[str, ...]:
    """The nuggets of a reply to the task `nuggets`, in order, at least one. Raises ReplyError."""
    return _statements(reply["nuggets"], "nuggets", MOST_NUGGETS)


def read_sub_questions(reply: Mapping[str, Any]) -> tuple[str, ...]:
    """The sub-questions of a reply to the task `sub_questions`, in order, at least one. Raises ReplyError."""
    return _statements(reply["sub_questions"], "sub_questions", MOST_SUB_QUESTIONS)


def read_closed_book_answer(reply: Mapping[str, Any]) -> str:
    """The answer of a reply to the task `closed_book_answer`. Raises ReplyError if it is missing or empty."""
    return _text(reply["answer"], "answer")


def read_support(reply: Mapping[str, Any], *, documents: int, nuggets: int) -> tuple[DocumentVerdict, ...]:
    """The verdicts of a reply to the task `support`, in the order of the documents asked about.

    `documents` and `nuggets` say how many were asked about; both are numbered from 1 in the reply and from 0 in the
    result. Raises ReplyError if any document or nugget is left out, doubled or unknown, or a support has no quote.
    """
    found: dict[int, DocumentVerdict] = {}
    for entry in reply["documents"]:
        number = _number(entry["document"], "document", documents)
        if number in found:
            raise ReplyError(f"document {number} is judged twice")
        found[number] = _document_verdict(entry, number, nuggets)
    _complete(found, documents, "document")
    return tuple(found[number] for number in range(1, documents + 1))


def _document_verdict(entry: Mapping[str, Any], number: int, nuggets: int) -> DocumentVerdict:
    where = f"document {number}"
    reason = _text(entry["reason"], f"{where}: reason")
    quotes: dict[int, str] = {}
    for support in entry["supported"]:
        nugget = _number(support["nugget"], f"{where}: nugget", nuggets)
        if nugget in quotes:
            raise ReplyError(f"{where}: nugget {nugget} is answered twice")
        quotes[nugget] = _text(support["quote"], f"{where}: the quote for nugget {nugget}")
    answered = set(quotes)
    for value in entry["unsupported"]:
        nugget = _number(value, f"{where}: nugget", nuggets)
        if nugget in answered:
            raise ReplyError(f"{where}: nugget {nugget} is answered twice")
        answered.add(nugget)
    _complete(answered, nuggets, f"{where}: nugget")
    return DocumentVerdict(reason, {nugget - 1: quote for nugget, quote in quotes.items()})


def _text(value: str, where: str) -> str:
    if not value.strip():
        raise ReplyError(f"{where} is empty")
    return value


def _number(value: int, where: str, count: int) -> int:
    # JSON schema takes 1.0 for an integer, and Python takes True for one.
    if type(value) is not int:
        raise ReplyError(f"{where} {value!r} is not a whole number")
    if not 1 <= value <= count:
        raise ReplyError(f"{where} {value} is unknown: there are {count}")
    return value


def _complete(answered: Iterable[int], count: int, what: str) -> None:
    if missing := sorted(set(range(1, count + 1)) - set(answered)):
        raise ReplyError(f"{what} {', '.join(map(str, missing[:5]))} of {count} left out")


def _statements(value: Sequence[str], where: str, most: int) -> tuple[str, ...]:
    statements = [" ".join(_text(item, where).split()) for item in value]
    if not statements:
        raise ReplyError(f"{where} is empty")
    if len(statements) > most:
        raise ReplyError(f"{where} has {len(statements)} entries, at most {most} are read")
    if long := [len(text) for text in statements if len(text) > LONGEST_STATEMENT]:
        raise ReplyError(f"{where} has an entry of {long[0]} characters, at most {LONGEST_STATEMENT} are read")
    if len({text.casefold() for text in statements}) < len(statements):
        raise ReplyError(f"{where} says the same twice")
    return tuple(statements)

"""Stand-ins for the language-model client: callers that answer from a function, and frames to ask about."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from freshstack_dagster.language_models import Outcome, ReplyError, Request
from freshstack_dagster.settings import ModelRole
from freshstack_dagster.tables import TABLES

LLM = ModelRole(provider="openai", model="fake")
Answer = Callable[[Request], Any]


class FakeCaller:
    """Answers from a function: a reply, or an Outcome to fail with."""

    def __init__(self, name: str, answer: Answer, log: list[Request]) -> None:
        self.name = name
        self.answer = answer
        self.log = log
        self.model = "openai:fake"
        self.judge_kind = "llm"

    async def call(self, request: Request, read: Callable[[Any], Any]) -> Outcome[Any]:
        self.log.append(request)
        await asyncio.sleep(0)
        answer = self.answer(request)
        if isinstance(answer, Outcome):
            return answer
        try:
            return Outcome(read(answer), None, "ok", f"reply-{request.id}")
        except ReplyError as error:
            return Outcome(None, str(error), "malformed", f"reply-{request.id}")


class FakeModels:
    """Models whose every role is one FakeCaller."""

    def __init__(self, answer: Answer, snapshot: str | None = None) -> None:
        self.answer = answer
        self.snapshot = snapshot
        self.log: list[Request] = []

    def role(self, name: str, role: ModelRole) -> FakeCaller:
        return FakeCaller(name, self.answer, self.log)


def failure(kind: str) -> Outcome[Any]:
    return Outcome(None, f"told to fail as {kind}", kind, None)


def support_reply(request: Request, supports: Callable[[str, str], str | None]) -> dict[str, Any]:
    """A well-formed reply to `support`: the quote that `supports(nugget, document)` gives, or no support."""
    nuggets, documents = request.inputs["nuggets"], request.inputs["documents"]
    entries = []
    for number, document in enumerate(documents, 1):
        quotes = {position: supports(nugget, document) for position, nugget in enumerate(nuggets, 1)}
        entries.append(
            {
                "document": number,
                "reason": f"document {number} was read",
                "supported": [{"nugget": p, "quote": quote} for p, quote in quotes.items() if quote is not None],
                "unsupported": [p for p, quote in quotes.items() if quote is None],
            }
        )
    return {"documents": entries}


def questions(**answers: str) -> pl.DataFrame:
    """The table `questions` with a row for each id and its answer."""
    rows = [
        {
            "question_id": question_id,
            "title": f"How do I {question_id}?",
            "body_text": "I tried.\n\n```\nfoo()\n```",
            "answer_id": None,
            "answer_text": answer,
            "tags": ["x"],
            "content_hash": hashlib.sha256(answer.encode()).hexdigest(),
        }
        for question_id, answer in answers.items()
    ]
    table = TABLES["questions"]
    missing = {name: [None] * len(rows) for name in table.columns if not rows or name not in rows[0]}
    return table.conform(pl.DataFrame(rows).with_columns(**{k: pl.Series(v) for k, v in missing.items()}))


def nuggets(texts: Mapping[str, list[str]]) -> pl.DataFrame:
    """The table `nuggets` from lists of texts by question."""
    return pl.DataFrame(
        [
            {
                "nugget_id": f"{question_id}_{position}",
                "question_id": question_id,
                "position": position,
                "text": text,
                "model": "openai:fake",
                "prompt": "p",
                "reply": None,
            }
            for question_id, own in texts.items()
            for position, text in enumerate(own)
        ],
        schema=TABLES["nuggets"].schema,
    )


def chunks(texts: Mapping[str, str]) -> pl.DataFrame:
    """What judging reads of the table `chunks`."""
    return pl.DataFrame(
        [
            {"doc_id": doc_id, "content_hash": hashlib.sha256(text.encode()).hexdigest(), "text": text}
            for doc_id, text in texts.items()
        ],
        schema={"doc_id": pl.String(), "content_hash": pl.String(), "text": pl.String()},
    )


def pools(docs: Mapping[str, list[str]]) -> pl.DataFrame:
    """The table `pools` from lists of documents by question."""
    return pl.DataFrame(
        [
            {"question_id": question_id, "doc_id": doc_id, "rank": rank, "score": 1.0 / rank, "found_by": []}
            for question_id, own in docs.items()
            for rank, doc_id in enumerate(own, 1)
        ],
        schema=TABLES["pools"].schema,
    )


__all__ = ["LLM", "FakeModels", "chunks", "failure", "nuggets", "pools", "questions", "support_reply"]

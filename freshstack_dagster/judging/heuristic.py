"""The embedded default for every model role: deterministic rules that need no key and no network.

It is there to run the pipeline, not to make a benchmark; every row it touches says `heuristic`. Its replies have the
shape of a model's, and are read as strictly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from freshstack_dagster.judging import terms
from freshstack_dagster.judging.statements import salient_statements, smaller_questions
from freshstack_dagster.judging.terms import PooledTexts

__all__ = ["REPLIES", "SKIPPED", "VERSION", "PooledTexts"]


def _version() -> str:
    """A hash of the rules, so that no verdict by older rules is ever carried over."""
    rules = [Path(__file__).with_name(name).read_bytes() for name in ("statements.py", "terms.py")]
    return "heuristic-" + hashlib.sha256(b"".join(rules)).hexdigest()[:12]


VERSION = _version()
"""Stands where a prompt's version stands."""

SKIPPED = {
    "closed_book_answer": "the heuristic knows nothing by heart, and the answer or the question under this name would "
    "be an echo; name a model for the role to have it",
}


def _nuggets(inputs: Mapping[str, Any]) -> dict[str, Any]:
    question = f"{inputs['title']}\n\n{inputs['body']}"
    return {"summary": inputs["title"], "nuggets": salient_statements(question, inputs["answer"])}


def _sub_questions(inputs: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = "Title, lines of error messages and interrogative sentences, as they stand."
    return {"reasoning": reasoning, "sub_questions": smaller_questions(inputs["title"], inputs["body"])}


def _support(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """`inputs`: nuggets, documents (texts) and, from a whole pool, content_hashes and statistics (PooledTexts)."""
    nuggets, documents = inputs["nuggets"], inputs["documents"]
    hashes = inputs.get("content_hashes") or [str(number) for number in range(len(documents))]
    texts = dict(zip(hashes, documents, strict=True))
    pooled = inputs.get("statistics") or PooledTexts(texts, dict.fromkeys(texts, nuggets))
    return {
        "documents": [
            _document(number, nuggets, content_hash, text, pooled)
            for number, (content_hash, text) in enumerate(zip(hashes, documents, strict=True), 1)
        ]
    }


def _document(number: int, nuggets: list[str], content_hash: str, text: str, pooled: PooledTexts) -> dict[str, Any]:
    reasons, supported, unsupported = [], [], []
    for position, nugget in enumerate(nuggets, 1):
        match = pooled.match(nugget, content_hash)
        reasons.append(f"nugget {position}: {terms.reason(match)}")
        if terms.supports(match):
            supported.append({"nugget": position, "quote": terms.quote(match, text)})
        else:
            unsupported.append(position)
    return {"document": number, "reason": " ".join(reasons), "supported": supported, "unsupported": unsupported}


REPLIES: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "nuggets": _nuggets,
    "sub_questions": _sub_questions,
    "support": _support,
}

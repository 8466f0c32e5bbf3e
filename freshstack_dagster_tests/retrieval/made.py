"""Small corpora, queries and topics made for these tests."""

from __future__ import annotations

import hashlib
from typing import Any

import polars as pl

from freshstack_dagster.settings import Topic


def chunks(texts: dict[str, str]) -> pl.DataFrame:
    """Chunks by doc_id."""
    rows = [(doc_id, hashlib.sha256(text.encode()).hexdigest(), text) for doc_id, text in texts.items()]
    return pl.DataFrame(rows, schema={"doc_id": str, "content_hash": str, "text": str}, orient="row")


def queries(texts: dict[tuple[str, str] | str, str]) -> pl.DataFrame:
    """Queries by question_id and variant, or by question_id alone for variant `question`."""
    rows = [(*((key, "question") if isinstance(key, str) else key), text) for key, text in texts.items()]
    return pl.DataFrame(rows, schema={"question_id": str, "variant": str, "text": str}, orient="row")


def topic(*retrievers: Any, **settings: Any) -> Topic:
    """A topic with these retrievers."""
    document = {"name": "made", "title": "Made", "repositories": ["made/made"], **settings}
    if retrievers:
        document["retrievers"] = list(retrievers)
    return Topic.model_validate(document)


def runs(lists: dict[tuple[str, str, str], list[tuple[str, float]]]) -> pl.DataFrame:
    """Rows of `runs` from (question, variant, retriever) to (doc_id, score), ranked as listed."""
    rows = [
        (question, variant, retriever, doc_id, rank, score)
        for (question, variant, retriever), documents in lists.items()
        for rank, (doc_id, score) in enumerate(documents, start=1)
    ]
    names = ["question_id", "variant", "retriever", "doc_id", "rank", "score"]
    types = dict(zip(names, [pl.String, pl.String, pl.String, pl.String, pl.Int64, pl.Float64], strict=True))
    return pl.DataFrame(rows, schema=types, orient="row")

"""Questions of technical communities: Stack Exchange dumps, its API, JSON lines and the published collections."""

from __future__ import annotations

from freshstack_dagster.stackexchange.api import ApiSettings, QuotaReached, load_api
from freshstack_dagster.stackexchange.collection import (
    PublishedJudgments,
    load_collection,
    load_collection_judgments,
    question_text,
)
from freshstack_dagster.stackexchange.dump import ensure_index, load_dump, read_dump
from freshstack_dagster.stackexchange.jsonl import load_jsonl
from freshstack_dagster.stackexchange.progress import Progress
from freshstack_dagster.stackexchange.questions import QuestionFilter, Questions, content_hash, license_at
from freshstack_dagster.stackexchange.select import all_tags, co_occurring_tags
from freshstack_dagster.stackexchange.text import html_to_text

__all__ = [
    "ApiSettings",
    "Progress",
    "PublishedJudgments",
    "QuestionFilter",
    "Questions",
    "QuotaReached",
    "all_tags",
    "co_occurring_tags",
    "content_hash",
    "ensure_index",
    "html_to_text",
    "license_at",
    "load_api",
    "load_collection",
    "load_collection_judgments",
    "load_dump",
    "load_jsonl",
    "question_text",
    "read_dump",
]

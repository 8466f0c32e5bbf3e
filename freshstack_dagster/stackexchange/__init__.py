"""Questions of technical communities: Stack Exchange dumps, its API, JSON lines and the published collections."""

from __future__ import annotations

from freshstack_dagster.stackexchange.dump import load_dump, read_dump
from freshstack_dagster.stackexchange.jsonl import load_jsonl
from freshstack_dagster.stackexchange.questions import QuestionFilter, Questions
from freshstack_dagster.stackexchange.text import html_to_text

__all__ = ["QuestionFilter", "Questions", "html_to_text", "load_dump", "load_jsonl", "read_dump"]

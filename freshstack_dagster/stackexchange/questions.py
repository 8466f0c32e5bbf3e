"""What every source of questions shares: the filter, the two tables it fills, and one way to build their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

import polars as pl

from freshstack_dagster.tables import TABLES

NO_ACCEPTED_ANSWER = "no accepted answer"
ANSWER_MISSING = "answer missing"
OTHER_TAG = "other tag"
BEFORE_FLOOR = "before the floor"
AFTER_CUT_OFF = "after the cut-off"
CLOSED = "closed"
DUPLICATE = "duplicate"
LOW_SCORE = "score"
TOO_LONG = "too long"

# Dates from which new posts carry the next licence (https://stackoverflow.com/help/licensing).
_LICENSES = ((date(2018, 5, 2), "CC BY-SA 4.0"), (date(2011, 4, 8), "CC BY-SA 3.0"), (date.min, "CC BY-SA 2.5"))


@dataclass(frozen=True)
class QuestionFilter:
    """Which questions a topic wants.

    `tags`: exact tags, one of which a question must carry (empty: any question). `asked_from` is the first moment
    that counts, `asked_before` the first that no longer does; a moment without a zone is UTC. `min_score` is the
    lowest score that counts. `max_characters` bounds title and body together, as text. A question whose source gives
    no date, score or state passes the filter on it: nothing speaks against it.
    """

    tags: frozenset[str]
    asked_from: datetime | None = None
    asked_before: datetime | None = None
    min_score: int | None = None
    exclude_closed: bool = False
    exclude_duplicates: bool = False
    max_characters: int | None = None

    def wants_tags(self, tags: Iterable[str]) -> bool:
        """Whether a question with these tags is about the topic at all."""
        return not self.tags or not self.tags.isdisjoint(tags)

    def reason_against(
        self,
        *,
        asked_at: datetime | None = None,
        score: int | None = None,
        closed: bool = False,
        duplicate: bool = False,
        characters: int = 0,
    ) -> tuple[str, str] | None:
        """The first reason to leave a question of the topic out with its detail, or None to keep it."""
        if asked_at is not None:
            if self.asked_from is not None and asked_at < as_utc(self.asked_from):
                return BEFORE_FLOOR, f"asked {asked_at:%Y-%m-%d}"
            if self.asked_before is not None and asked_at >= as_utc(self.asked_before):
                return AFTER_CUT_OFF, f"asked {asked_at:%Y-%m-%d}"
        if duplicate and self.exclude_duplicates:
            return DUPLICATE, "marked as a duplicate of another question"
        if closed and self.exclude_closed:
            return CLOSED, "closed by the community"
        if score is not None and self.min_score is not None and score < self.min_score:
            return LOW_SCORE, f"score {score}"
        if self.max_characters is not None and characters > self.max_characters:
            return TOO_LONG, f"{characters} characters"
        return None


@dataclass(frozen=True)
class Questions:
    """What a source gave: the rows of tables `questions` and `question_ledger`, and plain counts of what was read.

    Questions of other tags are counted under `other tag` in `counts` and never listed in the ledger: a dump of Stack
    Overflow holds 24 million of them.
    """

    questions: pl.DataFrame
    ledger: pl.DataFrame
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """One question with its accepted answer, all of it text."""

    question_id: str
    title: str
    body_text: str
    answer_text: str
    tags: Sequence[str]
    answer_id: str | None = None
    score: int | None = None
    view_count: int | None = None
    asked_at: datetime | None = None
    answer_edited_at: datetime | None = None
    url: str | None = None
    author_url: str | None = None
    answer_author_url: str | None = None
    license: str | None = None


def as_utc(moment: datetime) -> datetime:
    """The moment in UTC; one without a zone is taken as UTC, as Stack Exchange writes them."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def parse_moment(text: str | None) -> datetime | None:
    """An ISO 8601 date or moment (any fraction of a second, `Z` or an offset) in UTC; None for none or not a date."""
    if not text:
        return None
    text = text.strip()
    if text.endswith(("Z", "z")):
        text = text[:-1] + "+00:00"
    try:
        return as_utc(datetime.fromisoformat(text))
    except ValueError:
        return None


def license_at(moment: datetime | None) -> str | None:
    """The licence of a Stack Exchange post written at `moment`, None without a date."""
    if moment is None:
        return None
    return next(name for since, name in _LICENSES if as_utc(moment).date() >= since)


def user_url(site: str, user_id: str | int | None) -> str | None:
    """The page of a Stack Exchange user, to attribute a post to; None for a user who left (or is no number)."""
    return f"https://{site}/users/{user_id}" if user_id is not None and str(user_id).isdecimal() else None


def joint_license(question: str | None, answer: str | None) -> str | None:
    """The licence of a question and its answer as one text, each named where they differ."""
    if answer is None or question == answer:
        return question
    return answer if question is None else f"{question} (question), {answer} (answer)"


def content_hash(title: str, body: str, answer: str) -> str:
    """sha256 (hex) of the three texts, NUL between them, so that an edit of any is known."""
    return hashlib.sha256("\0".join((title, body, answer)).encode("utf-8", "surrogatepass")).hexdigest()


class QuestionRows:
    """Gathers questions and the posts left out, and makes the two tables from them."""

    def __init__(self) -> None:
        self._questions: dict[str, Question] = {}
        self._left_out: dict[tuple[str, str], str | None] = {}
        self.counts: dict[str, int] = {}

    def add(self, question: Question) -> None:
        """Keep a question; the last of two with one id counts."""
        self._questions[question.question_id] = question

    def leave_out(self, post_id: str, reason: str, detail: str | None = None) -> None:
        """Record a post that did not become a question."""
        self._left_out[post_id, reason] = detail

    def count(self, name: str, number: int = 1) -> None:
        """Add to a named count of what was read."""
        self.counts[name] = self.counts.get(name, 0) + number

    def tables(self) -> Questions:
        """The rows as the tables `questions` and `question_ledger`, each in its own order."""
        kept = list(self._questions.values())
        columns: dict[str, list] = {
            name: [getattr(question, name) for question in kept]
            for name in TABLES["questions"].columns
            if name != "content_hash"
        }
        columns["tags"] = [list(tags) for tags in columns["tags"]]
        columns["content_hash"] = [content_hash(q.title, q.body_text, q.answer_text) for q in kept]
        questions = pl.DataFrame(columns, schema=TABLES["questions"].schema)
        ledger = pl.DataFrame(
            {
                "post_id": [post_id for post_id, _ in self._left_out],
                "reason": [reason for _, reason in self._left_out],
                "detail": list(self._left_out.values()),
            },
            schema=TABLES["question_ledger"].schema,
        )
        return Questions(
            TABLES["questions"].conform(questions), TABLES["question_ledger"].conform(ledger), dict(self.counts)
        )

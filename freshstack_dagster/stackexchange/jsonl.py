"""Questions from JSON lines: one object a line, text in Markdown."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange import questions as reasons
from freshstack_dagster.stackexchange.questions import (
    Question,
    QuestionFilter,
    QuestionRows,
    Questions,
    parse_moment,
)

REQUIRED = ("question_id", "title", "body_markdown", "answer_markdown", "tags")
OPTIONAL = (
    "answer_id", "score", "view_count", "asked_at", "answer_edited_at", "url", "author_url", "answer_author_url",
    "license", "closed", "duplicate",
)  # fmt: skip
KNOWN = frozenset({*REQUIRED, *OPTIONAL})
# How alike an unknown key and a known one are for the first to be a slip: `asked` and `licence` are, `body` is not.
SLIP = 0.75


def load_jsonl(path: str | Path, filter: QuestionFilter) -> Questions:
    """Read questions from a JSON lines file.

    A line holds `question_id`, `title`, `body_markdown`, `answer_markdown` and `tags` (a list), and may hold
    `answer_id`, `score`, `view_count`, `asked_at`, `answer_edited_at` (ISO 8601, UTC without an offset), `url`,
    `author_url`, `answer_author_url`, `license`, `closed` and `duplicate` (true or false); other keys are counted by
    name and left alone. Markdown is kept as it is. A question with an empty answer goes to the ledger, one of another
    tag is counted; one without a date passes the date filters.
    Raises SourceError, naming the line, for what is not such an object, a key that looks like a slip of one that is
    missing, or a question_id that comes twice.
    """
    path = Path(path)
    rows = QuestionRows()
    seen: dict[str, int] = {}
    try:
        file = path.open(encoding="utf-8-sig")
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); give a file of JSON lines") from error
    with file:
        number = 0
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    _take(_Line(path, number, line), filter, rows, seen)
        except UnicodeDecodeError as error:
            raise SourceError(f"{path}: not UTF-8 after line {number} ({error.reason})") from error
    return rows.tables()


class _Line:
    """One line as an object whose values are checked as they are asked for."""

    def __init__(self, path: Path, number: int, line: str) -> None:
        self.place = f"{path}, line {number}"
        try:
            self._values = json.loads(line)
        except ValueError as error:
            raise SourceError(f"{self.place}: not JSON ({error})") from error
        if not isinstance(self._values, dict):
            raise SourceError(f"{self.place}: not an object but {type(self._values).__name__}")
        self.unknown = sorted(set(self._values) - KNOWN)
        for key in self.unknown:
            near = difflib.get_close_matches(key, KNOWN - set(self._values), 1, SLIP)
            if near:
                raise SourceError(f"{self.place}: unknown key {key}; did you mean {near[0]}?")
        missing = [key for key in REQUIRED if self._values.get(key) is None]
        if missing:
            raise SourceError(f"{self.place}: lacks {', '.join(missing)}")

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise SourceError(f"{self.place}: {key} is not text but {value!r:.60}")
        return str(value)

    def required(self, key: str) -> str:
        return self.text(key) or ""

    def integer(self, key: str) -> int | None:
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise SourceError(f"{self.place}: {key} is not a whole number but {value!r:.60}")
        return value

    def flag(self, key: str) -> bool:
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise SourceError(f"{self.place}: {key} is neither true nor false but {value!r:.60}")
        return bool(value)

    def moment(self, key: str) -> Any:
        text = self.text(key)
        moment = parse_moment(text)
        if text and moment is None:
            raise SourceError(f"{self.place}: {key} is not an ISO 8601 date but {text!r:.60}")
        return moment

    def tags(self) -> list[str]:
        value = self._values["tags"]
        if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
            raise SourceError(f"{self.place}: tags is not a list of texts but {value!r:.60}")
        return value


def _take(line: _Line, wanted: QuestionFilter, rows: QuestionRows, seen: dict[str, int]) -> None:
    question_id = line.required("question_id")
    if not question_id or question_id == "all" or any(character.isspace() for character in question_id):
        # `all` stands for the mean over questions in the tables of results.
        raise SourceError(f"{line.place}: question_id is {question_id!r}; give a word other than `all`")
    if question_id in seen:
        raise SourceError(f"{line.place}: question_id {question_id!r} stands twice")
    seen[question_id] = 1
    rows.count("questions")
    for key in line.unknown:
        rows.count(f"with the unknown key {key}")
    tags = line.tags()
    title = " ".join(line.required("title").split())
    body, answer = line.required("body_markdown").strip(), line.required("answer_markdown").strip()
    asked_at = line.moment("asked_at")
    score = line.integer("score")
    question = Question(
        question_id=question_id,
        title=title,
        body_text=body,
        answer_id=line.text("answer_id"),
        answer_text=answer,
        tags=tags,
        score=score,
        view_count=line.integer("view_count"),
        asked_at=asked_at,
        answer_edited_at=line.moment("answer_edited_at"),
        url=line.text("url"),
        author_url=line.text("author_url"),
        answer_author_url=line.text("answer_author_url"),
        license=line.text("license"),
    )
    closed, duplicate = line.flag("closed"), line.flag("duplicate")
    if not wanted.wants_tags(tags):
        rows.count(reasons.OTHER_TAG)
        return
    against = wanted.reason_against(asked_at=asked_at)
    if against is None and not answer:
        against = (reasons.NO_ACCEPTED_ANSWER, "answer_markdown is empty")
    if against is None:
        against = wanted.reason_against(
            score=score, closed=closed, duplicate=duplicate, characters=len(title) + 1 + len(body)
        )
    if against is None:
        rows.add(question)
    else:
        rows.leave_out(question_id, *against)

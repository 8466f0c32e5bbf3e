"""Generated answers as files: one `<system>.jsonl` a system, a line an answer."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl

from freshstack_dagster.errors import EvaluationError

SCHEMA = pl.Schema({"system": pl.String(), "question_id": pl.String(), "text": pl.String()})


def read_answers(folder: Path, question_ids: Collection[str] | pl.Series) -> pl.DataFrame:
    """Read every `*.jsonl` of a folder: objects with `question_id` and `answer`, other keys left alone.

    The system is the file's name. An id may be a number; an empty answer says that the system has none, and states no
    nugget. Returns system, question_id and text, sorted; no rows if there is no file. Raises EvaluationError that names
    file and line: no JSON object, a key that is missing or of the wrong type, a question that the topic does not have,
    one answered twice, a file without answers or of another kind.
    """
    known = set(question_ids)
    rows: list[tuple[str, str, str]] = []
    for path in sorted(folder.glob("*")):
        if path.name.startswith("."):
            continue
        if path.suffix != ".jsonl":
            raise EvaluationError(f"{path}: answers are read from <system>.jsonl; rename the file or take it away")
        rows += [(path.stem, question_id, text) for question_id, text in _read(path, known)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").sort("system", "question_id")


def _read(path: Path, known: set[str]) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{path}: the answers cannot be read as UTF-8: {error}") from error
    first: dict[str, int] = {}
    answers = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        question_id, text = _answer(line, where)
        if question_id not in known:
            raise EvaluationError(f"{where}: the topic has no question {question_id!r}")
        if question_id in first:
            raise EvaluationError(f"{where}: question {question_id} was answered on line {first[question_id]} already")
        first[question_id] = number
        answers.append((question_id, text))
    if not answers:
        raise EvaluationError(f"{path}: no answers in it; take the file away or fill it")
    return answers


def _answer(line: str, where: str) -> tuple[str, str]:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise EvaluationError(f"{where}: not JSON: {error}") from error
    if not isinstance(entry, dict) or not {"question_id", "answer"} <= set(entry):
        raise EvaluationError(f"{where}: expected an object with question_id and answer")
    question_id, text = entry["question_id"], entry["answer"]
    if isinstance(question_id, bool) or not isinstance(question_id, int | str):
        raise EvaluationError(f"{where}: question_id is {question_id!r}, expected a text or a whole number")
    if not isinstance(text, str):
        raise EvaluationError(f"{where}: the answer to {question_id} is not a text")
    return str(question_id), text

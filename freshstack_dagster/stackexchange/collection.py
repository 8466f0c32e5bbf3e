"""The layout of the published FreshStack collections: questions with answers, nuggets and nugget-level judgments.

A row of `freshstack/queries-oct-2024` holds `query_id`, `query_title`, `query_text`, `answer_id`, `answer_text`,
`metadata` (`date`, `tags`) and `nuggets`, a list of `_id`, `text`, `relevant_corpus_ids`, `non_relevant_corpus_ids`.
The query that the published figures are made with is title, one space and text.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange import questions as reasons
from freshstack_dagster.stackexchange.questions import (
    Question,
    QuestionFilter,
    QuestionRows,
    Questions,
    license_at,
    parse_moment,
)
from freshstack_dagster.tables import TABLES

_COLUMNS = ("query_id", "query_title", "query_text", "answer_text")
HUB = "hf://"
PUBLISHED = "published"


@dataclass(frozen=True)
class PublishedJudgments:
    """The nuggets and judgments of a published collection.

    `nuggets` and `qrels` have the columns of these tables; their model and prompt read `published`. `conflicts` lists
    (nugget_id, doc_id) of documents that a nugget names both as relevant and as not: they count as not relevant, as in
    the reference loader, which reads that list last.
    """

    nuggets: pl.DataFrame
    qrels: pl.DataFrame
    conflicts: list[tuple[str, str]]


def question_text(title: str, body: str) -> str:
    """Title and body as one query, joined as the published collections join them."""
    return f"{title} {body}"


def load_collection(path: str | Path, filter: QuestionFilter) -> Questions:
    """Read the questions of a published collection.

    `path` is a Parquet or JSON lines file, a folder of such files (one topic's, such as `langchain`), a glob, or a hub
    path (`hf://datasets/freshstack/queries-oct-2024/langchain/*.parquet`), which polars reads over the network. Texts
    are kept as published; `tags` and dates come from `metadata`. A row whose date cannot be read is counted under
    `undated` and passes the date filters, a collection without tags passes the tag filter. Raises SourceError, naming
    the file, for columns that are missing and for a query_id that comes twice.
    """
    rows = QuestionRows()
    seen: set[str] = set()
    for row in _read(path).iter_rows(named=True):
        question_id = str(row["query_id"])
        if question_id in seen:
            raise SourceError(f"{path}: query_id {question_id!r} stands twice; give the files of one topic only")
        seen.add(question_id)
        rows.count("questions")
        _take(row, question_id, filter, rows)
    return rows.tables()


def load_collection_judgments(path: str | Path) -> PublishedJudgments:
    """Read the nuggets of a published collection and which documents support them (`path` as in `load_collection`).

    Raises SourceError if there is no column `nuggets`, or for a nugget id that comes twice.
    """
    frame = _read(path)
    if "nuggets" not in frame.columns:
        raise SourceError(f"{path}: has no column nuggets; give a file of the published queries")
    nuggets: list[dict[str, Any]] = []
    relevance: dict[tuple[str, str], tuple[str, int]] = {}
    conflicts = []
    for row in frame.select("query_id", "nuggets").iter_rows(named=True):
        question_id = str(row["query_id"])
        for position, nugget in enumerate(row["nuggets"] or []):
            nugget_id = str(nugget["_id"])
            nuggets.append(
                {
                    "nugget_id": nugget_id,
                    "question_id": question_id,
                    "position": position,
                    "text": nugget["text"],
                    "model": PUBLISHED,
                    "prompt": PUBLISHED,
                    "reply": None,
                }
            )
            for doc_id in nugget.get("relevant_corpus_ids") or []:
                relevance[nugget_id, doc_id] = (question_id, 1)
            for doc_id in nugget.get("non_relevant_corpus_ids") or []:
                if relevance.get((nugget_id, doc_id), ("", 0))[1]:
                    conflicts.append((nugget_id, doc_id))
                relevance[nugget_id, doc_id] = (question_id, 0)
    repeated = pl.Series([row["nugget_id"] for row in nuggets], dtype=pl.String)
    if repeated.is_duplicated().any():
        raise SourceError(f"{path}: nugget {repeated.filter(repeated.is_duplicated())[0]!r} stands twice")
    qrels = pl.DataFrame(
        [
            (question_id, nugget_id, doc_id, value, "llm")
            for (nugget_id, doc_id), (question_id, value) in relevance.items()
        ],
        schema=TABLES["qrels"].schema,
        orient="row",
    )
    return PublishedJudgments(
        TABLES["nuggets"].conform(pl.DataFrame(nuggets, schema=TABLES["nuggets"].schema)),
        TABLES["qrels"].conform(qrels),
        conflicts,
    )


def _take(row: dict[str, Any], question_id: str, wanted: QuestionFilter, rows: QuestionRows) -> None:
    metadata = row.get("metadata") or {}
    tags = [str(tag) for tag in metadata.get("tags") or []]
    date = metadata.get("date")
    asked_at = parse_moment(str(date)) if date else None
    if asked_at is None:
        rows.count("undated")
    title, body, answer = (row.get(key) or "" for key in ("query_title", "query_text", "answer_text"))
    if tags and not wanted.wants_tags(tags):
        rows.count(reasons.OTHER_TAG)
        return
    against = wanted.reason_against(asked_at=asked_at)
    if against is None and not answer.strip():
        against = (reasons.NO_ACCEPTED_ANSWER, "answer_text is empty")
    if against is None:
        against = wanted.reason_against(characters=len(question_text(title, body)))
    if against is not None:
        rows.leave_out(question_id, *against)
        return
    answer_id = row.get("answer_id")
    rows.add(
        Question(
            question_id=question_id,
            title=title,
            body_text=body,
            answer_id=None if answer_id is None else str(answer_id),
            answer_text=answer,
            tags=tags,
            asked_at=asked_at,
            url=f"https://stackoverflow.com/questions/{question_id}" if question_id.isdecimal() else None,
            license=license_at(asked_at) or "CC BY-SA 4.0",  # the licence that the collections are published under
        )
    )


def _read(path: str | Path) -> pl.DataFrame:
    frames = []
    for file in collection_files(str(path)):
        try:
            frames.append(pl.read_parquet(file) if file.endswith(".parquet") else _read_lines(file))
        except (OSError, pl.exceptions.PolarsError) as error:
            reason = str(error).strip().splitlines()[0]
            raise SourceError(f"{file}: cannot be read as a published collection ({reason})") from error
    frame = pl.concat(frames, how="diagonal_relaxed") if len(frames) > 1 else frames[0]
    missing = [name for name in _COLUMNS if name not in frame.columns]
    if missing:
        raise SourceError(f"{path}: lacks the columns {', '.join(missing)} of a published collection")
    return frame


def _read_lines(file: str) -> pl.DataFrame:
    return pl.read_ndjson(file, infer_schema_length=None)


def collection_files(path: str) -> list[str]:
    """The files of a collection (`path` as in `load_collection`), sorted. Raises SourceError if there is none."""
    if path.startswith(HUB):
        return [path if path.endswith(".parquet") else path.rstrip("/") + "/*.parquet"]
    place = Path(path)
    if place.is_file():
        return [path]
    if place.is_dir():
        found = sorted(str(file) for file in place.iterdir() if file.suffix in (".parquet", ".jsonl", ".ndjson"))
    else:
        found = sorted(glob.glob(path))  # noqa: PTH207 - the pattern may be absolute
    if not found:
        raise SourceError(f"{path}: no Parquet or JSON lines file there")
    return found

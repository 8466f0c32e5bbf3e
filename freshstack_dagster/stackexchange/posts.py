"""What is read of every question and answer of a dump, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl

QUESTION = 1
ANSWER = 2
NONE = -1  # no such post, in a column of ids

QUESTION_SCHEMA = {
    "post_id": pl.Int64(),
    "accepted_id": pl.Int64(),
    "asked_at": pl.Datetime("ms"),
    "tags": pl.String(),
    "closed": pl.Boolean(),
    "offset": pl.Int64(),
    "length": pl.Int32(),
}
ANSWER_SCHEMA = {"post_id": pl.Int64(), "parent_id": pl.Int64(), "offset": pl.Int64(), "length": pl.Int32()}


@dataclass
class QuestionColumns:
    """Questions: ids, moment asked (NaT for none), tags, closed or not, and where the row lies in the dump.

    `tags` is one text for all of them, `|a|b|` for each row and a quote after it, which no tag holds: a list of a
    million texts would cost as much as the rest of the reading.
    """

    post_id: np.ndarray
    accepted_id: np.ndarray
    asked_at: np.ndarray
    tags: str
    closed: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    def frame(self) -> pl.DataFrame:
        """The columns as a frame, ids of no post as null."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["tags"] = pl.Series([self.tags], dtype=pl.String).str.split('"').explode().head(len(self.post_id))
        frame = pl.DataFrame(values)
        return _without(frame, "accepted_id").cast(QUESTION_SCHEMA)  # type: ignore[arg-type]


@dataclass
class AnswerColumns:
    """Answers: ids, and where the row lies in the dump."""

    post_id: np.ndarray
    parent_id: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    def frame(self) -> pl.DataFrame:
        """The columns as a frame, ids of no post as null."""
        frame = pl.DataFrame({field.name: getattr(self, field.name) for field in fields(self)})
        return _without(frame, "parent_id").cast(ANSWER_SCHEMA)  # type: ignore[arg-type]


def _without(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    return frame.with_columns(pl.when(pl.col(name) != NONE).then(pl.col(name)).alias(name))


def merged_questions(parts: Sequence[QuestionColumns]) -> QuestionColumns:
    """The questions of several blocks, in their order."""
    return QuestionColumns(
        post_id=_joined([part.post_id for part in parts], np.int64),
        accepted_id=_joined([part.accepted_id for part in parts], np.int64),
        asked_at=_joined([part.asked_at for part in parts], "datetime64[ms]"),
        tags="".join(part.tags for part in parts),
        closed=_joined([part.closed for part in parts], bool),
        offset=_joined([part.offset for part in parts], np.int64),
        length=_joined([part.length for part in parts], np.int64),
    )


def merged_answers(parts: Sequence[AnswerColumns]) -> AnswerColumns:
    """The answers of several blocks, in their order."""
    return AnswerColumns(
        *(_joined([getattr(part, field.name) for part in parts], np.int64) for field in fields(AnswerColumns))
    )


def question_columns(rows: Sequence[tuple]) -> QuestionColumns:
    """Columns from rows in the columns' order, None for no accepted answer and no moment."""
    return QuestionColumns(
        post_id=np.array([row[0] for row in rows], dtype=np.int64),
        accepted_id=np.array([NONE if row[1] is None else row[1] for row in rows], dtype=np.int64),
        asked_at=np.array([np.datetime64("NaT") if row[2] is None else row[2] for row in rows], dtype="datetime64[ms]"),
        tags="".join(f'{row[3]}"' for row in rows),
        closed=np.array([row[4] for row in rows], dtype=bool),
        offset=np.array([row[5] for row in rows], dtype=np.int64),
        length=np.array([row[6] for row in rows], dtype=np.int64),
    )


def answer_columns(rows: Sequence[tuple]) -> AnswerColumns:
    """Columns from rows in the columns' order, None for no question."""
    return AnswerColumns(
        *(
            np.array([NONE if row[place] is None else row[place] for row in rows], dtype=np.int64)
            for place in range(len(fields(AnswerColumns)))
        )
    )


def in_order(columns: QuestionColumns | AnswerColumns) -> None:
    """Sort columns by the place of their rows, in place."""
    order = np.argsort(columns.offset, kind="stable")
    for field in fields(columns):
        values = getattr(columns, field.name)
        if isinstance(values, str):
            pieces = values.split('"')
            setattr(columns, field.name, "".join(f'{pieces[place]}"' for place in order))
        else:
            setattr(columns, field.name, values[order])


def _joined(arrays: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)

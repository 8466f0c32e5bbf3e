"""Choosing topics from a dump, as the paper did (FreshStack, section 3.1): recent tags by size, and what they go with.

All of it is counted from the dump's index, which is built once (see `index.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import polars as pl

from freshstack_dagster.stackexchange.dump import ensure_index
from freshstack_dagster.stackexchange.progress import ProgressCallback
from freshstack_dagster.stackexchange.questions import as_utc

TAG_SCHEMA = {
    "tag": pl.String(),
    "questions": pl.Int64(),
    "with_accepted_answer": pl.Int64(),
    "first_asked_at": pl.Datetime("ms", "UTC"),
    "last_asked_at": pl.Datetime("ms", "UTC"),
}


def all_tags(
    path: str | Path, *, index_dir: str | Path | None = None, progress: ProgressCallback | None = None
) -> pl.DataFrame:
    """Every tag of the dump with its counts and dates, most questions first, then by name.

    Returns tag, questions, with_accepted_answer, first_asked_at and last_asked_at. Raises SourceError as
    `read_dump` does.
    """
    parts = [
        _exploded(questions)
        .group_by("tag")
        .agg(
            pl.len().cast(pl.Int64).alias("questions"),
            pl.col("accepted_id").is_not_null().sum().cast(pl.Int64).alias("with_accepted_answer"),
            pl.col("asked_at").min().alias("first_asked_at"),
            pl.col("asked_at").max().alias("last_asked_at"),
        )
        .collect()
        for questions in _questions(path, index_dir, progress)
    ]
    counted = (
        pl.concat(parts)
        .group_by("tag")
        .agg(
            pl.col("questions").sum(),
            pl.col("with_accepted_answer").sum(),
            pl.col("first_asked_at").min(),
            pl.col("last_asked_at").max(),
        )
    )
    return counted.sort(["questions", "tag"], descending=[True, False]).cast(TAG_SCHEMA)  # type: ignore[arg-type]


def co_occurring_tags(
    path: str | Path,
    tags: str | Iterable[str],
    *,
    limit: int | None = 25,
    asked_from: datetime | None = None,
    index_dir: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> pl.DataFrame:
    """Tags that stand beside any of `tags` (exact), to find the libraries and repositories that belong to a topic.

    Counts the questions asked from `asked_from` on. Returns tag, questions and share (of the topic's questions, 0 to
    1), most questions first, then by name, at most `limit` rows (None: all); the given tags themselves are left out.
    """
    given = sorted({tags} if isinstance(tags, str) else set(tags))
    parts, topic_questions = [], 0
    for questions in _questions(path, index_dir, progress):
        frame = questions.filter(pl.col("tags").str.contains_any([f"|{tag}|" for tag in given]))
        if asked_from is not None:
            frame = frame.filter(pl.col("asked_at") >= as_utc(asked_from).replace(tzinfo=None))
        about = frame.collect()
        topic_questions += about.height
        parts.append(_exploded(about.lazy()).group_by("tag").agg(pl.len().cast(pl.Int64).alias("questions")).collect())
    counted = (
        pl.concat(parts)
        .group_by("tag")
        .agg(pl.col("questions").sum())
        .filter(~pl.col("tag").is_in(given))
        .with_columns((pl.col("questions") / max(topic_questions, 1)).alias("share"))
        .sort(["questions", "tag"], descending=[True, False])
    )
    return counted if limit is None else counted.head(limit)


def _questions(
    path: str | Path, index_dir: str | Path | None, progress: ProgressCallback | None
) -> Iterator[pl.LazyFrame]:
    return ensure_index(path, index_dir=index_dir, progress=progress).questions()


def _exploded(questions: pl.LazyFrame) -> pl.LazyFrame:
    return (
        questions.with_columns(pl.col("tags").str.strip_chars("|").str.split("|").alias("tag"))
        .explode("tag")
        .filter(pl.col("tag") != "")
    )

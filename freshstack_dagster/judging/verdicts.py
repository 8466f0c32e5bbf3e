"""Verdicts of people as files: one `<person>.csv` or `<person>.jsonl` each, a row a nugget and chunk.

The table `disagreements`, exported as it is, becomes such a file when a column `verdict` is filled in.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.judging.nuggets import question_of
from freshstack_dagster.judging.support import SUPPORTED, UNSUPPORTED, nugget_hash, quote_stands_in
from freshstack_dagster.tables import TABLES

HUMAN = "human"
"""The kind of these judges, and what stands for the version of a prompt."""

_NEEDED = ("nugget_id", "doc_id", "verdict")


def read_verdicts(
    folder: Path, nuggets: pl.DataFrame, pools: pl.DataFrame, chunks: pl.LazyFrame | pl.DataFrame
) -> tuple[pl.DataFrame, int]:
    """Read every file of a folder into rows of the table `annotations`, and count the rows left without a verdict.

    A row has `nugget_id`, `doc_id` and `verdict` (`supported`, `unsupported`, or empty where the person has not come to
    it), and may have `reason` and `quote`; other columns are left alone. The judge is `human:<person>`, by the file's
    name. `nuggets` and `pools` are the tables of those names, `chunks` needs doc_id, content_hash and text. Raises
    EvaluationError that names file and line: a key that is missing, another verdict, a nugget that does not exist, a
    chunk that is not in the pool of its question, a pair given twice, a file of another kind.
    """
    texts = dict(nuggets.select("nugget_id", "text").iter_rows())
    pooled = set(pools.select("question_id", "doc_id").iter_rows())
    rows: list[dict[str, Any]] = []
    unsettled = 0
    for path in sorted(folder.glob("*")):
        if path.name.startswith("."):
            continue
        first: dict[tuple[str, str], str] = {}
        for where, row in _rows(path):
            nugget, doc, verdict = (_text(row, name, where) for name in _NEEDED)
            if nugget not in texts:
                raise EvaluationError(f"{where}: the topic has no nugget {nugget!r}")
            if (question_of(nugget), doc) not in pooled:
                raise EvaluationError(
                    f"{where}: chunk {doc!r} is not in the pool of {question_of(nugget)}; take the row out"
                )
            if not verdict:
                unsettled += 1
                continue
            if verdict not in (SUPPORTED, UNSUPPORTED):
                raise EvaluationError(f"{where}: verdict {verdict!r} is neither {SUPPORTED} nor {UNSUPPORTED}")
            if (nugget, doc) in first:
                raise EvaluationError(f"{where}: {nugget} and {doc} were judged at {first[nugget, doc]} already")
            first[nugget, doc] = where
            rows.append(
                {
                    "question_id": question_of(nugget),
                    "nugget_id": nugget,
                    "doc_id": doc,
                    "nugget_hash": nugget_hash(texts[nugget]),
                    "verdict": verdict,
                    "reason": _text(row, "reason", where) or f"{path.stem} says so",
                    "quote": (_text(row, "quote", where) or None) if verdict == SUPPORTED else None,
                    "judge": f"{HUMAN}:{path.stem}",
                    "judge_kind": HUMAN,
                    "prompt": HUMAN,
                    "reply": None,
                    "carried_from": None,
                }
            )
    schema = TABLES["annotations"].schema
    if not rows:
        return pl.DataFrame(schema=schema), unsettled
    given = pl.DataFrame(rows, schema_overrides=schema)
    judged = (
        chunks.lazy()
        .select("doc_id", "content_hash", "text")
        .join(given.lazy().select("doc_id").unique(), on="doc_id", how="semi")
        .collect()
    )
    given = given.join(judged, on="doc_id", how="left", validate="m:1")
    found = [
        None if quote is None else quote_stands_in(quote, text) for quote, text in given.select("quote", "text").rows()
    ]
    return TABLES["annotations"].conform(
        given.with_columns(quote_found=pl.Series(found, dtype=pl.Boolean)).drop("text")
    ), unsettled


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a file, each with where it stands."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            if path.suffix == ".csv":
                reader = csv.DictReader(file, strict=True)
                missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
                if missing:
                    raise EvaluationError(f"{path}, line 1: no column {missing[0]}; it needs {', '.join(_NEEDED)}")
                for row in reader:
                    yield f"{path}, line {reader.line_num}", row
            elif path.suffix == ".jsonl":
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield f"{path}, line {number}", _object(f"{path}, line {number}", line)
            else:
                raise EvaluationError(f"{path}: verdicts are read from <person>.csv or <person>.jsonl; rename the file")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EvaluationError(f"{path}: the verdicts cannot be read: {error}") from error


def _object(where: str, line: str) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise EvaluationError(f"{where}: not JSON: {error}") from error
    if not isinstance(entry, dict) or not set(_NEEDED) <= set(entry):
        raise EvaluationError(f"{where}: expected an object with {', '.join(_NEEDED)}")
    return entry


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise EvaluationError(f"{where}: {name} is {value!r}, expected a text")
    return (value or "").strip()

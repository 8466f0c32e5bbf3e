"""Verdicts of people: read from files, strictly, and counted before those of models."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.judging.annotation import verdicts_that_count
from freshstack_dagster.judging.verdicts import read_verdicts
from freshstack_dagster.settings import Judging
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.judging.fakes import chunks, nuggets, pools

NUGGETS = nuggets({"q1": ["call `open()` first", "raise the limit"]})
POOLS = pools({"q1": ["docs/a.md_0_9", "docs/b.md_0_9"]})
HEAD = "nugget_id,doc_id,verdict\n"
CHUNKS = chunks({"docs/a.md_0_9": "You call open()\n  first.", "docs/b.md_0_9": "Nothing.", "docs/c.md_0_9": "More."})


def read(folder: Path, name: str, text: str) -> tuple[pl.DataFrame, int]:
    (folder / name).write_text(text, encoding="utf-8")
    return read_verdicts(folder, NUGGETS, POOLS, CHUNKS)


def test_a_sheet_and_lines_of_json_become_annotations(tmp_path: Path) -> None:
    assert read_verdicts(tmp_path / "none", NUGGETS, POOLS, CHUNKS)[0].equals(TABLES["annotations"].empty())
    (tmp_path / "bo.jsonl").write_text(
        json.dumps({"nugget_id": "q1_1", "doc_id": "docs/b.md_0_9", "verdict": "unsupported", "reason": "no limit"})
        + "\n\n"
    )
    # As a spreadsheet saves the table `disagreements` with a column more: with a mark, and with rows not come to yet.
    sheet = (
        "\ufeffquestion,nugget_id,doc_id,verdict,quote\r\n"
        'How?,q1_0,docs/a.md_0_9,supported,"call open() first."\r\n'
        "How?,q1_0,docs/b.md_0_9, ,\r\n"
    )
    found, unsettled = read(tmp_path, "ann.csv", sheet)
    assert unsettled == 1
    rows = found.select("nugget_id", "doc_id", "verdict", "reason", "quote_found", "judge", "judge_kind").rows()
    assert rows == [
        ("q1_0", "docs/a.md_0_9", "supported", "ann says so", True, "human:ann", "human"),
        ("q1_1", "docs/b.md_0_9", "unsupported", "no limit", None, "human:bo", "human"),
    ]
    assert found["content_hash"].to_list() == CHUNKS["content_hash"].to_list()[:2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "nugget_id,verdict\nq1_0,supported\n", r"a\.csv, line 1: no column doc_id"),
        (
            "a.csv",
            HEAD + "q9_0,docs/a.md_0_9,supported\n",
            r"line 2: the topic has no nugget 'q9_0'",
        ),
        (
            "a.csv",
            HEAD + "q1_0,docs/c.md_0_9,supported\n",
            r"line 2: chunk 'docs/c\.md_0_9' is not in",
        ),
        (
            "a.csv",
            HEAD + "q1_0,docs/a.md_0_9,yes\n",
            r"line 2: verdict 'yes' is neither supported nor",
        ),
        ("a.jsonl", '{"nugget_id": "q1_0"}\n', r"a\.jsonl, line 1: expected an object with nugget_id, doc_id, verdict"),
        ("a.jsonl", "\n{\n", r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", '{"nugget_id": "q1_0", "doc_id": 7, "verdict": ""}\n', r"line 1: doc_id is 7, expected a text"),
        ("a.xlsx", "x", r"a\.xlsx: verdicts are read from <person>\.csv or <person>\.jsonl"),
        (
            "a.csv",
            HEAD + "q1_0,docs/a.md_0_9,supported\nq1_0,docs/a.md_0_9,unsupported\n",
            r"line 3: q1_0 and docs/a\.md_0_9 were judged at .*a\.csv, line 2 already",
        ),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message) as caught:
        read(tmp_path, name, text)
    assert "\n" not in str(caught.value)


def test_what_people_settled_counts_before_what_models_said(tmp_path: Path) -> None:
    read(tmp_path, "ann.csv", f"{HEAD}q1_0,docs/a.md_0_9,supported\nq1_1,docs/a.md_0_9,supported\n")
    people, _ = read(tmp_path, "bo.csv", f"{HEAD}q1_1,docs/a.md_0_9,unsupported\n")
    model = people.filter(judge="human:ann").with_columns(
        verdict=pl.lit("unsupported"), judge=pl.lit("m"), judge_kind=pl.lit("llm")
    )
    third = model.head(1).with_columns(nugget_id=pl.lit("q1_1"), doc_id=pl.lit("docs/b.md_0_9"))
    counted = verdicts_that_count(pl.concat([model, third]), people, Judging())
    rows = counted.sort("nugget_id", "doc_id").select("nugget_id", "doc_id", "verdict", "judge_kind").rows()
    assert rows == [
        ("q1_0", "docs/a.md_0_9", "supported", "human"),
        # Two people part: nobody knows.
        ("q1_1", "docs/a.md_0_9", "error", "human"),
        ("q1_1", "docs/b.md_0_9", "unsupported", "llm"),
    ]

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange import QuestionFilter, load_collection, load_collection_judgments, question_text

EVERY = QuestionFilter(frozenset())


def rows() -> list[dict]:
    def nugget(ident: str, relevant: list[str], other: list[str]) -> dict:
        return {
            "_id": ident,
            "text": f"fact {ident}",
            "relevant_corpus_ids": relevant,
            "non_relevant_corpus_ids": other,
        }

    return [
        {
            "query_id": "12",
            "query_title": "How?",
            "query_text": "body",
            "nuggets": [nugget("12_0", [], ["r/a.py_0_9"]), nugget("12_1", ["r/a.py_0_9", "r/b_c.md_0_5"], [])],
            "answer_id": "13",
            "answer_text": "answer",
            "metadata": {"date": "2023-05-02T09:12:23.123", "tags": ["langchain", "python"]},
        },
        {
            "query_id": "so_12",
            "query_title": "Why?",
            "query_text": "other",
            "nuggets": [nugget("so_12_0", ["r/a.py_0_9"], ["r/a.py_0_9"])],
            "answer_id": "15",
            "answer_text": "because",
            "metadata": {"date": "2022-05-02 09:12:23", "tags": ["python"]},
        },
    ]


@pytest.fixture(params=["parquet", "jsonl", "folder", "glob"])
def place(request, tmp_path):
    frame = pl.DataFrame(rows())
    if request.param == "jsonl":
        frame.write_ndjson(tmp_path / "test.jsonl")
        return tmp_path / "test.jsonl"
    if request.param == "parquet":
        frame.write_parquet(tmp_path / "test.parquet")
        return tmp_path / "test.parquet"
    frame.head(1).write_parquet(tmp_path / "test-00000-of-00002.parquet")
    frame.tail(1).write_parquet(tmp_path / "test-00001-of-00002.parquet")
    return tmp_path if request.param == "folder" else tmp_path / "test-*.parquet"


def test_questions(place):
    first, second = load_collection(place, EVERY).questions.rows(named=True)
    assert (first["question_id"], first["title"], first["body_text"], first["answer_id"]) == (
        "12",
        "How?",
        "body",
        "13",
    )
    assert first["asked_at"] == datetime(2023, 5, 2, 9, 12, 23, 123000, tzinfo=UTC)
    assert first["url"] == "https://stackoverflow.com/questions/12"
    assert second["url"] is None
    assert first["license"] == "CC BY-SA 4.0"
    assert question_text(first["title"], first["body_text"]) == "How? body"


def test_filter(place):
    given = load_collection(place, QuestionFilter(frozenset({"python"}), datetime(2023, 1, 1)))
    assert given.questions["question_id"].to_list() == ["12"]
    assert given.ledger.select("post_id", "reason").rows() == [("so_12", "before the floor")]
    given = load_collection(place, QuestionFilter(frozenset({"langchain"})))
    assert given.counts == {"questions": 2, "other tag": 1}


def test_nuggets_and_judgments(place):
    """Cases 23 and 25: an empty first list stays a list, and a nugget's question is the row's."""
    given = load_collection_judgments(place)
    assert given.nuggets.select("nugget_id", "question_id", "position").rows() == [
        ("12_0", "12", 0),
        ("12_1", "12", 1),
        ("so_12_0", "so_12", 0),
    ]
    assert given.qrels.select("question_id", "nugget_id", "doc_id", "relevance").rows() == [
        ("12", "12_0", "r/a.py_0_9", 0),
        ("12", "12_1", "r/a.py_0_9", 1),
        ("12", "12_1", "r/b_c.md_0_5", 1),
        ("so_12", "so_12_0", "r/a.py_0_9", 0),
    ]
    assert given.conflicts == [("so_12_0", "r/a.py_0_9")]


def test_errors(tmp_path):
    with pytest.raises(SourceError, match="no Parquet or JSON lines file there"):
        load_collection(tmp_path / "none", EVERY)
    pl.DataFrame({"query_id": ["1"], "query_text": ["a"]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"a\.parquet: lacks the columns query_title, answer_text"):
        load_collection(tmp_path / "a.parquet", EVERY)
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    with pytest.raises(SourceError, match=r"^\S*b\.parquet: cannot be read as a published collection \([^\n]*\)$"):
        load_collection(tmp_path / "b.parquet", EVERY)
    twice = tmp_path / "twice.parquet"
    pl.DataFrame([*rows(), *rows()]).write_parquet(twice)
    with pytest.raises(SourceError, match="query_id '12' stands twice"):
        load_collection(twice, EVERY)
    with pytest.raises(SourceError, match="nugget '12_0' stands twice"):
        load_collection_judgments(twice)

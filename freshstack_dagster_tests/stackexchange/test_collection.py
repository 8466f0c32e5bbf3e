from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

import freshstack_dagster.assets.nuggets  # noqa: F401 - registers its stages
from freshstack_dagster.assets.tables import STAGES, Stage
from freshstack_dagster.errors import SettingsError, SourceError
from freshstack_dagster.lake import Lake
from freshstack_dagster.settings import Places, QuestionSource, Repository, Topic, load_topic
from freshstack_dagster.stackexchange import QuestionFilter, load_collection, load_collection_judgments, question_text
from freshstack_dagster.stackexchange.sources import collection_place, load_questions, published_nuggets
from freshstack_dagster.tables import TABLES

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


def topic_of(place: Path, **source: object) -> Topic:
    questions = QuestionSource(kind="collection", path=place, **source)
    return Topic(name="made", title="Made", repositories=(Repository(name="owner/made"),), questions=questions)


def test_a_hub_address_keeps_its_slashes_through_the_settings(tmp_path):
    address = "hf://datasets/owner/name/topic/*.parquet"
    source = f"questions: {{kind: collection, path: '{address}'}}"
    (tmp_path / "made.yaml").write_text(f"title: Made\nrepositories: [owner/made]\n{source}\n")
    assert collection_place(load_topic(tmp_path / "made.yaml").questions.path) == address
    assert collection_place(tmp_path) == str(tmp_path)


def test_published_nuggets_come_from_a_collection_only(tmp_path):
    with pytest.raises(ValueError, match="needs a source of kind collection"):
        QuestionSource(kind="dump", path=tmp_path, nuggets="published")
    with pytest.raises(SettingsError, match="kind `collection` only"):
        published_nuggets(Topic(name="made", title="Made", repositories=(Repository(name="owner/made"),)))


def test_the_nuggets_asset_takes_the_published_ones(tmp_path):
    path = tmp_path / "test.parquet"
    without = {**rows()[1], "query_id": "99", "nuggets": []}
    pl.DataFrame([*rows(), without]).write_parquet(path)
    topic = topic_of(path, nuggets="published")
    given = load_questions(topic, cache=tmp_path, progress=lambda line: None)
    kept = given.questions.filter(pl.col("question_id") != "so_12")

    class Kept(Stage):
        def read(self, table: str, snapshot: str | None = None) -> pl.DataFrame:
            return kept

    stage = Kept(topic, None, Lake(str(tmp_path / "lake"), tmp_path / "made.duckdb"), Places(root=tmp_path), "run")
    definition = next(one for one in STAGES if one.tables[0] == "nuggets")
    built = definition.function(stage)
    assert built.tables["nuggets"].select("nugget_id", "model").rows() == [("12_0", "published"), ("12_1", "published")]
    TABLES["nuggets"].conform(built.tables["nuggets"])
    outcomes = TABLES["nugget_outcomes"].conform(built.tables["nugget_outcomes"])
    assert dict(outcomes.select("question_id", "outcome").iter_rows()) == {"12": "ok", "99": "skipped"}

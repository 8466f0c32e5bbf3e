from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.errors import FreshstackError, LakeError
from freshstack_dagster.lake import Lake
from freshstack_dagster.publishing.export import LAYOUTS, export, load
from freshstack_dagster.settings import Topic
from freshstack_dagster.stackexchange.collection import load_collection, load_collection_judgments
from freshstack_dagster.stackexchange.questions import QuestionFilter
from freshstack_dagster.tables import TABLES

TOPIC = Topic.model_validate({"name": "t", "title": "T", "repositories": ["o/lib"]})


def _fill(lake: Lake, table: str, rows: list[dict], snapshot: str | None = None) -> None:
    schema = TABLES[table].schema
    frame = pl.DataFrame([{**dict.fromkeys(schema), **row} for row in rows], schema=schema)
    lake.write(table, frame, topic="t", snapshot=snapshot)


def _built(lake: Lake, outcome: str = "kept") -> Lake:
    question = {"title": "How?", "body_text": "I\ntried", "answer_text": "So.", "tags": ["x"], "content_hash": "h"}
    nugget = {"question_id": "7", "model": "openai:m", "prompt": "p"}
    qrel = {"question_id": "7", "judge_kind": "llm"}
    at = "2024-10-01T00:00:00Z"
    _fill(lake, "questions", [{"question_id": "7", **question}, {"question_id": "8", **question}])
    _fill(lake, "nuggets", [{"nugget_id": f"7_{i}", "position": i, "text": f"fact {i}", **nugget} for i in (0, 1)])
    outcomes = [{"question_id": "7", "nuggets": 2, "supported_nuggets": 2, "relevant_docs": 1, "outcome": outcome}]
    outcomes.append(
        {"question_id": "8", "nuggets": 0, "supported_nuggets": 0, "relevant_docs": 0, "outcome": "not_judged"}
    )
    _fill(lake, "question_outcomes", outcomes, "2024-10")
    rows = [("7_0", "lib/a b.md_0_4", 0), ("7_1", "lib/a b.md_0_4", 1), ("7_1", "lib/c.md_0_4", 0)]
    _fill(lake, "qrels", [{"nugget_id": n, "doc_id": d, "relevance": r, **qrel} for n, d, r in rows], "2024-10")
    chunk = dict.fromkeys(["start_byte", "start_char"], 0) | dict.fromkeys(["end_byte", "end_char", "tokens"], 4)
    chunk |= {"repository": "lib", "start_line": 1, "end_line": 1, "content_hash": "h", "text": "text"}
    paths = ("a b.md", "c.md")
    _fill(lake, "chunks", [{"doc_id": f"lib/{path}_0_4", "path": path, **chunk} for path in paths], "2024-10")
    commit = {"repository": "lib", "name": "o/lib", "commit": "0" * 40, "resolved_by": "pin"}
    dates = pl.DataFrame([{**dict.fromkeys(TABLES["commits"].columns), **commit}]).with_columns(
        pl.lit(at).str.to_datetime(time_zone="UTC").alias(name) for name in ("committed_at", "authored_at")
    )
    lake.write("commits", dates, topic="t", snapshot="2024-10")
    return lake


def test_the_published_layout_is_read_back(lake: Lake, tmp_path: Path):
    export(load(_built(lake), TOPIC, "2024-10"), "freshstack", tmp_path / "out")
    queries = pl.read_parquet(tmp_path / "out" / "queries.parquet")
    nugget_fields = queries.schema["nuggets"].inner.to_schema()  # type: ignore[union-attr]
    assert nugget_fields["relevant_corpus_ids"] == pl.List(pl.String())
    assert queries["nuggets"].to_list()[0][0]["relevant_corpus_ids"] == []
    again = load_collection(tmp_path / "out" / "queries.parquet", QuestionFilter(frozenset()))
    assert again.questions.select("question_id", "title", "answer_text").rows() == [("7", "How?", "So.")]
    judged = load_collection_judgments(tmp_path / "out" / "queries.parquet").qrels
    assert judged.sort("nugget_id", "doc_id").select("nugget_id", "doc_id", "relevance").rows() == [
        ("7_0", "lib/a b.md_0_4", 0),
        ("7_1", "lib/a b.md_0_4", 1),
        ("7_1", "lib/c.md_0_4", 0),
    ]
    assert pl.read_parquet(tmp_path / "out" / "corpus.parquet")["_id"].to_list() == ["lib/a b.md_0_4", "lib/c.md_0_4"]


def test_beir(lake: Lake, tmp_path: Path):
    export(load(_built(lake), TOPIC, "2024-10"), "beir", tmp_path / "out")
    queries = [json.loads(line) for line in (tmp_path / "out" / "queries.jsonl").read_text().splitlines()]
    assert queries == [{"_id": "7", "text": "How? I\ntried"}]
    assert (tmp_path / "out" / "qrels" / "test.tsv").read_text().splitlines() == [
        "query-id\tcorpus-id\tscore",
        "7\tlib/a b.md_0_4\t1",
        "7\tlib/c.md_0_4\t0",
    ]


def test_trec(lake: Lake, tmp_path: Path):
    export(load(_built(lake), TOPIC, "2024-10"), "trec", tmp_path / "out")
    assert (tmp_path / "out" / "topics.tsv").read_text() == "7\tHow? I tried\n"
    assert (tmp_path / "out" / "qrels.nuggets.txt").read_text().splitlines() == [
        "7 1 lib/a%20b.md_0_4 0",
        "7 2 lib/a%20b.md_0_4 1",
        "7 2 lib/c.md_0_4 0",
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_card_says_who_judged_and_on_which_commits(lake: Lake, tmp_path: Path, layout: str):
    files = export(load(_built(lake), TOPIC, "2024-10"), layout, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert tmp_path / "out" / "README.md" in files
    assert "Judged by: llm." in card
    assert "0" * 40 in card
    assert "heuristic" not in card


def test_nothing_kept_is_an_error_and_an_unknown_layout_too(lake: Lake, tmp_path: Path):
    with pytest.raises(LakeError, match="no question was kept"):
        load(_built(lake, "partial_support"), TOPIC, "2024-10")
    with pytest.raises(FreshstackError, match="no layout csv"):
        export(load(_built(lake), TOPIC, "2024-10"), "csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_that_holds_anything_else_is_left_as_it_was(layout: str, lake: Lake, tmp_path: Path):
    collection = load(_built(lake), TOPIC, "2024-10")
    mine = tmp_path / "mine"
    (mine / "sub").mkdir(parents=True)
    (mine / "sub" / "thesis.txt").write_text("years of work")
    with pytest.raises(FreshstackError, match=r"mine: holds sub/thesis\.txt, which is no part of"):
        export(collection, layout, mine)
    assert [path.name for path in mine.rglob("*")] == ["sub", "thesis.txt"]
    assert (mine / "sub" / "thesis.txt").read_text() == "years of work"


def test_an_earlier_export_is_replaced_also_where_one_stands(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    collection = load(_built(lake), TOPIC, "2024-10")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    first = export(collection, "beir", Path())
    (tmp_path / "out" / "corpus.jsonl").write_text("old")
    assert export(collection, "beir", Path()) == first
    assert (tmp_path / "out" / "corpus.jsonl").read_text() != "old"
    assert sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file()) == sorted(first)


def test_trec_documents_have_the_ids_of_the_qrels(lake: Lake, tmp_path: Path):
    export(load(_built(lake), TOPIC, "2024-10"), "trec", tmp_path / "out")
    documents = [json.loads(line) for line in (tmp_path / "out" / "corpus.jsonl").read_text().splitlines()]
    judged = {line.split()[2] for line in (tmp_path / "out" / "qrels.txt").read_text().splitlines()}
    assert judged <= {document["id"] for document in documents}
    assert {document["contents"] for document in documents} == {"text"}

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from freshstack_dagster.settings import QuestionSource, Repository, Topic
from freshstack_dagster.stackexchange import all_tags, co_occurring_tags, dump
from freshstack_dagster.stackexchange.index import build_index
from freshstack_dagster.stackexchange.sources import tag_tables
from freshstack_dagster_tests.stackexchange.dumps import pack, plain_reading, row, write_dump

POSTS = [
    row(1, Tags="|python|old|", CreationDate="2020-01-01T00:00:00.000"),
    row(2, Tags="|python|langchain|", CreationDate="2023-01-01T00:00:00.000", AcceptedAnswerId=9),
    row(3, Tags="<langchain><chromadb><python>", CreationDate="2023-03-01T00:00:00.000"),
    row(4, Tags="|langchain-js|", CreationDate="2023-04-01T00:00:00.000"),
    row(5, Tags="|llama|chromadb|langchain|", CreationDate="2024-05-01T00:00:00.000"),
    row(9, 2, ParentId=2),
]


def test_tags_by_size(tmp_path):
    path = write_dump(tmp_path / "Posts.xml", POSTS)
    build_index(path, tmp_path / "Posts.xml.index", workers=1, part_bytes=700)
    given = all_tags(path)
    assert given.select("tag", "questions", "with_accepted_answer").rows() == [
        ("langchain", 3, 1),
        ("python", 3, 1),
        ("chromadb", 2, 0),
        ("langchain-js", 1, 0),
        ("llama", 1, 0),
        ("old", 1, 0),
    ]
    assert given["first_asked_at"][0] == datetime(2023, 1, 1, tzinfo=UTC)
    assert given["last_asked_at"][0] == datetime(2024, 5, 1, tzinfo=UTC)


def test_co_occurring_tags(tmp_path):
    path = pack(tmp_path / "dump.7z", {"Posts.xml": write_dump(tmp_path / "Posts.xml", POSTS)})
    given = co_occurring_tags(path, "langchain", index_dir=tmp_path / "index")
    assert given.rows() == [("chromadb", 2, 2 / 3), ("python", 2, 2 / 3), ("llama", 1, 1 / 3)]
    given = co_occurring_tags(
        path, {"langchain", "python"}, asked_from=datetime(2023, 2, 1), limit=1, index_dir=tmp_path / "index"
    )
    assert given.rows() == [("chromadb", 2, 1.0)]
    assert co_occurring_tags(path, "absent", index_dir=tmp_path / "index").height == 0


def test_real_counts(shared, tmp_path):
    from lxml import etree

    path = shared / "data" / "stack_exchange" / "datascience_meta_2024_pipe_tags" / "Posts.xml"
    posts = [element for element in etree.parse(str(path)).getroot().iter("row") if element.get("PostTypeId") == "1"]
    expected = Counter(tag for post in posts for tag in post.get("Tags").strip("|").split("|"))
    given = all_tags(path, index_dir=tmp_path)
    assert dict(given.select("tag", "questions").iter_rows()) == expected
    assert given["with_accepted_answer"].sum() == sum(
        len(post["Tags"].strip("|").split("|")) for post, _ in plain_reading(path).values()
    )


def test_the_tables_of_a_topic_and_an_index_that_leaves_a_small_dump_alone(tmp_path):
    (tmp_path / "dump").mkdir()
    path = write_dump(tmp_path / "dump" / "Posts.xml", POSTS)
    source = QuestionSource(kind="dump", path=path)
    made = Topic(
        name="made",
        title="Made",
        tags=["langchain"],
        asked_from=datetime(2023, 2, 1, tzinfo=UTC),
        questions=source,
        repositories=(Repository(name="owner/made"),),
    )
    tags, beside = tag_tables(made, cache=tmp_path / "cache", progress=lambda line: None)
    recent = dict(tags.select("tag", "first_seen_since_floor").iter_rows())
    assert recent == {"python": False, "old": False, "langchain": False, "chromadb": True, "langchain-js": True} | {
        "llama": True
    }
    assert dict(beside.select("tag", "questions").iter_rows()) == {"chromadb": 2, "python": 1, "llama": 1}
    assert [place.name for place in path.parent.iterdir()] == ["Posts.xml"]
    other = made.model_copy(update={"questions": QuestionSource(kind="jsonl", path=path)})
    assert [frame.height for frame in tag_tables(other, cache=tmp_path, progress=lambda line: None)] == [0, 0]


def test_the_index_of_a_dump_in_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    path, spare = write_dump(tmp_path / "Posts.xml", POSTS), tmp_path / "spare"
    monkeypatch.setattr(dump, "_INDEX_FROM_BYTES", 0)
    assert dump.index_place(path, spare) is None
    monkeypatch.setattr(dump.os, "access", lambda *_: False)
    assert dump.index_place(path, spare) == spare
    build_index(path, tmp_path / "Posts.xml.index", workers=1)
    assert dump.index_place(path, spare) is None  # what stands there is used

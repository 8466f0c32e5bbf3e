from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange import QuestionFilter, load_jsonl

EVERY = QuestionFilter(frozenset())
ONE = {
    "question_id": 7,
    "title": " A  title ",
    "body_markdown": "body\n",
    "answer_markdown": "answer",
    "tags": ["a", "b"],
}


def write(path, *objects):
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in objects), "utf-8")
    return path


def test_real_questions(shared):
    given = load_jsonl(shared / "data" / "questions" / "angular.jsonl", QuestionFilter(frozenset({"angular"})))
    assert given.questions.height == 18
    assert given.ledger.height == 0
    assert given.questions["asked_at"].null_count() == 18
    assert "```" in given.questions["body_text"].str.join("")[0]


def test_optional_columns_and_defaults(tmp_path):
    dated = {"asked_at": "2024-02-03T04:05:06Z", "score": 4, "url": "https://x", "answer_id": 8, "view_count": 9}
    dated |= {"answer_edited_at": "2024-03-01", "question_id": "8", "unknown": {"kept": "out"}}
    path = write(tmp_path / "q.jsonl", "\ufeff" + json.dumps(ONE), "", {**ONE, **dated}, "  ")
    first, second = load_jsonl(path, EVERY).questions.rows(named=True)
    assert (first["question_id"], first["title"], first["body_text"]) == ("7", "A title", "body")
    assert first["license"] is None and first["answer_id"] is None and first["asked_at"] is None
    assert second["asked_at"] == datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert (second["license"], second["answer_id"], second["url"]) == (None, "8", "https://x")
    assert first["content_hash"] == second["content_hash"]


def test_ledger(tmp_path):
    changes = [
        {"tags": ["b2"]},
        {"asked_at": "2022-12-31"},
        {"answer_markdown": " "},
        {"closed": True},
        {"duplicate": True, "closed": True},
        {"score": 0},
        {"body_markdown": "x" * 50},
        {"asked_at": None, "score": None},
    ]
    path = write(tmp_path / "q.jsonl", *({**ONE, "question_id": str(i), **change} for i, change in enumerate(changes)))
    wanted = QuestionFilter(frozenset({"b"}), datetime(2023, 1, 1), None, 1, True, True, 40)
    given = load_jsonl(path, wanted)
    assert given.ledger.select("post_id", "reason").rows() == [
        ("1", "before the floor"),
        ("2", "no accepted answer"),
        ("3", "closed"),
        ("4", "duplicate"),
        ("5", "score"),
        ("6", "too long"),
    ]
    assert given.questions["question_id"].to_list() == ["7"]
    assert given.counts == {"questions": 8, "other tag": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object but list"),
        ({"question_id": "1", "title": "t"}, "lacks body_markdown, answer_markdown, tags"),
        ({**ONE, "asked": "2024-01-01"}, "unknown key asked; did you mean asked_at?"),
        ({**ONE, "question_id": "all"}, "question_id is 'all'"),
        ({**ONE, "question_id": "a b"}, "question_id is 'a b'"),
        ({**ONE, "question_id": ""}, "question_id is ''"),
        ({**ONE, "licence": "MIT"}, "unknown key licence; did you mean license?"),
        ({"question_id": "1", "titel": "t"}, "unknown key titel; did you mean title?"),
        ({**ONE, "question_id": 1, "tags": "a"}, "tags is not a list"),
        ({**ONE, "question_id": 1, "title": ["a"]}, "title is not text"),
        ({**ONE, "question_id": 1, "score": "4"}, "score is not a whole number"),
        ({**ONE, "question_id": 1, "closed": "no"}, "closed is neither true nor false"),
        ({**ONE, "question_id": 1, "asked_at": "yesterday"}, "asked_at is not an ISO 8601 date"),
        (ONE, "question_id '7' stands twice"),
    ],
)
def test_errors_name_the_line(tmp_path, line, message):
    with pytest.raises(SourceError, match=rf"^\S*q\.jsonl, line 3: [^\n]*{message}[^\n]*$"):
        load_jsonl(write(tmp_path / "q.jsonl", ONE, "", line), EVERY)


def test_other_keys_are_counted(tmp_path):
    path = write(tmp_path / "q.jsonl", {**ONE, "views": 3}, {**ONE, "question_id": 8, "views": 4, "team": "x"})
    counts = load_jsonl(path, EVERY).counts
    assert (counts["with the unknown key views"], counts["with the unknown key team"]) == (2, 1)


def test_a_missing_file(tmp_path):
    with pytest.raises(SourceError, match=r"none\.jsonl: cannot be read"):
        load_jsonl(tmp_path / "none.jsonl", EVERY)

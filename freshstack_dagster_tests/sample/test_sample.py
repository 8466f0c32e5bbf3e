"""The bundled topic against its own truth: every passage stands where `truth.yaml` says it does."""

from __future__ import annotations

import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from lxml import etree

from freshstack_dagster.corpus.history import build_history
from freshstack_dagster.settings import load_topic, snapshot_end
from freshstack_dagster.stackexchange import QuestionFilter, load_dump

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "sample"
TOPIC = SAMPLE.parent / "topics" / "sample.yaml"
TRUTH: dict[str, Any] = yaml.safe_load((SAMPLE / "truth.yaml").read_text(encoding="utf-8"))
NAMES = sorted(path.parent.name for path in SAMPLE.glob("repositories/*/history.yaml"))
SNAPSHOTS: list[str] = TRUTH["snapshots"]


def git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "--git-dir", str(repository), *arguments], capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("histories")
    for name in NAMES:
        build_history(SAMPLE / "repositories" / name / "history.yaml", root / name)
    return {name: root / name for name in NAMES}


def commit_of(repository: Path, snapshot: str) -> str:
    """The last first-parent commit of main before the month's end in UTC, as design section 4 has it."""
    end = int(snapshot_end(snapshot).timestamp())
    for line in git(repository, "log", "--first-parent", "--format=%H %ct", "main").decode().splitlines():
        commit, seconds = line.split()
        if int(seconds) < end:
            return commit
    raise AssertionError(f"no commit before {snapshot}")


@pytest.fixture(scope="module")
def trees(repositories: dict[str, Path]) -> dict[str, dict[str, tuple[str, bytes]]]:
    """Per snapshot every file as {repository}/{path}: its mode and its bytes."""
    out: dict[str, dict[str, tuple[str, bytes]]] = {}
    for snapshot in SNAPSHOTS:
        out[snapshot] = {}
        for name, repository in repositories.items():
            commit = commit_of(repository, snapshot)
            for line in git(repository, "ls-tree", "-r", "-z", commit).decode().split("\0")[:-1]:
                about, path = line.split("\t")
                mode, kind, blob = about.split()
                data = git(repository, "cat-file", "blob", blob) if kind == "blob" else b""
                out[snapshot][f"{name}/{path}"] = (mode, data)
    return out


@pytest.fixture(scope="module")
def posts() -> list[dict[str, str]]:
    return [dict(row.attrib) for row in etree.parse(SAMPLE / "Posts.xml").getroot()]  # type: ignore[misc]


def text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def test_topic_file() -> None:
    topic = load_topic(TOPIC)
    assert [repository.alias for repository in topic.repositories] == [
        "sluicewick",
        "sluicewick-js",
        "sluicewick-handbook",
    ]
    assert all(repository.history and repository.history.is_file() for repository in topic.repositories)
    assert topic.questions and topic.questions.path and topic.questions.path.is_file()


def test_commits_of_the_snapshots(repositories: dict[str, Path]) -> None:
    told = {
        name: [
            git(repositories[name], "log", "-1", "--format=%s", commit_of(repositories[name], s)).decode().strip()
            for s in SNAPSHOTS
        ]
        for name in NAMES
    }
    assert told == {
        "sluicewick": ["Drain on the second SIGTERM as well", "Version 1.2"],
        "sluicewick-js": ["Fixes: worker lanes keep their error's name", "Version 0.9"],
        "sluicewick-handbook": ["Kafka and offsets", "A unit with a watchdog is too much for a flow"],
    }


def test_months_between_and_after_differ(repositories: dict[str, Path]) -> None:
    months = [f"{2024 + (m - 1) // 12}-{(m - 1) % 12 + 1:02d}" for m in range(10, 25)]
    states = [tuple(commit_of(repositories[name], month) for name in NAMES) for month in months]
    assert len(set(states)) >= 13


def test_traps(repositories: dict[str, Path]) -> None:
    library = repositories["sluicewick"]
    snapshot = commit_of(library, "2024-10")
    youngest = git(library, "log", "-1", "--all", "--before=2024-11-01T00:00:00+00:00", "--format=%H").decode().strip()
    assert youngest != snapshot  # a branch is younger than main
    dates = git(library, "log", "main", "--format=%cI %aI").decode().splitlines()
    assert any(line.startswith("2024-10-31T23:20:00-05:00") for line in dates)  # November in UTC
    assert any(line.split()[1] < "2024-10-31" and line.split()[0][:7] == "2024-11" for line in dates)  # rebased
    assert git(library, "log", "--merges", "--format=%H", snapshot).strip()
    handbook = repositories["sluicewick-handbook"]
    when = git(handbook, "log", "-1", "--format=%cI", commit_of(handbook, "2024-10")).decode().strip()
    assert when == "2024-11-01T00:30:00+02:00"  # October in UTC


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
def test_size_and_kinds_of_files(trees: dict[str, dict[str, tuple[str, bytes]]], snapshot: str) -> None:
    count = Counter(name.split("/")[0] for name in trees[snapshot])
    assert all(25 <= count[name] <= 80 for name in NAMES), count
    modes = Counter(mode for mode, _ in trees[snapshot].values())
    assert modes["120000"] >= 1 and modes["160000"] == 1
    assert any(b"\0" in data for _, data in trees[snapshot].values())
    assert any(name.endswith(".ipynb") for name in trees[snapshot])


def test_recipes_are_small() -> None:
    files = [path for path in SAMPLE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 600_000


def test_posts_are_a_dump(posts: list[dict[str, str]]) -> None:
    assert (SAMPLE / "Posts.xml").read_bytes().startswith(b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?>')
    assert len(posts) == TRUTH["posts"]["rows"] == len({post["Id"] for post in posts})
    questions = {post["Id"]: post for post in posts if post["PostTypeId"] == "1"}
    assert len(TRUTH["questions"]) == TRUTH["posts"]["kept"] >= 30
    assert set(questions) == {str(q["question_id"]) for q in TRUTH["questions"]} | {str(i) for i in TRUTH["ledger"]}
    ids = [post["Id"] for post in posts]
    before = 0
    for question in TRUTH["questions"]:
        row = questions[str(question["question_id"])]
        assert row["AcceptedAnswerId"] == str(question["answer_id"])
        assert row["CreationDate"] == question["asked_at"] and row["Title"] == question["title"]
        assert {"sluicewick", "sluicewick-js"} & set(row["Tags"].strip("|").split("|"))
        answer = next(post for post in posts if post["Id"] == row["AcceptedAnswerId"])
        assert answer["ParentId"] == row["Id"] and answer["CreationDate"] > row["CreationDate"]
        before += ids.index(answer["Id"]) < ids.index(row["Id"])
    assert before == 1


def test_posts_by_the_reader() -> None:
    topic = load_topic(TOPIC)
    assert topic.questions and topic.questions.path
    wanted = QuestionFilter(topic.tags, asked_from=topic.asked_from, exclude_closed=topic.questions.exclude_closed)
    read = load_dump(topic.questions.path, wanted, index_dir=False)
    assert set(read.questions["question_id"]) == {str(question["question_id"]) for question in TRUTH["questions"]}
    # questions of other tags are counted, since a whole dump has millions of them
    left_out = {str(post_id): reason for post_id, reason in TRUTH["ledger"].items()}
    others = [post_id for post_id, reason in left_out.items() if reason == "other tag"]
    assert read.counts["other tag"] == len(others) == 2
    listed = {post_id: reason for post_id, reason in left_out.items() if post_id not in others}
    assert dict(read.ledger.select("post_id", "reason").iter_rows()) == listed


def test_questions_by_snapshot() -> None:
    asked = [datetime.fromisoformat(q["asked_at"]).replace(tzinfo=UTC) for q in TRUTH["questions"]]
    for snapshot in SNAPSHOTS:
        assert sum(when < snapshot_end(snapshot) for when in asked) == TRUTH["posts"]["kept_at"][snapshot]


def test_every_anchor_stands_once_in_its_file(trees: dict[str, dict[str, tuple[str, bytes]]]) -> None:
    for question in TRUTH["questions"]:
        assert 2 <= len(question["facts"]) <= 4
        for fact in question["facts"]:
            for snapshot in SNAPSHOTS:
                for passage in fact[snapshot]:
                    name = f"{passage['repository']}/{passage['path']}"
                    assert name in trees[snapshot], (snapshot, name)
                    assert "\n" not in passage["anchor"]
                    count = text(trees[snapshot][name][1]).count(passage["anchor"])
                    assert count == 1, (snapshot, name, passage["anchor"], count)


def test_support_follows_from_the_passages() -> None:
    for question in TRUTH["questions"]:
        for snapshot, told in question["support"].items():
            have = [bool(fact[snapshot]) for fact in question["facts"]]
            assert told == ("fully" if all(have) else "partly" if any(have) else "none"), question["question_id"]
        asked = datetime.fromisoformat(question["asked_at"]).replace(tzinfo=UTC)
        assert set(question["support"]) == {s for s in SNAPSHOTS if asked < snapshot_end(s)}
    drift = Counter(tuple(question["support"].get(s) for s in SNAPSHOTS) for question in TRUTH["questions"])
    assert drift["fully", "none"] == 1 and drift["fully", "partly"] >= 2 and drift["partly", "fully"] >= 1
    gone = [q["question_id"] for q in TRUTH["questions"] if q["support"]["2025-10"] == "none"]
    assert gone == [TRUTH["vanished"]]


def test_the_vanished_fact_is_nowhere(trees: dict[str, dict[str, tuple[str, bytes]]]) -> None:
    late = "\n".join(text(data) for _, data in trees["2025-10"].values())
    for words in ("SLUICEWICK_SPOOL_DIR", "spool_max_mb", "sluicewick-spool-", "spool=True"):
        assert words not in late
        assert any(words in text(data) for _, data in trees["2024-10"].values())


def test_deprecation(trees: dict[str, dict[str, tuple[str, bytes]]]) -> None:
    for mark in TRUTH["deprecated"]:
        name = f"{mark['repository']}/{mark['path']}"
        assert mark["anchor"] in text(trees["2025-10"][name][1])
        assert mark["anchor"] not in text(trees["2024-10"][name][1])


def test_answers_edited_later(posts: list[dict[str, str]]) -> None:
    edited = {post["Id"]: post["LastEditDate"] for post in posts if "LastEditDate" in post}
    assert len(edited) >= 5
    for snapshot in SNAPSHOTS:
        end = snapshot_end(snapshot).replace(tzinfo=None).isoformat()
        asked = [question for question in TRUTH["questions"] if question["asked_at"] < end]
        late = [q["question_id"] for q in asked if edited.get(str(q["answer_id"]), "") >= end]
        assert late == TRUTH["edited_after"][snapshot]


def test_lineage(trees: dict[str, dict[str, tuple[str, bytes]]]) -> None:
    early, late = (trees[snapshot] for snapshot in SNAPSHOTS)
    outcomes = {entry["outcome"] for entry in TRUTH["lineage"]}
    assert outcomes == {"unchanged", "moved", "renamed", "edited", "split", "merged", "migrated", "gone"}
    for entry in TRUTH["lineage"]:
        source, target, outcome = entry["from"], entry["to"], entry["outcome"]
        assert all(name in early for name in source), entry
        assert all(name in late for name in target), entry
        if outcome not in ("unchanged", "edited"):
            assert not any(name in late for name in source), entry
            assert not any(name in early for name in target), entry
        if outcome in ("unchanged", "moved"):
            assert early[source[0]][1] == late[target[0]][1], entry
        if outcome in ("edited", "renamed"):
            assert early[source[0]][1] != late[target[0]][1], entry
            assert source[0].split("/")[0] == target[0].split("/")[0]
        if outcome == "migrated":
            assert source[0].split("/")[0] != target[0].split("/")[0]
        lines = {line for name in source for line in text(early[name][1]).splitlines() if len(line) > 20}
        found = {line for name in target for line in text(late[name][1]).splitlines()}
        if outcome == "gone":
            everything = {line for _, data in late.values() for line in text(data).splitlines()}
            assert len(lines & everything) <= 0.2 * len(lines), entry
        else:
            assert len(lines & found) >= 0.75 * len(lines), (entry, len(lines & found) / len(lines))
        if outcome == "split":
            for name in target:
                assert len(lines & set(text(late[name][1]).splitlines())) >= 0.2 * len(lines)
        if outcome == "merged":
            for name in source:
                part = {line for line in text(early[name][1]).splitlines() if len(line) > 20}
                assert len(part & found) >= 0.75 * len(part)


def test_nothing_else_left_the_corpus_unseen(trees: dict[str, dict[str, tuple[str, bytes]]]) -> None:
    """Python files of the sample are valid, so that a syntax tree decides their cuts."""
    for snapshot in SNAPSHOTS:
        for name, (mode, data) in trees[snapshot].items():
            if name.endswith(".py") and mode == "100644":
                compile(data, name, "exec")

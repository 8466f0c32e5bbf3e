from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.settings import (
    ModelRole,
    Repository,
    load_snapshots,
    load_topic,
    load_topics,
    role_from_environment,
    snapshot_end,
)

GOOD = """
title: Godot
tags: [godot4]
asked_from: 2023-01-01
questions: {kind: jsonl, path: data/questions.jsonl}
repositories:
  - godotengine/godot-docs
"""


def _topic_file(tmp_path: Path, text: str, name: str = "godot") -> Path:
    folder = tmp_path / "data" / "topics"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def test_a_topic_has_what_its_file_says_and_sensible_defaults(tmp_path: Path):
    topic = load_topic(_topic_file(tmp_path, GOOD))
    assert topic.name == "godot"
    assert topic.asked_from == datetime(2023, 1, 1, tzinfo=UTC)
    assert topic.repositories[0].alias == "godot-docs"
    assert topic.repositories[0].clone_url == "https://github.com/godotengine/godot-docs.git"
    assert topic.questions is not None
    assert topic.questions.path == tmp_path / "data" / "questions.jsonl"
    assert topic.roles.judge.provider == "heuristic"
    assert len({retriever.kind for retriever in topic.retrievers}) > 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("repositorys: []", "unknown key repositorys .did you mean repositories"),
        ("pooling: {deph: 3}", "unknown key pooling.deph .did you mean depth"),
        ("pooling: {depth: 0}", "pooling.depth"),
        ("baseline: 2024-13", "is not a month such as 2024-10"),
        ("name: other", "the file is called godot.yaml"),
        ("retrievers: [bm25, bm25]", "retriever bm25 stands twice"),
        ("roles: {judge: {model: gpt-4o}}", "model gpt-4o needs a provider"),
        ("roles: {judge: {provider: openai, model: m, requests_per_minute: 0}}", "greater than or equal to 1"),
        ("baseline: 0000-10", "is not a month"),
        ("retrievers: [bm25, {kind: lsa, name: bm25+}]", "'bm25.' cannot name a retriever"),
        ("retrievers: [{kind: lsa, name: fusion}]", "'fusion' cannot name a retriever"),
        ("roles: {judge: {provider: openai}}", "provider openai needs a model"),
        ("roles: {judge: {provider: compatible, model: m}}", "needs a base_url"),
        ("title: [", "line 10"),
        ("title: Godot again", "line 9, column 1: not valid YAML: the key 'title' stands here and on line 2; keep one"),
        ("pooling: {depth: 3, depth: 5}", "the key 'depth' stands here and on line 9"),
    ],
)
def test_a_typo_is_one_line_that_names_file_and_key(tmp_path: Path, wrong: str, words: str):
    path = _topic_file(tmp_path, f"{GOOD}\n{wrong}\n")
    with pytest.raises(SettingsError, match=words) as caught:
        load_topic(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_repositories_may_not_share_an_alias(tmp_path: Path):
    path = _topic_file(tmp_path, GOOD + "  - other/godot-docs\n")
    with pytest.raises(SettingsError, match="repository alias godot-docs stands twice"):
        load_topic(path)


@pytest.mark.parametrize(
    "fault",
    [{"alias": "a/b"}, {"pins": {"2024-10": "abc"}}, {"branches": {"10-2024": "main"}}, {"url": "u", "path": "p"}],
)
def test_a_repository_refuses_what_cannot_be(fault: dict):
    with pytest.raises(ValueError):
        Repository.model_validate({"name": "a/b", **fault})


def test_an_empty_folder_of_topics_says_so(tmp_path: Path):
    with pytest.raises(SettingsError, match="no topic file"):
        load_topics(tmp_path)


def test_the_published_topics(project: Path):
    """FreshStack, Table 2: five topics, 34 repositories."""
    topics = load_topics(project / "data" / "topics")
    published = {name: len(topics[name].repositories) for name in ("langchain", "yolo", "laravel", "angular", "godot")}
    assert published == {"langchain": 10, "yolo": 5, "laravel": 9, "angular": 4, "godot": 6}


def test_snapshots_end_with_their_month(project: Path):
    assert snapshot_end("2024-12") == datetime(2025, 1, 1, tzinfo=UTC)
    assert snapshot_end("2024-02") == datetime(2024, 3, 1, tzinfo=UTC)
    assert "2024-10" in load_snapshots(project / "data" / "snapshots.yaml").months
    with pytest.raises(SettingsError, match="not a month"):
        snapshot_end("2024")


def test_questions_of_a_snapshot_end_with_it_or_at_the_cut_off(tmp_path: Path):
    topic = load_topic(_topic_file(tmp_path, GOOD))
    assert topic.asked_before_for("2024-10") == datetime(2024, 11, 1, tzinfo=UTC)
    fixed = load_topic(_topic_file(tmp_path, GOOD + "asked_before: 2024-01-01\n"))
    assert fixed.asked_before_for("2024-10") == datetime(2024, 1, 1, tzinfo=UTC)


def test_the_environment_names_a_roles_model() -> None:
    role = ModelRole(provider="compatible", model="qwen", base_url="http://localhost:1/v1", attempts=5)
    assert role_from_environment("judge", role, {"FRESHSTACK_NUGGETS_MODEL": "openai:gpt-5"}) is role
    changed = role_from_environment("judge", role, {"FRESHSTACK_JUDGE_MODEL": "anthropic:claude-haiku-4-5"})
    assert (changed.provider, changed.model, changed.base_url, changed.attempts) == (
        "anthropic",
        "claude-haiku-4-5",
        None,
        5,
    )
    other = role_from_environment("judge", role, {"FRESHSTACK_JUDGE_MODEL": "compatible:llama3:8b"})
    assert (other.model, other.base_url) == ("llama3:8b", "http://localhost:1/v1")
    assert role_from_environment("judge", role, {"FRESHSTACK_JUDGE_MODEL": "heuristic"}).model == "heuristic"
    named = {"FRESHSTACK_JUDGE_BASE_URL": "http://host/v1", "FRESHSTACK_JUDGE_API_KEY_ENV": "MINE"}
    assert role_from_environment("judge", role, named).base_url == "http://host/v1"


@pytest.mark.parametrize("value", ["gpt-5", "mistral:large", "openai:", "compatible:qwen"])
def test_a_model_that_does_not_fit_is_refused_by_its_variable(value: str) -> None:
    with pytest.raises(SettingsError, match="FRESHSTACK_JUDGE_MODEL"):
        role_from_environment("judge", ModelRole(), {"FRESHSTACK_JUDGE_MODEL": value})


def test_a_moment_without_a_zone_is_utc_and_tags_keep_one_order(tmp_path: Path):
    topic = load_topic(
        _topic_file(tmp_path, GOOD.replace("[godot4]", "[b, a, c]") + "asked_before: 2025-01-01 12:00:00\n")
    )
    assert topic.asked_before == datetime(2025, 1, 1, 12, tzinfo=UTC)
    assert topic.model_dump(mode="json")["tags"] == ["a", "b", "c"]


def test_a_judge_from_the_environment_is_no_annotator_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    roles = "roles: {annotators: {second: {provider: openai, model: gpt-5}}}\n"
    monkeypatch.setenv("FRESHSTACK_JUDGE_MODEL", "openai:gpt-5")
    with pytest.raises(SettingsError, match="are the same model; agreement with oneself says nothing"):
        load_topic(_topic_file(tmp_path, GOOD + roles))

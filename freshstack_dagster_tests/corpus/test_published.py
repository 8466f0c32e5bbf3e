"""The commits and counts of the published collections, on the real repositories where they are at hand.

`FRESHSTACK_TEST_MIRRORS` names a folder of git repositories, `owner+name/repo` or `owner+name.git`.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from freshstack_dagster.corpus.build import build_corpus, lost_languages, resolve_commits
from freshstack_dagster.corpus.git import object_type, resolve_snapshot
from freshstack_dagster.settings import Repository, Topic

# Where the published pin was not on the main branch: main's own last commit of the month.
MAIN_INSTEAD = {
    ("chroma-core/chroma", "2024-10"): "13cc21329a7157618c70657ac4002f7fb5186c75",
    ("openai/openai-python", "2025-10"): "4e8856576211064b09c0cc4a1ed35b82b169abe2",
}
BY_MAIN = [
    ("langchain-ai/langchainjs", "2024-10"),
    ("langchain-ai/langchainjs", "2025-10"),
    ("langchain-ai/langchain-nextjs-template", "2024-10"),
    ("langchain-ai/langchain-nextjs-template", "2025-10"),
    ("chroma-core/chroma", "2025-10"),
    ("openai/openai-python", "2024-10"),
    ("Azure-Samples/openai", "2024-10"),
]


def place(name: str) -> Path:
    folder = Path(os.environ.get("FRESHSTACK_TEST_MIRRORS") or "nowhere")
    for path in (folder / name.replace("/", "+") / "repo", folder / f"{name.replace('/', '+')}.git"):
        if path.exists():
            return path
    pytest.skip(f"{name} is not in FRESHSTACK_TEST_MIRRORS")


def published(shared: Path) -> dict[tuple[str, str], str]:
    with open(shared / "reference" / "driftbench_commits.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {(row["repository"], f"{year}-10"): row[f"commit_{year}_10"] for row in rows for year in (2024, 2025)}


@pytest.mark.parametrize(("name", "snapshot"), [*BY_MAIN, *MAIN_INSTEAD])
def test_a_month_is_the_published_commit_or_mains(shared: Path, name: str, snapshot: str) -> None:
    repository = Repository(name=name, path=place(name), branch="main")
    wanted = MAIN_INSTEAD.get((name, snapshot)) or published(shared)[name, snapshot]
    assert resolve_snapshot(place(name), repository, snapshot).commit == wanted


@pytest.mark.parametrize(("name", "snapshot"), list(MAIN_INSTEAD))
def test_the_published_pin_resolves_where_the_topic_sets_it(shared: Path, name: str, snapshot: str) -> None:
    pin = published(shared)[name, snapshot]
    if object_type(place(name), pin) is None:
        pytest.skip("the repository was cloned without the pin")
    repository = Repository(name=name, path=place(name), pins={snapshot: pin})
    assert resolve_snapshot(place(name), repository, snapshot).commit == pin


@pytest.mark.slow
def test_a_published_repository_yields_about_the_published_number_of_chunks(tmp_path: Path) -> None:
    names = ["openai/openai-python", "langchain-ai/langchain-nextjs-template"]
    repositories = tuple(Repository(name=name, path=place(name), branch="main") for name in names)
    topic = Topic(name="made", title="Made", repositories=repositories)
    commits = resolve_commits(topic, "2024-10", tmp_path)
    corpus = build_corpus(topic, commits, tmp_path, tmp_path / "cache")
    counts = {alias: facts["chunks"] for alias, facts in corpus.report["repositories"].items()}
    # DriftBench, Table 1: 654 and 93; the reference chunker repeats and loses a few.
    assert counts["openai-python"] == pytest.approx(654, rel=0.03)
    assert counts["langchain-nextjs-template"] == pytest.approx(93, rel=0.03)
    assert lost_languages(corpus.files).is_empty()

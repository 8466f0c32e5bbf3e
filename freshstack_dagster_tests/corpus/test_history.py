"""Histories built from recipes: the same commit ids everywhere, and clear errors."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshstack_dagster.corpus.history import STAMP, build_history
from freshstack_dagster.errors import CorpusError

RECIPE = """
author: Somebody <somebody@example.invalid>
commits:
  - id: start
    branch: main
    committed_at: "2024-01-01T12:00:00+01:00"
    message: Start
    tree: start
    writes: {"with space.txt": "text\\n", folder/deep.txt: "deep\\n"}
    symlinks: {link: a.txt}
    submodules: {vendor: "0123456789012345678901234567890123456789"}
    executables: ["with space.txt"]
    tag: v1
  - id: side
    branch: side
    from: start
    committed_at: "2024-03-01T12:00:00-05:30"
    message: Side
    edits: [{path: a.txt, find: one, replace: two}]
  - id: main2
    branch: main
    committed_at: "2024-02-01T12:00:00+00:00"
    authored_at: "2023-12-01T12:00:00+00:00"
    message: |
      Second

      With a body.
    moves: {folder/: other/}
  - id: merge
    branch: main
    merge: side
    committed_at: "2024-04-01T12:00:00+00:00"
    message: Merge
    deletes: [vendor]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "recipe"
    (folder / "start").mkdir(parents=True)
    (folder / "start" / "a.txt").write_text("one\n")
    (folder / "start" / "bytes.bin").write_bytes(b"\x00\r\n\xff")
    (folder / "history.yaml").write_text(RECIPE)
    return folder / "history.yaml"


def git(repository: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", "--git-dir", str(repository), *arguments], capture_output=True, check=True)
    return ran.stdout.decode("utf-8", "surrogateescape")


def test_commits_trees_and_dates(recipe: Path, tmp_path: Path) -> None:
    into = tmp_path / "made" / "r.git"
    build_history(recipe, into)
    git(into, "fsck", "--strict")
    assert git(into, "symbolic-ref", "HEAD").strip() == "refs/heads/main"
    log = git(into, "log", "--format=%s|%cI|%aI|%an <%ae>", "main").splitlines()
    assert log[0] == "Merge|2024-04-01T12:00:00+00:00|2024-04-01T12:00:00+00:00|Somebody <somebody@example.invalid>"
    assert any(line.startswith("Second|2024-02-01T12:00:00+00:00|2023-12-01T12:00:00+00:00") for line in log)
    assert any(line.startswith("Side|2024-03-01T12:00:00-05:30") for line in log)
    assert len(git(into, "log", "-1", "--format=%P", "main").split()) == 2
    assert git(into, "show", "main:a.txt") == "two\n"
    assert git(into, "show", "v1:a.txt") == "one\n"
    modes = {line.split("\t")[1]: line.split()[0] for line in git(into, "ls-tree", "-r", "v1").splitlines()}
    assert modes == {
        "a.txt": "100644",
        "bytes.bin": "100644",
        "folder/deep.txt": "100644",
        "link": "120000",
        "vendor": "160000",
        "with space.txt": "100755",
    }
    assert "other/deep.txt" in git(into, "ls-tree", "-r", "--name-only", "main")
    assert git(into, "show", "main:bytes.bin") == b"\x00\r\n\xff".decode("utf-8", "surrogateescape")


def test_same_ids_under_any_environment(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_history(recipe, tmp_path / "one")
    hostile = tmp_path / "gitconfig"
    hostile.write_text("[core]\n\tautocrlf = true\n[user]\n\tname = Other\n[init]\n\tdefaultObjectFormat = sha256\n")
    for name, value in {
        "TZ": "Asia/Kolkata",
        "GIT_CONFIG_GLOBAL": str(hostile),
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z",
        "GIT_DIR": str(tmp_path / "elsewhere"),
        "GIT_DEFAULT_HASH": "sha256",
    }.items():
        monkeypatch.setenv(name, value)
    build_history(recipe, tmp_path / "two")
    for name in ("GIT_DIR", "GIT_CONFIG_GLOBAL", "GIT_DEFAULT_HASH"):
        monkeypatch.delenv(name)
    refs = git(tmp_path / "one", "for-each-ref")
    assert refs == git(tmp_path / "two", "for-each-ref")
    # the ids depend on the recipe alone, so they can be written down
    assert git(tmp_path / "one", "rev-parse", "main").strip() == "c6b9032fead9b21170308bbf9e84094622966521"


def test_rebuilds_only_what_changed(recipe: Path, tmp_path: Path) -> None:
    into = tmp_path / "r"
    build_history(recipe, into)
    first, inode = git(into, "rev-parse", "main"), (into / STAMP).stat().st_ino
    build_history(recipe, into)
    assert (into / STAMP).stat().st_ino == inode
    (recipe.parent / "start" / "bytes.bin").write_bytes(b"other")
    build_history(recipe, into)
    assert git(into, "rev-parse", "main") != first
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("tree: start", "tree: nowhere", "no folder 'nowhere'"),
        ("message: Side", "mesage: Side", "commit 'side': unknown key 'mesage'"),
        ("find: one", "find: three", "'a.txt' has 0 places that read 'three'"),
        ("from: start", "from: begin", "'from: begin' names no earlier commit"),
        ("moves: {folder/: other/}", "moves: {nothing: x}", "there is no 'nothing' to move"),
        ("moves: {folder/: other/}", "writes: {a.txt: three}", "both sides changed 'a.txt'"),
        ('"2024-02-01T12:00:00+00:00"', "2024-02-01T12:00:00+00:00", "'committed_at' must be a quoted time"),
        ('"2024-02-01T12:00:00+00:00"', '"2024-02-01T12:00:00"', "with a zone"),
        ("commits:", "commits: [", "not valid YAML"),
        ("moves: {folder/: other/}", "writes: {a.txt/b: x}", "'a.txt' is a file and the folder of 'a.txt/b'"),
        ("moves: {folder/: other/}", "writes: {../b: x}", "'../b' is not a path that git takes"),
        ("moves: {folder/: other/}", "deletes: [nothing/]", "there is no 'nothing/' to delete"),
        ("moves: {folder/: other/}", "moves: [folder/]", "'moves' is a mapping"),
        ("deletes: [vendor]", "deletes: vendor", "'deletes' is a list"),
        ("merge: side", "merge: side\n    from: start", "'from' is for the first commit of a branch"),
    ],
)
def test_one_clear_line_for_each_fault(recipe: Path, tmp_path: Path, old: str, new: str, told: str) -> None:
    recipe.write_text(RECIPE.replace(old, new, 1))
    with pytest.raises(CorpusError) as error:
        build_history(recipe, tmp_path / "r")
    assert told in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "r").exists()


def test_many_builders_at_once(recipe: Path, tmp_path: Path) -> None:
    into = tmp_path / "made" / "r"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: build_history(recipe, into), range(16)))
    git(into, "fsck", "--strict")
    assert [path.name for path in into.parent.iterdir()] == ["r"]


NAMES = st.sampled_from(["a", "b c", "d/e", "d/f.txt", "g/h/i", 'qu"ote', "back\\slash", "ünï"])
STATES = st.lists(st.dictionaries(NAMES, st.text(max_size=20), min_size=1), min_size=1, max_size=4)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states=STATES)
def test_any_sequence_of_states(states: list[dict[str, str]], tmp_path: Path) -> None:
    commits: list[dict[str, object]] = []
    before: dict[str, str] = {}
    for number, state in enumerate(states):
        commits.append(
            {
                "id": str(number),
                "branch": "main",
                "committed_at": f"2024-01-0{number + 1}T00:00:00+00:00",
                "message": "m",
                "tag": f"t{number}",
                "deletes": sorted(before.keys() - state.keys()),
                "writes": state,
            }
        )
        before = state
    recipe = tmp_path / "h.yaml"
    recipe.write_text(yaml.safe_dump({"author": "A <a@example.invalid>", "commits": commits}), encoding="utf-8")
    build_history(recipe, tmp_path / "any")
    for number, state in enumerate(states):
        names = git(tmp_path / "any", "ls-tree", "-r", "-z", "--name-only", f"t{number}").split("\0")[:-1]
        assert set(names) == set(state)
        for name, text in state.items():
            assert git(tmp_path / "any", "show", f"t{number}:{name}") == text


def test_missing_recipe(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="cannot be read"):
        build_history(tmp_path / "history.yaml", tmp_path / "r")

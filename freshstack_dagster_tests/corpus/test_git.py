from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshstack_dagster.corpus import git as git_module
from freshstack_dagster.corpus.git import list_tree, object_type, read_blobs, resolve_snapshot
from freshstack_dagster.errors import CorpusError
from freshstack_dagster.settings import Repository
from freshstack_dagster_tests.corpus.repositories import SUBMODULE, SYMLINK, Made, git


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "made.git")


def repository(made: Made, **settings: object) -> Repository:
    return Repository(name="local/made", path=made.path, **settings)


def resolved(made: Made, snapshot: str, **settings: object) -> str:
    return resolve_snapshot(made.path, repository(made, **settings), snapshot).commit


def case_14(made: Made) -> str:
    made.commit("2024-08-01T12:00:00+00:00")
    wanted = made.commit("2024-09-20T12:00:00+00:00")
    made.commit("2024-10-09T12:00:00+00:00", branch="feature", parents=[wanted])
    made.commit("2024-12-03T12:00:00+00:00", authored="2024-10-15T12:00:00+00:00")
    return wanted


def test_other_branches_and_rebased_commits_do_not_count(made: Made) -> None:
    wanted = case_14(made)
    commit = resolve_snapshot(made.path, repository(made), "2024-10")
    assert commit.commit == wanted
    assert (commit.repository, commit.name, commit.branch, commit.resolved_by) == (
        "made",
        "local/made",
        "main",
        "first_parent",
    )
    assert commit.committed_at == commit.authored_at == datetime(2024, 9, 20, 12, tzinfo=UTC)
    december = resolve_snapshot(made.path, repository(made), "2024-12")
    assert december.authored_at == datetime(2024, 10, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles", "UTC"])
def test_the_time_zone_changes_nothing(made: Made, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        made.commit("2024-10-01T00:00:00+00:00")
        late = made.commit("2024-11-01T08:59:59+09:00")  # 23:59:59 in UTC
        made.commit("2024-10-31T19:00:00-05:00")  # the first moment of November in UTC
        assert resolved(made, "2024-10") == late
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_users_git_settings_change_nothing(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = case_14(made)
    git(made.path, "replace", wanted, made.tips["feature"])
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text("[log]\n\tdate = relative\n[core]\n\tabbrev = 5\n[alias]\n\tx = y\n")
    for name, value in {
        "HOME": str(tmp_path / "home"),
        "GIT_DIR": "/nowhere",
        "GIT_TRACE": "1",
        "LANG": "de_DE",
    }.items():
        monkeypatch.setenv(name, value)
    assert resolved(made, "2024-10") == wanted


def test_a_merge_of_another_history_does_not_count(made: Made) -> None:
    made.commit("2024-09-01T00:00:00+00:00", branch="other", parents=[])
    other = made.commit("2024-10-30T00:00:00+00:00", branch="other")
    made.commit("2024-08-01T00:00:00+00:00")
    wanted = made.commit("2024-10-05T00:00:00+00:00")
    made.commit("2024-11-02T00:00:00+00:00", parents=[wanted, other])
    assert resolved(made, "2024-10") == wanted


def test_the_branch_that_was_the_default_then(made: Made) -> None:
    old = made.commit("2024-09-01T00:00:00+00:00", branch="11.x", parents=[])
    kept = made.commit("2024-10-20T00:00:00+00:00", branch="11.x")
    made.commit("2024-10-25T00:00:00+00:00", branch="12.x", parents=[old])
    new = made.commit("2025-10-25T00:00:00+00:00", branch="12.x")
    made.default_branch("12.x")
    settings = {"branches": {"2024-10": "11.x"}, "branch": "12.x"}
    assert resolved(made, "2024-10", **settings) == kept
    assert resolved(made, "2025-10", **settings) == new
    assert resolved(made, "2025-10") == new


def test_a_pin_wins_and_may_lie_on_no_branch(made: Made) -> None:
    wanted = case_14(made)
    pin = made.tips["feature"]
    git(made.path, "update-ref", "-d", "refs/heads/feature")
    commit = resolve_snapshot(made.path, repository(made, pins={"2024-10": pin}), "2024-10")
    assert (commit.commit, commit.branch, commit.resolved_by) == (pin, None, "pin")
    assert resolved(made, "2024-09", pins={"2024-10": pin}) == wanted


def test_errors_name_repository_month_and_what_to_do(made: Made) -> None:
    case_14(made)
    with pytest.raises(CorpusError, match=r"local/made, snapshot 2024-07: branch main has no commit before 2024-08-01"):
        resolved(made, "2024-07")
    with pytest.raises(CorpusError, match=r"local/made, snapshot 2024-10: there is no branch nope; correct"):
        resolved(made, "2024-10", branch="nope")
    tree = git(made.path, "rev-parse", "main^{tree}")
    for pin in ("0" * 40, tree):
        with pytest.raises(CorpusError, match=rf"local/made, snapshot 2024-10: the pinned commit {pin} is not in"):
            resolved(made, "2024-10", pins={"2024-10": pin})
    git(made.path, "update-ref", "--no-deref", "HEAD", made.tips["main"])
    with pytest.raises(CorpusError, match="HEAD names no branch; set `branch`"):
        resolved(made, "2024-10")


@pytest.mark.parametrize("branch", ["--all", "-x", "main^", "main~1", "HEAD", "@{u}", "main..feature", "../main"])
def test_a_branch_is_a_name_and_nothing_else(made: Made, branch: str) -> None:
    case_14(made)
    with pytest.raises(CorpusError, match="there is no branch"):
        resolved(made, "2024-10", branch=branch)


def test_an_empty_repository_has_no_branch(made: Made) -> None:
    with pytest.raises(CorpusError, match="there is no branch main"):
        resolved(made, "2024-10")


def test_a_shallow_clone_says_so(made: Made, tmp_path: Path) -> None:
    case_14(made)
    clone = tmp_path / "clone.git"
    subprocess.run(
        ["git", "clone", "--quiet", "--bare", "--depth=1", made.path.as_uri(), str(clone)], check=True, env=os.environ
    )
    with pytest.raises(CorpusError, match="shallow clone"):
        resolve_snapshot(clone, Repository(name="local/made", path=clone), "2024-10")


def test_a_clone_on_a_feature_branch_still_means_the_default(made: Made, tmp_path: Path) -> None:
    wanted = case_14(made)
    subprocess.run(["git", "clone", "--quiet", str(made.path), str(tmp_path / "clone")], check=True)
    subprocess.run(["git", "-C", str(tmp_path / "clone"), "checkout", "--quiet", "feature"], check=True)
    clone = tmp_path / "clone/.git"
    assert resolve_snapshot(clone, Repository(name="local/made", path=clone), "2024-10").commit == wanted


def test_dates_that_run_backwards(made: Made) -> None:
    made.commit("2024-09-01T00:00:00+00:00")
    made.commit("2030-01-01T00:00:00+00:00")  # a clock years ahead
    wanted = made.commit("2024-10-20T00:00:00+00:00")
    nearer = made.commit("2024-10-19T00:00:00+00:00")  # a clock a day behind
    made.commit("2024-11-03T00:00:00+00:00")
    made.commit("2024-11-04T00:00:00+00:00")
    made.commit("1970-01-02T00:00:00+00:00")  # a clock that was never set
    made.commit("2024-11-06T00:00:00+00:00")
    assert resolved(made, "2024-10") == nearer != wanted


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(0, 20))
def test_the_cut_contradicts_the_fewest_dates(dates: list[int], end: int) -> None:
    def contradictions(first: int) -> int:
        """If everything from position `first` to the root is taken for earlier than `end`."""
        return sum(date < end for date in dates[:first]) + sum(date >= end for date in dates[first:])

    found = git_module._last_before(dates, end)
    first = len(dates) if found is None else found
    assert contradictions(first) == min(map(contradictions, range(len(dates) + 1)))
    assert found is None or dates[found] < end
    if dates == sorted(dates, reverse=True):  # what `git rev-list --first-parent --before` finds
        assert found == next((place for place, date in enumerate(dates) if date < end), None)


def test_every_entry_is_listed_whatever_its_name(made: Made) -> None:
    names = [
        "a b.md",
        "tab\tand\nnewline.md",
        'quo"te\\.md',
        "-rf",
        "--all",
        "模型/数据.md",
        "e\u0301.md",
        "sub/.x",
        " ",
    ]
    files: dict[str | bytes, object] = {name: name.encode() for name in names}
    files |= {b"caf\xe9.md": b"latin", "caf\\xe9.md": b"backslash"}
    files |= {"link": (SYMLINK, b"a b.md"), "vendor": (SUBMODULE, b"1" * 40), "run.sh": ("100755", b"#!")}
    commit = made.commit("2024-10-01T00:00:00+00:00", files)
    entries = {entry.path: entry for entry in list_tree(made.path, commit)}
    assert set(entries) == {*names, "caf\\xe9.md", "caf\\xe9.md~", "link", "vendor", "run.sh"}
    assert entries["caf\\xe9.md~"].raw_path == b"caf\xe9.md"
    assert (entries["vendor"].kind, entries["vendor"].bytes) == ("commit", None)
    assert entries["link"].mode == SYMLINK
    assert entries["run.sh"].mode == "100755"
    blobs = dict(read_blobs(made.path, [entries[name].blob for name in names]))
    assert [blobs[entries[name].blob] for name in names] == [name.encode() for name in names]
    assert all(entries[name].bytes == len(name.encode()) for name in names)


def loose(made: Made, blob: str) -> Path:
    """Unpack the repository and give the file of one object."""
    packs = list((made.path / "objects/pack").glob("*.pack"))
    for pack in packs:
        data = pack.read_bytes()
        for part in pack.parent.glob(f"{pack.stem}.*"):
            part.unlink()
        git(made.path, "unpack-objects", "-q", stdin=data)
    return made.path / "objects" / blob[:2] / blob[2:]


def test_missing_and_corrupt_blobs_are_told_from_the_others(made: Made) -> None:
    commit = made.commit("2024-10-01T00:00:00+00:00", {name: name.encode() * 9 for name in "abcd"})
    entries = list_tree(made.path, commit)
    loose(made, entries[0].blob).unlink()
    corrupt = loose(made, entries[2].blob)
    corrupt.chmod(0o644)
    corrupt.write_bytes(b"no zlib at all")
    read = list(read_blobs(made.path, [entry.blob for entry in entries]))
    assert [blob for blob, _ in read] == [entry.blob for entry in entries]
    assert [data for _, data in read] == [None, b"b" * 9, None, b"d" * 9]
    assert list_tree(made.path, commit)[0].bytes is None


def test_a_partial_clone_is_not_filled_behind_our_back(made: Made, tmp_path: Path) -> None:
    commit = made.commit("2024-10-01T00:00:00+00:00", {"a": b"1", "b": b"2"})
    git(made.path, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "partial.git"
    subprocess.run(
        ["git", "clone", "--quiet", "--bare", "--filter=blob:none", made.path.as_uri(), str(clone)], check=True
    )
    try:
        entries = list_tree(clone, commit)
    except CorpusError as error:
        assert "a partial clone" in str(error)
    else:
        assert [entry.bytes for entry in entries] == [None, None]
    blobs = [entry.blob for entry in list_tree(made.path, commit)]
    assert [data for _, data in read_blobs(clone, blobs)] == [None, None]


def test_a_missing_folder_is_an_error_not_an_empty_one(made: Made) -> None:
    commit = made.commit("2024-10-01T00:00:00+00:00", {"folder/a": b"1"})
    loose(made, git(made.path, "rev-parse", "main:folder")).unlink()
    with pytest.raises(CorpusError, match="ls-tree"):
        list_tree(made.path, commit)


def test_many_blobs_and_an_early_stop(made: Made) -> None:
    commit = made.commit("2024-10-01T00:00:00+00:00", {f"{n}.bin": os.urandom(2000) for n in range(300)})
    blobs = [entry.blob for entry in list_tree(made.path, commit)] * 10
    assert [blob for blob, _ in read_blobs(made.path, blobs)] == blobs
    reading = read_blobs(made.path, blobs)
    next(reading)
    reading.close()
    assert list(read_blobs(made.path, [])) == []


def test_object_types(made: Made) -> None:
    commit = made.commit("2024-10-01T00:00:00+00:00")
    assert object_type(made.path, commit) == "commit"
    assert object_type(made.path, list_tree(made.path, commit)[0].blob) == "blob"
    assert object_type(made.path, "0" * 40) is None


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, freshstack_dagster.corpus.git, freshstack_dagster.corpus.mirrors; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"polars", "dagster", "tree_sitter", "fastokens"} & set(loaded)

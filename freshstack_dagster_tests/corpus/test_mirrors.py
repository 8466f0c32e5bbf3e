from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from freshstack_dagster.corpus.git import NOTES, resolve_snapshot
from freshstack_dagster.corpus.mirrors import ensure_commit, open_mirror
from freshstack_dagster.errors import CorpusError
from freshstack_dagster.settings import Repository
from freshstack_dagster_tests.corpus.repositories import Made, Server, git, serving

TOKEN = "ghp_s3cret+Token/42"


@pytest.fixture
def remote(tmp_path: Path) -> Made:
    made = Made(tmp_path / "remote/owner/made.git")
    made.commit("2024-09-01T00:00:00+00:00")
    made.commit("2024-10-20T00:00:00+00:00")
    return made


@pytest.fixture
def mirrors(tmp_path: Path) -> Path:
    return tmp_path / "mirrors"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "remote") as server:
        yield server


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("MADE_TOKEN", TOKEN)
    with serving(tmp_path / "remote", TOKEN) as server:
        yield server


def at(made: Made) -> Repository:
    return Repository(name="owner/made", url=made.path.as_uri())


def heads(mirror: Path) -> set[str]:
    return set(git(mirror, "for-each-ref", "--format=%(refname)", "refs/heads").split())


def fetched_at(mirror: Path) -> float:
    return json.loads((mirror / NOTES).read_text())["fetched_at"]


def set_fetched_at(mirror: Path, when: datetime) -> None:
    notes = json.loads((mirror / NOTES).read_text())
    (mirror / NOTES).write_text(json.dumps({**notes, "fetched_at": when.timestamp()}))


def test_cloned_once_and_fetched_only_for_a_month_it_cannot_answer(remote: Made, mirrors: Path) -> None:
    mirror = open_mirror(at(remote), mirrors, fetch_until=None)
    first = fetched_at(mirror)
    new = remote.commit("2024-10-25T00:00:00+00:00")
    remote.commit("2024-10-26T00:00:00+00:00", branch="feature", parents=[new])
    for fetch_until in (None, datetime(2024, 11, 1, tzinfo=UTC)):  # fetched long after that moment
        assert open_mirror(at(remote), mirrors, fetch_until=fetch_until) == mirror
    assert fetched_at(mirror) == first
    assert heads(mirror) == {"refs/heads/main"}

    set_fetched_at(mirror, datetime(2024, 10, 22, tzinfo=UTC))
    open_mirror(at(remote), mirrors, fetch_until=datetime(2024, 11, 1, tzinfo=UTC))
    assert fetched_at(mirror) > first
    assert resolve_snapshot(mirror, at(remote), "2024-10").commit == new
    assert heads(mirror) == {"refs/heads/main", "refs/heads/feature"}


def test_branches_that_vanish_stay_and_rewritten_ones_follow(remote: Made, mirrors: Path) -> None:
    remote.commit("2024-10-26T00:00:00+00:00", branch="old", parents=[])
    mirror = open_mirror(at(remote), mirrors, fetch_until=None)
    git(remote.path, "update-ref", "-d", "refs/heads/old")
    remote.commit("2024-10-21T00:00:00+00:00", parents=[])
    set_fetched_at(mirror, datetime(2024, 1, 1, tzinfo=UTC))
    open_mirror(at(remote), mirrors, fetch_until=datetime(2024, 11, 1, tzinfo=UTC))
    assert heads(mirror) == {"refs/heads/main", "refs/heads/old"}
    assert git(mirror, "rev-parse", "main") == remote.tips["main"]

    # A branch cannot stand beside one that is its folder: then the vanished one goes.
    remote.commit("2024-10-27T00:00:00+00:00", branch="old/new", parents=[])
    set_fetched_at(mirror, datetime(2024, 1, 1, tzinfo=UTC))
    open_mirror(at(remote), mirrors, fetch_until=datetime(2024, 11, 1, tzinfo=UTC))
    assert heads(mirror) == {"refs/heads/main", "refs/heads/old/new"}


def test_the_default_branch_of_the_time_is_remembered(remote: Made, mirrors: Path) -> None:
    mirror = open_mirror(at(remote), mirrors, fetch_until=None)
    notes = json.loads((mirror / NOTES).read_text())
    notes["default_branches"] = [[datetime(2024, 10, 2, tzinfo=UTC).timestamp(), "main"]]
    (mirror / NOTES).write_text(json.dumps(notes | {"fetched_at": 0}))
    remote.commit("2024-10-05T00:00:00+00:00", branch="next", parents=[remote.tips["main"]])
    remote.default_branch("next")
    open_mirror(at(remote), mirrors, fetch_until=datetime(2024, 11, 1, tzinfo=UTC))
    assert resolve_snapshot(mirror, at(remote), "2024-10").branch == "main"
    seen = json.loads((mirror / NOTES).read_text())["default_branches"]
    assert [branch for _, branch in seen] == ["main", "next"]
    later = datetime.fromtimestamp(seen[1][0] + 40 * 86400, UTC)
    assert resolve_snapshot(mirror, at(remote), f"{later:%Y-%m}").branch == "next"


def test_two_runs_at_once_make_one_mirror(remote: Made, mirrors: Path, server: Server) -> None:
    repository = Repository(name="owner/made", url=f"{server.address}/owner/made.git")
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: open_mirror(repository, mirrors, fetch_until=None), range(4)))
    assert len(set(opened)) == 1
    assert sum(path.endswith("git-upload-pack") for path in server.requests) == 3  # default branch, branches, objects
    assert [path.name for path in mirrors.iterdir() if path.suffix != ".lock"] == [opened[0].name]


def test_what_a_killed_run_left_is_in_nobodys_way(remote: Made, mirrors: Path) -> None:
    mirrors.mkdir()
    name = open_mirror(at(remote), mirrors, fetch_until=None).name
    (mirrors / name).rename(mirrors / f".{name}.partial-killed")
    mirror = open_mirror(at(remote), mirrors, fetch_until=None)
    assert not list(mirrors.glob(".*.partial-*"))

    for left in ("packed-refs.lock", "refs/heads/main.lock", "objects/pack/tmp_pack_x"):
        (mirror / left).write_text("")
    new = remote.commit("2024-10-30T00:00:00+00:00")
    set_fetched_at(mirror, datetime(2024, 1, 1, tzinfo=UTC))
    open_mirror(at(remote), mirrors, fetch_until=datetime(2024, 11, 1, tzinfo=UTC))
    assert git(mirror, "rev-parse", "main") == new


def test_a_killed_run_keeps_the_lock_while_its_git_lives(remote: Made, mirrors: Path, server: Server) -> None:
    slow = threading.Event()
    server.before_answer = lambda path: slow.wait(20) if path.endswith("info/refs") else None
    url = f"{server.address}/owner/made.git"
    code = (
        "import sys; from pathlib import Path; from freshstack_dagster.settings import Repository\n"
        "from freshstack_dagster.corpus.mirrors import open_mirror\n"
        f"open_mirror(Repository(name='owner/made', url={url!r}), Path({str(mirrors)!r}), fetch_until=None)"
    )
    run = subprocess.Popen([sys.executable, "-c", code])
    while not server.requests:
        time.sleep(0.02)
    run.kill()
    run.wait()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(open_mirror, Repository(name="owner/made", url=url), mirrors, fetch_until=None)
        time.sleep(0.3)
        assert not second.done()
        slow.set()
        assert heads(second.result(timeout=20)) == {"refs/heads/main"}


def test_a_pin_on_no_branch_is_fetched_by_its_id(remote: Made, mirrors: Path, server: Server) -> None:
    pin = remote.commit("2024-10-09T00:00:00+00:00", branch="feature", parents=[])
    git(remote.path, "update-ref", "refs/pull/1/head", pin)
    git(remote.path, "update-ref", "-d", "refs/heads/feature")
    repository = Repository(name="owner/made", url=f"{server.address}/owner/made.git", pins={"2024-10": pin})
    mirror = open_mirror(repository, mirrors, fetch_until=None)
    ensure_commit(repository, mirrors, mirror, pin)
    assert resolve_snapshot(mirror, repository, "2024-10").commit == pin
    with pytest.raises(CorpusError, match=f"owner/made: commit {'1' * 40} is on no branch and cannot be fetched"):
        ensure_commit(repository, mirrors, mirror, "1" * 40)
    local = Repository(name="owner/made", path=remote.path)
    with pytest.raises(CorpusError, match=f"owner/made: commit {'1' * 40} is not in"):
        ensure_commit(local, mirrors, remote.path, "1" * 40)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///nowhere/at/all.git", "does not appear to be a git repository"),
        ("http://127.0.0.1:9/x.git", "(unable to access|Failed to connect)"),
        ("ext::sh -c true", "not allowed"),
        ("--upload-pack=touch injected", "strange|option|blocked|not appear"),
    ],
)
def test_a_repository_that_cannot_be_reached(
    mirrors: Path, url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match=f"repository owner/made: cannot be fetched from .*{said}") as raised:
        open_mirror(Repository(name="owner/made", url=url), mirrors, fetch_until=None)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "injected").exists()
    assert not [path for path in mirrors.iterdir() if path.suffix != ".lock"]


def every_text_below(folder: Path) -> str:
    return "\n".join(path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file())


def test_a_token_opens_a_private_repository_and_shows_nowhere(
    remote: Made, mirrors: Path, private: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    commands: set[str] = set()
    private.before_answer = lambda _: commands.update(_command_lines())
    repository = Repository(name="owner/made", url=f"{private.address}/owner/made.git", token_env="MADE_TOKEN")
    mirror = open_mirror(repository, mirrors, fetch_until=None)
    assert resolve_snapshot(mirror, repository, "2024-10").commit == remote.tips["main"]
    assert private.authorizations
    encoded = private.authorizations[0].split()[1]
    assert any("git" in command for command in commands)
    for text in (every_text_below(mirrors), "\n".join(commands), caplog.text, str(repository)):
        assert TOKEN not in text
        assert encoded not in text


def _command_lines() -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.add(path.read_bytes().replace(b"\0", b" ").decode("latin-1"))
        except OSError:
            continue
    return found


def test_a_refused_or_missing_token_is_named_by_its_variable(
    remote: Made, mirrors: Path, private: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{private.address}/owner/made.git"
    with_token = Repository(name="owner/made", url=url, token_env="MADE_TOKEN")
    monkeypatch.setenv("MADE_TOKEN", "wrong-" + TOKEN)
    with pytest.raises(CorpusError, match="the token in MADE_TOKEN was refused") as raised:
        open_mirror(with_token, mirrors, fetch_until=None)
    assert TOKEN not in str(raised.value)
    monkeypatch.delenv("MADE_TOKEN")
    with pytest.raises(CorpusError, match="owner/made: the environment variable MADE_TOKEN of `token_env` is not set"):
        open_mirror(with_token, mirrors, fetch_until=None)
    with pytest.raises(CorpusError, match="private and needs `token_env`"):
        open_mirror(Repository(name="owner/made", url=url), mirrors, fetch_until=None)


@pytest.mark.parametrize("login", ["user:{}", "{}", "{}:x-oauth-basic"])
def test_a_token_in_the_address_is_refused_and_not_repeated(mirrors: Path, login: str) -> None:
    url = f"https://{login.format(TOKEN.replace('/', ''))}@git.example.invalid/made.git"
    with pytest.raises(CorpusError, match="put the token into an environment variable") as raised:
        open_mirror(Repository(name="owner/made", url=url), mirrors, fetch_until=None)
    assert "Token" not in str(raised.value)


def test_a_token_is_not_given_to_the_host_of_a_redirect(
    remote: Made, mirrors: Path, private: Server, tmp_path: Path
) -> None:
    with serving(tmp_path / "remote", "another") as elsewhere:
        private.redirects["/owner/made.git"] = f"{elsewhere.address}/owner/made.git"
        repository = Repository(name="owner/made", url=f"{private.address}/owner/made.git", token_env="MADE_TOKEN")
        with pytest.raises(CorpusError):
            open_mirror(repository, mirrors, fetch_until=None)
        assert elsewhere.requests
        assert not elsewhere.authorizations


def test_a_renamed_repository_is_named_until_formerly_says_so(remote: Made, mirrors: Path, server: Server) -> None:
    server.redirects["/owner/old.git"] = "/owner/made.git"
    old = Repository(name="owner/old", url=f"{server.address}/owner/old.git")
    with pytest.raises(CorpusError, match=r"owner/old: it was renamed to owner/made; write `name: owner/made` and"):
        open_mirror(old, mirrors, fetch_until=None)
    both = Repository(name="owner/made", alias="old", url=old.url, formerly=("owner/old",))
    assert heads(open_mirror(both, mirrors, fetch_until=None)) == {"refs/heads/main"}


def test_a_new_name_takes_over_the_mirror(remote: Made, mirrors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Repository, "clone_url", property(lambda self: remote.path.as_uri()))
    old = open_mirror(Repository(name="owner/old"), mirrors, fetch_until=None)
    first = fetched_at(old)
    new = open_mirror(Repository(name="owner/made", formerly=("owner/old",)), mirrors, fetch_until=None)
    assert new.name == "owner+made.git"
    assert fetched_at(new) == first
    assert not old.exists()


def test_local_repositories_are_used_in_place(remote: Made, mirrors: Path, tmp_path: Path) -> None:
    def opened(path: Path) -> Path:
        return open_mirror(Repository(name="local/made", path=path), mirrors, fetch_until=datetime.now(UTC))

    work = tmp_path / "work"
    subprocess.run(["git", "clone", "--quiet", str(remote.path), str(work)], check=True)
    subprocess.run(["git", "-C", str(work), "worktree", "add", "--quiet", str(tmp_path / "linked")], check=True)
    assert opened(remote.path) == remote.path
    assert opened(work) == work / ".git"
    linked = Repository(name="local/made", path=tmp_path / "linked", branch="main")
    assert resolve_snapshot(opened(tmp_path / "linked"), linked, "2024-10").commit == remote.tips["main"]
    assert not mirrors.exists()
    (tmp_path / "plain").mkdir()
    for path, problem in ((tmp_path / "plain", "is not a git repository"), (tmp_path / "none", "does not exist")):
        with pytest.raises(CorpusError, match=f"local/made: .*{problem}; correct `path`"):
            opened(path)


def test_a_history_is_built(mirrors: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "author: A <a@example.invalid>\ncommits:\n"
        '  - {id: one, branch: main, committed_at: "2024-10-02T00:00:00+00:00", message: one, writes: {a.md: a}}\n'
    )
    repository = Repository(name="sample/made", history=recipe)
    with ThreadPoolExecutor(3) as pool:
        opened = set(pool.map(lambda _: open_mirror(repository, mirrors, fetch_until=datetime.now(UTC)), range(3)))
    (mirror,) = opened
    assert resolve_snapshot(mirror, repository, "2024-10").branch == "main"

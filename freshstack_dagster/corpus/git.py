"""Read git repositories with git itself: the commit of a month, its whole tree, and the blobs.

Every call is shielded from what would make two machines differ: the user's and the system's git configuration,
replaced objects, the locale, the time zone. Nothing here writes to a repository or talks to a network.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from freshstack_dagster.errors import CorpusError
from freshstack_dagster.settings import Repository, snapshot_end

SYMLINK = "120000"
SUBMODULE = "commit"
NOTES = "freshstack.json"
RawPath = bytes  # `bytes` is a column's name inside TreeEntry
_KEPT_VARIABLES = ("GIT_SSL_", "GIT_PROXY_", "GIT_SSH", "GIT_EXEC_PATH")


class UnknownBranch(CorpusError):
    """A branch is not there; a mirror that is fetched again may have it."""


@dataclass(frozen=True)
class Commit:
    """A repository's commit at a snapshot: one row of the table `commits`.

    `repository` is the alias, `branch` is None for a pin, both dates are in UTC, `resolved_by` is `first_parent` or
    `pin`.
    """

    repository: str
    name: str
    branch: str | None
    commit: str
    committed_at: datetime
    authored_at: datetime
    resolved_by: str


@dataclass(frozen=True)
class TreeEntry:
    """One entry of a tree: `mode` as git writes it, `kind` is `blob` or `commit` (a submodule).

    `path` is always valid Unicode: where git's bytes are no UTF-8, they stand as `\\xff`; `raw_path` has the bytes.
    `bytes` is None for a submodule and for a blob that the repository does not have.
    """

    path: str
    mode: str
    kind: str
    blob: str
    bytes: int | None
    raw_path: RawPath


def git_environment(config: Sequence[tuple[str, str]] = ()) -> dict[str, str]:
    """The environment of every git call: no user or system configuration, no prompt, UTC, plain English.

    `config` are settings for this call alone. They travel in the environment, so they are in no process list.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES)
    }
    environment.update(
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_SYSTEM=os.devnull,
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_ATTR_NOSYSTEM="1",
        GIT_TERMINAL_PROMPT="0",
        GIT_NO_REPLACE_OBJECTS="1",
        GIT_OPTIONAL_LOCKS="0",
        LC_ALL="C",
        TZ="UTC",
        GIT_CONFIG_COUNT=str(len(config)),
    )
    for number, (key, value) in enumerate(config):
        environment[f"GIT_CONFIG_KEY_{number}"] = key
        environment[f"GIT_CONFIG_VALUE_{number}"] = value
    return environment


def reading_environment() -> dict[str, str]:
    """`git_environment` without any transport: a partial clone must not fetch behind our back."""
    return {**git_environment(), "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}


def resolve_snapshot(mirror: Path, repository: Repository, snapshot: str) -> Commit:
    """The commit at which `repository` stood just before the month `snapshot` ended in UTC.

    A pin of the topic wins. Otherwise it is the last commit, by committer date, of the first-parent chain of the
    branch that was the default then: `branches` for that snapshot, else `branch`, else the default branch as the
    mirror knows it. Raises CorpusError, naming repository and snapshot, if there is no such branch, commit or pin.

    What "last" means. The chain's order is certain, a date is somebody's clock. Where dates rise along the chain, as
    they nearly always do, the last commit dated before the month's end is the one that git's `--before` finds. Where
    they do not, the cut between "before" and "after" is put where it contradicts the fewest dates, and of equal cuts
    the one nearest the tip: so a commit made last week by a clock in 1970 does not pass for the state of every month,
    and one commit from the future does not hide all that came after it.
    """
    where = f"repository {repository.name}, snapshot {snapshot}"
    end = int(snapshot_end(snapshot).timestamp())
    pin = repository.pins.get(snapshot)
    if pin is not None:
        if object_type(mirror, pin) != "commit":
            raise CorpusError(f"{where}: the pinned commit {pin} is not in the repository; correct `pins`")
        return _commit(mirror, repository, None, pin, "pin")
    branch = repository.branches.get(snapshot) or repository.branch or default_branch(mirror, repository, snapshot)
    tip = _branch_tip(mirror, branch)
    if tip is None:
        raise UnknownBranch(f"{where}: there is no branch {branch}; correct `branch` or `branches`")
    lines = _git(mirror, "rev-list", "--first-parent", "--timestamp", "--end-of-options", tip, where=where)
    chain = [(int(date), commit) for date, commit in (line.split() for line in lines.decode("ascii").splitlines())]
    position = _last_before([date for date, _ in chain], end)
    if position is None:
        if (mirror / "shallow").exists():
            raise CorpusError(
                f"{where}: the repository is a shallow clone whose history does not reach back to the month; "
                f"run `git fetch --unshallow` in it"
            )
        raise CorpusError(
            f"{where}: branch {branch} has no commit before {snapshot_end(snapshot):%Y-%m-%d} UTC; "
            f"set its `since` to a later month, or name another branch in `branches` or a commit in `pins`"
        )
    return _commit(mirror, repository, branch, chain[position][1], "first_parent")


def _last_before(dates: Sequence[int], end: int) -> int | None:
    """Position of the last commit before `end`; `dates` (seconds) from the tip to the root. None if there is none."""
    # Cutting just before the root leaves every commit "after": each one dated before the end contradicts it.
    contradictions = sum(date < end for date in dates)
    best, fewest = None, contradictions
    for position in range(len(dates) - 1, -1, -1):
        contradictions += -1 if dates[position] < end else 1
        if contradictions <= fewest and dates[position] < end:
            best, fewest = position, contradictions
    return best


def default_branch(mirror: Path, repository: Repository, snapshot: str) -> str:
    """The default branch of the month as far as the repository tells: what its HEAD names.

    A mirror of ours remembers the default branch at each fetch: the last one seen before the month's end counts, or
    else the first one seen after. A clone with a work tree may stand on any branch, so its remote's default counts
    first. Raises CorpusError if HEAD names no branch.
    """
    end = snapshot_end(snapshot).timestamp()
    seen = read_notes(mirror).get("default_branches", [])
    if seen:
        before = [branch for at, branch in seen if at < end]
        return before[-1] if before else seen[0][1]
    for name, prefix in (("refs/remotes/origin/HEAD", "refs/remotes/origin/"), ("HEAD", "refs/heads/")):
        found = _try(mirror, "symbolic-ref", "--quiet", name)
        if found and found.startswith(prefix):
            return found.removeprefix(prefix)
    raise CorpusError(
        f"repository {repository.name}, snapshot {snapshot}: its HEAD names no branch; set `branch` in the topic"
    )


def read_notes(mirror: Path) -> dict[str, Any]:
    """What a mirror of ours remembers about itself (see `mirrors`); empty for any other repository."""
    try:
        notes = json.loads((mirror / NOTES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}


def object_type(mirror: Path, object_id: str) -> str | None:
    """`commit`, `blob`, `tree` or `tag`; None if the repository does not have the object."""
    answer = _git(mirror, "cat-file", "--batch-check", stdin=f"{object_id}\n".encode(), where=f"{mirror}").split()
    return answer[1].decode("ascii") if len(answer) == 3 else None


def list_tree(mirror: Path, commit: str) -> list[TreeEntry]:
    """Every entry below the commit's tree, in git's order: blobs of every mode, symlinks and submodules.

    Raises CorpusError if the commit or one of its trees cannot be read.
    """
    where = f"{mirror}, commit {commit}"
    listed = _git(mirror, "ls-tree", "-r", "-l", "-z", "--full-tree", "--end-of-options", commit, where=where)
    entries = []
    for record in listed.split(b"\0"):
        if not record:
            continue
        facts, raw_path = record.split(b"\t", 1)
        mode, kind, blob, size = facts.decode("ascii").split()
        path = raw_path.decode("utf-8", "backslashreplace")
        entries.append(TreeEntry(path, mode, kind, blob, int(size) if size.isdigit() else None, raw_path))
    return _with_distinct_paths(entries)


def _with_distinct_paths(entries: list[TreeEntry]) -> list[TreeEntry]:
    """Tell apart a file really called `\\xff` from one whose name is that byte, so that a path stays a key."""
    taken = {entry.path for entry in entries if entry.path.encode() == entry.raw_path}
    for position, entry in enumerate(entries):
        if entry.path.encode() == entry.raw_path:
            continue
        path = entry.path
        while path in taken:
            path += "~"
        taken.add(path)
        entries[position] = replace(entry, path=path)
    return entries


def read_blobs(mirror: Path, blobs: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
    """Each blob with its bytes, in the order asked; None for one that is missing or cannot be read.

    One `git cat-file` serves them all and only one blob is held at a time.
    """
    wanted = list(blobs)
    while wanted:
        done = 0
        for blob, data in _read_until_broken(mirror, wanted):
            done += 1
            yield blob, data
        if done < len(wanted):
            # git ends at a corrupt object. That one is lost; the others are not.
            yield wanted[done], None
            done += 1
        wanted = wanted[done:]


def _read_until_broken(mirror: Path, blobs: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
    process = subprocess.Popen(
        ["git", "--git-dir", str(mirror), "cat-file", "--batch", "--buffer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=reading_environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    # Both pipes are bounded: asking and reading in one thread would lock up.
    asking = threading.Thread(target=_ask, args=(process.stdin, blobs), daemon=True)
    asking.start()
    try:
        for blob in blobs:
            header = process.stdout.readline().split()
            if header[1:] == [b"missing"]:
                yield blob, None
                continue
            if len(header) != 3:
                return
            data = process.stdout.read(int(header[2]))
            if len(data) != int(header[2]) or process.stdout.read(1) != b"\n":
                return
            yield blob, data if header[1] == b"blob" else None
    finally:
        process.kill()
        process.stdout.close()
        asking.join()
        process.wait()


def _ask(stdin: IO[bytes], blobs: Sequence[str]) -> None:
    try:
        for start in range(0, len(blobs), 1000):
            stdin.write("".join(f"{blob}\n" for blob in blobs[start : start + 1000]).encode("ascii"))
        stdin.close()
    except OSError:
        pass  # the reader stopped early and ended git


def _branch_tip(mirror: Path, branch: str) -> str | None:
    # `show-ref --verify` takes full names of references only, so no branch name can pass for an option or a revision.
    for prefix in ("refs/heads/", "refs/remotes/origin/"):
        found = _try(mirror, "show-ref", "--verify", "--hash", "--", f"{prefix}{branch}")
        if found:
            return found
    return None


def _commit(mirror: Path, repository: Repository, branch: str | None, commit: str, resolved_by: str) -> Commit:
    shown = _git(
        mirror, "rev-list", "--no-walk", "--format=%ct %at", "--end-of-options", commit, where=repository.name
    ).split(b"\n")
    committed, authored = (int(seconds) for seconds in shown[1].split())
    committed_at = datetime.fromtimestamp(committed, UTC)
    try:
        authored_at = datetime.fromtimestamp(authored, UTC)
    except (ValueError, OverflowError, OSError):  # a clock beyond the year 9999
        authored_at = committed_at
    return Commit(repository.alias, repository.name, branch, commit, committed_at, authored_at, resolved_by)


def _git(mirror: Path, *arguments: str, where: str, stdin: bytes = b"") -> bytes:
    """Output of a git command. Raises CorpusError if it fails."""
    ran = _run(mirror, *arguments, where=where, stdin=stdin)
    if b"promisor remote" in ran.stderr:  # git from 2.45 on lists such blobs as missing instead
        raise CorpusError(
            f"{where}: a partial clone, some of its blobs were never fetched; "
            "run `git fetch --refetch --no-filter` in it"
        )
    if ran.returncode != 0:
        raise CorpusError(f"{where}: git {arguments[0]} failed: {first_complaint(ran.stderr)}")
    return ran.stdout


def _try(mirror: Path, *arguments: str) -> str | None:
    """Output of a git command that may find nothing, which is then None."""
    ran = _run(mirror, *arguments, where=str(mirror))
    return ran.stdout.decode("utf-8", "replace").strip() if ran.returncode == 0 else None


def _run(mirror: Path, *arguments: str, where: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = ["git", "--git-dir", str(mirror), *arguments]
    try:
        return subprocess.run(command, input=stdin, capture_output=True, env=reading_environment(), check=False)
    except OSError as error:
        raise CorpusError(f"{where}: git cannot be run ({error.strerror}); install git") from error


def first_complaint(stderr: bytes) -> str:
    """The line of git's error output that says what is wrong."""
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    serious = [line for line in lines if line.startswith(("fatal:", "error:", "remote: "))]
    return (serious or lines or ["it gave no reason"])[0]

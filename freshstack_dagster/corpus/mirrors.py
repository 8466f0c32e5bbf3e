"""Bare mirrors of repositories: cloned once, fetched when a month asks for it, shared by topics and snapshots.

A mirror holds the branches of its repository under `refs/heads/`. Branches that vanish upstream stay, and nothing is
ever pruned: a month that could be resolved once can be resolved again. `freshstack.json` in the mirror remembers where
it was cloned from, when it was last fetched, and the default branch seen at each fetch.

Tokens. The token of a private repository (`token_env` names the variable) goes to git in the environment, and git asks
for it through a credential helper that answers for the repository's own host only. It is never an argument, so in no
process list; never in a URL or the mirror's configuration; and it is struck out of what git says before we repeat it.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from freshstack_dagster.corpus.git import NOTES, first_complaint, git_environment, object_type, read_notes
from freshstack_dagster.corpus.history import build_history
from freshstack_dagster.errors import CorpusError
from freshstack_dagster.settings import Repository

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "FRESHSTACK_GIT_TOKEN"
_HELPER = f'!f() {{ test "$1" = get && printf "username=x-access-token\\npassword=%s\\n" "${TOKEN_VARIABLE}"; }}; f'
_BRANCHES = "+refs/heads/*:refs/heads/*"
_KEPT = "refs/freshstack/"


def open_mirror(repository: Repository, mirrors: Path, *, fetch_until: datetime | None) -> Path:
    """The git directory of a repository, ready to be read.

    A local `path` is used in place and never written; a `history` is built below `mirrors`; anything else is cloned
    there once. A mirror is fetched only if `fetch_until` is given and the last fetch is older: what happened before
    that moment cannot be in it yet. Only one run clones or fetches a mirror at a time; others wait, then read.
    Raises CorpusError that names the repository if it cannot be reached, or has moved without `formerly`.
    """
    if repository.path is not None:
        return local_git_directory(repository, repository.path)
    _refuse_a_password(repository)
    mirrors.mkdir(parents=True, exist_ok=True)
    if repository.history is not None:
        built = mirrors / f"{_slug(repository.name)}-{_digest(str(repository.history.resolve()))}.git"
        with _locked(mirrors, built.name):
            build_history(repository.history, built)
        return built
    mirror = mirrors / _mirror_name(repository)
    with _locked(mirrors, mirror.name) as lock:
        if not mirror.exists():
            _take_over_former(repository, mirrors, mirror)
        if not mirror.exists():
            _clone(repository, mirror, lock)
        elif fetch_until is not None and read_notes(mirror).get("fetched_at", 0) < fetch_until.timestamp():
            _remove_stale_locks(mirror)
            _fetch(repository, mirror, lock)
    return mirror


def ensure_commit(repository: Repository, mirrors: Path, mirror: Path, commit: str) -> None:
    """Make sure that `mirror` has `commit`, fetching that one commit if it is on no branch (a pin may be on none).

    Raises CorpusError that names the repository and the commit if it cannot be had.
    """
    if object_type(mirror, commit) == "commit":
        return
    where = f"repository {repository.name}"
    if repository.path is not None or repository.history is not None:
        raise CorpusError(f"{where}: commit {commit} is not in {repository.path or repository.history}; correct `pins`")
    with _locked(mirrors, mirror.name) as lock:
        try:
            refspec = f"+{commit}:{_KEPT}{commit}"
            _run(repository, mirror, lock, "fetch", "--no-tags", "--", repository.clone_url, refspec)
        except CorpusError as error:
            raise CorpusError(
                f"{where}: commit {commit} is on no branch and cannot be fetched by its id either ({error}); "
                "correct `pins`"
            ) from error
    if object_type(mirror, commit) != "commit":
        raise CorpusError(f"{where}: {commit} is not a commit; correct `pins`")


def local_git_directory(repository: Repository, path: Path) -> Path:
    """Where the objects of a local repository lie. Raises CorpusError that names it if there is none at `path`."""
    inside = path / ".git"
    if inside.is_file():  # a linked work tree or a submodule: the file names the place
        inside = path / inside.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    for candidate in (inside, path):
        if (candidate / "HEAD").is_file():
            return candidate
    problem = "is not a git repository" if path.is_dir() else "does not exist"
    raise CorpusError(f"repository {repository.name}: {path} {problem}; correct `path`")


def _clone(repository: Repository, mirror: Path, lock: int) -> None:
    for left in mirror.parent.glob(f".{mirror.name}.partial-*"):  # of a run that was killed; we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{mirror.name}.partial-", dir=mirror.parent))
    try:
        _run(repository, partial, lock, "init", "--quiet", "--bare", "--template=", str(partial))
        _fetch(repository, partial, lock)
        os.replace(partial, mirror)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fetch(repository: Repository, mirror: Path, lock: int) -> None:
    """Fetch every branch and note the default one."""
    started = time.time()
    url = repository.clone_url
    log.info("fetching %s from %s", repository.name, url)
    # First the default branch: a small question that also tells a wrong address, token or name at once.
    answer = _run(repository, mirror, lock, "ls-remote", "--symref", "--", url, "HEAD")
    named = re.search(rb"^ref: refs/heads/(.+)\tHEAD$", answer, re.MULTILINE)
    arguments = ["fetch", "--no-tags", "--no-write-fetch-head", "--quiet", "--", url, _BRANCHES]
    try:
        _run(repository, mirror, lock, *arguments)
    except CorpusError as error:
        # A new branch `a/b` cannot stand beside a branch `a` that vanished upstream.
        if "cannot lock ref" not in str(error) and "some local refs could not be updated" not in str(error):
            raise
        _run(repository, mirror, lock, *arguments[:1], "--prune", *arguments[1:])
    notes = read_notes(mirror)
    seen = notes.get("default_branches", [])
    if named:
        branch = named[1].decode("utf-8", "replace")
        _run(repository, mirror, lock, "symbolic-ref", "HEAD", f"refs/heads/{branch}")
        if not seen or seen[-1][1] != branch:
            seen = [*seen, [started, branch]]
    _write_notes(mirror, {"name": repository.name, "url": url, "fetched_at": started, "default_branches": seen})


def _write_notes(mirror: Path, notes: dict[str, object]) -> None:
    temporary = mirror / f".{NOTES}.new"
    temporary.write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, mirror / NOTES)


def _take_over_former(repository: Repository, mirrors: Path, mirror: Path) -> None:
    """A repository that was renamed keeps the mirror of its former name."""
    if repository.url is not None:
        return
    for name in repository.formerly:
        former = mirrors / _mirror_name(repository.model_copy(update={"name": name}))
        if former.exists():
            with _locked(mirrors, former.name):
                os.replace(former, mirror)
            return


def _remove_stale_locks(mirror: Path) -> None:
    """Remove lock files that a killed git left; nobody else writes here, for we hold the mirror's lock."""
    for left in [*mirror.glob("*.lock"), *(mirror / "refs").rglob("*.lock")]:
        left.unlink(missing_ok=True)
    for left in (mirror / "objects" / "pack").glob("tmp_*"):
        left.unlink(missing_ok=True)


def _run(repository: Repository, mirror: Path, lock: int, *arguments: str) -> bytes:
    """Run a git command that may use the network; its output. Raises CorpusError without any secret in it."""
    where = f"repository {repository.name}"
    config = [
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        ("fetch.recurseSubmodules", "false"),
        ("protocol.ext.allow", "never"),
        # A connection that stands still for two minutes is dead.
        ("http.lowSpeedLimit", "1"),
        ("http.lowSpeedTime", "120"),
        ("core.askPass", ""),
        ("credential.helper", ""),
    ]
    token = _token(repository)
    secret = {}
    if token:
        address = urlsplit(repository.clone_url)
        config.append((f"credential.{address.scheme}://{address.netloc}.helper", _HELPER))
        secret = {TOKEN_VARIABLE: token}
    environment = {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes", **git_environment(config), **secret}
    try:
        # git inherits the lock: if this process is killed, the mirror stays locked until git has ended too.
        ran = subprocess.run(
            ["git", "--git-dir", str(mirror), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            pass_fds=(lock,),
            check=False,
        )
    except OSError as error:
        raise CorpusError(f"{where}: git cannot be run ({error.strerror}); install git") from error
    said = _without_secret(ran.stderr.decode("utf-8", "replace"), token)
    _refuse_a_new_name(repository, said)
    if ran.returncode != 0:
        raise CorpusError(f"{where}: cannot be fetched from {repository.clone_url}: {_explain(said, repository)}")
    return ran.stdout


def _refuse_a_new_name(repository: Repository, said: str) -> None:
    """A host that redirects us to another name tells that the repository was renamed."""
    moved = re.search(r"redirecting to (\S+)", said)
    if not moved:
        return
    there = _place(moved[1])
    # The scheme or `.git` alone is no new name; a former name is allowed for.
    if there == _place(repository.clone_url):
        return
    if any(there.endswith(f"/{name.lower()}") for name in (repository.name, *repository.formerly)):
        return
    new = there.split("/", 1)[-1]
    raise CorpusError(
        f"repository {repository.name}: it was renamed to {new}; write `name: {new}` and "
        f"`formerly: [{repository.name}]`, and keep `alias: {repository.alias}`"
    )


def _place(url: str) -> str:
    address = urlsplit(url)
    return f"{address.netloc}{address.path}".lower().rstrip("/").removesuffix(".git")


def _refuse_a_password(repository: Repository) -> None:
    address = urlsplit(repository.clone_url)
    if address.password is not None or (address.scheme in ("http", "https") and address.username is not None):
        raise CorpusError(
            f"repository {repository.name}: `url` holds a name or password; put the token into an environment variable "
            "and name that in `token_env`"
        )


def _token(repository: Repository) -> str | None:
    if repository.token_env is None:
        return None
    token = os.environ.get(repository.token_env, "").strip()
    if not token:
        raise CorpusError(
            f"repository {repository.name}: the environment variable {repository.token_env} of `token_env` is not set"
        )
    if not repository.clone_url.startswith(("https://", "http://")):
        raise CorpusError(f"repository {repository.name}: `token_env` needs an https address, not {repository.url}")
    return token


def _without_secret(text: str, token: str | None) -> str:
    if token:
        for form in (token, base64.b64encode(f"x-access-token:{token}".encode()).decode()):
            text = text.replace(form, "***")
    return text


def _explain(said: str, repository: Repository) -> str:
    complaint = first_complaint(said.encode())
    asked = ("terminal prompts disabled", "Authentication failed", "could not read Password", "Permission denied")
    if any(sign in said for sign in asked) and repository.token_env:
        return f"{complaint}; the token in {repository.token_env} was refused"
    if any(sign in said for sign in asked):
        return f"{complaint}; the name is wrong, or the repository is private and needs `token_env`"
    return complaint


@contextmanager
def _locked(mirrors: Path, name: str) -> Iterator[int]:
    with open(mirrors / f".{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _mirror_name(repository: Repository) -> str:
    url = repository.clone_url
    return f"{_slug(repository.name)}{'-' + _digest(url) if repository.url else ''}.git"


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "+", name).lstrip(".-") or "repository"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]

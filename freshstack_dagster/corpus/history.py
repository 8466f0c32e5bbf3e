"""Build a git history from a recipe of plain files, the same commit ids on every machine.

A recipe is a YAML file with the commits in order, and beside it one folder of files for each commit that needs one.
It serves the bundled sample and the tests: real dated commits, without a repository inside the repository.

    default_branch: main
    author: Maintainers <maintainers@example.invalid>     # of every commit that names no other
    commits:
      - id: start                                          # unique; other commits refer to it
        branch: main
        committed_at: "2023-02-06T10:12:00+01:00"          # quoted, with a zone
        authored_at: "2023-02-05T21:00:00+01:00"           # left out: as committed_at
        message: First version
        from: other-id        # the first commit of a further branch: where it starts
        merge: other-id       # a merge commit: brings in what that commit's side changed
        tag: v0.1.0
        moves: {docs/a.md: docs/guides/a.md, old/: new/}   # a trailing slash moves a folder
        deletes: [a.md, old/]
        tree: start           # a folder beside the recipe; its files are added or changed
        writes: {.gitattributes: "*.bin filter=lfs\n"}     # a short file given in place
        edits: [{path: README.md, find: old words, replace: new words}]
        symlinks: {latest: docs/v2}
        submodules: {vendor/x: 40 hex digits}
        executables: [run.sh]

The steps of a commit are applied in the order moves, deletes, tree, writes, edits, symlinks, submodules, executables.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from freshstack_dagster.errors import CorpusError

FORMAT = "1"
STAMP = "recipe.sha256"
REGULAR, EXECUTABLE, SYMLINK, SUBMODULE = "100644", "100755", "120000", "160000"

Entry = tuple[str, bytes]
Tree = dict[str, Entry]

_COMMIT_KEYS = {
    *(
        "id",
        "branch",
        "committed_at",
        "authored_at",
        "author",
        "message",
        "from",
        "merge",
        "tag",
    ),
    *(
        "moves",
        "deletes",
        "tree",
        "writes",
        "edits",
        "symlinks",
        "submodules",
        "executables",
    ),
}

# The C parser is ten times as fast and reads the same language.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAPPINGS = ("moves", "writes", "symlinks", "submodules")
_LISTS = ("deletes", "edits", "executables")


@dataclass
class _Commit:
    mark: int
    parents: list[_Commit]
    tree: Tree


def build_history(recipe: Path, into: Path) -> None:
    """Make the bare repository `into` from the recipe file `recipe`; do nothing if it is there and unchanged.

    Commit ids depend on the recipe alone: not on the clock, the time zone, the user or the git configuration.
    The repository is built beside its place and renamed into it, so a crash leaves the old one or the new one.
    Raises CorpusError, naming the recipe and the commit, if the recipe cannot be read or applied.
    """
    recipe, into = Path(recipe), Path(into)
    digest = recipe_digest(recipe)
    if _stamp(into) == digest:
        return
    stream = _fast_import_stream(recipe)
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{into.name}-", dir=into.parent) as scratch:
        built = Path(scratch) / "built"
        branch = str(_load(recipe).get("default_branch", "main"))
        _git(
            [
                "init",
                "--quiet",
                "--bare",
                "--template=",
                "--object-format=sha1",
                str(built),
            ],
            recipe,
        )
        _git(
            ["--git-dir", str(built), "symbolic-ref", "HEAD", f"refs/heads/{branch}"],
            recipe,
        )
        importing = [
            "-c",
            "fastimport.unpackLimit=1",
            "--git-dir",
            str(built),
            "fast-import",
            "--quiet",
            "--done",
        ]
        _git(importing, recipe, stream)
        (built / STAMP).write_text(digest + "\n", encoding="ascii")
        for _ in range(3):
            if into.exists():
                if _stamp(into) == digest:  # another process was faster
                    return
                os.replace(into, Path(tempfile.mkdtemp(dir=scratch)) / "old")
            try:
                os.replace(built, into)
                return
            except OSError:  # another process renamed its own into place since we looked
                continue
        shutil.rmtree(built, ignore_errors=True)
    raise CorpusError(f"{into}: cannot be replaced by the history of {recipe}; is another process building it?")


def recipe_digest(recipe: Path) -> str:
    """SHA-256 over the recipe file and every file of the folders it names: what the commit ids depend on."""
    digest = hashlib.sha256(FORMAT.encode())
    commits = _load(recipe)["commits"]
    folders = sorted({str(commit["tree"]) for commit in commits if isinstance(commit, dict) and commit.get("tree")})
    digest.update(recipe.read_bytes())
    for folder in folders:
        for path, (mode, data) in sorted(_read_folder(recipe, folder).items()):
            digest.update(f"\0{folder}\0{path}\0{mode}\0{len(data)}\0".encode())
            digest.update(data)
    return digest.hexdigest()


def _stamp(repository: Path) -> str | None:
    try:
        return (repository / STAMP).read_text(encoding="ascii").strip()
    except OSError:
        return None


def _load(recipe: Path) -> dict[str, Any]:
    try:
        text = recipe.read_text(encoding="utf-8")
    except OSError as error:
        raise CorpusError(f"{recipe}: the history recipe cannot be read ({error.strerror})") from error
    try:
        loaded = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise CorpusError(f"{recipe}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict) or not isinstance(loaded.get("commits"), list) or not loaded["commits"]:
        raise CorpusError(f"{recipe}: a history recipe needs a list 'commits' with at least one commit")
    return loaded


def _read_folder(recipe: Path, folder: str) -> Tree:
    """The files of one folder beside the recipe, by their path in the repository."""
    root = recipe.parent / folder
    if not root.is_dir():
        raise CorpusError(f"{recipe}: there is no folder '{folder}' beside it")
    tree: Tree = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            tree[path.relative_to(root).as_posix()] = (REGULAR, path.read_bytes())
    return tree


def _fast_import_stream(recipe: Path) -> bytes:
    """The whole history in the input language of `git fast-import` (its manual page)."""
    loaded = _load(recipe)
    done: dict[str, _Commit] = {}
    tips: dict[str, _Commit] = {}
    out: list[bytes] = [b"feature done\n"]
    for number, step in enumerate(loaded["commits"], start=1):
        name = str(step.get("id", f"number {number}")) if isinstance(step, dict) else f"number {number}"

        def fail(problem: str, name: str = name) -> CorpusError:
            return CorpusError(f"{recipe}: commit '{name}': {problem}")

        if not isinstance(step, dict):
            raise fail("is not a mapping")
        unknown = sorted(set(step) - _COMMIT_KEYS)
        if unknown:
            raise fail(f"unknown key '{unknown[0]}'; allowed are {', '.join(sorted(_COMMIT_KEYS))}")
        missing = [key for key in ("id", "branch", "committed_at", "message") if not step.get(key)]
        if missing:
            raise fail(f"'{missing[0]}' is missing")
        for kind, what, keys in ((dict, "mapping", _MAPPINGS), (list, "list", _LISTS)):
            for key in keys:
                if not isinstance(step.get(key) or kind(), kind):
                    raise fail(f"'{key}' is a {what}")
        if name in done:
            raise fail("the id is used twice")
        for key in ("from", "merge"):
            if key in step and str(step[key]) not in done:
                raise fail(f"'{key}: {step[key]}' names no earlier commit")

        branch = str(step["branch"])
        parents = [tips[branch]] if branch in tips else []
        if "from" in step:
            if parents:
                raise fail(f"'from' is for the first commit of a branch, and '{branch}' has commits already")
            parents = [done[str(step["from"])]]
        elif not parents and tips:
            raise fail(f"the first commit of branch '{branch}' needs 'from'")
        before = dict(parents[0].tree) if parents else {}
        after = dict(before)
        if "merge" in step:
            other = done[str(step["merge"])]
            after = _merged(after, other, parents[0], fail)
            parents = [*parents, other]
        _apply(step, after, recipe, fail)
        for path in after:
            _check_path(path, after, fail)

        who = str(step.get("author") or loaded.get("author") or "")
        if not re.fullmatch(r"[^<>\n]+ <[^<>\s]+>", who):
            raise fail("'author' must read 'Name <address>', here or for the whole recipe")
        committed = _when(step["committed_at"], "committed_at", fail)
        authored = _when(step.get("authored_at", step["committed_at"]), "authored_at", fail)
        commit = _Commit(number, parents, after)
        message = (str(step["message"]).rstrip("\n") + "\n").encode()
        out.append(f"commit refs/heads/{branch}\nmark :{number}\n".encode())
        out.append(f"author {who} {authored}\ncommitter {who} {committed}\n".encode())
        out.append(b"data %d\n%s" % (len(message), message))
        for keyword, parent in zip(("from", "merge"), parents, strict=False):
            out.append(f"{keyword} :{parent.mark}\n".encode())
        out.extend(_changes(before, after))
        out.append(b"\n")
        if "tag" in step:
            out.append(f"reset refs/tags/{step['tag']}\nfrom :{number}\n\n".encode())
        done[name] = tips[branch] = commit
    out.append(b"done\n")
    return b"".join(out)


def _changes(before: Tree, after: Tree) -> list[bytes]:
    """File commands that turn one tree into the other: deletions first, so that a file may become a folder."""
    out = [f"D {_quoted(path)}\n".encode() for path in sorted(before.keys() - after.keys())]
    for path in sorted(after):
        if before.get(path) == after[path]:
            continue
        mode, data = after[path]
        if mode == SUBMODULE:
            out.append(f"M {mode} {data.decode()} {_quoted(path)}\n".encode())
        else:
            out.append(f"M {mode} inline {_quoted(path)}\ndata {len(data)}\n".encode() + data + b"\n")
    return out


def _check_path(path: str, tree: Tree, fail: Any) -> None:
    """Refuse what git would not take, or would take in another sense than the recipe's."""
    parts = path.split("/")
    if any(part in ("", ".", "..", ".git") for part in parts):
        raise fail(f"'{path}' is not a path that git takes")
    for count in range(1, len(parts)):
        if "/".join(parts[:count]) in tree:
            raise fail(f"'{'/'.join(parts[:count])}' is a file and the folder of '{path}'")


def _quoted(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _apply(step: dict[str, Any], tree: Tree, recipe: Path, fail: Any) -> None:
    for old, new in (step.get("moves") or {}).items():
        pairs = [(path, new + path[len(old) :]) for path in tree if path.startswith(old)] if old.endswith("/") else []
        if not old.endswith("/") and old in tree:
            pairs = [(old, new)]
        if not pairs:
            raise fail(f"'moves': there is no '{old}' to move")
        moved = [(target, tree.pop(source)) for source, target in pairs]
        tree.update(moved)
    for gone in step.get("deletes") or []:
        paths = [path for path in tree if path == gone or (gone.endswith("/") and path.startswith(gone))]
        if not paths:
            raise fail(f"'deletes': there is no '{gone}' to delete")
        for path in paths:
            del tree[path]
    if step.get("tree"):
        tree.update(_read_folder(recipe, str(step["tree"])))
    for path, text in (step.get("writes") or {}).items():
        tree[path] = (REGULAR, str(text).encode())
    for edit in step.get("edits") or []:
        if not isinstance(edit, dict) or set(edit) != {"path", "find", "replace"}:
            raise fail("an edit has exactly the keys 'path', 'find' and 'replace'")
        path, find = edit["path"], str(edit["find"]).encode()
        if path not in tree:
            raise fail(f"'edits': there is no '{path}'")
        mode, data = tree[path]
        if data.count(find) != 1:
            raise fail(f"'edits': '{path}' has {data.count(find)} places that read {edit['find']!r}, not one")
        tree[path] = (mode, data.replace(find, str(edit["replace"]).encode()))
    for path, target in (step.get("symlinks") or {}).items():
        tree[path] = (SYMLINK, str(target).encode())
    for path, commit in (step.get("submodules") or {}).items():
        if not re.fullmatch(r"[0-9a-f]{40}", str(commit)):
            raise fail(f"'submodules': '{path}' needs a commit of 40 hex digits in quotes")
        tree[path] = (SUBMODULE, str(commit).encode())
    for path in step.get("executables") or []:
        if path not in tree:
            raise fail(f"'executables': there is no '{path}'")
        tree[path] = (EXECUTABLE, tree[path][1])


def _merged(ours: Tree, other: _Commit, first: _Commit, fail: Any) -> Tree:
    """Our tree with what the other side changed since both were one; a path that both changed is an error."""
    ancestors: set[int] = set()
    walk: list[_Commit] = [first]
    while walk:
        commit = walk.pop()
        ancestors.add(commit.mark)
        walk.extend(commit.parents)
    base: _Commit | None = other
    while base is not None and base.mark not in ancestors:
        base = base.parents[0] if base.parents else None
    old = base.tree if base is not None else {}
    merged = dict(ours)
    for path in old.keys() | other.tree.keys():
        theirs = other.tree.get(path)
        if theirs == old.get(path) or theirs == ours.get(path):
            continue
        if ours.get(path) != old.get(path):
            raise fail(f"'merge': both sides changed '{path}'")
        if theirs is None:
            merged.pop(path, None)
        else:
            merged[path] = theirs
    return merged


def _when(value: Any, key: str, fail: Any) -> str:
    """A time as fast-import's raw format wants it: seconds since 1970 and the zone."""
    try:
        when = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        when = None
    offset = when.utcoffset() if when is not None else None
    if when is None or offset is None:
        raise fail(f"'{key}' must be a quoted time with a zone, as \"2024-10-31T23:30:00-05:00\"")
    minutes = int(offset.total_seconds()) // 60
    sign = "-" if minutes < 0 else "+"
    return f"{int(when.timestamp())} {sign}{abs(minutes) // 60:02d}{abs(minutes) % 60:02d}"


def _git(arguments: list[str], recipe: Path, stream: bytes = b"") -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    environment |= {"LC_ALL": "C"}
    try:
        ran = subprocess.run(
            ["git", *arguments],
            input=stream,
            capture_output=True,
            env=environment,
            check=False,
        )
    except OSError as error:
        raise CorpusError(f"{recipe}: git cannot be run ({error.strerror}); install git") from error
    if ran.returncode != 0:
        told = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CorpusError(f"{recipe}: git cannot build its history: {told[0] if told else ran.returncode}")

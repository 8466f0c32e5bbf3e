"""Which paths of a repository belong to the corpus: include and exclude globs.

The published exclusion list is what FreshStack's corpora leave out (the defaults of the reference package, 0.0.6):
eight extensions, and everything hidden, which is a file or folder whose name starts with a dot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from freshstack_dagster.settings import Repository

PUBLISHED = "published"
PUBLISHED_EXTENSIONS = ("bin", "csv", "gif", "jpeg", "jpg", "json", "mp4", "png")


@dataclass(frozen=True)
class PathFilter:
    """Says of a path why it is left out.

    Globs read like those of .gitignore: `*` and `?` stay inside a name, `**` crosses folders, a glob without a slash
    (or with one at its end only) matches a name at any depth, and a match of a folder takes in all below it.
    """

    include: tuple[tuple[str, re.Pattern[str]], ...]
    exclude: tuple[tuple[str, re.Pattern[str]], ...]

    def reason(self, path: str) -> str | None:
        """Why `path` is left out, naming the glob; None if it belongs to the corpus."""
        if self.include and not any(pattern.match(path) for _, pattern in self.include):
            return "matches no glob of include"
        for glob, pattern in self.exclude:
            if pattern.match(path):
                return f"matches {glob}"
        return None


def path_filter(repository: Repository) -> PathFilter:
    """The filter of a repository.

    `include` empty means every path. `exclude` not given means the published list; given, it replaces that list, in
    which the word `published` stands for it: `exclude: []` leaves nothing out, `exclude: [published, tests/]` adds.
    """
    excluding: list[tuple[str, re.Pattern[str]]] = []
    for glob in repository.exclude:
        if glob == PUBLISHED:
            excluding += _published()
        else:
            excluding.append((glob, _compile(glob)))
    return PathFilter(tuple((glob, _compile(glob)) for glob in repository.include), tuple(excluding))


def _published() -> list[tuple[str, re.Pattern[str]]]:
    # Of files only, not of folders, and in any case: cameras write IMG_1.JPG.
    extensions = [
        (f"*.{name}", re.compile(rf".*[^/]\.{name}\Z", re.IGNORECASE | re.DOTALL)) for name in PUBLISHED_EXTENSIONS
    ]
    return [(f"{glob} (published exclusion)", pattern) for glob, pattern in [*extensions, (".*", _compile(".*"))]]


@lru_cache(maxsize=1024)
def _compile(glob: str) -> re.Pattern[str]:
    body = glob.strip("/")
    anchored = "/" in body or glob.startswith("/")
    pattern = "" if anchored else r"(?:.*/)?"
    position = 0
    while position < len(body):
        if body.startswith("**/", position):
            pattern, position = pattern + r"(?:.*/)?", position + 3
        elif body.startswith("**", position):
            pattern, position = pattern + r".*", position + 2
        elif body[position] == "*":
            pattern, position = pattern + r"[^/]*", position + 1
        elif body[position] == "?":
            pattern, position = pattern + r"[^/]", position + 1
        else:
            pattern, position = pattern + re.escape(body[position]), position + 1
    # A trailing slash asks for a folder; without one, the name may be the file's own.
    return re.compile(pattern + (r"/.*" if glob.endswith("/") else r"(?:/.*)?") + r"\Z", re.DOTALL)

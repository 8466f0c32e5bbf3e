from __future__ import annotations

import pytest

from freshstack_dagster.corpus.paths import path_filter
from freshstack_dagster.settings import Repository


def left_out(path: str, **settings: object) -> str | None:
    return path_filter(Repository(name="owner/made", **settings)).reason(path)


@pytest.mark.parametrize(
    ("path", "out"),
    [
        ("src/a.py", False),
        ("IMG_1.JPG", True),
        ("data/x.json", True),
        ("data/x.jsonl", False),
        ("data.json/readme.md", False),
        ("json", False),
        (".github/workflows/ci.yml", True),
        ("docs/.hidden.md", True),
        ("a..b/c.md", False),
        ("odd\nname.png", True),
    ],
)
def test_the_published_list_is_the_default(path: str, out: bool) -> None:
    assert (left_out(path) is not None) is out
    assert left_out(path, exclude=()) is None


def test_the_reason_names_the_glob() -> None:
    assert left_out("a/b.png") == "matches *.png (published exclusion)"
    assert left_out("a/.b/c") == "matches .* (published exclusion)"
    assert left_out("a/b.py", include=("docs/",)) == "matches no glob of include"
    assert left_out("tests/b.py", exclude=("tests/",)) == "matches tests/"


def test_a_list_of_ones_own_replaces_the_published_one_or_adds_to_it() -> None:
    assert left_out("a.json", exclude=("tests/",)) is None
    both = ("published", "tests/")
    assert left_out("a.json", exclude=both) is not None
    assert left_out("tests/a.py", exclude=both) is not None
    assert left_out("src/a.py", exclude=both) is None


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*.py", "a/b.py", True),
        ("*.py", "a/b.pyc", False),
        ("*.PY", "a/b.py", False),
        ("tests", "a/tests/b.py", True),
        ("tests", "tests", True),
        ("tests/", "tests", False),
        ("tests/", "a/tests/b.py", True),
        ("/tests/", "a/tests/b.py", False),
        ("docs/*.md", "docs/a.md", True),
        ("docs/*.md", "docs/a/b.md", False),
        ("docs/*.md", "x/docs/a.md", False),
        ("docs/**/*.md", "docs/a.md", True),
        ("docs/**/*.md", "docs/a/b/c.md", True),
        ("**/api/**", "x/api/y", True),
        ("**/api/**", "api/y", True),
        ("docs/**", "docs/a/b", True),
        ("v?.md", "v1.md", True),
        ("v?.md", "v12.md", False),
        ("a+(b).md", "a+(b).md", True),
        ("[ab].md", "a.md", False),
    ],
)
def test_globs(glob: str, path: str, matches: bool) -> None:
    assert (left_out(path, exclude=(glob,)) is not None) is matches
    assert (left_out(path, include=(glob,), exclude=()) is None) is matches

"""A corpus is built through the lake while the power goes out, or while another build does the same."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freshstack_dagster_tests.corpus.repositories import Made
from freshstack_dagster_tests.operations.conftest import Project

pytestmark = pytest.mark.slow

TABLES = ("commits", "files", "chunks")
MATERIALIZE = (
    *("dagster", "asset", "materialize", "-m", "freshstack_dagster.definitions"),
    *("--select", "key:commits or key:files or key:chunks", "--partition", "2024-10|made"),
)
# Enough for several shards of the cache, so that a build can be killed between two of them.
FILES, FUNCTIONS = 1200, 350


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Made(tmp_path_factory.mktemp("repository") / "made.git")
    code = "".join(f"def f{n}(x):\n    return x + {n}\n\n\n" for n in range(FUNCTIONS))
    made.commit("2024-10-10T00:00:00+00:00", {f"src/{n}.py": f"# {n}\n{code}".encode() for n in range(FILES)})
    return made.path


@pytest.fixture(scope="module")
def new_corpus(new_project: Callable[..., Project], repository: Path) -> Callable[[], Project]:
    """Make a project with one topic, whose repository is yet to be cloned."""

    def make() -> Project:
        project = new_project()
        project.variables["DAGSTER_HOME"] = ""  # each build keeps its runs to itself
        topic = f"title: Made\ntags: [made]\nrepositories:\n  - name: local/made\n    url: {repository.as_uri()}\n"
        (project.root / "data" / "topics" / "made.yaml").write_text(topic)
        return project

    return make


@pytest.fixture(scope="module")
def undisturbed(new_corpus: Callable[[], Project]) -> dict[str, str]:
    """What the tables hold after a build that nobody disturbed."""
    project = new_corpus()
    project.run(*MATERIALIZE)
    contents = project.contents()
    assert sorted(contents) == sorted(f"{table} made 2024-10" for table in TABLES)
    lake = project.lake
    assert lake.read("files", "made", "2024-10").height == FILES
    assert lake.read("chunks", "made", "2024-10").height > 2 * FILES
    return contents


def cloning(project: Project) -> bool:
    return any((project.root / "data" / "mirrors").rglob("*"))


def chunking(project: Project) -> bool:
    return any((project.root / "data" / "cache").rglob("*.cuts.parquet"))


def writing(project: Project) -> bool:
    return any((project.root / "data" / "lake").glob("files/**/*"))


def watched(process: subprocess.Popen[str], seconds: float = 120) -> Iterator[None]:
    """Until the process ends, or for so long."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        yield
        time.sleep(0.005)


@pytest.mark.parametrize("moment", [cloning, chunking, writing])
def test_after_a_kill_the_next_build_gives_the_same_tables(
    moment: Callable[[Project], bool], new_corpus: Callable[[], Project], undisturbed: dict[str, str]
) -> None:
    project = new_corpus()
    process = project.start(*MATERIALIZE)
    for _ in watched(process):
        if moment(project):
            os.killpg(process.pid, signal.SIGKILL)
            break
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output
    left = project.contents()
    assert "chunks made 2024-10" not in left or moment is writing
    assert left.items() <= undisturbed.items()
    project.run(*MATERIALIZE)
    assert project.contents() == undisturbed


def test_two_builds_at_once_give_the_same_tables(
    new_corpus: Callable[[], Project], undisturbed: dict[str, str]
) -> None:
    project = new_corpus()
    # Dagster's own storage cannot be made by two processes at once.
    project.run("freshstack-dagster", "init")
    both = [project.start(*MATERIALIZE) for _ in range(2)]
    outputs = [process.communicate(timeout=600)[0] for process in both]
    failed = [output for process, output in zip(both, outputs, strict=True) if process.returncode]
    assert not failed, "\n".join(failed)
    assert project.contents() == undisturbed
    assert len(list((project.root / "data" / "mirrors").glob("*/HEAD"))) == 1

"""A project of its own for each test that kills, fills or hides something, and what its lake holds."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from freshstack_dagster.lake import Lake, connect
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.dagster_server import SCRIPTS, environment, make_project

# A log of calls with their times; every other table has the same bytes whenever it is built.
NOT_COMPARED = {"model_calls"}


@dataclass
class Project:
    """A project folder with the sample topic only."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the project's commands; nothing of the tests' own project leaks into it."""
        return environment(self.root, self.variables)

    def start(self, *command: str, **options: object) -> subprocess.Popen[str]:
        """Start a console command in a process group of its own."""
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [str(SCRIPTS / command[0]), *command[1:]],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )

    def run(self, *command: str, code: int = 0, **options: object) -> str:
        """Run a console command to its end and return what it printed."""
        process = self.start(*command, **options)
        output, _ = process.communicate(timeout=900)
        assert process.returncode == code, output
        return output

    @property
    def lake(self) -> Lake:
        """The project's lake."""
        return Lake(self.variables.get("FRESHSTACK_LAKE") or self.root / "data" / "lake")

    def rows(self) -> dict[str, int]:
        """Rows of each view of the catalogue, by table and snapshot."""
        found = {}
        with connect(self.root / "data" / "freshstack.duckdb") as connection:
            for table in sorted(set(TABLES) - NOT_COMPARED):
                (rows,) = connection.execute(f"select count(*) from {table}").fetchall()[0]
                found[table] = rows
        return found

    def contents(self) -> dict[str, str]:
        """The content hash of every partition of every table."""
        lake = self.lake
        found = {}
        for table in sorted(set(TABLES) - NOT_COMPARED):
            for partition in lake.partitions(table):
                pointer = lake.current(table, partition.topic, partition.snapshot)
                assert pointer is not None
                found[f"{table} {partition}"] = pointer.content
        return found


@pytest.fixture(scope="session")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Project]:
    """Make a project folder with the sample topic only; keywords become environment variables."""

    def make(**variables: str) -> Project:
        return Project(make_project(tmp_path_factory.mktemp("project")), variables)

    return make


@pytest.fixture(scope="session")
def demo(new_project: Callable[..., Project]) -> Project:
    """A project in which the demo ran to its end, and how long that took; read it only."""
    project = new_project()
    started = time.monotonic()
    project.run("freshstack-dagster", "demo")
    project.seconds = time.monotonic() - started
    return project

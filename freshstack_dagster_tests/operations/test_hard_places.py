"""A full disk, a lake that may not be written, a clock elsewhere, two Dagsters on one lake, and what is written."""

from __future__ import annotations

import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.lake import Lake
from freshstack_dagster_tests.conftest import PROJECT
from freshstack_dagster_tests.dagster_server import dagster_dev
from freshstack_dagster_tests.operations.conftest import Project

pytestmark = pytest.mark.slow

LITTLE = 64 * 1024
SECRET = "sk-nobody-must-ever-read-this-0123456789"


def _error(output: str) -> str:
    """The one line that the console script ends with; no trace."""
    assert "Traceback" not in output, output
    lines = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, output
    return lines[0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is soon full."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_disk_is_one_clear_line_and_room_mends_it(
    small_disk: Path, demo: Project, new_project: Callable[..., Project]
):
    project = new_project(FRESHSTACK_LAKE=str(small_disk))
    line = _error(project.run("freshstack-dagster", "build", "sample", "2024-10", code=1))
    assert "No space left on device" in line
    assert "the table stands as it was" in line
    subprocess.run(["mount", "-o", "remount,size=50m", small_disk], check=True)
    project.run("freshstack-dagster", "build", "sample", "2024-10", "2025-10")
    assert project.contents() == demo.contents()


def test_a_file_that_grows_too_large_leaves_the_table_as_it_was(tmp_path: Path):
    lake = Lake(tmp_path)
    rows = pl.DataFrame({"post_id": [secrets.token_hex(20) for _ in range(9000)]}).with_columns(
        reason=pl.col("post_id")
    )
    rows = rows.with_columns(detail=pl.lit(None, pl.String))
    lake.write("question_ledger", rows.head(9), topic="t")
    rows.write_parquet(tmp_path / "rows.parquet")
    code = (
        "import sys, polars as pl; from freshstack_dagster.lake import Lake; "
        "Lake(sys.argv[1]).write('question_ledger', pl.read_parquet(sys.argv[2]), topic='t')"
    )

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LITTLE, resource.RLIM_INFINITY))

    command = [sys.executable, "-c", code, str(tmp_path), str(tmp_path / "rows.parquet")]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True)
    assert re.search(r"LakeError: .*cannot be written.*the table stands as it was", done.stderr), done.stderr
    assert lake.read("question_ledger", "t").height == 9
    assert not [name for name in lake.storage.find("question_ledger") if "/." in name and not name.endswith(".lock")]


def test_a_lake_that_may_not_be_written_is_one_clear_line(new_project: Callable[..., Project]):
    """Root may write everywhere but not where a file is in the way."""
    project = new_project()
    lake = project.root / "data" / "lake"
    if os.geteuid() == 0:
        lake.write_text("")
    else:
        lake.mkdir()
        lake.chmod(0o500)
    line = _error(project.run("freshstack-dagster", "build", "sample", "2024-10", code=1))
    assert str(lake) in line
    assert "cannot be written" in line or "cannot be read" in line


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati"])
def test_a_clock_in_another_zone_changes_nothing(zone: str, demo: Project, new_project: Callable[..., Project]):
    project = new_project(TZ=zone)
    project.run("freshstack-dagster", "demo")
    assert project.contents() == demo.contents()


def test_two_dagsters_on_one_lake_build_the_same_tables(demo: Project, new_project: Callable[..., Project]):
    """Each has its own storage; both build the same partitions at the same time."""
    one, other = new_project(), new_project()
    other.variables["FRESHSTACK_LAKE"] = one.variables["FRESHSTACK_LAKE"] = str(one.root / "data" / "lake")
    with dagster_dev(one.root, one.variables) as first, dagster_dev(other.root, other.variables) as second:
        for topic, month, job in (
            ("sample", None, "build_questions"),
            ("sample", "2024-10", "build_snapshot"),
            ("sample", "2025-10", "build_snapshot"),
            ("sample", None, "compare_snapshots"),
        ):
            runs = [(server, server.launch(topic, month, job=job)) for server in (first, second)]
            assert [server.wait_for_run(run) for server, run in runs] == ["SUCCESS", "SUCCESS"]
    assert one.contents() == demo.contents()
    assert one.rows() == demo.rows()


def test_nothing_written_holds_a_secret_a_path_of_this_machine_or_telemetry(
    demo: Project, new_project: Callable[..., Project]
):
    """Tables, pointers, reports and exports; Dagster's own storage and the catalogue are local and hold local paths."""
    keys = {"OPENAI_API_KEY": SECRET, "ANTHROPIC_API_KEY": SECRET, "GITHUB_TOKEN": SECRET, "STACKEXCHANGE_KEY": SECRET}
    project = new_project(HOME=tempfile.mkdtemp(), **keys)
    project.run("freshstack-dagster", "demo")
    here = re.compile(
        b"|".join(re.escape(str(path).encode()) for path in (project.root, PROJECT, Path.home(), Path(sys.prefix)))
    )
    data = project.root / "data"
    for folder, pattern in (("lake", here), ("reports", here), ("exports", here), (".", re.compile(SECRET.encode()))):
        for path in (data / folder).rglob("*"):
            if path.is_file() and (found := pattern.search(path.read_bytes())):
                pytest.fail(f"{path.relative_to(data)} holds {found[0]!r}")
    home = Path(project.variables["HOME"])
    assert [path for path in home.rglob("*") if path.is_file() and "telemetry" in str(path)] == []
    for table, partition in ((t, p) for t in ("chunks", "judgments", "runs") for p in project.lake.partitions(t)):
        frame = project.lake.read(table, partition.topic, partition.snapshot)
        for name, dtype in frame.schema.items():
            if dtype == "String":
                texts = "\n".join(frame[name].drop_nulls().to_list()).encode()
                assert not here.search(texts), (table, name)

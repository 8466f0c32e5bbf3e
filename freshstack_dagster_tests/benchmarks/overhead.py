"""What Dagster costs: its share of a build of the sample, and a backfill's runs and steps by time and processor.

python -m freshstack_dagster_tests.benchmarks.overhead           share of the sample's build
python -m freshstack_dagster_tests.benchmarks.overhead 60        a backfill of `commits` over 60 partitions
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from freshstack_dagster_tests.dagster_server import SCRIPTS, dagster_dev, environment, make_project

SNAPSHOTS = ("2024-10", "2025-10")


def _processor_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _plain(root: Path) -> None:
    """Every stage of the demo, by its function, without Dagster's machinery: what remains is the work."""
    from graphlib import TopologicalSorter

    from freshstack_dagster.assets.tables import STAGES, open_stage
    from freshstack_dagster.automation.jobs import DRIFT_GROUPS, SNAPSHOT_GROUPS, TOPIC_GROUPS
    from freshstack_dagster.definitions import defs  # noqa: F401  (its import is part of any build)
    from freshstack_dagster.resources import Project

    makes = {table: stage for stage in STAGES for table in stage.tables}
    by_name = {stage.tables[0]: stage for stage in STAGES}
    needs = {name: {makes[read].tables[0] for read in stage.reads} for name, stage in by_name.items()}
    order = [by_name[name] for name in TopologicalSorter(needs).static_order()]
    project = Project(root=str(root))
    for groups, snapshot in ((TOPIC_GROUPS, None), *((SNAPSHOT_GROUPS, s) for s in SNAPSHOTS), (DRIFT_GROUPS, None)):
        for definition in order:
            if definition.group in groups:
                stage = open_stage(project, "sample", snapshot)
                built = definition.function(stage)
                for table in definition.tables:
                    stage.lake.write(table, built.tables[table], topic="sample", snapshot=snapshot)


def share(folder: Path) -> None:
    """Print the processor time of a build with and without Dagster."""
    seconds = {}
    for name, command in (
        ("with Dagster", [str(SCRIPTS / "freshstack-dagster"), "build", "sample", *SNAPSHOTS]),
        ("without", [sys.executable, "-m", "freshstack_dagster_tests.benchmarks.overhead", "plain"]),
    ):
        root = make_project(folder / name.replace(" ", "-"))
        before, started = _processor_seconds(), time.monotonic()
        subprocess.run(command, env=environment(root), check=True, capture_output=True)
        seconds[name] = _processor_seconds() - before
        print(f"{name:12} {seconds[name]:6.1f} s of processor, {time.monotonic() - started:6.1f} s by the clock")
    print(f"share of Dagster: {1 - seconds['without'] / seconds['with Dagster']:.0%}")


def backfill(folder: Path, partitions: int) -> None:
    """Print how long a backfill of one step a partition takes: two topics, each over half as many months."""
    months = [f"{2023 + i // 12}-{i % 12 + 1:02}" for i in range(6, 6 + partitions // 2)]
    root = make_project(folder / "backfill")
    topics = root / "data" / "topics"
    shutil.copy(topics / "sample.yaml", topics / "again.yaml")
    (root / "data" / "snapshots.yaml").write_text(f"months: [{', '.join(months)}]\nlive_from: 2099-01\n")
    keys = [f"{month}|{topic}" for month in months for topic in ("sample", "again")]
    with dagster_dev(root) as server:
        started = time.monotonic()
        status = server.wait_for_backfill(server.backfill(["commits"], keys), seconds=7200)
        seconds = time.monotonic() - started
    print(f"{len(keys)} runs of one step: {status}, {seconds:.0f} s, {len(keys) / seconds:.2f} steps a second")
    print(f"load of the machine: {os.getloadavg()[1]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    if sys.argv[1:] == ["plain"]:
        _plain(Path(os.environ["FRESHSTACK_ROOT"]))
    else:
        with tempfile.TemporaryDirectory() as name:
            if sys.argv[1:]:
                backfill(Path(name), int(sys.argv[1]))
            else:
                share(Path(name))

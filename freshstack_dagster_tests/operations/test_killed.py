"""The power goes out: SIGKILL to every process of the demo at random moments, then the demo again.

`FRESHSTACK_KILLS` sets how often (20 takes half an hour on two cores), `FRESHSTACK_SEED` when.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable

import pytest

from freshstack_dagster_tests.operations.conftest import Project

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("FRESHSTACK_KILLS", "2"))
SEED = int(os.environ.get("FRESHSTACK_SEED", "7"))


@pytest.mark.parametrize("kill", range(KILLS))
def test_the_demo_ends_in_the_same_tables_after_a_kill(kill: int, demo: Project, new_project: Callable[..., Project]):
    project = new_project()
    process = project.start("freshstack-dagster", "demo")
    after = random.Random(f"{SEED} {kill}").uniform(0, demo.seconds)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = project.contents()
    print(
        f"kill {kill} after {after:.1f} s of {demo.seconds:.1f} s: exit {process.returncode}, {len(before)} partitions"
    )
    for partition, content in before.items():
        assert demo.contents()[partition] == content, partition
    project.run("freshstack-dagster", "demo")
    assert project.contents() == demo.contents()
    assert project.rows() == demo.rows()

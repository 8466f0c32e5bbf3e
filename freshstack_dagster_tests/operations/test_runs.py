"""What a killed machine leaves behind in Dagster's storage, and what becomes of old runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from freshstack_dagster.automation.building import PROCESS, prune, reap, this_process

DAYS = dg.StaticPartitionsDefinition(["monday", "tuesday"])


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


def test_runs_whose_process_is_gone_are_ended_and_their_slots_freed(instance: dg.DagsterInstance):
    storage = instance.event_log_storage
    storage.set_concurrency_slots("git", 1)
    gone = dg.DagsterRun(job_name="a", status=dg.DagsterRunStatus.STARTED, tags={PROCESS: "elsewhere:1"})
    alive = dg.DagsterRun(job_name="b", status=dg.DagsterRunStatus.STARTED, tags={PROCESS: this_process()})
    for run in (gone, alive):
        instance.add_run(run)
    storage.claim_concurrency_slot("git", gone.run_id, "step")
    assert reap(instance, builds_only=True) == []
    assert reap(instance) == [gone.run_id]
    assert instance.get_run_by_id(gone.run_id).status == dg.DagsterRunStatus.FAILURE  # type: ignore[union-attr]
    assert instance.get_run_by_id(alive.run_id).status == dg.DagsterRunStatus.STARTED  # type: ignore[union-attr]
    assert storage.get_concurrency_info("git").active_slot_count == 0
    assert reap(instance) == []


def test_old_runs_go_but_for_those_of_the_newest_tables(instance: dg.DagsterInstance):
    @dg.asset(partitions_def=DAYS)
    def table() -> None:
        pass

    def build(day: str) -> str:
        return dg.materialize([table], partition_key=day, instance=instance).run_id

    first, second, other = build("monday"), build("monday"), build("tuesday")
    assert prune(instance, datetime.now(UTC) - timedelta(days=1)) == 0
    assert prune(instance, datetime.now(UTC) + timedelta(days=1)) == 1
    assert {run.run_id for run in instance.get_runs()} == {second, other}
    assert first not in {second, other}
    assert instance.get_materialized_partitions(table.key) == {"monday", "tuesday"}


def test_a_build_that_was_killed_holds_up_no_other(instance: dg.DagsterInstance):
    """A place in a pool outlives its process; without a daemon nobody but the next build would free it."""
    host, number, _ = this_process().rsplit(":", 2)
    storage = instance.event_log_storage
    storage.set_concurrency_slots("embeddings", 1)
    for process in (f"{host}:999999999:1", f"{host}:{number}:1"):
        killed = dg.DagsterRun(job_name="a", status=dg.DagsterRunStatus.STARTED, tags={PROCESS: process})
        instance.add_run(killed)
        storage.claim_concurrency_slot("embeddings", killed.run_id, "step")
        assert reap(instance, builds_only=True) == [killed.run_id]
        assert storage.get_concurrency_info("embeddings").active_slot_count == 0

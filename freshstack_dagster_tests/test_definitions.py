from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import dagster as dg
import pytest

from freshstack_dagster.assets.columns import MADE_OF, column_lineage
from freshstack_dagster.assets.tables import STAGES
from freshstack_dagster.automation.jobs import DRIFT_GROUPS, EXPORT_GROUPS, SNAPSHOT_GROUPS, TOPIC_GROUPS
from freshstack_dagster.definitions import defs
from freshstack_dagster.partitions import (
    multi_key,
    snapshot_partitions,
    snapshot_partitions_def,
    topic_and_snapshot,
    topic_partitions,
)
from freshstack_dagster.settings import Snapshots
from freshstack_dagster.tables import TABLES

# A log that runs append to; nothing materialises it.
NOT_ASSETS = {"model_calls"}


def test_every_table_is_an_asset():
    assets = {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()}
    assert set(TABLES) - NOT_ASSETS <= assets


def test_every_asset_says_what_it_is():
    for spec in defs.resolve_all_asset_specs():
        name = spec.key.to_user_string()
        assert spec.group_name not in (None, "default"), name
        assert spec.kinds, name
        assert spec.owners, name
        assert spec.tags.get("freshstack/stage") == spec.group_name, name
        assert spec.description, name
        assert spec.code_version, name
        if name in TABLES:
            columns = spec.metadata["dagster/column_schema"].columns
            assert [column.name for column in columns] == list(TABLES[name].columns)
            assert all(column.description for column in columns)


def test_column_lineage_names_columns_of_what_a_stage_reads():
    reads = {table: stage.reads for stage in STAGES for table in stage.tables}
    for table, columns in MADE_OF.items():
        assert set(columns) <= set(TABLES[table].columns), table
    for table, inputs in reads.items():
        lineage = column_lineage(table, inputs).deps_by_column
        for column, deps in lineage.items():
            for dep in deps:
                read = dep.asset_key.to_user_string()
                assert read in inputs, (table, column, read)
                assert dep.column_name in TABLES[read].columns, (table, column, dep.column_name)
    assert {dep.column_name for dep in column_lineage("qrels", reads["qrels"]).deps_by_column["relevance"]} == {
        "verdict"
    }


def test_definitions_load():
    dg.Definitions.validate_loadable(defs)


def test_importing_the_definitions_loads_nothing_heavy():
    heavy = ["torch", "sentence_transformers", "openai", "anthropic", "bm25s", "scipy", "tree_sitter"]
    code = f"import sys, freshstack_dagster.definitions; print([m for m in {heavy!r} if m in sys.modules])"
    output = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


def test_months_are_those_named_and_those_from_the_live_start_on():
    months = snapshot_partitions(Snapshots(months=("2024-10", "2025-10"), live_from="2026-02"))
    now = datetime(2026, 5, 15, tzinfo=UTC)
    assert months.get_partition_keys(current_time=now) == ["2024-10", "2025-10", "2026-02", "2026-03", "2026-04"]


def test_a_partition_key_is_read_also_as_plain_text():
    class Context:
        partition_key = "2024-10|angular"

    assert topic_and_snapshot(Context()) == ("angular", "2024-10")  # type: ignore[arg-type]
    Context.partition_key = multi_key("godot", "2025-10")
    assert topic_and_snapshot(Context()) == ("godot", "2025-10")  # type: ignore[arg-type]
    Context.partition_key = "godot"
    assert topic_and_snapshot(Context()) == ("godot", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("month", ["2024-10", "2025-10"])
def test_the_papers_months_are_partitions(month: str):
    assert month in snapshot_partitions_def.get_partition_keys()


def test_the_monthly_schedule_asks_for_the_month_just_ended():
    schedule = defs.resolve_schedule_def("monthly_build")
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    with dg.instance_for_test() as instance:
        context = dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=datetime(2027, 1, 1, 3, tzinfo=UTC),
            repository_def=defs.get_repository_def(),
        )
        requests = schedule.evaluate_tick(context).run_requests
    topics = set(topic_partitions.get_partition_keys())
    assert {request.partition_key for request in requests} == topics
    assert {request.tags["freshstack/monthly"] for request in requests} == {"2026-12"}


def test_every_group_is_built_by_a_job():
    """A group in no job would never be built by the console script, and what reads it would fail."""
    groups = {spec.group_name for spec in defs.resolve_all_asset_specs()}
    assert groups == {*TOPIC_GROUPS, *SNAPSHOT_GROUPS, *DRIFT_GROUPS, *EXPORT_GROUPS}

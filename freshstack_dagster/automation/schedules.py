"""The schedules, all off until switched on, and what they ask for.

`monthly_build` is one switch for all that a month needs: its tick asks for each topic's questions, and a sensor that
acts on runs of this schedule only asks for the snapshot when the questions are there, and for the comparison after it.
"""

import os
from collections.abc import Iterator
from datetime import timedelta

import dagster as dg
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph

from freshstack_dagster.automation.jobs import PRIORITY, build_questions, build_snapshot, compare_snapshots
from freshstack_dagster.errors import SettingsError
from freshstack_dagster.partitions import (
    month_before,
    multi_key,
    run_tags,
    snapshot_partitions_def,
    topic_partitions,
)

MONTHLY = "freshstack/monthly"
SHOWN = 20


@dg.schedule(
    job=build_questions,
    cron_schedule="0 3 1 * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="On the first of a month, build the month just ended for every topic: its questions, then its "
    "snapshot, then the comparison with the months before.",
)
def monthly_build(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Ask for every topic's questions, marked with the month that is to follow."""
    month = month_before(context.scheduled_execution_time)
    if month not in snapshot_partitions_def.get_partition_keys(current_time=context.scheduled_execution_time):
        yield dg.SkipReason(f"{month} is no partition; the months start at live_from in data/snapshots.yaml")
        return
    for topic in topic_partitions.get_partition_keys():
        yield dg.RunRequest(
            run_key=f"{month} {topic}", partition_key=topic, tags={MONTHLY: month, **run_tags(topic, month)}
        )


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.SUCCESS,
    monitored_jobs=[build_questions, build_snapshot],
    request_jobs=[build_snapshot, compare_snapshots],
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="What follows the runs of monthly_build; does nothing while that schedule is off.",
)
def monthly_build_goes_on(context: dg.RunStatusSensorContext) -> dg.RunRequest | dg.SkipReason:
    """After a topic's questions its snapshot, after its snapshot the comparison; once a month and topic."""
    run = context.dagster_run
    month = run.tags.get(MONTHLY)
    if month is None:
        return dg.SkipReason("the run is not one of monthly_build")
    topic = run.tags["dagster/partition"].rsplit("|", 1)[-1]
    after_questions = run.job_name == build_questions.name
    job = build_snapshot if after_questions else compare_snapshots
    return dg.RunRequest(
        run_key=f"{month} {topic} {job.name}",
        job_name=job.name,
        partition_key=multi_key(topic, month) if after_questions else topic,
        tags={MONTHLY: month, **run_tags(topic, month)},
    )


@dg.op(description="Find every partition of every asset whose last build failed.")
def find_failed_partitions(context: dg.OpExecutionContext) -> None:
    """Fail with the number of failed partitions, a list of the first, and what to do."""
    failed = failed_partitions(context.instance, context.repository_def.asset_graph)
    if failed:
        lines = ["| asset | partition |", "| --- | --- |", *(f"| {asset} | {name} |" for asset, name in failed[:SHOWN])]
        raise dg.Failure(
            f"{len(failed)} partitions failed at their last build; read the error of the first, mend it, and launch "
            "the failed partitions again from the asset's page",
            metadata={"failed": len(failed), "first": dg.MetadataValue.md("\n".join(lines))},
            allow_retries=False,
        )
    context.log.info("no partition is left failed")


def failed_partitions(instance: dg.DagsterInstance, graph: BaseAssetGraph) -> list[tuple[str, str]]:
    """Assets and partitions whose last build failed."""
    failed = []
    for key in sorted(graph.materializable_asset_keys, key=lambda key: key.to_user_string()):
        if (partitions := graph.get(key).partitions_def) is not None:
            keys = list(partitions.get_partition_keys(dynamic_partitions_store=instance))
            states = instance.get_status_by_partition(key, keys, partitions) or {}
            failed += [
                (key.to_user_string(), name) for name, state in states.items() if state and state.value == "FAILED"
            ]
    return failed


@dg.job(description="Fails if the last build of any partition failed.", tags={PRIORITY: "-1"})
def check_partitions() -> None:
    """Look for partitions that were left failed."""
    find_failed_partitions()


daily_check = dg.ScheduleDefinition(
    job=check_partitions,
    name="daily_check",
    cron_schedule="0 6 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Every morning, check that no partition was left failed.",
)


def freshness_policy() -> dg.FreshnessPolicy | None:
    """`FRESHSTACK_FRESHNESS_DAYS`: after how many days without a build the UI shows a table as stale; none if not set.

    Raises SettingsError if it is no number of days.
    """
    days = os.environ.get("FRESHSTACK_FRESHNESS_DAYS")
    if not days:
        return None
    if not days.isdigit() or int(days) == 0:
        raise SettingsError(f"FRESHSTACK_FRESHNESS_DAYS={days}: give a number of days such as 40")
    return dg.FreshnessPolicy.time_window(fail_window=timedelta(days=int(days)))


SCHEDULES = [monthly_build, daily_check]

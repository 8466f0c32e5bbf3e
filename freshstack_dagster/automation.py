"""Jobs to launch by hand or by backfill, and the monthly schedule, which is off until switched on."""

from __future__ import annotations

import dagster as dg

from freshstack_dagster.partitions import topic_partitions, topic_snapshot_partitions

TOPIC_GROUPS = ("questions", "nuggets", "answers")
SNAPSHOT_GROUPS = ("corpus", "pools", "judgments", "calibration", "qrels", "evaluation")
DRIFT_GROUPS = ("drift", "publishing")

build_questions = dg.define_asset_job(
    "build_questions",
    selection=dg.AssetSelection.groups(*TOPIC_GROUPS),
    partitions_def=topic_partitions,
    description="A topic's questions, nuggets and query variants, and what answers state of the nuggets.",
)
build_snapshot = dg.define_asset_job(
    "build_snapshot",
    selection=dg.AssetSelection.groups(*SNAPSHOT_GROUPS),
    partitions_def=topic_snapshot_partitions,
    description="A topic's corpus, pools, judgments, agreement of judges, qrels and evaluation at a snapshot.",
)
compare_snapshots = dg.define_asset_job(
    "compare_snapshots",
    selection=dg.AssetSelection.groups(*DRIFT_GROUPS),
    partitions_def=topic_partitions,
    description="A topic's drift over every snapshot that exists, and its report.",
)
JOBS = [build_questions, build_snapshot, compare_snapshots]

# The tick of the first of a month asks for the month just ended, for every topic.
monthly_build = dg.build_schedule_from_partitioned_job(
    build_snapshot,
    name="monthly_build",
    description="On the first of a month, build the month just ended for every topic.",
    hour_of_day=3,
    default_status=dg.DefaultScheduleStatus.STOPPED,
)
SCHEDULES = [monthly_build]

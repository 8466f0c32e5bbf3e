"""Jobs to launch by hand or by backfill, each over the asset groups that belong together."""

import dagster as dg

from freshstack_dagster.partitions import topic_partitions, topic_snapshot_partitions

TOPIC_GROUPS = ("questions", "nuggets", "answers")
SNAPSHOT_GROUPS = ("corpus", "pools", "judgments", "calibration", "qrels", "evaluation")
DRIFT_GROUPS = ("drift", "publishing")
EXPORT_GROUPS = ("exports",)

PRIORITY = "dagster/priority"

# What others wait for goes first, then what ends a topic's build.
build_questions = dg.define_asset_job(
    "build_questions",
    selection=dg.AssetSelection.groups(*TOPIC_GROUPS),
    partitions_def=topic_partitions,
    description="A topic's questions, nuggets and query variants.",
    tags={PRIORITY: "2"},
)
build_snapshot = dg.define_asset_job(
    "build_snapshot",
    selection=dg.AssetSelection.groups(*SNAPSHOT_GROUPS),
    partitions_def=topic_snapshot_partitions,
    description="A topic's corpus, pools, judgments, qrels and evaluation at a snapshot.",
    tags={PRIORITY: "0"},
)
compare_snapshots = dg.define_asset_job(
    "compare_snapshots",
    selection=dg.AssetSelection.groups(*DRIFT_GROUPS),
    partitions_def=topic_partitions,
    description="A topic's drift over every snapshot that exists, and its report.",
    tags={PRIORITY: "1"},
)
publish = dg.define_asset_job(
    "publish",
    selection=dg.AssetSelection.groups(*EXPORT_GROUPS),
    partitions_def=topic_snapshot_partitions,
    description="A topic's snapshot in the layouts that other tools read.",
    tags={PRIORITY: "1"},
)
score_runs = dg.define_asset_job(
    "score_runs",
    selection=dg.AssetSelection.assets("retrieval_results", "comparisons"),
    partitions_def=topic_snapshot_partitions,
    description="Runs of retrieval systems, those dropped into data/runs among them, scored and compared.",
    tags={PRIORITY: "1"},
)

JOBS = [build_questions, build_snapshot, compare_snapshots, publish, score_runs]

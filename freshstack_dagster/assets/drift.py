"""The same questions against later months: what is still answerable, where support went, whether rankings hold."""

from __future__ import annotations

from typing import Any

import polars as pl

from freshstack_dagster.assets.calibration import counted_judgments
from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.errors import LakeError
from freshstack_dagster.settings import Topic


def _baseline_setting(topic: Topic) -> Any:
    return topic.baseline, topic.judging.verdict


def _all_judgments(stage: Stage) -> dict[str, pl.DataFrame]:
    """The verdicts that count in every snapshot that exists, oldest first."""
    snapshots = stage.lake.snapshots("judgments", stage.topic.name)
    return {snapshot: counted_judgments(stage, snapshot) for snapshot in snapshots}


def _baseline(stage: Stage, table: str) -> str:
    """The topic's baseline: the snapshot it names, else the first that exists."""
    snapshots = stage.lake.snapshots(table, stage.topic.name)
    if not snapshots:
        raise LakeError(f"topic {stage.topic.name} has no snapshot of {table} yet; build one first")
    named = stage.topic.baseline
    if named is not None and named not in snapshots:
        raise LakeError(f"topic {stage.topic.name}: its baseline {named} was never built; there are {snapshots}")
    return named or snapshots[0]


@table_assets(
    "support_drift",
    group="drift",
    rooms=["drift"],
    reads=["nuggets", "judgments", "annotations", "question_outcomes"],
    settings=_baseline_setting,
)
def follow_support(stage: Stage) -> Built:
    """For each nugget its supporting chunks in each snapshot, and whether the question is still fully supported."""
    from freshstack_dagster.drift.support import support_drift

    baseline = _baseline(stage, "judgments")
    drift = support_drift(stage.read("nuggets"), _all_judgments(stage), baseline=baseline)
    questions = drift.unique(["question_id", "snapshot"])
    support = questions.group_by("snapshot", "question_support").len("questions").sort("snapshot", "question_support")
    lost = drift.filter(pl.col("change_from_baseline") == "lost")
    facts = {
        "baseline": baseline,
        "questions, by support": support.to_dicts(),
        "nuggets that lost their support": lost.height,
        "questions with a lost nugget": sorted(lost["question_id"].unique()),
    }
    return Built({"support_drift": drift}, facts)


@table_assets(
    "repository_shift",
    group="drift",
    rooms=["drift"],
    reads=["chunks", "judgments", "annotations"],
    settings=lambda topic: (_baseline_setting(topic), [(r.alias, r.name, r.formerly) for r in topic.repositories]),
)
def shift_repositories(stage: Stage) -> Built:
    """Documents and supporting documents by repository (DriftBench, Table 1), renamed repositories joined."""
    from freshstack_dagster.drift.repositories import repository_shift

    chunks = {
        snapshot: stage.scan("chunks", snapshot).select("doc_id", "repository").collect()
        for snapshot in stage.lake.snapshots("chunks", stage.topic.name)
    }
    baseline = _baseline(stage, "judgments")
    renamed = {name.rsplit("/", 1)[-1]: r.alias for r in stage.topic.repositories for name in r.formerly}
    shift = repository_shift(chunks, _all_judgments(stage), baseline=baseline, renamed=renamed)
    return Built({"repository_shift": shift}, {"baseline": baseline, "shift": shift.to_dicts()})


@table_assets(
    "chunk_lineage",
    "lineage_summary",
    group="drift",
    rooms=["drift"],
    reads=["chunks", "judgments", "annotations", "commits"],
    settings=_baseline_setting,
)
def trace_lineage(stage: Stage) -> Built:
    """From content hashes, then near-duplicates and symbols: where each supporting chunk of the baseline went."""
    from freshstack_dagster.drift.lineage import trace_lineage as trace

    baseline = _baseline(stage, "judgments")
    columns = ["doc_id", "repository", "path", "start_byte", "content_hash", "language", "text"]
    later = [s for s in stage.lake.snapshots("chunks", stage.topic.name) if s > baseline]
    lineage, summary = trace(
        stage.scan("chunks", baseline).select(columns).collect(),
        {snapshot: stage.scan("chunks", snapshot).select(columns) for snapshot in later},
        counted_judgments(stage, baseline),
        progress=stage.progress(),
    )
    outcomes = lineage.group_by("snapshot", "outcome").len("supporting chunks").sort("snapshot", "outcome")
    facts = {"baseline": baseline, "supporting chunks, by outcome": outcomes.to_dicts()}
    return Built({"chunk_lineage": lineage, "lineage_summary": summary}, facts)


@table_assets("ranking_correlation", group="drift", rooms=["drift"], reads=["retrieval_results"])
def correlate_rankings(stage: Stage) -> Built:
    """Kendall's tau-b between snapshots for each measure, with tie bounds and bootstrap intervals."""
    from freshstack_dagster.drift.correlation import ranking_correlation

    correlation = ranking_correlation(stage.read_all("retrieval_results"))
    return Built({"ranking_correlation": correlation}, {"agreement": correlation.to_dicts()})

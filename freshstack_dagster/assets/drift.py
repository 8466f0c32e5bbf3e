"""The same questions against later months: what is still answerable, where support went, whether rankings hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from freshstack_dagster.assets.calibration import counted_judgments
from freshstack_dagster.assets.models import open_models
from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.errors import LakeError
from freshstack_dagster.publishing import plots
from freshstack_dagster.settings import Topic

HEADLINE = ("alpha_ndcg@10", "coverage@20", "recall@50")
SUPPORT = ("fully", "partly", "none", "not_judged")


def _baseline_setting(topic: Topic) -> Any:
    return topic.baseline, topic.judging.verdict


def _all_judgments(stage: Stage) -> dict[str, pl.DataFrame]:
    """The verdicts that count in every snapshot that exists, oldest first."""
    return {month: _judgments(stage, month) for month in stage.lake.snapshots("judgments", stage.topic.name)}


def _judgments(stage: Stage, month: str) -> pl.DataFrame:
    """The verdicts that count in a snapshot, on the nuggets as they read now."""
    from freshstack_dagster.judging.annotation import current_verdicts

    return current_verdicts(counted_judgments(stage, month), stage.read("nuggets"))


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

    baseline, judgments = _baseline(stage, "judgments"), _all_judgments(stage)
    unretrieved = {
        snapshot: set(outcomes.filter(pl.col("outcome") == "no_support")["question_id"])
        - set(judgments[snapshot]["question_id"])
        for snapshot, outcomes in stage.read_all("question_outcomes").items()
        if snapshot in judgments
    }
    drift = support_drift(stage.read("nuggets"), judgments, baseline=baseline, unretrieved=unretrieved)
    questions = drift.unique(["question_id", "snapshot"])
    support = questions.group_by("snapshot", "question_support").len("questions").sort("snapshot", "question_support")
    lost = drift.filter(pl.col("change_from_baseline") == "lost")
    kinds = [kind for kind in SUPPORT if kind in support["question_support"]]
    by_month = {month: dict.fromkeys(kinds, 0) for month in support["snapshot"].unique(maintain_order=True)}
    for month, kind, number in support.iter_rows():
        by_month[month][kind] = number
    facts = {
        "baseline": baseline,
        "plot": plots.stacked("Questions, by support of their nuggets", by_month),
        "questions, by support": support.to_dicts(),
        "nuggets that lost their support": lost.height,
        "questions with a lost nugget": sorted(lost["question_id"].unique()),
    }
    return Built({"support_drift": drift}, facts)


@table_assets(
    "repository_shift",
    group="drift",
    rooms=["drift"],
    reads=["chunks", "nuggets", "judgments", "annotations"],
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
    aliases = {r.alias for r in stage.topic.repositories}
    former = {name.rsplit("/", 1)[-1]: r.alias for r in stage.topic.repositories for name in r.formerly}
    renamed = {old: new for old, new in former.items() if old not in aliases}
    shift = repository_shift(chunks, _all_judgments(stage), baseline=baseline, renamed=renamed)
    shares: dict[str, dict[str, float]] = {}
    for month, repository, share in shift.select("snapshot", "repository", "supporting_share").iter_rows():
        shares.setdefault(repository, {})[month] = share
    plot = plots.bars("Share of supporting chunks, by repository", shares, percent=True)
    return Built({"repository_shift": shift}, {"baseline": baseline, "plot": plot, "shift": shift.to_dicts()})


@table_assets(
    "chunk_lineage",
    "lineage_summary",
    group="drift",
    rooms=["drift"],
    reads=["chunks", "nuggets", "judgments", "annotations", "commits"],
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
        _judgments(stage, baseline),
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
    columns = [
        "measure",
        "snapshot_a",
        "snapshot_b",
        "systems",
        "questions",
        "tau_b",
        "questions_low",
        "questions_high",
    ]
    shown = correlation.filter(pl.col("measure").is_in(HEADLINE)).select(columns)
    return Built({"ranking_correlation": correlation}, {"agreement, with intervals over questions": shown.to_dicts()})


@table_assets(
    "system_drift",
    group="drift",
    rooms=["drift", "evaluation"],
    reads=["retrieval_results"],
    settings=_baseline_setting,
)
def compare_months(stage: Stage) -> Built:
    """Each system against itself in another month: paired tests on the questions both kept, corrected by Holm."""
    from freshstack_dagster.drift.correlation import system_drift

    baseline, results = _baseline(stage, "retrieval_results"), stage.read_all("retrieval_results")
    drift = system_drift(results, baseline=baseline)
    changed = drift.filter(pl.col("p_corrected") < 0.05)
    columns = ["measure", "system", "snapshot_a", "snapshot_b", "score_a", "score_b", "p_corrected"]
    facts = {
        "baseline": baseline,
        "plot": _plot_of_scores(results, HEADLINE[0]),
        "significant changes": changed.height,
        "changes": changed.select(columns).to_dicts() or "none is significant",
    }
    return Built({"system_drift": drift}, facts)


def _plot_of_scores(results: Mapping[str, pl.DataFrame], measure: str) -> str:
    means = {
        month: dict(
            frame.filter((pl.col("question_id") == "all") & (pl.col("measure") == measure))
            .select("system", "value")
            .iter_rows()
        )
        for month, frame in results.items()
    }
    systems = sorted({system for scores in means.values() for system in scores})
    scores = {system: [means[month].get(system) for month in means] for system in systems}
    return plots.slopes(f"{measure} by month, over the questions each month keeps", scores, list(means))


@table_assets(
    "question_freshness",
    group="drift",
    rooms=["drift"],
    reads=["questions", "nuggets", "judgments", "annotations", "chunks", "support_drift"],
    settings=_baseline_setting,
)
def date_questions(stage: Stage) -> Built:
    """Age, an answer edited after the snapshot, and lines of supporting chunks that speak of a deprecation."""
    from freshstack_dagster.drift.freshness import question_freshness

    judgments = _all_judgments(stage)
    texts = {month: stage.scan("chunks", month).select("doc_id", "text") for month in judgments}
    freshness = question_freshness(stage.read("questions"), judgments, texts, stage.read("support_drift"))
    by_month = (
        freshness.group_by("snapshot")
        .agg(
            pl.len().alias("questions"),
            pl.col("age_days").median().alias("median age in days"),
            pl.col("answer_edited_after").sum().alias("answer edited after"),
            (pl.col("deprecated_chunks") > 0).sum().alias("with a deprecation marker"),
        )
        .sort("snapshot")
    )
    return Built({"question_freshness": freshness}, {"by snapshot": by_month.to_dicts()})


@table_assets(
    "decomposition",
    group="drift",
    rooms=["drift", "evaluation", "judging", "retrieval"],
    reads=["runs", "pools", "judgments", "annotations", "nuggets", "questions", "chunks", "commits", "query_variants"],
    settings=lambda topic: topic.model_dump(mode="json", exclude={"title", "domain", "budget"}),
)
def separate_factors(stage: Stage) -> Built:
    """One of corpus, judge, pool and chunker varied at the baseline, the others held; what is skipped says why."""
    from freshstack_dagster.drift import decomposition as factors

    topic, baseline = stage.topic, _baseline(stage, "judgments")
    judgments = _all_judgments(stage)
    asked = {month: _asked(stage, month) for month in judgments}
    months = {month: factors.Condition(stage.read("runs", month), judgments[month]) for month in judgments}
    reference = months[baseline]
    collection = factors.Collection(asked[baseline], stage.read("nuggets"), topic.keep_partial)
    pooled = stage.scan("chunks", baseline).join(
        reference.judgments.lazy().select("doc_id").unique(), on="doc_id", how="semi"
    )
    texts = dict(pooled.select("content_hash", "text").unique("content_hash").collect().iter_rows())
    parts = [factors.vary_corpus(collection, months, baseline, asked)]
    submitted = factors.submitted_runs(stage.read("pools", baseline), reference.runs)
    parts.append(factors.vary_pool(collection, reference, topic.pooling, submitted))
    parts.append(factors.vary_judge(collection, reference, stage.read("annotations", baseline), texts))
    stage.say("decomposition: cutting, retrieving and judging again with smaller chunks")
    with open_models(stage) as models:
        chunker = factors.vary_chunker(
            collection,
            reference,
            topic,
            stage.read("commits", baseline),
            stage.read("query_variants"),
            chunks=stage.scan("chunks", baseline).select(pl.len()).collect().item(),
            mirrors=stage.places.mirrors,
            cache=stage.places.cache,
            models=models,
        )
    decomposition = pl.concat([*parts, chunker])
    skipped = decomposition.filter(pl.col("outcome") == "skipped").select("factor", "variation", "detail")
    facts = {
        "baseline": baseline,
        f"strongest variation of each factor on {HEADLINE[0]}": factors.summary(decomposition, HEADLINE[0]),
        "skipped": skipped.to_dicts() or "nothing",
    }
    return Built({"decomposition": decomposition}, facts)


def _asked(stage: Stage, month: str) -> pl.DataFrame:
    """The questions of a snapshot; undated ones always."""
    before = stage.topic.asked_before_for(month)
    return stage.read("questions").filter(pl.col("asked_at").is_null() | (pl.col("asked_at") < before))

"""The collection in figures, and retrievers scored on it."""

from __future__ import annotations

from typing import Any

import polars as pl

from freshstack_dagster.assets.calibration import counted_judgments
from freshstack_dagster.assets.pools import submitted_files
from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic


def _verdict(topic: Topic) -> Any:
    return topic.judging.verdict


def _means(results: pl.DataFrame, columns: list[str]) -> list[dict[str, Any]]:
    means = results.filter(pl.col("question_id") == "all")
    return means.pivot("measure", index=columns, values="value").sort(columns).to_dicts()


@table_assets(
    "statistics",
    group="evaluation",
    rooms=["evaluation"],
    reads=["questions", "nuggets", "chunks", "commits", "judgments", "annotations", "qrels", "question_outcomes"],
    settings=_verdict,
)
def describe_collection(stage: Stage) -> Built:
    """The columns of FreshStack's Table 3, tokens by GPT-4o's tokenizer."""
    from freshstack_dagster.evaluation.statistics import collection_statistics

    statistics = collection_statistics(
        stage.read_questions(),
        stage.read("nuggets"),
        stage.scan("chunks").select("doc_id", "repository", "tokens").collect(),
        stage.read("commits"),
        counted_judgments(stage),
        stage.read("qrels"),
        stage.read("question_outcomes"),
    )
    return Built({"statistics": statistics}, {"statistics": statistics.to_dicts()})


@table_assets(
    "pooling_results",
    group="evaluation",
    rooms=["evaluation"],
    reads=["runs", "qrels", "judgments", "annotations", "query_variants"],
    settings=_verdict,
)
def score_pooling(stage: Stage) -> Built:
    """Every technique and retriever on the qrels (FreshStack, Table 4), with bounds for what nobody judged."""
    from freshstack_dagster.evaluation.results import incomplete_variants, pooling_results

    qrels, variants = stage.read("qrels"), stage.read("query_variants")
    results = pooling_results(stage.read("runs"), qrels, counted_judgments(stage), variants)
    lacking = {variant: len(questions) for variant, questions in incomplete_variants(variants, qrels).items()}
    facts = {
        "means": _means(results, ["setting", "variant", "retriever"]),
        "variants without a mean, with the questions that lack a text": lacking or "none",
    }
    return Built({"pooling_results": results}, facts)


@table_assets(
    "retrieval_results",
    group="evaluation",
    rooms=["evaluation"],
    reads=["runs", "qrels", "judgments", "annotations", "chunks"],
    settings=_verdict,
    external=submitted_files,
)
def score_retrieval(stage: Stage) -> Built:
    """Systems with the question alone: retrievers, fusion, rerankers, and runs dropped into the folder of runs."""
    from freshstack_dagster.evaluation.results import retrieval_results
    from freshstack_dagster.evaluation.runs import read_submitted

    folder = stage.places.submitted_runs / stage.topic.name / stage.month
    submitted = read_submitted(folder, stage.scan("chunks"), stage.read("question_outcomes"))
    results = retrieval_results(stage.read("runs"), stage.read("qrels"), counted_judgments(stage), submitted)
    facts = {"means": _means(results, ["system"]), "submitted runs": len(submitted)}
    return Built({"retrieval_results": results}, facts)


@table_assets("comparisons", group="evaluation", rooms=["evaluation"], reads=["retrieval_results"])
def compare_systems(stage: Stage) -> Built:
    """Paired randomisation tests with Holm's correction, effect sizes and bootstrap intervals, for every pair."""
    from freshstack_dagster.evaluation.significance import compare_systems as compare

    comparisons = compare(stage.read("retrieval_results"))
    significant = comparisons.filter(pl.col("p_corrected") < 0.05)
    return Built({"comparisons": comparisons}, {"significant after correction": significant.height})

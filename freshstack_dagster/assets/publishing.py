"""What leaves the project: the report of a topic, and a snapshot's collection in layouts that other tools read."""

from collections.abc import Iterator

import dagster as dg

from freshstack_dagster.assets.tables import code_version
from freshstack_dagster.errors import FreshstackError
from freshstack_dagster.partitions import (
    tag_run,
    topic_and_snapshot,
    topic_of,
    topic_partitions,
    topic_snapshot_partitions,
)
from freshstack_dagster.resources import Project

REPORTED = [
    "questions",
    "statistics",
    "question_outcomes",
    "pooling_results",
    "retrieval_results",
    "comparisons",
    "support_drift",
    "repository_shift",
    "chunk_lineage",
    "lineage_summary",
    "ranking_correlation",
    "system_drift",
    "question_freshness",
    "decomposition",
    "agreement",
    "disagreements",
    "contamination",
    "answer_results",
]


REPORT_VERSION = code_version("publishing")


@dg.asset(
    partitions_def=topic_partitions,
    group_name="publishing",
    deps=REPORTED,
    kinds={"html"},
    owners=["team:benchmark"],
    tags={"freshstack/stage": "publishing"},
    code_version=REPORT_VERSION,
    description="The topic's report as one HTML file: readable without JavaScript or network, printable.",
)
def report(context: dg.AssetExecutionContext, project: Project) -> Iterator[dg.MaterializeResult]:
    """Render the topic's tables to data/reports/<topic>.html."""
    from freshstack_dagster.publishing.report import write_report

    topic = topic_of(context)
    path = project.places.reports / f"{topic}.html"
    changed = write_report(project.lake, project.topic(topic), path, REPORT_VERSION)
    yield dg.MaterializeResult(
        metadata={
            "report": dg.MetadataValue.path(str(path)),
            "bytes": path.stat().st_size,
            "outcome": "written" if changed else "unchanged",
        }
    )


@dg.asset(
    partitions_def=topic_snapshot_partitions,
    group_name="exports",
    deps=["questions", "nuggets", "qrels", "question_outcomes", "chunks", "commits"],
    kinds={"parquet"},
    owners=["team:benchmark"],
    tags={"freshstack/stage": "exports"},
    code_version=code_version("publishing"),
    description="The kept questions, nuggets, qrels and corpus in the topic's `layouts`, each with a card that says "
    "what it is, below data/exports/<topic>/<snapshot>/.",
)
def exports(context: dg.AssetExecutionContext, project: Project) -> Iterator[dg.MaterializeResult]:
    """Write the collection in each of the topic's layouts. A snapshot that keeps no question is an error."""
    from freshstack_dagster.publishing.export import card, export, load

    tag_run(context)
    topic, snapshot = topic_and_snapshot(context)
    assert snapshot is not None
    try:
        described = project.topic(topic)
        collection = load(project.lake, described, snapshot)
        files = [
            path
            for layout in described.layouts
            for path in export(collection, layout, project.places.exports / topic / snapshot / layout)
        ]
    except FreshstackError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    lines = [f"| {path.relative_to(project.places.exports)} | {path.stat().st_size:,} |" for path in files]
    yield dg.MaterializeResult(
        metadata={
            "folder": dg.MetadataValue.path(str(project.places.exports / topic / snapshot)),
            "files": dg.MetadataValue.md("\n".join(["| file | bytes |", "| --- | ---: |", *lines])),
            "card": dg.MetadataValue.md(card(collection, described.layouts[0])),
        }
    )

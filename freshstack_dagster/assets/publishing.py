"""What people read: the report of a topic."""

from collections.abc import Iterator

import dagster as dg

from freshstack_dagster.assets.tables import code_version
from freshstack_dagster.partitions import topic_of, topic_partitions
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
]


@dg.asset(
    partitions_def=topic_partitions,
    group_name="publishing",
    deps=REPORTED,
    kinds={"html"},
    owners=["team:benchmark"],
    tags={"freshstack/stage": "publishing"},
    code_version=code_version("publishing"),
    description="The topic's report as one HTML file: readable without JavaScript or network, printable.",
)
def report(context: dg.AssetExecutionContext, project: Project) -> Iterator[dg.MaterializeResult]:
    """Render the topic's tables to data/reports/<topic>.html."""
    from freshstack_dagster.publishing.report import write_report

    topic = topic_of(context)
    path = project.places.reports / f"{topic}.html"
    changed = write_report(project.lake, project.topic(topic), path)
    yield dg.MaterializeResult(
        metadata={
            "report": dg.MetadataValue.path(str(path)),
            "bytes": path.stat().st_size,
            "outcome": "written" if changed else "unchanged",
        }
    )

"""The report of a topic: one HTML file with every figure as a plot and as a table."""

from __future__ import annotations

import os
from pathlib import Path

from freshstack_dagster.errors import LakeError
from freshstack_dagster.lake import Lake, fingerprint
from freshstack_dagster.publishing.sections import sections
from freshstack_dagster.publishing.topic_tables import TopicTables
from freshstack_dagster.settings import Topic
from freshstack_dagster.tables import TABLES

# The fingerprint stands in the first characters of the page.
HEAD = 1000


def report_inputs(lake: Lake, topic: Topic, version: str) -> str:
    """The fingerprint of everything a report shows: the topic's tables and words, and the code's `version`."""
    contents = {}
    for table in (name for name in TABLES if name != "model_calls"):
        for partition in lake.partitions(table, topic.name):
            pointer = lake.current(table, partition.topic, partition.snapshot)
            contents[f"{table} {partition}"] = pointer and pointer.content
    words = topic.model_dump(mode="json", include={"title", "domain", "baseline", "judging", "roles"})
    return fingerprint(version, contents, words, [repository.name for repository in topic.repositories])


def is_current(path: Path, inputs: str) -> bool:
    """Whether the report at `path` was made from these inputs."""
    return path.exists() and f'content="{inputs}"' in path.read_text(encoding="utf-8")[:HEAD]


def write_report(lake: Lake, topic: Topic, path: Path, version: str = "") -> bool:
    """Render the topic's report to `path`; return whether its content changed. `version` is that of the code.

    Raises LakeError if no snapshot of the topic is built, or the file cannot be written.
    """
    page = render_report(lake, topic, report_inputs(lake, topic, version))
    if path.exists() and path.read_text(encoding="utf-8") == page:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise LakeError(f"{path}: the report cannot be written: {error.strerror}") from error
    return True


def render_report(lake: Lake, topic: Topic, inputs: str = "") -> str:
    """The report as HTML; it carries the fingerprint of its `inputs`."""
    from jinja2 import Environment, PackageLoader

    snapshots = lake.snapshots("question_outcomes", topic.name)
    if not snapshots:
        raise LakeError(f"topic {topic.name} has no snapshot yet; build one first")
    environment = Environment(loader=PackageLoader("freshstack_dagster.publishing"), autoescape=True)
    tables = TopicTables(lake, topic, snapshots)
    return environment.get_template("report.html").render(
        topic=topic,
        snapshots=snapshots,
        inputs=inputs,
        baseline=tables.baseline,
        judge_kinds=tables.judge_kinds(),
        sections=sections(tables),
    )

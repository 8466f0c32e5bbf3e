"""The report of a topic: one HTML file with every figure as a plot and as a table."""

from __future__ import annotations

import os
from pathlib import Path

from freshstack_dagster.errors import LakeError
from freshstack_dagster.lake import Lake
from freshstack_dagster.publishing.sections import sections
from freshstack_dagster.publishing.topic_tables import TopicTables
from freshstack_dagster.settings import Topic


def write_report(lake: Lake, topic: Topic, path: Path) -> bool:
    """Render the topic's report to `path`; return whether its content changed.

    Raises LakeError if no snapshot of the topic is built, or the file cannot be written.
    """
    page = render_report(lake, topic)
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


def render_report(lake: Lake, topic: Topic) -> str:
    """The report as HTML."""
    from jinja2 import Environment, PackageLoader

    snapshots = lake.snapshots("question_outcomes", topic.name)
    if not snapshots:
        raise LakeError(f"topic {topic.name} has no snapshot yet; build one first")
    environment = Environment(loader=PackageLoader("freshstack_dagster.publishing"), autoescape=True)
    tables = TopicTables(lake, topic, snapshots)
    return environment.get_template("report.html").render(
        topic=topic,
        snapshots=snapshots,
        baseline=tables.baseline,
        judge_kinds=tables.judge_kinds(),
        sections=sections(tables),
    )

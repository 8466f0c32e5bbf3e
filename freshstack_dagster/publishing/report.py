"""The report of a topic: one HTML file with every figure as a plot and as a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from freshstack_dagster.errors import LakeError
from freshstack_dagster.lake import Lake
from freshstack_dagster.publishing.sections import sections
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
    tables = Tables(lake, topic.name, snapshots, topic.baseline)
    return environment.get_template("report.html").render(
        topic=topic,
        snapshots=snapshots,
        baseline=tables.baseline,
        judge_kinds=tables.judge_kinds(),
        sections=sections(tables),
    )


class Tables:
    """The topic's tables; a table of every snapshot has a column `snapshot`."""

    def __init__(self, lake: Lake, topic: str, snapshots: Sequence[str], baseline: str | None = None) -> None:
        self.lake, self.topic, self.snapshots = lake, topic, list(snapshots)
        self.baseline = baseline or self.snapshots[0]

    def of_topic(self, table: str) -> pl.DataFrame:
        """A topic-level table; empty if it was never built."""
        from freshstack_dagster.tables import TABLES

        if self.lake.current(table, self.topic) is None:
            return TABLES[table].empty()
        return self.lake.read(table, self.topic)

    def of_snapshots(self, table: str) -> pl.DataFrame:
        """All snapshots of a table, with their month."""
        months = [month for month in self.snapshots if self.lake.current(table, self.topic, month) is not None]
        frames = [self.lake.read(table, self.topic, month).with_columns(snapshot=pl.lit(month)) for month in months]
        return pl.concat(frames)

    def scan(self, table: str, snapshot: str) -> pl.LazyFrame:
        """One snapshot of a table."""
        return self.lake.scan(table, self.topic, snapshot)

    def judge_kinds(self) -> list[str]:
        """Who judged."""
        kinds = [
            self.lake.scan("judgments", self.topic, month).select(pl.col("judge_kind").unique()).collect()
            for month in self.snapshots
        ]
        return pl.concat(kinds)["judge_kind"].unique().sort().to_list()

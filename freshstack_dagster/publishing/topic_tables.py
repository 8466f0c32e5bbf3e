"""A topic's tables as the report reads them: over every snapshot that is built, empty where a stage was never run."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from freshstack_dagster.judging.annotation import current_verdicts, verdicts_that_count
from freshstack_dagster.lake import Lake
from freshstack_dagster.settings import Topic
from freshstack_dagster.tables import TABLES


class TopicTables:
    """The topic's tables; a table of every snapshot has a column `snapshot`."""

    def __init__(self, lake: Lake, topic: Topic, snapshots: Sequence[str]) -> None:
        self.lake, self.topic, self.snapshots = lake, topic.name, list(snapshots)
        self.baseline = topic.baseline or self.snapshots[0]
        self._judging = topic.judging

    def of_topic(self, table: str) -> pl.DataFrame:
        """A topic-level table; empty if it was never built."""
        if self.lake.current(table, self.topic) is None:
            return TABLES[table].empty()
        return self.lake.read(table, self.topic)

    def of_snapshots(self, table: str) -> pl.DataFrame:
        """All snapshots of a table, with their month; empty if it was never built."""
        months = [month for month in self.snapshots if self.lake.current(table, self.topic, month) is not None]
        frames = [self.lake.read(table, self.topic, month).with_columns(snapshot=pl.lit(month)) for month in months]
        return pl.concat([TABLES[table].empty().with_columns(snapshot=pl.lit("")), *frames])

    def scan(self, table: str, snapshot: str) -> pl.LazyFrame:
        """One snapshot of a table."""
        return self.lake.scan(table, self.topic, snapshot)

    def counted_judgments(self, snapshot: str) -> pl.DataFrame:
        """The verdicts that count in a snapshot, on the nuggets as they read now."""
        judgments = self.lake.read("judgments", self.topic, snapshot)
        built = self.lake.current("annotations", self.topic, snapshot) is not None
        annotations = self.lake.read("annotations", self.topic, snapshot) if built else TABLES["annotations"].empty()
        return current_verdicts(verdicts_that_count(judgments, annotations, self._judging), self.of_topic("nuggets"))

    def judge_kinds(self) -> list[str]:
        """Who judged."""
        kinds = [
            self.lake.scan("judgments", self.topic, month).select(pl.col("judge_kind").unique()).collect()
            for month in self.snapshots
        ]
        return pl.concat(kinds)["judge_kind"].unique().sort().to_list()

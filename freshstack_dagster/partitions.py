"""Topics and snapshots as Dagster partitions; one shared object each, because Dagster compares them.

A snapshot's key is the month whose end it stands for: `2024-10` is the world just before 2024-11-01T00:00:00Z, so the
tick of 1 November asks for October. The set of months is fixed by a file and never by today's date.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg

from freshstack_dagster.settings import Snapshots, load_snapshots, places, topic_files


def snapshot_partitions(snapshots: Snapshots) -> dg.TimeWindowPartitionsDefinition:
    """The named months and every month from `live_from` on; all other months are excluded."""
    first = min([*snapshots.months, snapshots.live_from])
    excluded = [
        datetime.fromisoformat(f"{month}-01T00:00:00+00:00")
        for month in _months(first, snapshots.live_from)
        if month not in snapshots.months
    ]
    return dg.TimeWindowPartitionsDefinition(
        start=first, fmt="%Y-%m", cron_schedule="0 0 1 * *", timezone="UTC", exclusions=excluded or None
    )


def _months(first: str, last: str) -> list[str]:
    """Months from `first` up to but not including `last`."""
    months, (year, month) = [], map(int, first.split("-"))
    while (key := f"{year:04}-{month:02}") < last:
        months.append(key)
        year, month = year + month // 12, month % 12 + 1
    return months


_places = places()
topic_partitions = dg.StaticPartitionsDefinition([path.stem for path in topic_files(_places.topics)])
snapshot_partitions_def = snapshot_partitions(load_snapshots(_places.data / "snapshots.yaml"))
topic_snapshot_partitions = dg.MultiPartitionsDefinition(
    {"topic": topic_partitions, "snapshot": snapshot_partitions_def}
)


def multi_key(topic: str, snapshot: str) -> dg.MultiPartitionKey:
    """The partition key of a topic's snapshot."""
    return dg.MultiPartitionKey({"topic": topic, "snapshot": snapshot})


def month_before(moment: datetime) -> str:
    """The month that ended last before a moment."""
    return f"{moment.astimezone(UTC).replace(day=1) - timedelta(days=1):%Y-%m}"


def run_tags(topic: str, snapshot: str | None = None) -> dict[str, str]:
    """The tags by which a topic's and a snapshot's runs are found in the UI."""
    return {"freshstack/topic": topic, **({} if snapshot is None else {"freshstack/snapshot": snapshot})}


def tag_run(context: dg.AssetExecutionContext) -> None:
    """Tag the run with its topic and snapshot, however it was launched."""
    tags = run_tags(*topic_and_snapshot(context))
    if not tags.items() <= context.run.tags.items():
        context.instance.add_run_tags(context.run_id, tags)


def topic_of(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> str:
    """The topic of a run over either kind of partition."""
    return topic_and_snapshot(context)[0]


def topic_and_snapshot(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> tuple[str, str | None]:
    """Topic and snapshot of a run; the snapshot is None for topic-level assets.

    The key may come as a plain string (a raw launch through the API), so it is parsed here and nowhere else.
    """
    text = str(context.partition_key)
    if "|" not in text:
        return text, None
    key = topic_snapshot_partitions.get_partition_key_from_str(text).keys_by_dimension
    return key["topic"], key["snapshot"]

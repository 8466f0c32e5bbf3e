"""How a table becomes an asset: `table_assets` names its partitions and inputs, builds it if anything changed, and
tells the UI about it.

A stage is skipped when the fingerprint of everything it reads (input tables by content, settings, external files, the
code of its rooms) equals the one its tables were built from; it then reports the table that stands.
"""

import base64
import hashlib
import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from freshstack_dagster.assets.columns import column_lineage
from freshstack_dagster.errors import FreshstackError, LakeError
from freshstack_dagster.lake import Lake, Pointer, fingerprint
from freshstack_dagster.partitions import tag_run, topic_and_snapshot, topic_partitions, topic_snapshot_partitions
from freshstack_dagster.resources import Project
from freshstack_dagster.settings import Places, Topic
from freshstack_dagster.tables import TABLES, Table

PACKAGE = Path(__file__).resolve().parents[1]
# Stages tell their progress to this logger; dagster.yaml passes it on to the UI, the console script to the terminal.
PROGRESS = "freshstack_dagster.progress"
SECONDS_BETWEEN_LINES = 5.0
SYSTEM_RETRIES = 2
SECONDS_TO_RETRY = 10
PREVIEW_ROWS = 10
PREVIEW_CHARACTERS = 80


@dataclass(frozen=True)
class Stage:
    """What a stage's function is given: the topic, the snapshot (None at topic level), tables to read and places."""

    topic: Topic
    snapshot: str | None
    lake: Lake
    places: Places
    run: str

    def say(self, line: str) -> None:
        """Tell the UI and the terminal one line."""
        logging.getLogger(PROGRESS).info(line)

    def progress(self) -> Callable[[str, int, int], None]:
        """A function for the library to tell what is being done, how much of it and of how much, now and then."""
        told = time.monotonic()

        def tell(what: str, done: int, total: int) -> None:
            nonlocal told
            if time.monotonic() - told >= SECONDS_BETWEEN_LINES:
                told = time.monotonic()
                self.say(f"{what}: {done:,} of {total:,}")

        return tell

    @property
    def month(self) -> str:
        """The snapshot of a stage that has one."""
        assert self.snapshot is not None
        return self.snapshot

    def scan(self, table: str, snapshot: str | None = None) -> pl.LazyFrame:
        """A table's partition for this topic, at this stage's snapshot unless another is named."""
        at = snapshot or self.snapshot if "snapshot" in TABLES[table].by else None
        return self.lake.scan(table, self.topic.name, at)

    def read(self, table: str, snapshot: str | None = None) -> pl.DataFrame:
        """As `scan`, collected."""
        return self.scan(table, snapshot).collect()

    def read_questions(self) -> pl.DataFrame:
        """The questions of this snapshot: asked before its end or the topic's cut-off; undated ones always."""
        before = self.topic.asked_before_for(self.month)
        return self.read("questions").filter(pl.col("asked_at").is_null() | (pl.col("asked_at") < before))

    def read_all(self, table: str) -> dict[str, pl.DataFrame]:
        """Every snapshot of this topic that exists, oldest first."""
        name = self.topic.name
        return {snapshot: self.lake.read(table, name, snapshot) for snapshot in self.lake.snapshots(table, name)}


@dataclass(frozen=True)
class Built:
    """What a stage's function returns: a frame for each of its tables, and facts that a person would look at.

    `unfinished` says why some of it should be tried again, such as calls that got no answer: the tables are written,
    but not taken for current.
    """

    tables: Mapping[str, pl.DataFrame]
    facts: Mapping[str, Any] = field(default_factory=dict)
    unfinished: str | None = None


@dataclass(frozen=True)
class StageDefinition:
    """What a stage is made of: its function, the tables it builds together, and everything they rest on."""

    function: Callable[[Stage], Built]
    tables: tuple[str, ...]
    group: str
    reads: tuple[str, ...]
    version: str
    settings: Callable[[Topic], Any]
    external: Callable[[Stage], Any]
    always: bool

    @property
    def by_snapshot(self) -> bool:
        """Whether its tables are partitioned by snapshot too."""
        return "snapshot" in TABLES[self.tables[0]].by

    def inputs(self, stage: Stage) -> str:
        """The fingerprint of everything it reads. Raises LakeError if an input table was never built."""
        contents = _contents(stage, self.reads)
        return fingerprint(self.version, contents, self.settings(stage.topic), self.external(stage))

    def standing(self, stage: Stage) -> dict[str, Pointer | None]:
        """What its tables hold now."""
        return {table: stage.lake.current(table, stage.topic.name, stage.snapshot) for table in self.tables}

    def is_current(self, stage: Stage) -> bool:
        """Whether running it would change nothing; a stage that must always look does so here."""
        try:
            inputs = self.inputs(stage)
        except LakeError:
            return False
        if any(pointer is None or pointer.inputs != inputs for pointer in self.standing(stage).values()):
            return False
        if not self.always:
            return True
        built = self.function(stage).tables
        return all(TABLES[table].conform(built[table]).equals(stage.read(table)) for table in self.tables)


STAGES: list[StageDefinition] = []


def table_assets(
    *tables: str,
    group: str,
    rooms: Sequence[str],
    reads: Sequence[str] = (),
    settings: Callable[[Topic], Any] = lambda topic: None,
    external: Callable[[Stage], Any] = lambda stage: None,
    always: bool = False,
    kinds: frozenset[str] | set[str] = frozenset({"polars", "parquet"}),
    pool: str | None = None,
) -> Callable[[Callable[[Stage], Built]], dg.AssetsDefinition]:
    """Make assets of the tables that a stage's function builds together.

    `reads` are the tables it depends on, `rooms` the package folders whose code it rests on, `settings` the part of
    the topic that matters to it, `external` a fingerprint of what it reads outside the lake. `always` runs it each
    time, for what cannot be known without looking.
    """

    def decorate(function: Callable[[Stage], Built]) -> dg.AssetsDefinition:
        version = code_version(f"assets/{Path(function.__code__.co_filename).name}", *rooms)
        definition = StageDefinition(function, tables, group, tuple(reads), version, settings, external, always)
        STAGES.append(definition)

        @dg.multi_asset(
            name=function.__name__,
            specs=[_spec(TABLES[table], definition, kinds) for table in tables],
            partitions_def=topic_snapshot_partitions if definition.by_snapshot else topic_partitions,
            pool=pool,
        )
        def assets(context: dg.AssetExecutionContext, project: Project) -> Iterator[dg.MaterializeResult]:
            tag_run(context)
            try:
                yield from _build(definition, open_stage(project, *topic_and_snapshot(context), run=context.run_id))
            except FreshstackError as error:
                raise dg.Failure(str(error), allow_retries=False) from error
            except OSError as error:  # the system or the network: it may be gone in a moment
                raise dg.RetryRequested(SYSTEM_RETRIES, SECONDS_TO_RETRY) from error

        return assets

    return decorate


def open_stage(project: Project, topic: str, snapshot: str | None, *, run: str = "") -> Stage:
    """A stage's view of a project. Raises SettingsError if there is no such topic."""
    return Stage(project.topic(topic), snapshot, project.lake, project.places, run)


def _build(definition: StageDefinition, stage: Stage) -> Iterator[dg.MaterializeResult]:
    started = time.perf_counter()
    inputs, standing = definition.inputs(stage), definition.standing(stage)
    if not definition.always and all(pointer is not None and pointer.inputs == inputs for pointer in standing.values()):
        for table, pointer in standing.items():
            assert pointer is not None
            facts = {**pointer.notes, "outcome": "unchanged: nothing it reads changed"}
            yield _result(stage, table, definition.reads, pointer, facts)
        stage.lake.ensure_catalogue(pointer for pointer in standing.values() if pointer is not None)
        stage.say(f"{', '.join(definition.tables)}: unchanged")
        return
    built = definition.function(stage)
    seconds = round(time.perf_counter() - started, 2)
    results = []
    for table in definition.tables:
        pointer = stage.lake.write(
            table,
            built.tables[table],
            topic=stage.topic.name,
            snapshot=stage.snapshot,
            inputs="" if built.unfinished else inputs,
            run=stage.run,
            notes=dict(built.facts),
        )
        before = standing[table]
        same = before is not None and before.content == pointer.content
        outcome = "rebuilt, with the same content" if same else "written"
        facts = {**built.facts, "outcome": outcome, "seconds": seconds}
        if built.unfinished:
            facts["unfinished"] = built.unfinished
            stage.say(f"{table}: {built.unfinished}; build again to try them once more")
        results.append(_result(stage, table, definition.reads, pointer, facts))
        stage.say(f"{table}: {pointer.rows:,} rows in {seconds:.1f} s, {outcome}")
    stage.lake.refresh_catalogue()
    yield from results


def _result(
    stage: Stage, table: str, reads: Sequence[str], pointer: Pointer, facts: Mapping[str, Any]
) -> dg.MaterializeResult:
    preview = stage.scan(table).head(PREVIEW_ROWS).collect()
    return dg.MaterializeResult(
        asset_key=table,
        data_version=dg.DataVersion(pointer.content[:16]),
        metadata={
            "dagster/row_count": pointer.rows,
            "bytes": pointer.bytes,
            "preview": dg.MetadataValue.md(markdown_table(preview)),
            "dagster/column_lineage": column_lineage(table, reads),
            **{name: _metadata(value) for name, value in facts.items()},
        },
    )


def _metadata(value: Any) -> Any:
    if isinstance(value, dict):
        return dg.MetadataValue.json(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return dg.MetadataValue.md(markdown_table(pl.DataFrame(value)))
    if isinstance(value, str) and value.startswith("<svg"):
        image = base64.b64encode(value.encode()).decode()  # the UI shows no SVG that stands in the text itself
        return dg.MetadataValue.md(f"![plot](data:image/svg+xml;base64,{image})")
    return value


def markdown_table(frame: pl.DataFrame) -> str:
    """A frame as a Markdown table, cells shortened to fit a panel."""

    def cell(value: Any) -> str:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        text = " ".join(text.split()).replace("|", "\\|")
        return text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 1] + "…"

    rows = ["| " + " | ".join(map(cell, row)) + " |" for row in frame.rows()]
    return "\n".join(["| " + " | ".join(frame.columns) + " |", "|" + " --- |" * frame.width, *rows])


def _contents(stage: Stage, reads: Sequence[str]) -> dict[str, Any]:
    """Content hashes of the input partitions: the same snapshot, or every snapshot for a topic-level stage."""
    contents: dict[str, Any] = {}
    for table in reads:
        name = stage.topic.name
        if "snapshot" in TABLES[table].by and stage.snapshot is None:
            snapshots: list[str | None] = list(stage.lake.snapshots(table, name))
        else:
            snapshots = [stage.snapshot if "snapshot" in TABLES[table].by else None]
        for snapshot in snapshots:
            stage.lake.paths(table, name, snapshot)  # an input that was never built is an error that names it
            pointer = stage.lake.current(table, name, snapshot)
            contents[f"{table} {snapshot}"] = pointer and pointer.content
    return contents


def _spec(table: Table, stage: StageDefinition, kinds: frozenset[str] | set[str]) -> dg.AssetSpec:
    columns = [
        dg.TableColumn(
            name=name,
            type=str(column.dtype),
            description=column.description,
            constraints=dg.TableColumnConstraints(nullable=column.nullable),
        )
        for name, column in table.columns.items()
    ]
    return dg.AssetSpec(
        key=table.name,
        deps=list(stage.reads),
        group_name=stage.group,
        kinds=set(kinds),
        code_version=stage.version,
        owners=["team:benchmark"],
        tags={"freshstack/stage": stage.group},
        description=f"{table.description}\n\n{inspect.getdoc(stage.function) or ''}".strip(),
        metadata={"dagster/column_schema": dg.TableSchema(columns=columns), "key": ", ".join(table.key)},
    )


@cache
def code_version(*rooms: str) -> str:
    """A hash over the source of the named rooms (folders or modules of the package) and the table schemas."""
    digest = hashlib.sha256()
    for room in sorted({*rooms, "tables.py"}):
        place = PACKAGE / room
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.suffix in {".py", ".md", ".yaml", ".html"}:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

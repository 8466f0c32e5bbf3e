"""Where tables live: immutable Parquet parts, one pointer a partition, and a DuckDB catalogue of views.

Parquet is the truth. A partition's `_current.json` names its files; replacing that small file is the commit, so a crash
leaves the old table or the new one. Superseded files stay for a grace period, because a reader may still hold them.
The catalogue holds views over the current files only and is swapped in by rename: any number of runs write and any
number of people query at once. Where the bytes lie, `storage` knows: a directory, or a bucket.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import duckdb
import polars as pl

from freshstack_dagster.errors import LakeError
from freshstack_dagster.storage import Conflict, locked, open_storage
from freshstack_dagster.tables import TABLES, Table

POINTER = "_current.json"
GRACE_SECONDS = 3600.0
COMMIT_TRIALS = 50
# Where the catalogue notes which lake it is of.
LAKE_VIEW = "lake"


@dataclass(frozen=True)
class Pointer:
    """What a partition holds now.

    `files` are names in the partition's folder; `content` is the sha256 of the table's bytes, so equal content is known
    without reading it; `inputs` is the fingerprint of everything the table was made from; `superseded` are files that
    may go after the grace period, with the second they were superseded.
    """

    files: tuple[str, ...]
    rows: int
    bytes: int
    content: str
    inputs: str = ""
    run: str = ""
    written_at: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)
    superseded: tuple[tuple[str, float], ...] = ()

    @classmethod
    def from_json(cls, text: str) -> Pointer:
        """Read a pointer file."""
        document = json.loads(text)
        document["files"] = tuple(document["files"])
        document["superseded"] = tuple((name, at) for name, at in document["superseded"])
        return cls(**document)

    def to_json(self) -> str:
        """Write a pointer file."""
        return json.dumps(asdict(self), indent=1) + "\n"


@dataclass(frozen=True, order=True)
class Partition:
    """A table's partition: a topic, and for some tables a snapshot."""

    topic: str
    snapshot: str | None = None

    def __str__(self) -> str:
        return self.topic if self.snapshot is None else f"{self.topic} {self.snapshot}"


class Lake:
    """The tables of a project below one directory or URL, and the DuckDB catalogue over them."""

    def __init__(self, root: str | Path, catalogue: Path | None = None, grace_seconds: float = GRACE_SECONDS) -> None:
        self.root = str(root)
        self.storage = open_storage(root)
        self.catalogue = catalogue
        self.grace_seconds = grace_seconds

    def folder(self, table: str, topic: str, snapshot: str | None = None) -> str:
        """The partition's folder below the root. Raises LakeError if the partition does not fit the table."""
        spec = _table(table)
        if ("snapshot" in spec.by) != (snapshot is not None):
            raise LakeError(f"table {table} is partitioned by {' and '.join(spec.by)}; got snapshot {snapshot!r}")
        path = f"{table}/topic={topic}"
        return path if snapshot is None else f"{path}/snapshot={snapshot}"

    def current(self, table: str, topic: str, snapshot: str | None = None) -> Pointer | None:
        """The partition's pointer, or None if it was never written."""
        return self._read_pointer(self.folder(table, topic, snapshot))[0]

    def paths(self, table: str, topic: str, snapshot: str | None = None) -> list[str]:
        """Paths or URLs of the partition's current files. Raises LakeError if it was never written."""
        pointer, partition = self.current(table, topic, snapshot), Partition(topic, snapshot)
        if pointer is None:
            raise LakeError(f"table {table} has no partition {partition}; build it first")
        return self._urls(table, partition, pointer)

    def scan(self, table: str, topic: str, snapshot: str | None = None) -> pl.LazyFrame:
        """The partition, lazily."""
        paths = self.paths(table, topic, snapshot)
        if not paths:
            return _table(table).empty().lazy()
        return pl.scan_parquet(paths, hive_partitioning=False, storage_options=self.storage.polars_options)

    def read(self, table: str, topic: str, snapshot: str | None = None) -> pl.DataFrame:
        """The partition as a frame, rows in the table's order."""
        return self.scan(table, topic, snapshot).collect()

    def snapshots(self, table: str, topic: str) -> list[str]:
        """The snapshots of a topic for which the table was built, oldest first."""
        return [p.snapshot for p in self.partitions(table, topic) if p.snapshot is not None]

    def partitions(self, table: str, topic: str | None = None) -> list[Partition]:
        """Every partition of a table, or those of one topic, sorted."""
        dimensions = _table(table).by
        below = table if topic is None else f"{table}/topic={topic}"
        found = []
        for name in self._find(below):
            *folders, file = name.split("/")
            values = dict(part.partition("=")[::2] for part in folders[1:])
            if file == POINTER and tuple(values) == dimensions:
                found.append(Partition(**values))
        return sorted(found)

    def topics(self) -> set[str]:
        """The topics of which there is a table."""
        return {partition.topic for table in TABLES for partition in self.partitions(table)}

    def forget(self, topic: str) -> int:
        """Delete every partition of a topic and return how many there were; a pointer goes before its files."""
        forgotten = 0
        for table in TABLES:
            for partition in self.partitions(table, topic):
                folder = self.folder(table, partition.topic, partition.snapshot)
                with self._writing(folder):
                    self.storage.delete(f"{folder}/{POINTER}")
                    for path in self._find(folder):
                        if not path.endswith("/.lock"):  # held, and others may wait for it
                            self.storage.delete(path)
                forgotten += 1
        self.refresh_catalogue()
        return forgotten

    def write(
        self,
        table: str,
        frame: pl.DataFrame,
        *,
        topic: str,
        snapshot: str | None = None,
        inputs: str = "",
        run: str = "",
        notes: dict[str, Any] | None = None,
    ) -> Pointer:
        """Replace a partition by `frame` and return its new pointer.

        The frame is brought to the table's schema and order first. If its bytes equal the current ones, the files stay
        as they are. Raises SchemaError or LakeError; the old partition then still stands.
        """
        folder = self.folder(table, topic, snapshot)
        facts: dict[str, Any] = {"inputs": inputs, "run": run, "notes": notes or {}}

        def decide(old: Pointer | None, part: Pointer) -> Pointer:
            if old is not None and old.content == part.content and self.storage.exists(f"{folder}/{old.files[0]}"):
                return replace(old, **facts)
            gone = () if old is None else (*old.superseded, *((file, part.written_at) for file in old.files))
            return replace(part, superseded=gone, **facts)

        return self._write(folder, _table(table).conform(frame), decide)

    def doubt(self, table: str, topic: str, snapshot: str | None = None) -> None:
        """Keep a partition's rows, but forget what they were made from, so that it is looked at again."""
        folder = self.folder(table, topic, snapshot)
        with self._writing(folder):
            pointer, version = self._read_pointer(folder)
            if pointer is not None:
                doubted = replace(pointer, inputs="")
                self.storage.replace(f"{folder}/{POINTER}", doubted.to_json().encode(), version)

    def append(self, table: str, frame: pl.DataFrame, *, topic: str, run: str = "") -> Pointer:
        """Add rows to a partition as one more part file; for tables that only grow, written by several runs at once."""

        def decide(old: Pointer | None, part: Pointer) -> Pointer:
            old = old or Pointer((), 0, 0, "")
            return replace(
                part,
                files=(*old.files, *part.files),
                rows=old.rows + part.rows,
                bytes=old.bytes + part.bytes,
                content=hashlib.sha256(f"{old.content}{part.content}".encode()).hexdigest(),
                run=run,
            )

        return self._write(self.folder(table, topic), _table(table).conform(frame), decide)

    def ask(self, sql: str, *, topic: str, snapshot: str | None = None) -> pl.DataFrame:
        """Ask a question in SQL over the tables of one topic; `$topic` and `$snapshot` stand for the partition.

        Reads the pointers themselves, so the answer is right also where another machine wrote last and this one's
        catalogue does not know it.
        """
        words = set(re.findall(r"\w+", sql))
        parameters = {"topic": topic, "snapshot": snapshot}
        used = {name: value for name, value in parameters.items() if f"${name}" in sql}
        with duckdb.connect() as connection:
            self.storage.register(connection)
            for table in (table for name, table in TABLES.items() if name in words):
                connection.execute(self._view(table, self._files(table.name, topic)))
            return connection.sql(sql, params=used).pl()

    def refresh_catalogue(self) -> None:
        """Rebuild the DuckDB file with a view for every table and swap it in by rename."""
        if self.catalogue is None:
            return
        temporary = self.catalogue.with_name(f".{self.catalogue.name}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            self.catalogue.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.catalogue.with_name(f".{self.catalogue.name}.lock")):
                with duckdb.connect(str(temporary)) as connection:
                    self.storage.register(connection)
                    connection.execute(f"create view {LAKE_VIEW} as select {_quote(self.root)} as root")
                    for table in TABLES.values():
                        connection.execute(self._view(table, self._files(table.name)))
                os.replace(temporary, self.catalogue)
        except (OSError, duckdb.IOException) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise LakeError(f"{self.catalogue}: the catalogue cannot be written: {reason}") from error
        finally:
            temporary.unlink(missing_ok=True)

    def ensure_catalogue(self, pointers: Iterable[Pointer] | None = None) -> None:
        """Rebuild the catalogue if its views miss a file of these pointers (all, if none are given).

        They do where the writer was killed between its commit and the catalogue, or wrote from another machine, to
        another catalogue. The files' names are compared, not times: clocks differ, and a commit may fall between the
        reading of the pointers and the end of a rebuild.
        """
        if self.catalogue is None:
            return
        if pointers is None:
            every = ((table, partition) for table in TABLES for partition in self.partitions(table))
            found = (self.current(table, partition.topic, partition.snapshot) for table, partition in every)
            pointers = (pointer for pointer in found if pointer is not None)
        needed = {file for pointer in pointers for file in pointer.files}
        if not self.catalogue.exists() or not needed <= self._catalogued():
            self.refresh_catalogue()

    def _catalogued(self) -> set[str]:
        """Names of the files that the catalogue's views read."""
        try:
            with duckdb.connect(str(self.catalogue), read_only=True) as connection:
                views = connection.execute("select sql from duckdb_views() where not internal").fetchall()
        except duckdb.Error:  # half a file, or of another version: made anew
            return set()
        return {name for (sql,) in views for name in re.findall(r"[0-9a-f]+-[0-9a-f]+\.parquet", sql)}

    def probe(self) -> None:
        """Put and delete an object. Raises LakeError if the lake cannot be written."""
        with self._writing("."):
            name = f"probe-{secrets.token_hex(4)}.txt"
            self.storage.create(name, lambda file: file.write(b"probe"))
            self.storage.delete(name)

    def _find(self, folder: str) -> list[str]:
        try:
            return self.storage.find(folder)
        except OSError as error:
            raise LakeError(f"{self.root}/{folder}: cannot be listed ({error.strerror or error})") from error

    def _files(self, table: str, topic: str | None = None) -> list[str]:
        partitions = self.partitions(table, topic)
        with ThreadPoolExecutor(max_workers=8) as pool:
            pointers = list(pool.map(lambda found: self.current(table, found.topic, found.snapshot), partitions))
        # A partition may have been forgotten since it was listed.
        return [
            url
            for partition, pointer in zip(partitions, pointers, strict=True)
            if pointer is not None
            for url in self._urls(table, partition, pointer)
        ]

    def _urls(self, table: str, partition: Partition, pointer: Pointer) -> list[str]:
        folder = self.folder(table, partition.topic, partition.snapshot)
        return [self.storage.url(f"{folder}/{name}") for name in pointer.files]

    def _view(self, table: Table, files: list[str]) -> str:
        comment = f"comment on view {table.name} is {_quote(table.description)}"
        if not files:
            columns = {**dict.fromkeys(table.by, pl.String()), **table.schema}
            empty = ", ".join(f'cast(null as {_duckdb_type(dtype)}) as "{name}"' for name, dtype in columns.items())
            return f"create view {table.name} as select {empty} where false; {comment}"
        types = ", ".join(f"{_quote(dimension)}: varchar" for dimension in table.by)
        listed = ", ".join(_quote(file) for file in files)
        columns_in_order = ", ".join(f'"{name}"' for name in [*table.by, *table.columns])
        source = f"read_parquet([{listed}], hive_partitioning = true, hive_types = {{{types}}}, union_by_name = true)"
        return f"create view {table.name} as select {columns_in_order} from {source}; {comment}"

    def _read_pointer(self, folder: str, *, broken_is_none: bool = False) -> tuple[Pointer | None, str | None]:
        """A folder's pointer and its version in the storage; a broken one may be replaced by building again."""
        try:
            found = self.storage.read(f"{folder}/{POINTER}")
            if found is None:
                return None, None
            try:
                return Pointer.from_json(found[0].decode()), found[1]
            except (ValueError, TypeError, KeyError):
                if broken_is_none:
                    return None, found[1]
                raise
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LakeError(
                f"{self.root}/{folder}/{POINTER}: the pointer cannot be read ({error}); build the partition again"
            ) from error

    def _write(self, folder: str, frame: pl.DataFrame, decide: Callable[[Pointer | None, Pointer], Pointer]) -> Pointer:
        """Put one part, then make the pointer that `decide` makes of the old one and the part the current one."""
        with self._writing(folder):
            now = time.time()
            name = f"{int(now * 1e9):x}-{secrets.token_hex(4)}.parquet"
            size, content = self.storage.create(f"{folder}/{name}", lambda file: _write_parquet(frame, file))
            part = Pointer((name,), frame.height, size, content, written_at=now)
            for trial in range(COMMIT_TRIALS):
                old, version = self._read_pointer(folder, broken_is_none=True)
                new = decide(old, part)
                kept = tuple((file, at) for file, at in new.superseded if now - at <= self.grace_seconds)
                new = replace(new, superseded=kept)
                try:
                    self.storage.replace(f"{folder}/{POINTER}", new.to_json().encode(), version)
                    break
                except Conflict:
                    time.sleep(random.uniform(0, 0.05 * (trial + 1)))
            else:
                raise OSError(f"other writers came first {COMMIT_TRIALS} times")
            self._tidy(folder, new, now, part)
        return new

    def _tidy(self, folder: str, pointer: Pointer, now: float, part: Pointer) -> None:
        """Delete what the pointer no longer needs, and what a killed writer left, once the grace period is over.

        A file's age is in its name; its modification time says nothing about when it was superseded.
        """
        known = {POINTER, *pointer.files, *(name for name, _ in pointer.superseded)}
        with suppress(OSError):  # the commit stands; the next write tidies
            for path in self.storage.find(folder):
                name = path.removeprefix(f"{folder}/")
                if name not in known and (name in part.files or _age(name, now) > self.grace_seconds):
                    self.storage.delete(path)

    @contextmanager
    def _writing(self, folder: str) -> Iterator[None]:
        try:
            with self.storage.lock(folder):
                yield
        except OSError as error:
            raise LakeError(
                f"{self.root}/{folder}: cannot be written ({error.strerror or error}); the table stands as it was"
            ) from error


def connect(catalogue: Path) -> duckdb.DuckDBPyConnection:
    """Open the catalogue to read. Raises LakeError if it does not exist.

    The views of a lake in a bucket are readable through this connection; DuckDB elsewhere needs its extension httpfs.
    """
    if not catalogue.exists():
        raise LakeError(f"{catalogue}: no catalogue yet; build a topic first")
    connection = duckdb.connect(str(catalogue), read_only=True)
    attach_storage(connection)
    return connection


def attach_storage(connection: duckdb.DuckDBPyConnection) -> None:
    """Let a connection to a catalogue read the lake that the catalogue was made from."""
    with suppress(duckdb.CatalogException):  # a catalogue made before this view was
        # All rows: DuckDB 2 refuses other work on the connection while a result is left unread.
        for (root,) in connection.execute(f"select root from {LAKE_VIEW}").fetchall():
            open_storage(root).register(connection)


def fingerprint(*parts: Any) -> str:
    """A sha256 over JSON-able parts: equal inputs, equal fingerprint."""
    text = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _table(name: str) -> Table:
    try:
        return TABLES[name]
    except KeyError:
        raise LakeError(f"no table {name}; there are {', '.join(TABLES)}") from None


def _write_parquet(frame: pl.DataFrame, file: IO[bytes]) -> None:
    try:
        frame.write_parquet(file, compression="zstd")
    except pl.exceptions.ComputeError as error:  # a full disk, in polars' words
        raise OSError(str(error).rsplit("IO error: ", 1)[-1]) from error


def _age(name: str, now: float) -> float:
    """Seconds since a part, or a temporary file that never became one, was written; never old for others."""
    try:
        return now - int(name.removeprefix(".").split("-", 1)[0], 16) / 1e9
    except ValueError:
        return float("-inf")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _duckdb_type(dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.List):
        return f"{_duckdb_type(dtype.inner)}[]"  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return "struct(" + ", ".join(f'"{f.name}" {_duckdb_type(f.dtype)}' for f in dtype.fields) + ")"  # type: ignore[arg-type]
    names = {
        pl.String: "varchar",
        pl.Int64: "bigint",
        pl.Float64: "double",
        pl.Boolean: "boolean",
        pl.Datetime: "timestamptz",
    }
    return names[type(dtype)]

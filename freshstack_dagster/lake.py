"""Where tables live: immutable Parquet parts, one pointer a partition, and a DuckDB catalogue of views.

Parquet is the truth. A partition's `_current.json` names its files; replacing that small file is the commit, so a crash
leaves the old table or the new one. Superseded files stay for a grace period, because a reader may still hold them.
The catalogue holds views over the current files only and is swapped in by rename: any number of runs write and any
number of people query at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from freshstack_dagster.errors import LakeError
from freshstack_dagster.tables import TABLES, Table

POINTER = "_current.json"
GRACE_SECONDS = 3600.0


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
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True, order=True)
class Partition:
    """A table's partition: a topic, and for some tables a snapshot."""

    topic: str
    snapshot: str | None = None

    def __str__(self) -> str:
        return self.topic if self.snapshot is None else f"{self.topic} {self.snapshot}"


class Lake:
    """The tables of a project below one directory, and the DuckDB catalogue over them."""

    def __init__(self, root: str | Path, catalogue: Path | None = None, grace_seconds: float = GRACE_SECONDS) -> None:
        self.root = Path(root)
        self.catalogue = catalogue
        self.grace_seconds = grace_seconds

    def folder(self, table: str, topic: str, snapshot: str | None = None) -> Path:
        """The partition's folder. Raises LakeError if the partition does not fit the table."""
        spec = _table(table)
        if ("snapshot" in spec.by) != (snapshot is not None):
            raise LakeError(f"table {table} is partitioned by {' and '.join(spec.by)}; got snapshot {snapshot!r}")
        path = self.root / table / f"topic={topic}"
        return path if snapshot is None else path / f"snapshot={snapshot}"

    def current(self, table: str, topic: str, snapshot: str | None = None) -> Pointer | None:
        """The partition's pointer, or None if it was never written."""
        path = self.folder(table, topic, snapshot) / POINTER
        try:
            return Pointer.from_json(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise LakeError(f"{path}: the pointer cannot be read ({error}); build the partition again") from error

    def paths(self, table: str, topic: str, snapshot: str | None = None) -> list[Path]:
        """The partition's current files. Raises LakeError if it was never written."""
        pointer = self.current(table, topic, snapshot)
        if pointer is None:
            partition = Partition(topic, snapshot)
            raise LakeError(f"table {table} has no partition {partition}; build it first")
        folder = self.folder(table, topic, snapshot)
        return [folder / name for name in pointer.files]

    def scan(self, table: str, topic: str, snapshot: str | None = None) -> pl.LazyFrame:
        """The partition, lazily."""
        paths = self.paths(table, topic, snapshot)
        if not paths:
            return _table(table).empty().lazy()
        return pl.scan_parquet(paths, hive_partitioning=False)

    def read(self, table: str, topic: str, snapshot: str | None = None) -> pl.DataFrame:
        """The partition as a frame, rows in the table's order."""
        return self.scan(table, topic, snapshot).collect()

    def snapshots(self, table: str, topic: str) -> list[str]:
        """The snapshots of a topic for which the table was built, oldest first."""
        return [p.snapshot for p in self.partitions(table) if p.topic == topic and p.snapshot is not None]

    def partitions(self, table: str) -> list[Partition]:
        """Every partition of a table, sorted."""
        pattern = "topic=*/snapshot=*" if "snapshot" in _table(table).by else "topic=*"
        found = []
        for pointer in (self.root / table).glob(f"{pattern}/{POINTER}"):
            values = dict(part.split("=", 1) for part in pointer.parent.relative_to(self.root / table).parts)
            found.append(Partition(**values))
        return sorted(found)

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
        with self._writing(folder) as now:
            name, size, content = _write_part(folder, _table(table).conform(frame), now)
            old = self.current(table, topic, snapshot)
            if old is not None and old.content == content and (folder / old.files[0]).exists():
                (folder / name).unlink()
                new = _replaced(old, inputs=inputs, run=run, notes=notes or {})
            else:
                superseded = () if old is None else (*old.superseded, *((file, now) for file in old.files))
                new = Pointer((name,), frame.height, size, content, inputs, run, now, notes or {}, superseded)
            self._commit(folder, new, now)
        return new

    def append(self, table: str, frame: pl.DataFrame, *, topic: str, run: str = "") -> Pointer:
        """Add rows to a partition as one more part file; for tables that only grow, written by several runs at once."""
        folder = self.folder(table, topic)
        with self._writing(folder) as now:
            name, size, content = _write_part(folder, _table(table).conform(frame), now)
            old = self.current(table, topic) or Pointer((), 0, 0, "")
            digest = hashlib.sha256(f"{old.content}{content}".encode()).hexdigest()
            new = Pointer((*old.files, name), old.rows + frame.height, old.bytes + size, digest, "", run, now)
            self._commit(folder, new, now)
        return new

    def refresh_catalogue(self) -> None:
        """Rebuild the DuckDB file with a view for every table and swap it in by rename."""
        if self.catalogue is None:
            return
        temporary = self.catalogue.with_name(f".{self.catalogue.name}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            self.catalogue.parent.mkdir(parents=True, exist_ok=True)
            with _lock(self.catalogue.with_name(f".{self.catalogue.name}.lock")):
                with duckdb.connect(str(temporary)) as connection:
                    for table in TABLES.values():
                        connection.execute(self._view(table))
                os.replace(temporary, self.catalogue)
        except OSError as error:
            raise LakeError(f"{self.catalogue}: the catalogue cannot be written: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)

    def _view(self, table: Table) -> str:
        files = [str(p.resolve()) for part in self.partitions(table.name) for p in self.paths(table.name, *_key(part))]
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

    @contextmanager
    def _writing(self, folder: Path) -> Iterator[float]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(folder / ".lock"):
                yield time.time()
        except OSError as error:
            raise LakeError(
                f"{folder}: cannot be written ({error.strerror or error}); the table stands as it was"
            ) from error

    def _commit(self, folder: Path, pointer: Pointer, now: float) -> None:
        expired = [name for name, at in pointer.superseded if now - at > self.grace_seconds]
        kept = tuple((name, at) for name, at in pointer.superseded if name not in expired)
        temporary = folder / f".{POINTER}.{secrets.token_hex(4)}"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(_replaced(pointer, superseded=kept).to_json())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / POINTER)
        for name in expired:
            (folder / name).unlink(missing_ok=True)


def connect(catalogue: Path) -> duckdb.DuckDBPyConnection:
    """Open the catalogue to read. Raises LakeError if it does not exist."""
    if not catalogue.exists():
        raise LakeError(f"{catalogue}: no catalogue yet; build a topic first")
    return duckdb.connect(str(catalogue), read_only=True)


def fingerprint(*parts: Any) -> str:
    """A sha256 over JSON-able parts: equal inputs, equal fingerprint."""
    text = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _table(name: str) -> Table:
    try:
        return TABLES[name]
    except KeyError:
        raise LakeError(f"no table {name}; there are {', '.join(TABLES)}") from None


def _key(partition: Partition) -> tuple[str, str | None]:
    return partition.topic, partition.snapshot


def _replaced(pointer: Pointer, **changes: Any) -> Pointer:
    return Pointer(**{**pointer.__dict__, **changes})


def _write_part(folder: Path, frame: pl.DataFrame, now: float) -> tuple[str, int, str]:
    """Write one immutable part; return its name, its size and the sha256 of its bytes."""
    name = f"{int(now * 1e9):x}-{secrets.token_hex(4)}.parquet"
    temporary = folder / f".{name}"
    try:
        with open(temporary, "w+b") as file:
            frame.write_parquet(file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
            file.seek(0)
            content = hashlib.file_digest(file, "sha256").hexdigest()
        os.replace(temporary, folder / name)
    finally:
        temporary.unlink(missing_ok=True)
    return name, size, content


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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

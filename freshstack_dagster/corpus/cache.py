"""The cache of cuts: what a blob was cut into, so that a month costs what changed in it.

A blob's cuts hang on its bytes, the language its path names, the chunker and the token limit; and, through the tokens
of the path that heads each document, on the path. That last one is an interval: an entry serves every path whose head
has between `low` and `high` tokens, and tokens are stored without the head. So a file that moves is found again.

Cuts lie in immutable Parquet shards below one folder a chunker version and limit. A shard is two files:
`….entries.parquet` (a row a blob) and `….cuts.parquet` (a row a chunk, its text included: reading it back costs a
sixth of reading the blob from git and cutting it again, see the benchmark). The entries are written last and by
rename, so a killed run leaves whole shards or none, and any number of runs read and write at once; a blob that two of
them cut at the same time is there twice, equal. The folder may be deleted at any time: that costs the next build its
head start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from freshstack_dagster.corpus.workers import CUT_COLUMNS, Cuts
from freshstack_dagster.errors import CorpusError

log = logging.getLogger(__name__)

ENTRIES = pl.Schema(
    {
        "blob": pl.String(),
        "language_key": pl.String(),
        "low": pl.Int64(),
        "high": pl.Int64(),
        "seconds": pl.Float64(),
        "entry": pl.Int64(),
        "outcome": pl.String(),
        "encoding": pl.String(),
        "language": pl.String(),
        "detail": pl.String(),
        "chunks": pl.Int64(),
    }
)
CUTS = pl.Schema(
    {
        "entry": pl.Int64(),
        **{name: pl.Int64() for name in CUT_COLUMNS[:7]},
        "content_hash": pl.String(),
        "text": pl.String(),
    }
)
# A shard is written when its texts reach this size, so that a killed run loses little.
SHARD_BYTES = 8_000_000


class CutCache:
    """The cache of one chunker version and token limit, below `root`."""

    def __init__(self, root: Path, chunker_version: str, max_tokens: int) -> None:
        safe = "".join(c if c.isalnum() or c in "+.-" else "_" for c in chunker_version)
        self.folder = root / "chunks" / f"{safe}-{max_tokens}"

    def lookup(self, wanted: pl.DataFrame, seconds_per_file: float) -> pl.DataFrame:
        """Rows of `wanted` that have an entry, each once, with the entry's columns and `shard`, the file of its cuts.

        `wanted` has the columns of `matches`. An entry that was given up as text under a time limit shorter than
        `seconds_per_file` does not count.
        """
        none = ENTRIES.to_frame().with_columns(shard=pl.lit(""))
        shards = [entries.with_columns(shard=pl.lit(str(_cuts_of(path)))) for path, entries in self._entries()]
        usable = pl.col("seconds").is_null() | (pl.col("seconds") >= seconds_per_file)
        return matches(wanted, pl.concat([none, *shards]).filter(usable))

    def read(self, shard: str, entries: pl.Series) -> pl.DataFrame:
        """Cuts (columns of `CUTS`) of some entries of a shard. Raises CorpusError if the shard cannot be read."""
        try:
            return pl.scan_parquet(shard).filter(pl.col("entry").is_in(entries.implode())).collect()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise CorpusError(f"{shard}: this part of the cache cannot be read; delete it and build again") from error

    def write(self, entries: pl.DataFrame, cuts: pl.DataFrame) -> None:
        """Write one shard. Raises CorpusError if the folder cannot be written."""
        name = f"{time.time_ns():x}-{secrets.token_hex(4)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(cuts, self.folder / f"{name}.cuts.parquet")
            _write(entries.filter(pl.col("outcome") != "failed"), self.folder / f"{name}.entries.parquet")
        except OSError as error:
            raise CorpusError(f"{self.folder}: the cache cannot be written: {error.strerror or error}") from error

    def _entries(self) -> list[tuple[Path, pl.DataFrame]]:
        for left in self.folder.glob("*.partial"):  # of a run that was killed
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > 86400:
                    left.unlink()
        read = []
        for path in sorted(self.folder.glob("*.entries.parquet")):
            try:
                frame = pl.read_parquet(path)
            except (OSError, pl.exceptions.PolarsError) as error:
                log.warning("%s: skipped, it cannot be read (%s)", path, error)
                continue
            if frame.schema == ENTRIES and _cuts_of(path).exists():
                read.append((path, frame))
        return read


def matches(wanted: pl.DataFrame, entries: pl.DataFrame) -> pl.DataFrame:
    """Rows of `wanted` that an entry serves, each once, with the entry's columns.

    `wanted` has repository, path, blob, language_key, head (tokens of the path head) and any more columns that an
    entry does not have.
    """
    return (
        wanted.join(entries, on=["blob", "language_key"], how="inner", maintain_order="left")
        .filter(pl.col("head").is_between(pl.col("low"), pl.col("high")))
        .unique(["repository", "path"], keep="first", maintain_order=True)
    )


def _cuts_of(entries: Path) -> Path:
    return entries.with_name(entries.name.replace(".entries.", ".cuts."))


def frame_of_entries(results: Sequence[tuple[str, str, Cuts]]) -> pl.DataFrame:
    """Entries (columns of `ENTRIES`) of blob, language key and cuts, numbered from 0."""
    rows: dict[str, list[Any]] = {name: [] for name in ENTRIES}
    for number, (blob, key, cuts) in enumerate(results):
        values = (blob, key, cuts.low, cuts.high, cuts.seconds, number)
        facts = (cuts.outcome, cuts.encoding, cuts.language, cuts.detail, len(cuts.columns[0]))
        for column, value in zip(rows.values(), (*values, *facts), strict=True):
            column.append(value)
    return pl.DataFrame(rows, schema=ENTRIES)


def frame_of_cuts(results: Sequence[Cuts]) -> pl.DataFrame:
    """Cuts (columns of `CUTS`) with tokens counted without the head; `entry` numbers the results from 0."""
    columns: dict[str, list[Any]] = {name: [] for name in CUTS}
    for number, cuts in enumerate(results):
        columns["entry"].extend([number] * len(cuts.columns[0]))
        for name, values in zip(CUT_COLUMNS, cuts.columns, strict=True):
            columns[name].extend(values if name != "tokens" else [tokens - cuts.head for tokens in values])
    return pl.DataFrame(columns, schema=CUTS)


def _write(frame: pl.DataFrame, path: Path) -> None:
    temporary = path.with_name(f"{path.name}.partial")
    try:
        with open(temporary, "wb") as file:
            frame.write_parquet(file, compression="zstd", compression_level=1, row_group_size=2000)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

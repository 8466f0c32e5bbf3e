"""Write records to Parquet files."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any


class ParquetOutlet:
    """Write a folder of Parquet files, a new one every ``roll_rows`` rows (100,000 unless told).

    A file is written under a name that begins with ``.part-`` and renamed when it is complete, so that readers never
    see half a file. ``partition_by`` spreads rows over folders ``key=value``. The schema is that of the first record;
    a later record with another field raises ``ValueError`` unless ``widen=True``, which starts a new file.
    """

    def __init__(self, folder: str | Path, *, roll_rows: int = 100_000, partition_by: str = "", widen: bool = False):
        self.folder, self.roll_rows = Path(folder), roll_rows
        self.partition_by, self.widen = partition_by, widen
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def write(self, record: dict[str, Any]) -> None:
        key = f"{self.partition_by}={record[self.partition_by]}" if self.partition_by else ""
        rows = self._rows.setdefault(key, [])
        if rows and record.keys() != rows[0].keys():
            if not self.widen:
                raise ValueError(f"record has other fields than the first: {sorted(record.keys() ^ rows[0].keys())}")
            self._flush(key)
        self._rows.setdefault(key, []).append(record)
        if len(self._rows[key]) >= self.roll_rows:
            self._flush(key)

    def _flush(self, key: str) -> None:
        import pyarrow
        import pyarrow.parquet as parquet

        rows = self._rows.pop(key, [])
        if not rows:
            return
        folder = self.folder / key
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{uuid.uuid4().hex}.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f".part-{name}")
        os.replace(folder / f".part-{name}", folder / name)

    def close(self) -> None:
        for key in list(self._rows):
            self._flush(key)

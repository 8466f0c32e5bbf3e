"""Records from delimited text."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any, Iterator


class CsvLoader:
    """Yield one dict a row of a CSV file (or ``.csv.gz``).

    ``encoding`` is ``utf-8-sig`` unless told, which takes files with and without a byte order mark. ``dialect`` is
    ``"sniff"`` to guess the delimiter from the first 64 kB, or any of the csv module's. Empty cells come as ``None``
    unless ``keep_empty=True``. A row with too many cells raises ``ValueError`` that names the line; with
    ``ragged="pad"`` surplus cells are put under the key ``_surplus``.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        encoding: str = "utf-8-sig",
        dialect: str = "excel",
        keep_empty: bool = False,
        ragged: str = "raise",
    ) -> None:
        self.path, self.encoding, self.dialect = Path(path), encoding, dialect
        self.keep_empty, self.ragged = keep_empty, ragged
        self.position = 0

    def seek(self, position: int) -> None:
        """Skip rows that an earlier run has seen; called by the mooring."""
        self.position = position

    def __iter__(self) -> Iterator[dict[str, Any]]:
        opener = gzip.open if self.path.suffix == ".gz" else open
        with opener(self.path, "rt", encoding=self.encoding, newline="") as file:
            dialect: Any = self.dialect
            if dialect == "sniff":
                dialect = csv.Sniffer().sniff(file.read(65_536))
                file.seek(0)
            rows = csv.DictReader(file, dialect=dialect, restkey="_surplus")
            for number, row in enumerate(rows):
                if number < self.position:
                    continue
                if "_surplus" in row and self.ragged == "raise":
                    raise ValueError(f"{self.path}, line {rows.line_num}: more cells than the header has")
                self.position = number + 1
                yield row if self.keep_empty else {key: cell if cell != "" else None for key, cell in row.items()}

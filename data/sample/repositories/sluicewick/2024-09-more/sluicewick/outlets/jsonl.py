"""Write records as JSON lines."""

from __future__ import annotations

import gzip
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO


class JsonLinesOutlet:
    """Append one JSON value a line to a file, gzipped if its name ends in ``.gz``.

    Dates become ISO 8601, decimals text, so that no digit is lost. The file is appended to: delete it first if a run is
    meant to begin anew. ``flush`` is called before each checkpoint and does not call fsync; a power failure may take the
    last lines although the checkpoint says they were written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        opener: Any = gzip.open if self.path.suffix == ".gz" else open
        self._file: TextIO = opener(self.path, "at", encoding="utf-8")

    def write(self, record: Any) -> None:
        self._file.write(json.dumps(record, default=_plain, ensure_ascii=False) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")

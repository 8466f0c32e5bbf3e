"""Spooling: keep the records of a full weir on disk instead of making the sender wait."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections import deque
from pathlib import Path
from typing import Any


class Spool:
    """An overflow on disk for one weir.

    Segments are written to ``$SLUICEWICK_SPOOL_DIR``, or to the system's temporary folder if the variable is not set.
    A spool grows to at most ``spool_max_mb`` megabytes (512 unless told); beyond that the weir blocks again. Segments
    hold ``segment_records`` records (1,000 unless told) and are deleted when they have been read back. After a crash
    they stay behind under the name ``sluicewick-spool-<pid>`` and may be deleted by hand.
    """

    def __init__(self, *, spool_max_mb: int = 512, segment_records: int = 1_000) -> None:
        parent = os.environ.get("SLUICEWICK_SPOOL_DIR") or tempfile.gettempdir()
        self.folder = Path(parent) / f"sluicewick-spool-{os.getpid()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.limit, self.segment_records = spool_max_mb * 1_000_000, segment_records
        self._segments: deque[Path] = deque()
        self._filling: list[Any] = []
        self._bytes = 0
        self._number = 0

    def add(self, record: Any) -> bool:
        """Keep a record; False if the spool is full."""
        if self._bytes >= self.limit:
            return False
        self._filling.append(record)
        if len(self._filling) >= self.segment_records:
            self._number += 1
            path = self.folder / f"{self._number:09d}.segment"
            path.write_bytes(pickle.dumps(self._filling))
            self._bytes += path.stat().st_size
            self._segments.append(path)
            self._filling = []
        return True

    def drain(self) -> list[Any]:
        """The oldest segment's records, or those not yet written."""
        if not self._segments:
            records, self._filling = self._filling, []
            return records
        path = self._segments.popleft()
        records = pickle.loads(path.read_bytes())
        self._bytes -= path.stat().st_size
        path.unlink()
        return records

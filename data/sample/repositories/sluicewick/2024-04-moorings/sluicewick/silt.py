"""Silt: records that failed for good, kept to be looked at and run again."""

from __future__ import annotations

import json
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Iterator

from sluicewick.errors import SiltFull


class SiltBox:
    """A folder of JSON lines, one file a flow and day: ``.sluicewick/silt/<flow>/2024-05-01.jsonl``.

    Each line holds ``record``, ``reach``, ``error``, ``traceback`` and ``at``. After ``limit`` records in one run
    (10,000 unless told) ``SiltFull`` is raised and the flow stops, since something is wrong with more than a few
    records; ``limit=None`` lifts it. A record that JSON cannot hold is stored as its ``repr`` with
    ``"opaque": true`` and cannot be replayed.
    """

    def __init__(self, folder: str | Path = ".sluicewick/silt", *, limit: int | None = 10_000) -> None:
        self.folder, self.limit = Path(folder), limit
        self.count = 0

    def add(self, flow: str, record: Any, reach: str, error: BaseException) -> None:
        if self.limit is not None and self.count >= self.limit:
            raise SiltFull(f"{self.count} records of flow {flow!r} failed; the last in {reach!r}: {error}")
        self.count += 1
        now = datetime.now(timezone.utc)
        line: dict[str, Any] = {
            "record": record,
            "reach": reach,
            "error": f"{type(error).__name__}: {error}",
            "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
            "at": now.isoformat(),
        }
        try:
            text = json.dumps(line)
        except TypeError:
            text = json.dumps({**line, "record": repr(record), "opaque": True})
        path = self.folder / flow / f"{now:%Y-%m-%d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def read(self, flow: str) -> Iterator[dict[str, Any]]:
        for path in sorted((self.folder / flow).glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                yield json.loads(line)

    def replay(self, flow: str, pour: Callable[[Iterator[Any]], Any], *, reach: str | None = None) -> int:
        """Pour the kept records again, those of one reach if it is named; files are renamed to ``.replayed`` after.

        Records start at the first reach, not at the one in which they failed. Opaque records are left out.
        """
        kept = [line for line in self.read(flow) if not line.get("opaque") and reach in (None, line["reach"])]
        pour(iter([line["record"] for line in kept]))
        for path in (self.folder / flow).glob("*.jsonl"):
            path.rename(path.with_suffix(".replayed"))
        return len(kept)

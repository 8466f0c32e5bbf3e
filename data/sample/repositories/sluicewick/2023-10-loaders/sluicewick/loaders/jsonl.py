"""Records from JSON lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Iterator


class JsonLinesLoader:
    """Yield the object of each line of a ``.jsonl`` file, plain or gzipped.

    Blank lines are passed over. A line that is not JSON raises ``ValueError`` with its number, or, with
    ``on_bad_line="silt"``, comes through as ``{"_bad_line": text, "_line": number}`` for a reach to deal with.
    """

    def __init__(self, path: str | Path, *, on_bad_line: str = "raise") -> None:
        self.path, self.on_bad_line = Path(path), on_bad_line
        self.position = 0

    def seek(self, position: int) -> None:
        self.position = position

    def __iter__(self) -> Iterator[dict[str, Any]]:
        opener = gzip.open if self.path.suffix == ".gz" else open
        with opener(self.path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if number <= self.position or not line.strip():
                    continue
                self.position = number
                try:
                    yield json.loads(line)
                except ValueError as error:
                    if self.on_bad_line != "silt":
                        raise ValueError(f"{self.path}, line {number}: {error}") from error
                    yield {"_bad_line": line, "_line": number}

"""Print records, for a first look at a flow."""

from __future__ import annotations

import sys
from typing import Any


class ConsoleOutlet:
    """Print every ``nth`` record to standard error, at most ``limit`` of them (20 unless told)."""

    def __init__(self, *, nth: int = 1, limit: int = 20) -> None:
        self.nth, self.limit = nth, limit
        self.seen = 0

    def write(self, record: Any) -> None:
        if self.seen % self.nth == 0 and self.seen // self.nth < self.limit:
            print(record, file=sys.stderr)
        self.seen += 1

    def close(self) -> None:
        print(f"{self.seen} records", file=sys.stderr)

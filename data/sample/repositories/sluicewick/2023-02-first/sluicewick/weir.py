"""Weirs: bounded queues between reaches, and what happens when one is full."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from sluicewick.errors import WeirOverflow

POLICIES = ("block", "shed_oldest", "shed_newest", "raise")


class Weir:
    """Hold at most ``capacity`` records (256 unless told) in front of a reach.

    ``policy`` says what happens to a record that finds the weir full:

    * ``block``: the sender waits. This is the default; it is how back-pressure reaches the loader.
    * ``shed_oldest``: the record that has waited longest is thrown away.
    * ``shed_newest``: the arriving record is thrown away.
    * ``raise``: ``WeirOverflow`` is raised in the sender.

    Shed records are counted in ``weir.shed`` and in the gauge ``sluicewick_weir_shed_total``. They do not become
    silt: shedding is a choice, not a failure.
    """

    def __init__(self, capacity: int = 256, policy: str = "block") -> None:
        if capacity < 1:
            raise ValueError("a weir holds at least one record")
        if policy not in POLICIES:
            raise ValueError(f"unknown weir policy {policy!r}; choose from {', '.join(POLICIES)}")
        self.capacity, self.policy = capacity, policy
        self.shed = 0
        self._records: deque[Any] = deque()
        self._changed = threading.Condition()

    def put(self, record: Any, timeout: float | None = None) -> None:
        with self._changed:
            if len(self._records) >= self.capacity:
                if self.policy == "raise":
                    raise WeirOverflow(f"weir is full at {self.capacity} records")
                if self.policy == "shed_newest":
                    self.shed += 1
                    return
                if self.policy == "shed_oldest":
                    self._records.popleft()
                    self.shed += 1
                elif not self._changed.wait_for(lambda: len(self._records) < self.capacity, timeout):
                    raise TimeoutError("the reach behind the weir does not keep up")
            self._records.append(record)
            self._changed.notify_all()

    def take(self, timeout: float | None = None) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._records), timeout):
                raise TimeoutError("no record came")
            record = self._records.popleft()
            self._changed.notify_all()
            return record

    def __len__(self) -> int:
        return len(self._records)

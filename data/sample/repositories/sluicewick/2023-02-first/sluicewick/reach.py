"""A reach: one step of a flow."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable

from sluicewick.weir import Weir

#: A reach returns this to drop a record without calling it an error.
DROP = object()


@dataclass
class Reach:
    """A function and how it is run.

    Parameters
    ----------
    work:
        Takes one record. Returns a record, a list of records (each goes on by itself), or ``DROP``.
        Returning ``None`` is an error, because it is nearly always a forgotten ``return``.
    lanes:
        How many records are worked on at once. Lanes are threads; with ``lane_kind="process"`` they are processes,
        and then ``work`` and its records must be picklable.
    ordered:
        Whether records leave in the order in which they came. With more than one lane this costs a reorder buffer
        of ``lanes * 16`` records; a slow record holds back those behind it.
    retries:
        How often a failing record is tried again before it becomes silt.
    retry_wait, retry_cap:
        Seconds before the first repeat, doubled at each further one, never above ``retry_cap``. A random tenth is
        added so that lanes do not repeat in step.
    retry_on:
        Exception classes worth a repeat. Others go to the silt at once.
    """

    work: Callable[[Any], Any]
    name: str = ""
    lanes: int = 1
    lane_kind: str = "thread"
    ordered: bool = True
    retries: int = 2
    retry_wait: float = 0.5
    retry_cap: float = 20.0
    retry_on: tuple[type[BaseException], ...] = (OSError, TimeoutError)
    weir: Weir = field(default_factory=Weir)

    def __post_init__(self) -> None:
        self.name = self.name or self.work.__name__
        if self.lanes < 1:
            raise ValueError(f"reach {self.name!r}: lanes must be at least 1, not {self.lanes}")
        if self.lane_kind not in ("thread", "process"):
            raise ValueError(f"reach {self.name!r}: lane_kind is 'thread' or 'process'")

    def attempt(self, record: Any) -> Iterable[Any]:
        """Run the work on one record, with repeats; the last failure is raised."""
        for turn in range(self.retries + 1):
            try:
                result = self.work(record)
            except self.retry_on:
                if turn == self.retries:
                    raise
                time.sleep(self.pause(turn))
                continue
            if result is None:
                raise TypeError(f"reach {self.name!r} returned None; return the record, a list, or DROP")
            if result is DROP:
                return []
            return result if isinstance(result, list) else [result]
        raise AssertionError("unreachable")

    def pause(self, turn: int) -> float:
        wait = min(self.retry_wait * 2**turn, self.retry_cap)
        return wait * (1 + random.random() / 10)

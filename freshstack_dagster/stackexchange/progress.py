"""How far a long read has come: bytes, rate and time left, as a value and as one line."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A moment of a long read: bytes done and in all, and seconds since its start."""

    done: int
    total: int
    seconds: float
    stage: str = "reading"

    @property
    def rate(self) -> float:
        """Bytes a second so far."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end at this rate, None while there is no rate."""
        return (self.total - self.done) / self.rate if self.rate else None

    def __str__(self) -> str:
        left = "unknown time" if self.seconds_left is None else _duration(self.seconds_left)
        unit, size = ("GB", 1e9) if self.total >= 1e8 else ("MB", 1e6)
        done = f"{self.done / size:.2f} of {self.total / size:.2f} {unit}"
        return f"{self.stage}: {done}, {self.rate / 1e6:.0f} MB/s, {left} left"


ProgressCallback = Callable[[Progress], None]


class Meter:
    """Calls `progress` with the state of a read, at most once in `every` seconds and at its end."""

    def __init__(self, progress: ProgressCallback | None, total: int, stage: str, every: float = 1.0) -> None:
        self._progress = progress
        self._total = total
        self._stage = stage
        self._every = every
        self._started = self._told = time.monotonic()

    def at(self, done: int, *, last: bool = False) -> None:
        """Report that `done` bytes are read."""
        now = time.monotonic()
        if self._progress is not None and (last or now - self._told >= self._every):
            self._told = now
            self._progress(Progress(min(done, self._total), self._total, now - self._started, self._stage))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"

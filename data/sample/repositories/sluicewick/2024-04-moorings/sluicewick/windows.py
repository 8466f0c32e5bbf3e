"""Windows: group records by time."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Iterator

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class TumblingWindow:
    """Windows of one length that do not overlap.

    Windows are aligned to midnight UTC of 1970-01-01, not to the first record, so that a flow that starts again makes
    the same windows; ``offset`` shifts them, for instance by six hours for a trading day. A window is handed on when a
    record arrives that is later than its end by more than ``lateness`` (zero unless told). Records that come after
    that are *late*: they are dropped and counted in ``sluicewick_window_late_total``, unless ``late="silt"``.
    """

    def __init__(
        self,
        length: timedelta,
        *,
        at: Callable[[Any], datetime],
        lateness: timedelta = timedelta(0),
        offset: timedelta = timedelta(0),
        late: str = "drop",
    ) -> None:
        self.length, self.at, self.lateness, self.offset, self.late = length, at, lateness, offset, late
        self._open: dict[datetime, list[Any]] = defaultdict(list)
        self._latest = EPOCH
        self.late_count = 0

    def start_of(self, when: datetime) -> datetime:
        if when.tzinfo is None:
            raise ValueError("window times must have a zone; a naive datetime is ambiguous")
        return EPOCH + self.offset + (when - EPOCH - self.offset) // self.length * self.length

    def __call__(self, record: Any) -> list[tuple[datetime, list[Any]]]:
        when = self.at(record)
        start = self.start_of(when)
        self._latest = max(self._latest, when)
        if start + self.length + self.lateness <= self._latest and start not in self._open:
            self.late_count += 1
            if self.late == "silt":
                raise ValueError(f"record of {when.isoformat()} came after its window had closed")
            return []
        self._open[start].append(record)
        return list(self._closed())

    def _closed(self) -> Iterator[tuple[datetime, list[Any]]]:
        for start in sorted(self._open):
            if start + self.length + self.lateness <= self._latest:
                yield start, self._open.pop(start)

    def flush(self) -> list[tuple[datetime, list[Any]]]:
        """What is still open, at the end of the flow."""
        left = sorted(self._open.items())
        self._open.clear()
        return left


class SessionWindow:
    """Windows that end after a pause.

    Records of one ``key`` belong to a session as long as the pause between two of them is at most ``gap`` (30 minutes
    unless told). A session is cut after ``longest`` (24 hours unless told) even without a pause, so that a client that
    never rests cannot fill the memory. Sessions live in memory only: they are not part of a checkpoint, and a flow
    that resumes begins new ones.
    """

    def __init__(
        self,
        *,
        key: Callable[[Any], str],
        at: Callable[[Any], datetime],
        gap: timedelta = timedelta(minutes=30),
        longest: timedelta = timedelta(hours=24),
    ) -> None:
        self.key, self.at, self.gap, self.longest = key, at, gap, longest
        self._open: dict[str, list[Any]] = {}

    def __call__(self, record: Any) -> list[tuple[str, list[Any]]]:
        key, when = self.key(record), self.at(record)
        session = self._open.get(key)
        if session and (when - self.at(session[-1]) > self.gap or when - self.at(session[0]) > self.longest):
            self._open[key] = [record]
            return [(key, session)]
        self._open.setdefault(key, []).append(record)
        return []

    def flush(self) -> list[tuple[str, list[Any]]]:
        left = sorted(self._open.items())
        self._open.clear()
        return left

"""Session windows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Callable


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

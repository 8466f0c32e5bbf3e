"""Tides: schedules for flows."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Iterator
from zoneinfo import ZoneInfo

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass
class Tide:
    """When a flow runs.

    Make one with ``Tide.every("15m")`` or ``Tide.cron("0 6 * * 1-5", zone="Europe/Oslo")``. A cron tide without
    ``zone`` ticks in UTC. ``catch_up`` says what happens to ticks that passed while the process was down: ``"last"``
    (the default) runs once for the latest of them, ``"all"`` runs once for each, ``"none"`` waits for the next.
    ``overlap=False`` (the default) skips a tick while the previous run is still going on, and counts it in
    ``sluicewick_tide_skipped_total``.
    """

    expression: str
    zone: str = "UTC"
    catch_up: str = "last"
    overlap: bool = False

    @classmethod
    def every(cls, interval: str, **settings: Any) -> "Tide":
        if not re.fullmatch(r"\d+[smhd]", interval):
            raise ValueError(f"interval {interval!r}: a number and one of s, m, h, d, such as '15m'")
        return cls(f"@every {interval}", **settings)

    @classmethod
    def cron(cls, expression: str, *, zone: str = "UTC", **settings: Any) -> "Tide":
        if len(expression.split()) != 5:
            raise ValueError(f"cron expression {expression!r} must have five fields; seconds are not supported")
        return cls(expression, zone, **settings)

    def ticks(self, after: datetime) -> Iterator[datetime]:
        """Ticks after a moment. A time that the clock skips in spring is left out, one that comes twice in autumn
        ticks at its first occurrence only."""
        if self.expression.startswith("@every"):
            number, unit = re.findall(r"(\d+)([smhd])", self.expression)[0]
            step = timedelta(seconds=int(number) * UNITS[unit])
            while True:
                after += step
                yield after
        minute = after.astimezone(ZoneInfo(self.zone)).replace(second=0, microsecond=0)
        seen: set[str] = set()
        while True:
            minute = (minute.astimezone(timezone.utc) + timedelta(minutes=1)).astimezone(ZoneInfo(self.zone))
            wall = minute.strftime("%Y-%m-%d %H:%M")
            if wall not in seen and all(
                _matches(field, value) for field, value in zip(self.expression.split(), _fields(minute))
            ):
                seen.add(wall)
                yield minute

    def run(self, build: Callable[[], Any], source: Callable[[datetime], Any]) -> None:
        """Run for ever: at each tick, build a new flow and pour ``source(tick)`` into it."""
        for tick in self.ticks(datetime.now(timezone.utc)):
            time.sleep(max(0.0, (tick - datetime.now(timezone.utc)).total_seconds()))
            build().pour(source(tick))


def _fields(when: datetime) -> tuple[int, ...]:
    return when.minute, when.hour, when.day, when.month, when.isoweekday() % 7


def _matches(field: str, value: int) -> bool:
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        first, last = (0, 59) if span == "*" else (int(low), int(high or low))
        if first <= value <= last and (value - first) % int(step or 1) == 0:
            return True
    return False

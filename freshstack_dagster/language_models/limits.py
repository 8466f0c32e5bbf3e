"""Requests and tokens a minute: a bucket that fills steadily, so that a provider's rate limit is not met by 429s."""

from __future__ import annotations

import asyncio
import time

# A bucket holds this share of a minute, so that a start or a pause is not followed by a burst.
_BURST_MINUTES = 0.1


class RateLimit:
    """Lets `per_minute` units pass a minute, first come first served; `None` lets everything pass."""

    def __init__(self, per_minute: int | None) -> None:
        self._rate = None if per_minute is None else per_minute / 60
        self._capacity = 0.0 if per_minute is None else max(1.0, per_minute * _BURST_MINUTES)
        self._level = self._capacity
        self._at = time.monotonic()
        self._turn = asyncio.Lock()

    async def take(self, amount: float = 1) -> None:
        """Wait until `amount` units may pass. More than the bucket holds passes from a full one, on credit."""
        if self._rate is None:
            return
        async with self._turn:
            while True:
                now = time.monotonic()
                self._level = min(self._capacity, self._level + (now - self._at) * self._rate)
                self._at = now
                short = min(amount, self._capacity) - self._level
                if short <= 0:
                    self._level -= amount
                    return
                await asyncio.sleep(short / self._rate)

"""Lanes by key: records of one key go to the same lane, so that their order is kept without a reorder buffer."""

from __future__ import annotations

from typing import Any, Callable
from zlib import crc32


def lane_of(key: Callable[[Any], str], lanes: int) -> Callable[[Any], int]:
    """The lane of a record: CRC-32 of its key, modulo the number of lanes."""
    return lambda record: crc32(key(record).encode()) % lanes

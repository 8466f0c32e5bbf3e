"""Quotas: stop a flow after so many records or bytes."""

from __future__ import annotations

from typing import Any, Iterable, Iterator


def first(source: Iterable[Any], records: int) -> Iterator[Any]:
    """The first records of a source; the source is closed afterwards."""
    for number, record in enumerate(source):
        if number >= records:
            return
        yield record

"""Helpers for testing flows."""

from __future__ import annotations

from typing import Any, Callable, Iterable


def run_dry(build: Callable[[], Any], records: Iterable[Any]) -> list[Any]:
    """Run a flow over records in the calling thread and return what would have been written.

    Lanes, weirs, repeats and pauses are left out, so a test is fast and its traceback short: the first exception is
    raised instead of becoming silt. Outlets are not called.
    """
    current = list(records)
    for reach in build().reaches:
        current = [result for record in current for result in reach.attempt(record)]
    return current


class FrozenTide:
    """A tide that ticks when the test says so: ``tide.tick()``."""

    def __init__(self) -> None:
        self.ticked = 0

    def tick(self) -> int:
        self.ticked += 1
        return self.ticked


class FaultyReach:
    """Wrap a reach's function so that it fails at chosen calls: ``FaultyReach(work, fail_at={2, 5})``."""

    def __init__(self, work: Callable[[Any], Any], fail_at: set[int], error: type[Exception] = OSError) -> None:
        self.work, self.fail_at, self.error = work, fail_at, error
        self.calls = 0
        self.__name__ = getattr(work, "__name__", "faulty")

    def __call__(self, record: Any) -> Any:
        self.calls += 1
        if self.calls in self.fail_at:
            raise self.error(f"planned failure at call {self.calls}")
        return self.work(record)

"""Flows: a loader, reaches in a row, outlets."""

from __future__ import annotations

import logging
import queue
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Iterator

from sluicewick.errors import FlowClosed, SluicewickError
from sluicewick.reach import Reach
from sluicewick.weir import Weir

log = logging.getLogger("sluicewick.flow")

#: Put into a weir when no further record will come.
_END = object()


@dataclass
class FlowReport:
    """What a flow did.

    ``seen`` counts records that the loader gave, ``written`` those that reached every outlet, ``silted`` those that
    failed for good, ``shed`` those that a weir threw away, ``skipped`` those that a mooring knew already. The sum of
    the last four is at least ``seen``; it is more when a reach returns lists.
    """

    name: str
    seen: int = 0
    written: int = 0
    silted: int = 0
    shed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    by_reach: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Records seen per second."""
        return self.seen / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.seen} seen, {self.written} written, {self.silted} silted, "
            f"{self.shed} shed in {self.seconds:.1f} s"
        )


class Flow:
    """A named chain of reaches.

    Parameters
    ----------
    name:
        Letters, digits, ``-`` and ``_``. Moorings, gauges and the silt box are filed under it, so two flows that run
        at the same time must not share a name.
    drain_timeout:
        Seconds that the flow waits for records still under way when it is asked to stop (``stop()``, SIGTERM or
        SIGINT). 30 unless told. Records that are not through by then are given back: with a mooring they are read
        again next time, without one they are lost, and the report says how many.
    weir:
        The weir in front of reaches that name none of their own.
    """

    def __init__(self, name: str, *, drain_timeout: float = 30.0, weir: Callable[[], Weir] = Weir) -> None:
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"flow name {name!r}: use letters, digits, '-' and '_'")
        self.name = name
        self.drain_timeout = drain_timeout
        self.reaches: list[Reach] = []
        self.outlets: list[Any] = []
        self._weir = weir
        self._stop = threading.Event()
        self._closed = False

    # -- building ---------------------------------------------------------------------------------------------------

    def reach(self, work: Callable[[Any], Any] | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Add a reach; as a decorator or as a call. Settings are those of :class:`sluicewick.reach.Reach`."""

        def add(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
            settings.setdefault("weir", self._weir())
            reach = Reach(work, **settings)
            if any(reach.name == other.name for other in self.reaches):
                raise ValueError(f"flow {self.name!r} has a reach {reach.name!r} already; give it another name=")
            self.reaches.append(reach)
            return work

        return add if work is None else add(work)

    def outlet(self, outlet: Any) -> None:
        """Add an outlet. With several, a record counts as written when all of them have taken it."""
        self.outlets.append(outlet)

    def fingerprint(self) -> str:
        """Names of the reaches in order. A mooring stores it, to notice that the flow has changed."""
        return ">".join(reach.name for reach in self.reaches)

    # -- running ----------------------------------------------------------------------------------------------------

    def pour(self, source: Iterable[Any]) -> FlowReport:
        """Run the flow over every record of ``source`` and return the report.

        A flow is poured once; a second call raises ``FlowClosed``. Failing records become silt and do not stop the
        flow. An exception of the loader itself stops it, after the records under way are through.
        """
        if self._closed:
            raise FlowClosed(f"flow {self.name!r} was poured already; build a new one")
        if not self.reaches:
            raise SluicewickError(f"flow {self.name!r} has no reach")
        self._closed = True
        report = FlowReport(self.name)
        begun = time.monotonic()
        threads = [
            threading.Thread(target=self._run_reach, args=(number, report), name=f"{self.name}/{reach.name}")
            for number, reach in enumerate(self.reaches)
        ]
        for thread in threads:
            thread.start()
        try:
            for record in source:
                if self._stop.is_set():
                    break
                report.seen += 1
                self.reaches[0].weir.put(record)
        finally:
            self.reaches[0].weir.put(_END)
            deadline = time.monotonic() + self.drain_timeout
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()) if self._stop.is_set() else None)
            for outlet in self.outlets:
                outlet.close()
            report.shed = sum(reach.weir.shed for reach in self.reaches)
            report.seconds = time.monotonic() - begun
        log.info("%s", report)
        return report

    def stop(self) -> None:
        """Ask the flow to drain: no further record is read, those under way get ``drain_timeout`` seconds."""
        self._stop.set()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _run_reach(self, number: int, report: FlowReport) -> None:
        reach = self.reaches[number]
        pool_type = ThreadPoolExecutor if reach.lane_kind == "thread" else ProcessPoolExecutor
        with pool_type(reach.lanes) as pool:
            pending: "queue.Queue[tuple[Any, Future[Any]]]" = queue.Queue(maxsize=reach.lanes * 16)
            sender = threading.Thread(target=self._send_on, args=(number, pending, report))
            sender.start()
            while True:
                record = reach.weir.take()
                if record is _END:
                    break
                pending.put((record, pool.submit(reach.attempt, record)))
            pending.put((_END, Future()))
            sender.join()

    def _send_on(self, number: int, pending: Any, report: FlowReport) -> None:
        reach = self.reaches[number]
        last = number + 1 == len(self.reaches)
        for record, future in self._in_order(pending, reach.ordered):
            try:
                results = future.result()
            except Exception as error:  # noqa: BLE001
                report.silted += 1
                self._silt(record, reach, error)
                continue
            report.by_reach[reach.name] = report.by_reach.get(reach.name, 0) + 1
            for result in results:
                if last:
                    for outlet in self.outlets:
                        outlet.write(result)
                    report.written += 1
                else:
                    self.reaches[number + 1].weir.put(result)
        if not last:
            self.reaches[number + 1].weir.put(_END)

    @staticmethod
    def _in_order(pending: Any, ordered: bool) -> Iterator[tuple[Any, "Future[Any]"]]:
        waiting: list[tuple[Any, "Future[Any]"]] = []
        ended = False
        while not ended or waiting:
            if not ended:
                record, future = pending.get()
                if record is _END:
                    ended = True
                else:
                    waiting.append((record, future))
            if ordered:
                while waiting and (ended or waiting[0][1].done()):
                    yield waiting.pop(0)
            else:
                done = [pair for pair in waiting if ended or pair[1].done()]
                waiting = [pair for pair in waiting if pair not in done]
                yield from done

    def _silt(self, record: Any, reach: Reach, error: Exception) -> None:
        log.warning("%s: record failed in %s: %s", self.name, reach.name, error)

"""The hard cap: no call leaves that could take the spending of a run or a month over it.

Each call reserves its upper bound (all tokens in with a margin, all tokens out that it may write) before it is sent and
settles the true price afterwards. Reservations and prices stand in a ledger a month, one JSON line each, under a file
lock, so any number of processes share a cap and a killed one leaves its open calls counted at their upper bound.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from freshstack_dagster.errors import BudgetError, ModelError
from freshstack_dagster.settings import Budget

_EPSILON = 1e-9


@dataclass(frozen=True)
class Reservation:
    """Money set aside for one call; `month` names the ledger that it stands in."""

    id: str
    month: str
    dollars: float


@dataclass
class Totals:
    """Dollars in one ledger: settled, and reserved for calls that have no answer yet; the same for each run."""

    settled: float = 0.0
    unconfirmed: float = 0.0
    open_dollars: float = 0.0
    reserved: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_run: dict[str, float] = field(default_factory=dict)

    @property
    def spent(self) -> float:
        """Everything that is or may have to be paid."""
        return self.settled + self.open_dollars

    def spent_by(self, run: str) -> float:
        """The same for one run."""
        return self.by_run.get(run, 0.0)

    def add(self, entry: dict[str, Any]) -> None:
        """Take in one line of the ledger."""
        if "reserved" in entry:
            dollars, run = float(entry["reserved"]), entry.get("run", "")
            self.reserved[entry["id"]] = entry
            self.open_dollars += dollars
            self.by_run[run] = self.by_run.get(run, 0.0) + dollars
        elif entry["id"] in self.reserved:
            # A second settlement of one call (two processes read one batch) finds no reservation and adds nothing.
            opened = self.reserved.pop(entry["id"])
            reserved, run = float(opened["reserved"]), opened.get("run", "")
            dollars = float(entry["dollars"])
            self.open_dollars = self.open_dollars - reserved if self.reserved else 0.0
            self.settled += dollars
            self.by_run[run] += dollars - reserved
            if entry.get("unconfirmed"):
                self.unconfirmed += dollars


class Ledger:
    """One month's spending below a folder: `YYYY-MM.jsonl`."""

    def __init__(self, folder: Path, month: str) -> None:
        self.month = month
        self.path = folder / f"{month}.jsonl"
        self.totals = Totals()
        self._read_to = 0

    @contextmanager
    def locked(self) -> Iterator[IO[bytes]]:
        """The ledger, locked, read to its end, open for one more line."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "a+b")  # noqa: SIM115
        except OSError as error:
            raise ModelError(f"{self.path}: the ledger cannot be written: {error.strerror}") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._read(file)
            yield file

    def write(self, file: IO[bytes], entry: dict[str, Any]) -> None:
        """Add a line to the locked ledger."""
        line = json.dumps(entry, sort_keys=True).encode() + b"\n"
        file.write(line)
        file.flush()
        self._read_to += len(line)
        self.totals.add(entry)

    def refresh(self) -> Totals:
        """The totals as they stand now; a ledger that does not exist is empty."""
        if self.path.exists():
            with self.locked():
                pass
        return self.totals

    def _read(self, file: IO[bytes]) -> None:
        file.seek(self._read_to)
        lines = file.read()
        if lines and not lines.endswith(b"\n"):
            # A process was killed in the middle of a line: end it, so that the next entry stands on its own.
            file.write(b"\n")
            file.flush()
            lines += b"\n"
        self._read_to += len(lines)
        for line in lines.splitlines():
            try:
                self.totals.add(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue


class Spending:
    """Guards the caps of one run and the month. `folder` holds the ledgers."""

    def __init__(self, folder: Path, budget: Budget, run: str) -> None:
        self.run = run
        self.unconfirmed = 0.0
        self._folder = folder
        self._budget = budget
        self._ledgers: dict[str, Ledger] = {}
        self._open: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def capped(self) -> bool:
        """Whether any cap is set."""
        return self._budget.per_run is not None or self._budget.per_month is not None

    async def reserve(self, dollars: float, about: dict[str, Any]) -> Reservation:
        """Set `dollars` aside for a call; near the cap, wait until calls of this process have settled.

        Raises BudgetError if the cap leaves no room for the call.
        """
        while True:
            reservation, refusal = self._try(dollars, about)
            if reservation is not None:
                return reservation
            if not self._open:
                raise BudgetError(refusal)
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def try_reserve(self, dollars: float, about: dict[str, Any]) -> Reservation | None:
        """Set `dollars` aside if they fit at once."""
        return self._try(dollars, about)[0]

    def adopt(self, reservation: Reservation) -> None:
        """Take over a reservation of an earlier process, whose call this one collects."""
        self._open.add(reservation.id)

    def release_unsent(self, sent: set[str]) -> None:
        """Give back what killed processes of this machine set aside for batches that they never sent.

        `sent` are the reservations that stand in a batch's file of state, which is written before a batch is sent.
        """
        for month in _months():
            for id_, entry in list(self._ledger(month).refresh().reserved.items()):
                here = entry.get("host") == socket.gethostname()
                if entry.get("batch") and id_ not in sent and here and not _alive(entry.get("pid")):
                    self.settle(Reservation(id_, month, 0.0), 0.0)

    def settle(self, reservation: Reservation, dollars: float, *, unconfirmed: bool = False) -> None:
        """Book the price of a call; `unconfirmed` for one whose answer never came and that may be billed."""
        self._open.discard(reservation.id)
        ledger = self._ledger(reservation.month)
        with ledger.locked() as file:
            if reservation.id in ledger.totals.reserved:
                entry: dict[str, Any] = {"id": reservation.id, "dollars": dollars}
                ledger.write(file, {**entry, "unconfirmed": True} if unconfirmed else entry)
                self.unconfirmed += dollars if unconfirmed else 0.0
        for waiting in self._waiting:
            if not waiting.done():
                waiting.get_loop().call_soon_threadsafe(_wake, waiting)
        self._waiting.clear()

    def spent_by_run(self) -> float:
        """Dollars of this run, calls without an answer at their upper bound."""
        return sum(self._ledger(month).refresh().spent_by(self.run) for month in _months())

    def spent_in_month(self) -> float:
        """Dollars of this month (UTC), all runs."""
        return self._ledger(_months()[1]).refresh().spent

    def _try(self, dollars: float, about: dict[str, Any]) -> tuple[Reservation | None, str]:
        before, month = _months()
        earlier = self._ledger(before).refresh().spent_by(self.run)
        ledger = self._ledger(month)
        with ledger.locked() as file:
            refusal = self._refusal(dollars, earlier + ledger.totals.spent_by(self.run), ledger.totals.spent, month)
            if refusal:
                return None, refusal
            reservation = Reservation(secrets.token_hex(8), month, dollars)
            at = datetime.now(UTC).isoformat(timespec="seconds")
            who = {"run": self.run, "at": at, "host": socket.gethostname(), "pid": os.getpid()}
            ledger.write(file, {"id": reservation.id, "reserved": dollars, **who, **about})
        self._open.add(reservation.id)
        return reservation, ""

    def _refusal(self, dollars: float, by_run: float, by_month: float, month: str) -> str:
        for what, cap, spent, key, go_on in (
            ("this run", self._budget.per_run, by_run, "per_run", "run again"),
            (f"month {month}", self._budget.per_month, by_month, "per_month", "run again next month"),
        ):
            if cap is not None and spent + dollars > cap + _EPSILON:
                return (
                    f"spending cap reached: {what} has spent ${spent:.4f} of ${cap:.2f} (calls without an answer count "
                    f"in full) and the next call may cost up to ${dollars:.4f}; raise budget.{key} in the topic or "
                    f"{go_on}: replies are cached, only the rest is paid"
                )
        return ""

    def _ledger(self, month: str) -> Ledger:
        return self._ledgers.setdefault(month, Ledger(self._folder, month))


def _alive(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, TypeError, ValueError):
        return True
    return True


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _months() -> tuple[str, str]:
    """The month before this one and this one, in UTC: a run may cross midnight of the first."""
    now = datetime.now(UTC)
    before = f"{now.year - (now.month == 1)}-{(now.month - 2) % 12 + 1:02d}"
    return before, f"{now.year}-{now.month:02d}"

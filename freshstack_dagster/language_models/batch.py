"""Batch APIs behind the same call: requests gather, are sent as one batch, and each gets its result or its error.

Before a batch is sent, its file of state is written: the tag, the keys, the reservations. So a process that is killed
at any moment is followed by one that finds the batch again, by the id in the file or by asking the provider for the
tag, and pays nothing twice. Custom ids are cache keys: results come in any order and are matched by them.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from freshstack_dagster.errors import ModelError
from freshstack_dagster.language_models.budget import Reservation
from freshstack_dagster.language_models.providers import BatchApi, Fault
from freshstack_dagster.language_models.replies import Reply
from freshstack_dagster.language_models.request import Asked, Request

log = logging.getLogger(__name__)

_SUBMIT_TRIES = 4
_LOST_POLLS = 60


@dataclass(frozen=True)
class Item:
    """One request of a batch as its file of state keeps it."""

    asked: Asked
    reservation: Reservation | None


@dataclass
class OpenBatch:
    """A batch that is being sent or waited for; `batch` is the provider's id once it is known."""

    path: Path
    tag: str
    who: str
    submitted_at: float
    items: dict[str, Item]
    batch: str | None = None

    def write(self) -> None:
        """Write the file of state, beside and renamed."""
        document = {
            "tag": self.tag,
            "who": self.who,
            "submitted_at": self.submitted_at,
            "batch": self.batch,
            "items": {key: asdict(item) for key, item in self.items.items()},
        }
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(document, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as error:
            raise ModelError(f"{self.path}: the batch's state cannot be written: {error.strerror}") from error

    @classmethod
    def read(cls, path: Path) -> OpenBatch | None:
        """Read a file of state; None if it is gone, which means that the batch was collected."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: the batch's state cannot be read ({error}); delete it to send anew") from None
        items = {
            key: Item(Asked(**item["asked"]), Reservation(**item["reservation"]) if item["reservation"] else None)
            for key, item in document["items"].items()
        }
        return cls(path, document["tag"], document["who"], document["submitted_at"], items, document["batch"])

    @property
    def lock(self) -> Path:
        """Held by the process that sends the batch, until the id is in the file."""
        return self.path.with_suffix(".lock")


Got = Reply | Fault


@dataclass
class _Waiting:
    request: Request
    item: Item
    answer: asyncio.Future[Got]


@dataclass
class Gatherer:
    """Gathers the requests of one role in one event loop into batches and collects what comes back.

    `who` is provider, model and address: only batches of the same are taken up again. `collected` is called once for
    each request of a batch, asked for by this process or not, to cache, settle and record; it returns what to hand on.
    `wait_seconds` bounds the wait for a batch; the next run then collects it.
    """

    api: BatchApi
    folder: Path
    who: str
    where: str
    collected: Callable[[str, Item, Got, float], Got]
    adopt: Callable[[Reservation], None]
    release_unsent: Callable[[Path], None]
    say: Callable[[str], None]
    gather_seconds: float
    poll_seconds: float
    wait_seconds: float | None
    _queue: dict[str, _Waiting] = field(default_factory=dict)
    _open: dict[str, OpenBatch] = field(default_factory=dict)
    _ready: asyncio.Task[None] | None = None
    _asked: dict[str, list[asyncio.Future[Got]]] = field(default_factory=dict)
    _following: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _sending: set[asyncio.Task[None]] = field(default_factory=set)
    _flush: asyncio.Task[None] | None = None
    _added_at: float = 0.0

    async def ready(self) -> None:
        """Take up the batches that earlier processes left open; those that were never sent are dropped."""
        if self._ready is None:
            self._ready = asyncio.create_task(self._take_up())
        await asyncio.shield(self._ready)

    def knows(self, key: str) -> bool:
        """Whether an open batch already holds the request."""
        return key in self._open

    async def ask(self, key: str, request: Request, item: Item) -> Got:
        """The reply to a request, after its batch has ended."""
        answer: asyncio.Future[Got] = asyncio.get_running_loop().create_future()
        batch = self._open.get(key)
        if batch is not None:
            self._asked.setdefault(key, []).append(answer)
            self._follow(batch)
        else:
            self._queue[key] = _Waiting(request, item, answer)
            self._added_at = time.monotonic()
            if self._flush is None or self._flush.done():
                self._flush = asyncio.create_task(self._gather())
        return await answer

    async def _take_up(self) -> None:
        self.release_unsent(self.folder)
        for batch in read_open(self.folder):
            if batch.who == self.who and await self._find_again(batch):
                for item in batch.items.values():
                    if item.reservation is not None:
                        self.adopt(item.reservation)
                self._open.update(dict.fromkeys(batch.items, batch))
                self.say(f"took up batch {batch.batch} of {len(batch.items)} requests")

    async def _gather(self) -> None:
        while self._queue:
            while (rest := self._added_at + self.gather_seconds - time.monotonic()) > 0:
                await asyncio.sleep(rest)
            waiting, self._queue = self._queue, {}
            for part in self._parts(waiting):
                task = asyncio.create_task(self._send(part))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    def _parts(self, waiting: dict[str, _Waiting]) -> Iterator[dict[str, _Waiting]]:
        part: dict[str, _Waiting] = {}
        size = 0
        for key, one in waiting.items():
            bytes_ = len(json.dumps(self.api.body(one.request))) + 256
            if part and (len(part) >= self.api.max_requests or size + bytes_ > self.api.max_bytes):
                yield part
                part, size = {}, 0
            part[key] = one
            size += bytes_
        if part:
            yield part

    async def _send(self, part: dict[str, _Waiting]) -> None:
        tag = f"freshstack-{secrets.token_hex(8)}"
        batch = OpenBatch(
            self.folder / f"{tag}.json", tag, self.who, time.time(), {key: one.item for key, one in part.items()}
        )
        for key, one in part.items():
            self._asked.setdefault(key, []).append(one.answer)
        sent = False
        try:
            async with _locked(batch.lock):
                batch.write()
                sent = True
                batch.batch = await self._submit(batch, {key: one.request for key, one in part.items()})
                batch.write()
            self._open.update(dict.fromkeys(batch.items, batch))
        except Fault as fault:
            # Nothing was taken in: the requests are free to be sent again.
            self._deliver(batch, dict.fromkeys(batch.items, fault), 0.0)
            self._forget(batch)
            return
        except Exception as error:
            self._fail(batch, error)
            if not sent:
                self._release(batch, str(error))
                self._forget(batch)
            # Else the provider may have it: the file of state stays, and the next run finds the batch by its tag.
            return
        self.say(f"sent batch {batch.batch} of {len(part)} requests")
        self._follow(batch)

    async def _submit(self, batch: OpenBatch, requests: dict[str, Request]) -> str:
        for number in range(_SUBMIT_TRIES):
            try:
                return await self.api.submit(requests, batch.tag)
            except Fault as fault:
                # The provider may have got it: look before sending again.
                await asyncio.sleep(min(self.poll_seconds, 2.0**number))
                found = await self.api.find(set(batch.items), batch.tag, batch.submitted_at)
                if found is not None:
                    return found
                if number == _SUBMIT_TRIES - 1 or fault.kind != "transport":
                    raise
        raise AssertionError("unreachable")

    def _follow(self, batch: OpenBatch) -> None:
        if batch.tag not in self._following:
            self._following[batch.tag] = asyncio.create_task(self._collect(batch))

    async def _collect(self, batch: OpenBatch) -> None:
        try:
            results = await self._wait(batch)
            unknown = set(results) - set(batch.items)
            if unknown:
                log.warning("%s: batch %s returned %d ids that it was not sent", self.where, batch.batch, len(unknown))
            missing = Fault("missing", f"batch {batch.batch} did not return this request")
            self._deliver(batch, {key: results.get(key, missing) for key in batch.items}, _since(batch))
            self._forget(batch)
        except Exception as error:
            self._following.pop(batch.tag, None)
            self._fail(batch, error)

    async def _find_again(self, batch: OpenBatch) -> bool:
        """Learn the id of a batch whose sender was killed; False if it was collected or never came to be."""
        if batch.batch is not None:
            return True
        # Held by a sender that lives, until it has noted the id.
        async with _locked(batch.lock):
            now = OpenBatch.read(batch.path)
            if now is None:
                return False
            batch.batch = now.batch or await self.api.find(set(batch.items), batch.tag, batch.submitted_at)
            if batch.batch is not None:
                batch.write()
                return True
            self._release(batch, "its batch was never sent")
            self._forget(batch)
            return False

    async def _wait(self, batch: OpenBatch) -> dict[str, Got]:
        assert batch.batch is not None
        started = time.monotonic()
        lost = 0
        while True:
            try:
                status = await self.api.status(batch.batch)
                if status.ended and status.failed is None:
                    return await self.api.results(batch.batch)
                lost = 0
            except Fault as fault:
                lost += 1
                if lost >= _LOST_POLLS:
                    raise self._stop(batch, f"cannot be asked for: {fault}") from None
                log.warning("%s: batch %s cannot be asked for now: %s", self.where, batch.batch, fault)
            except ModelError as error:
                raise ModelError(f"{error}; the batch stands in {batch.path}: delete it to send anew") from None
            else:
                if status.failed is not None:
                    self._release(batch, f"the batch failed: {status.failed}")
                    self._forget(batch)
                    raise ModelError(f"{self.where}: batch {batch.batch} failed: {status.failed}")
                self.say(f"batch {batch.batch} of {len(batch.items)} requests: {status.detail}")
            if self.wait_seconds is not None and time.monotonic() - started + self.poll_seconds > self.wait_seconds:
                raise self._stop(batch, f"has not ended after {self.wait_seconds:g} s")
            await asyncio.sleep(self.poll_seconds)

    def _stop(self, batch: OpenBatch, why: str) -> ModelError:
        return ModelError(f"{self.where}: batch {batch.batch} {why}; run again to collect it, nothing is paid twice")

    def _deliver(self, batch: OpenBatch, results: dict[str, Got], seconds: float) -> None:
        """Keep every result first, then hand them to those who wait."""
        kept = {key: self.collected(key, item, results[key], seconds) for key, item in batch.items.items()}
        for key in batch.items:
            for answer in self._asked.pop(key, []):
                if not answer.done():
                    answer.set_result(kept[key])

    def _release(self, batch: OpenBatch, why: str) -> None:
        """Nothing of the batch is paid."""
        for key, item in batch.items.items():
            self.collected(key, item, Fault("transport", why), 0.0)

    def _fail(self, batch: OpenBatch, error: Exception) -> None:
        for key in batch.items:
            for answer in self._asked.pop(key, []):
                if not answer.done():
                    answer.set_exception(error)

    def _forget(self, batch: OpenBatch) -> None:
        batch.path.unlink(missing_ok=True)
        batch.lock.unlink(missing_ok=True)
        for key in batch.items:
            self._open.pop(key, None)
        self._following.pop(batch.tag, None)


def _since(batch: OpenBatch) -> float:
    return max(0.0, time.time() - batch.submitted_at)


def read_open(folder: Path) -> list[OpenBatch]:
    """Every batch that was sent and not yet collected, oldest first; for a sensor or a doctor."""
    found = (OpenBatch.read(path) for path in sorted(folder.glob("*.json")))
    return sorted((batch for batch in found if batch is not None), key=lambda batch: batch.submitted_at)


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a file lock without holding up the event loop."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.05)
        yield

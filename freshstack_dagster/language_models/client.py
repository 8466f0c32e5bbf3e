"""What a stage uses: `Models` for a run, a `Caller` for each role, and `run` to make many calls at once.

A call goes cache, budget, provider, strict reading, reader. A reply is cached as soon as its last byte is here; a bad
one is asked for again, a bounded number of times, and then stands as an error. Nothing here turns an error into a
value.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import polars as pl

from freshstack_dagster.errors import BudgetError, ModelError
from freshstack_dagster.language_models.batch import Gatherer, Item, read_open
from freshstack_dagster.language_models.budget import Reservation, Spending
from freshstack_dagster.language_models.cache import (
    SHARED_REPLIES,
    claimed,
    open_store,
    read_reply,
    reply_key,
    write_reply,
)
from freshstack_dagster.language_models.limits import RateLimit
from freshstack_dagster.language_models.prices import Price, load_prices
from freshstack_dagster.language_models.providers import (
    WATCHED,
    Fault,
    Provider,
    close_clients,
    heuristic,
    json_object,
    make_provider,
    replay,
)
from freshstack_dagster.language_models.replies import MalformedReply, Reply, read_object
from freshstack_dagster.language_models.request import Asked, Outcome, ReplyError, Request
from freshstack_dagster.language_models.scrub import Scrubber, public_url
from freshstack_dagster.language_models.tokens import upper_bound
from freshstack_dagster.settings import Budget, ModelRole
from freshstack_dagster.tables import TABLES

__all__ = ["Caller", "Models", "Outcome", "ReplyError", "Request", "run"]

T = TypeVar("T")
log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 10.0


class Models:
    """The language models of one run: cache, budget and a record of every call.

    `cache` is the folder of replies, ledgers and open batches; the environment variable FRESHSTACK_REPLIES names an
    object store behind it that machines share. `snapshot` is noted on each call. `progress` gets a line of text now and
    then. `run` joins several objects under one cap per run; without it each object is a run. Requests of a batch gather
    until none came for `batch_gather_seconds`, the batch is asked for every `batch_poll_seconds`, and after
    `batch_wait_seconds` (None: as long as it takes) the run stops and leaves it to the next one.
    """

    def __init__(
        self,
        *,
        cache: Path,
        budget: Budget,
        snapshot: str | None = None,
        progress: Callable[[str], None] | None = None,
        environ: Mapping[str, str] = os.environ,
        run: str | None = None,
        batch_gather_seconds: float = 1.0,
        batch_poll_seconds: float = 30.0,
        batch_wait_seconds: float | None = None,
    ) -> None:
        self.batch_gather_seconds = batch_gather_seconds
        self.batch_poll_seconds = batch_poll_seconds
        self.batch_wait_seconds = batch_wait_seconds
        self.snapshot = snapshot
        self.environ = environ
        self.folder = cache
        self.store = open_store(cache / "replies", environ.get(SHARED_REPLIES))
        self._id = secrets.token_hex(8)
        self.run = run or self._id
        self.spending = Spending(cache / "spending", budget, self.run)
        self.prices = load_prices(budget.prices)
        self.fresh: set[str] = set()
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Future[None]]] = (
            WeakKeyDictionary()
        )
        self._callers: dict[str, Caller] = {}
        self._rows: list[dict[str, Any]] = []
        self._outcomes: dict[str, Counter[str]] = {}
        self._progress = progress
        self._told_at = time.monotonic()

    def role(self, name: str, role: ModelRole) -> Caller:
        """The caller of a role; one for each name. Raises ModelError if the role cannot be played at all."""
        caller = self._callers.get(name)
        if caller is None:
            cls = HeuristicCaller if role.provider == "heuristic" else Caller
            caller = self._callers[name] = cls(self, name, role)
        elif caller.setting != role:
            raise ModelError(f"role {name} was asked for with two different settings in one run")
        return caller

    def calls(self) -> pl.DataFrame:
        """Rows of the table `model_calls`: one a call, paid or read from the cache."""
        table = TABLES["model_calls"]
        return table.conform(pl.DataFrame(self._rows, schema=table.schema))

    def summary(self) -> dict[str, Any]:
        """Counts for metadata, in all and by role: outcomes, calls, cached, tokens, dollars, errors by kind.

        `dollars` is null if the price of a paid call is unknown; `unconfirmed_dollars` are those of calls whose answer
        never came and that may be billed.
        """
        roles = {name: self._summary_of(name) for name in self._callers}
        known = [part["dollars"] for part in roles.values()]
        errors: Counter[str] = Counter()
        for part in roles.values():
            errors.update(part["errors"])
        return {
            **{
                key: sum(part[key] for part in roles.values())
                for key in ("requests", "ok", "calls", "cached", "input_tokens", "output_tokens")
            },
            "dollars": None if None in known else sum(known),
            "unconfirmed_dollars": self.spending.unconfirmed,
            "errors": dict(sorted(errors.items())),
            "roles": roles,
        }

    def record(
        self,
        caller: Caller,
        asked: Asked,
        *,
        reply: Reply | None,
        dollars: float | None,
        seconds: float,
        cached: bool,
        batch: bool = False,
        error: str | None = None,
    ) -> None:
        """Note one call."""
        self._rows.append(
            {
                "call_id": f"{self._id}-{len(self._rows):06d}",
                "role": caller.name,
                "snapshot": self.snapshot,
                "question_id": asked.question_id,
                "model": caller.model,
                "input_tokens": None if reply is None else reply.input_tokens,
                "output_tokens": None if reply is None else reply.output_tokens,
                "dollars": dollars,
                "seconds": seconds,
                "cached": cached,
                "batch": batch,
                "finish_reason": None if reply is None else reply.finish_reason,
                "error": error,
                "called_at": datetime.now(UTC),
            }
        )

    def note(self, caller: Caller, outcome: Outcome[Any]) -> None:
        """Count an outcome and say now and then how far the role is."""
        counts = self._outcomes.setdefault(caller.name, Counter())
        counts[outcome.kind] += 1
        now = time.monotonic()
        if self._progress is not None and now - self._told_at >= _PROGRESS_SECONDS:
            self._told_at = now
            part = self._summary_of(caller.name)
            price = "" if part["dollars"] is None else f", ${part['dollars']:.2f}"
            self._progress(
                f"{caller.name}: {part['requests']} requests, {part['calls']} calls, {part['cached']} from the cache, "
                f"{sum(part['errors'].values())} errors{price}"
            )

    def say(self, line: str) -> None:
        """A line of progress."""
        log.info(line)
        if self._progress is not None:
            self._progress(line)

    def flights(self) -> dict[str, asyncio.Future[None]]:
        """Calls under way in the running loop, by key."""
        return self._flights.setdefault(asyncio.get_running_loop(), {})

    def _summary_of(self, name: str) -> dict[str, Any]:
        caller = self._callers[name]
        counts = self._outcomes.get(name, Counter())
        paid = [row for row in self._rows if row["role"] == name and not row["cached"]]
        answered = [row for row in paid if row["finish_reason"] is not None]
        return {
            "model": caller.model,
            "requests": counts.total(),
            "ok": counts["ok"],
            "calls": len(paid),
            "cached": sum(row["role"] == name and row["cached"] for row in self._rows),
            "input_tokens": sum(row["input_tokens"] for row in answered),
            "output_tokens": sum(row["output_tokens"] for row in answered),
            "dollars": None
            if any(row["dollars"] is None for row in answered)
            else sum(row["dollars"] for row in answered),
            "errors": {kind: count for kind, count in sorted(counts.items()) if kind != "ok"},
        }


class Caller:
    """One role's model.

    `name` is the role, `model` is `provider:model` (or `heuristic`), `judge_kind` is `llm` or `heuristic`.
    """

    judge_kind = "llm"

    def __init__(self, models: Models, name: str, role: ModelRole) -> None:
        self.name = name
        self.setting = role
        self._models = models
        self._role = replay.original(name, role) if role.provider == "replay" else role
        self.model = self._model()
        self._provider: Provider | None = None
        self._scrubber = Scrubber()
        self._gatherers: WeakKeyDictionary[asyncio.AbstractEventLoop, Gatherer] = WeakKeyDictionary()
        self._stopped: ModelError | None = None
        self._pace: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[asyncio.Semaphore, RateLimit, RateLimit]] = (
            WeakKeyDictionary()
        )

    async def call(self, request: Request, read: Callable[[dict[str, Any]], T]) -> Outcome[T]:
        """Ask, and read the reply's data with `read`, which raises ReplyError for content that is wrong.

        A malformed or wrong reply and a refusal are asked for again, up to the role's attempts. A bad reply never
        raises; BudgetError and ModelError stop the run: the cap is reached, no key, no such model, an address that
        refuses, a reply that `cache: only` does not find.
        """
        outcome: Outcome[T] | None = None
        for attempt in range(1, self._role.attempts + 1):
            key = reply_key(self._role, request, attempt)
            got = await self._reply(request, key, attempt, first=outcome is None)
            if got is None:
                break
            outcome = self._outcome(request, got, key, read)
            if outcome.kind not in ("malformed", "refusal"):
                break
        assert outcome is not None
        self._models.note(self, outcome)
        return outcome

    def _model(self) -> str:
        return f"{self._role.provider}:{self._role.model}"

    def _outcome(
        self, request: Request, got: Reply | Fault, key: str, read: Callable[[dict[str, Any]], T]
    ) -> Outcome[T]:
        if isinstance(got, Fault):
            return Outcome(None, f"{request.id}: {got}", got.kind)
        if got.finish == "length":
            return Outcome(None, f"{request.id}: the reply was cut off after {got.output_tokens} tokens", "length", key)
        if got.finish in ("refusal", "content_filter"):
            what = "the model refused" if got.finish == "refusal" else "the content filter stopped the reply"
            return Outcome(None, f"{request.id}: {what}", got.finish, key)
        try:
            return Outcome(read(read_object(got.text, request.schema)), None, "ok", key)
        except (MalformedReply, ReplyError) as error:
            return Outcome(None, f"{request.id}: {error}", "malformed", key)

    async def _reply(self, request: Request, key: str, attempt: int, *, first: bool) -> Reply | Fault | None:
        """The reply from the cache or the provider; None if a frozen cache holds no further attempt."""
        flights = self._models.flights()
        while (flight := flights.get(key)) is not None:
            # The same question is being asked: wait for that answer, which is then in the cache.
            await asyncio.wait([flight])
        flights[key] = flight = asyncio.get_running_loop().create_future()
        try:
            if (cached := await self._cached(request, key, attempt)) is not None:
                return cached
            if self._role.cache == "only":
                if first:
                    raise ModelError(
                        f"role {self.name}, {self.model}: request {request.id} has no reply in the cache (key {key}) "
                        "and cache: only makes no call; set cache: use to ask for it"
                    )
                return None
            return await self._live(request, key, attempt)
        finally:
            del flights[key]
            flight.set_result(None)

    async def _cached(self, request: Request, key: str, attempt: int) -> Reply | None:
        if self._role.cache == "refresh" and key not in self._models.fresh:
            return None
        started = time.monotonic()
        store = self._models.store
        cached = await asyncio.to_thread(read_reply, store, key) if store.far else read_reply(store, key)
        if cached is not None:
            seconds = time.monotonic() - started
            asked = Asked.of(request, attempt)
            self._models.record(self, asked, reply=cached, dollars=0.0, seconds=seconds, cached=True)
        return cached

    async def _live(self, request: Request, key: str, attempt: int) -> Reply | Fault:
        if self._role.batch:
            return await self._batched(request, key, attempt)
        slots, requests, tokens = self._limits()
        tries = 0
        async with slots, claimed(self._models.folder, key):
            # Another process may have got the reply since we looked.
            if (cached := await self._cached(request, key, attempt)) is not None:
                return cached
            while True:
                if self._stopped is not None:
                    raise self._stopped
                try:
                    got = await self._attempt(request, key, attempt, requests, tokens)
                    tries += 1
                    if isinstance(got, Reply) or not got.again or tries >= self._role.attempts:
                        return got
                except _NoRoom:
                    # An attempt was lost and another did not fit beside calls under way: wait for them to settle.
                    continue
                except ModelError as error:
                    self._stopped = error
                    raise

    async def _attempt(
        self, request: Request, key: str, attempt: int, requests: RateLimit, tokens: RateLimit
    ) -> Reply | Fault:
        provider = self._get_provider()
        asked = Asked.of(request, attempt)
        input_tokens = upper_bound(request, self.model)
        await requests.take()
        await tokens.take(input_tokens)
        price = self._price()
        reservation = await self._reserve(price, input_tokens)
        kept: list[Reply] = []

        def keep(content: bytes) -> None:
            # What is wrong with a response or with the disk is told when the SDK is done, or it would ask again.
            with contextlib.suppress(Exception):
                if not kept:
                    kept.append(self._keep(key, asked, provider.read(json_object(content))))

        watch = _Watch(self._models.spending, requests, reservation, keep)
        started = time.monotonic()
        watched = WATCHED.set(watch)
        try:
            reply = await provider.complete(request)
            reply = kept[0] if kept else self._keep(key, asked, reply)
        except Fault as fault:
            self._models.record(
                self,
                asked,
                reply=None,
                dollars=None,
                seconds=time.monotonic() - started,
                cached=False,
                error=str(fault),
            )
            return fault
        else:
            dollars = _dollars(reply, price, batch=False)
            if dollars is not None:
                watch.paid(dollars)
            self._models.record(
                self, asked, reply=reply, dollars=dollars, seconds=time.monotonic() - started, cached=False
            )
            # A disk or a bucket may take long, and other replies are not kept waiting for it.
            await asyncio.to_thread(self._models.store.secure, key)
            return reply
        finally:
            WATCHED.reset(watched)
            watch.lost()

    async def _batched(self, request: Request, key: str, attempt: int) -> Reply | Fault:
        if self._stopped is not None:
            raise self._stopped
        try:
            gatherer = self._gatherer()
            await gatherer.ready()
            if (cached := await self._cached(request, key, attempt)) is not None:
                return cached
            reservation = None
            if not gatherer.knows(key):
                reservation = await self._reserve(self._price(), upper_bound(request, self.model))
            return await gatherer.ask(key, request, Item(Asked.of(request, attempt), reservation))
        except ModelError as error:
            self._stopped = error
            raise

    def _gatherer(self) -> Gatherer:
        loop = asyncio.get_running_loop()
        if loop not in self._gatherers:
            api = self._get_provider().batches
            if api is None:
                raise ModelError(f"role {self.name}: {self.model} has no batch API; set batch: false")
            models = self._models
            self._gatherers[loop] = Gatherer(
                api=api,
                folder=models.folder / "batches",
                who=f"{self.model} {public_url(self._role.base_url or '')}".strip(),
                where=f"role {self.name}, {self.model}",
                collected=self._collected,
                adopt=models.spending.adopt,
                release_unsent=self._release_unsent,
                say=lambda line: models.say(f"{self.name}: {line}"),
                gather_seconds=models.batch_gather_seconds,
                poll_seconds=models.batch_poll_seconds,
                wait_seconds=models.batch_wait_seconds,
            )
        return self._gatherers[loop]

    def _release_unsent(self, folder: Path) -> None:
        items = (item for batch in read_open(folder) for item in batch.items.values())
        self._models.spending.release_unsent({item.reservation.id for item in items if item.reservation is not None})

    def _collected(self, key: str, item: Item, got: Reply | Fault, seconds: float) -> Reply | Fault:
        """Cache, settle and record one result of a batch; return it without the key."""
        price = self._models.prices.of(self.model)
        dollars = None
        if isinstance(got, Reply):
            got = self._keep(key, item.asked, got)
            self._models.store.secure(key)
            dollars = _dollars(got, price, batch=True)
        if item.reservation is not None:
            untold = isinstance(got, Reply) and dollars is None
            billed = item.reservation.dollars if untold else dollars or 0.0
            self._models.spending.settle(item.reservation, billed, unconfirmed=untold)
        self._models.record(
            self,
            item.asked,
            reply=got if isinstance(got, Reply) else None,
            dollars=dollars,
            seconds=seconds,
            cached=False,
            batch=True,
            error=str(got) if isinstance(got, Fault) else None,
        )
        return got

    def _keep(self, key: str, asked: Asked, reply: Reply) -> Reply:
        """Cache a reply as it came, without the key in case the server echoes it, and return it so."""
        about = {
            "model": self.model,
            "task": asked.task,
            "request": asked.id,
            "prompt": asked.prompt,
            "attempt": asked.attempt,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        clean = Reply(**{**reply.to_dict(), "text": self._scrubber.exact(reply.text)})
        write_reply(self._models.store, key, clean, about, replace=self._role.cache == "refresh")
        self._models.fresh.add(key)
        return clean

    def _limits(self) -> tuple[asyncio.Semaphore, RateLimit, RateLimit]:
        loop = asyncio.get_running_loop()
        if loop not in self._pace:
            role = self._role
            self._pace[loop] = (
                asyncio.Semaphore(role.concurrency),
                RateLimit(role.requests_per_minute),
                RateLimit(role.tokens_per_minute),
            )
        return self._pace[loop]

    def _get_provider(self) -> Provider:
        if self._provider is None:
            self._provider, self._scrubber = make_provider(self.name, self._role, self._models.environ)
        return self._provider

    def _price(self) -> Price | None:
        price = self._models.prices.of(self.model)
        if price is None and self._models.spending.capped:
            raise BudgetError(
                f"role {self.name}: the price of {self.model} is unknown, so the spending cap cannot be kept; name it "
                f"in a price table (budget.prices in the topic): models: {{'{self.model}': {{input: 0, output: 0}}}} "
                "in dollars per million tokens"
            )
        return price

    async def _reserve(self, price: Price | None, input_tokens: int) -> Reservation | None:
        if price is None:
            return None
        most = price.dollars(input_tokens, self._role.max_output_tokens, batch=self._role.batch)
        about = {"role": self.name, "model": self.model, **({"batch": True} if self._role.batch else {})}
        return await self._models.spending.reserve(most, about)


class HeuristicCaller(Caller):
    """The embedded default: rules in this process, never cached, never paid, the same every time."""

    judge_kind = "heuristic"

    async def call(self, request: Request, read: Callable[[dict[str, Any]], T]) -> Outcome[T]:
        """Answer by rule; a task without a rule is skipped."""
        data = heuristic.answer(request)
        outcome: Outcome[T]
        if data is None:
            outcome = Outcome(None, f"{request.id}: the heuristic provider has no rule for {request.task}", "skipped")
        else:
            try:
                outcome = Outcome(read(data), None, "ok")
            except ReplyError as error:
                outcome = Outcome(None, f"{request.id}: {error}", "malformed")
        self._models.note(self, outcome)
        return outcome

    def _model(self) -> str:
        return "heuristic"


def _dollars(reply: Reply, price: Price | None, *, batch: bool) -> float | None:
    """The price of a reply; None if the model's price is unknown or the server does not tell the tokens.

    In the latter case the call counts at its upper bound, or a silent server would pass every cap.
    """
    if price is None or not reply.input_tokens:
        return None
    return price.dollars(reply.input_tokens, reply.output_tokens, reply.cached_tokens, batch=batch)


class _NoRoom(BaseException):
    """Stops the SDK from making another attempt; a BaseException because the SDK retries on every Exception."""


class _Watch:
    """Holds the reservation of one call over the SDK's attempts.

    An attempt that gets an error status is not billed. One that is cut off or times out may be: it is booked at its
    upper bound, and the next attempt needs a reservation of its own.
    """

    def __init__(
        self,
        spending: Spending,
        requests: RateLimit,
        reservation: Reservation | None,
        keep: Callable[[bytes], None],
    ) -> None:
        self._keep = keep
        self._spending = spending
        self._requests = requests
        self._reservation = reservation
        self._sent = 0
        # Whether the last attempt left and was not turned down: then it may be billed.
        self._open = False

    async def sending(self) -> None:
        """An attempt is about to be sent."""
        self._sent += 1
        if self._sent > 1:
            await self._requests.take()
            if self._open and (old := self._reservation) is not None:
                self._reservation = self._spending.try_reserve(old.dollars, {})
                self._spending.settle(old, old.dollars, unconfirmed=True)
                if self._reservation is None:
                    raise _NoRoom
        self._open = False

    def leaving(self) -> None:
        """The attempt has a connection and goes out."""
        self._open = True

    def received(self, status: int) -> None:
        """The attempt got a response."""
        if status >= 300:
            self._open = False

    def arrived(self, content: bytes) -> None:
        """The attempt's response is here."""
        self._keep(content)

    def paid(self, dollars: float) -> None:
        """The call has its reply."""
        if self._reservation is not None:
            self._spending.settle(self._reservation, dollars)
            self._reservation = None

    def lost(self) -> None:
        """The call ends; without a reply what was sent last may still be billed."""
        if self._reservation is not None:
            dollars = self._reservation.dollars if self._open else 0.0
            self._spending.settle(self._reservation, dollars, unconfirmed=self._open)
            self._reservation = None


def run(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at once and return their results in order, also where an event loop runs already.

    All are brought to their end before the first exception, in order, is raised: a call under way is paid for, and its
    reply belongs in the cache.
    """
    waiting = list(coroutines)

    async def together() -> list[T | BaseException]:
        try:
            return await asyncio.gather(*waiting, return_exceptions=True)
        finally:
            await close_clients()

    results = _in_new_loop(together())
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_new_loop(work: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    if not _loop_runs():
        return asyncio.run(work)
    # A loop runs in this thread, as in a notebook: use another thread.
    results: list[Any] = []
    failures: list[BaseException] = []

    def target() -> None:
        try:
            results.extend(asyncio.run(work))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=target, name="language-models")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results

"""Who answers: one module a provider, all behind `Provider`.

A new provider is one module with a class that has `complete`, `read` and `batches`, and one line in `PROVIDERS`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from freshstack_dagster.errors import ModelError
from freshstack_dagster.language_models.replies import Reply
from freshstack_dagster.language_models.request import Request
from freshstack_dagster.language_models.scrub import Scrubber, public_url
from freshstack_dagster.settings import ModelRole

# The SDKs wait between attempts as the server says (Retry-After), else 0.5 s doubling to 8 s.
TRANSPORT_RETRIES = 5

PROVIDERS = {
    "openai": "freshstack_dagster.language_models.providers.openai:OpenAIChat",
    "anthropic": "freshstack_dagster.language_models.providers.anthropic:AnthropicMessages",
    "compatible": "freshstack_dagster.language_models.providers.compatible:CompatibleChat",
}


class Fault(Exception):
    """A request got no reply that could be read: `kind` is the outcome's, the text one line without secrets.

    `again` if the SDK does not retry it although another try may help, as after a gateway's page in place of JSON.
    """

    def __init__(self, kind: str, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.again = again


@dataclass(frozen=True)
class BatchStatus:
    """How far a batch is: `ended` when its results can be read, `failed` says why it has none."""

    ended: bool
    failed: str | None = None
    detail: str = ""


class BatchApi(Protocol):
    """A provider's batch API: many requests at half price within a day, results in any order."""

    max_requests: int
    max_bytes: int

    def body(self, request: Request) -> dict[str, Any]:
        """What is sent for one request."""
        ...

    async def submit(self, requests: Mapping[str, Request], tag: str) -> str:
        """Send the requests under their custom ids, once, and return the batch's id; `tag` marks it where it can.

        Raises Fault if the provider may or may not have got it: `find` tells.
        """
        ...

    async def find(self, custom_ids: set[str], tag: str, since: float) -> str | None:
        """The id of a batch sent since `since` (Unix seconds) by a process that was killed before it noted the id."""
        ...

    async def status(self, batch: str) -> BatchStatus:
        """How far the batch is."""
        ...

    async def results(self, batch: str) -> dict[str, Reply | Fault]:
        """Every result by custom id, of the output and of the error file."""
        ...


class Provider(Protocol):
    """Answers requests. Transport faults are retried inside; what is left is raised as Fault, or ModelError to stop."""

    batches: BatchApi | None

    async def complete(self, request: Request) -> Reply:
        """One request, one reply."""
        ...

    def read(self, body: dict[str, Any]) -> Reply:
        """The reply in the body of a response. Raises Fault if there is none."""
        ...


def make_provider(role_name: str, role: ModelRole, environ: Mapping[str, str]) -> tuple[Provider, Scrubber]:
    """The provider of a role, and the scrubber that knows its key. Raises ModelError if the key is not set."""
    module, name = PROVIDERS[role.provider].split(":")
    cls = getattr(importlib.import_module(module), name)
    if role.base_url and (public_url(role.base_url) != role.base_url.rstrip("/")):
        # The HTTP library logs every address that it asks.
        raise ModelError(
            f"role {role_name}: base_url {public_url(role.base_url)} carries a user, a password or parameters; give "
            "the address alone, and name the variable that holds the key in api_key_env"
        )
    key = _key(role_name, role, environ, cls.default_key_env)
    scrubber = Scrubber([key])
    return cls(role_name, role, key, environ, scrubber), scrubber


def _key(role_name: str, role: ModelRole, environ: Mapping[str, str], default: str | None) -> str | None:
    name = role.api_key_env or default
    if name is None:
        # A key is never sent to an address that it was not named for.
        return None
    if not (key := environ.get(name, "").strip()):
        raise ModelError(
            f"role {role_name}: no key for {role.provider}:{role.model}; set the environment variable {name}"
        )
    return key


# ── one HTTP attempt ──────────────────────────────────────────────────────────────────────────────────────────────────


class Attempt(Protocol):
    """Watches the HTTP attempts of one call, which the SDK makes on its own."""

    async def sending(self) -> None:
        """Just before an attempt is sent."""
        ...

    def leaving(self) -> None:
        """The attempt has a connection and is being sent."""
        ...

    def received(self, status: int) -> None:
        """The attempt got a response with this status; its body is still to come."""
        ...

    def arrived(self, content: bytes) -> None:
        """The whole body of a good response is here, decoded. Nothing of the process ran since its last byte was read,
        and nothing else runs until this returns; it does not raise.
        """
        ...


WATCHED: ContextVar[Attempt | None] = ContextVar("watched", default=None)


async def _sending(request: Any) -> None:
    if (attempt := WATCHED.get()) is None:
        return
    await attempt.sending()

    async def trace(event: str, _info: Any) -> None:
        if event.endswith("send_request_headers.started"):
            attempt.leaving()

    # The HTTP library tells of each step; a connection that is never made is no call.
    request.extensions["trace"] = trace


async def _received(response: Any) -> None:
    if (attempt := WATCHED.get()) is None:
        return
    attempt.received(response.status_code)
    if response.status_code < 300:
        response.stream = _arriving(response, attempt)


def _arriving(response: Any, attempt: Attempt) -> Any:
    """The body's stream, which hands the body over as it ends.

    A reply that is paid for is then safe before the HTTP library closes the response and the SDK makes an object of
    it: both let other calls run meanwhile, and a process that is killed there would lose what it has received.
    """
    library = sys.modules[type(response).__module__.split(".")[0]]
    inner = response.stream

    class Arriving(library.AsyncByteStream):  # type: ignore[name-defined, misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            parts = []
            async for part in inner:
                parts.append(part)
                yield part
            raw = b"".join(parts)
            attempt.arrived(library.Response(200, headers=response.headers, content=raw).content)

        async def aclose(self) -> None:
            await inner.aclose()

    return Arriving()


HOOKS: dict[str, list[Callable[..., Any]]] = {"request": [_sending], "response": [_received]}

# ── one client an event loop ──────────────────────────────────────────────────────────────────────────────────────────

_closers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], Awaitable[None]]]] = WeakKeyDictionary()


class ClientPerLoop:
    """An SDK client holds connections of one event loop; a run may go through several."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()

    def get(self) -> Any:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            client = self._make()
            self._clients[loop] = client
            _closers.setdefault(loop, []).append(client.close)
        return self._clients[loop]


async def close_clients() -> None:
    """Close every client that the running loop opened."""
    for close in _closers.pop(asyncio.get_running_loop(), []):
        await close()


# ── what an SDK returns and raises ────────────────────────────────────────────────────────────────────────────────────

_TOO_LONG = (
    "context_length_exceeded",
    "maximum context length",
    "context window",
    "prompt is too long",
    "exceed_context_size",
    "exceeds the available context size",
    "request_too_large",
    "string too long",
)
_NO_MONEY = ("insufficient_quota", "billing_hard_limit", "credit balance is too low", "billing_error")
_FILTERED = ("content_filter", "content_policy_violation", "responsibleaipolicyviolation")


def json_body(response: Any) -> dict[str, Any]:
    """The body of an SDK's raw response, without the SDK's own objects, which take long to build. Raises Fault."""
    return json_object(response.http_response.content)


def json_object(content: bytes) -> dict[str, Any]:
    """The body of a response. Raises Fault if it is no JSON object, such as a gateway's page."""
    try:
        body = json.loads(content)
    except ValueError as error:
        raise Fault("transport", f"the response is not JSON: {error}", again=True) from None
    if not isinstance(body, dict):
        raise Fault("transport", f"the response is no JSON object but {type(body).__name__}", again=True)
    return body


def fault_of(status: int | None, body: Any, message: str, where: str, scrubber: Scrubber) -> Fault | ModelError:
    """What an HTTP error means: a fault of this request, or a reason to stop the run. `where` names role and model."""
    told = scrubber.message(message)[:500]
    words = f"{body} {message}".lower()
    if status in (401, 402, 403) or any(word in words for word in _NO_MONEY):
        return ModelError(f"{where}: refused (HTTP {status}): {told}; check the key, its rights and its balance")
    if status == 404:
        return ModelError(f"{where}: not found (HTTP 404): {told}; check the model's name and base_url")
    if any(word in words for word in _FILTERED):
        return Fault("content_filter", f"refused by the content filter (HTTP {status}): {told}")
    if status in (400, 413, 422) and (status == 413 or any(word in words for word in _TOO_LONG)):
        return Fault("length", f"the request is too long (HTTP {status}): {told}")
    return Fault("transport", f"HTTP {status}: {told}")


def translate(error: Exception, sdk: Any, where: str, scrubber: Scrubber, timeout: float) -> Fault | ModelError:
    """What an exception of the openai or anthropic SDK means; both name them alike."""
    if isinstance(error, sdk.APIStatusError) and error.status_code >= 400:
        return fault_of(error.status_code, error.body, error.message, where, scrubber)
    if isinstance(error, sdk.APITimeoutError):
        return Fault("transport", f"no answer within {timeout:g} s, {TRANSPORT_RETRIES + 1} times")
    if isinstance(error, sdk.APIConnectionError):
        cause = error.__cause__ or error
        return Fault("transport", f"connection failed: {type(cause).__name__}: {scrubber.message(str(cause))[:300]}")
    return Fault(
        "transport", f"unreadable response: {type(error).__name__}: {scrubber.message(str(error))[:300]}", again=True
    )

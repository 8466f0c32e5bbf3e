"""A local HTTP server that speaks the protocols of OpenAI and Anthropic with their batch APIs, and misbehaves.

    with MisbehavingServer(answer, schedule={1: "http_500", 2: "length"}) as server:
        role = ModelRole(provider="compatible", base_url=server.openai_url, ...)

`answer(Prompt) -> dict` gives the right reply. `schedule` names the fault of the n-th generation request (from 0) or is
a function of number and prompt; every other request is answered rightly. What was served and billed is kept.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

TRANSPORT_FAULTS = ("http_429", "http_500", "http_529", "reset", "reset_body", "stall", "not_json_body", "no_choices")
CONTENT_FAULTS = (
    "invalid_json", "wrong_shape", "prose_around", "two_fences", "empty", "doubled_key",
    "echo", "left_out", "unknown_document", "doubled_document",
)  # fmt: skip
GOOD_ODDITIES = ("fenced", "slow")
ENDINGS = ("length", "refusal", "content_filter")


@dataclass(frozen=True)
class Prompt:
    """A generation request as the server reads it, whatever the protocol."""

    protocol: str
    model: str
    system: str
    user: str
    schema: dict[str, Any] | None
    max_tokens: int
    body: dict[str, Any]
    number: int


@dataclass
class Served:
    """One generation request: when it came, what it got, when its answer was out, what it costs."""

    number: int
    prompt: Prompt
    fault: str | None
    came_at: float
    answered_at: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    batch: bool = False


Answer = Callable[[Prompt], dict[str, Any]]
Schedule = Mapping[int, str] | Callable[[int, Prompt], str | None]


@dataclass
class _Batch:
    id: str
    protocol: str
    lines: list[dict[str, Any]]
    metadata: dict[str, Any]
    created_at: float
    polls: int = 0
    output: str | None = None
    errors: str | None = None
    failed: bool = False


def mutate_support(fault: str, right: dict[str, Any]) -> dict[str, Any]:
    """Spoil a reply of the right form: the first list of objects in it loses, doubles or misnames an entry."""
    spoiled = json.loads(json.dumps(right))
    for value in spoiled.values():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            if fault == "left_out":
                value.pop()
            elif fault == "doubled_document":
                value.append(json.loads(json.dumps(value[0])))
            elif fault == "unknown_document":
                name = next(iter(value[0]))
                value[0][name] = 10_017 if isinstance(value[0][name], int) else "no-such-id"
            return spoiled
    return spoiled


def four_bytes_each(prompt: Prompt) -> int:
    """Tokens in, four bytes each: the server is nobody's tokenizer."""
    schema = json.dumps(prompt.schema) if prompt.schema else ""
    return (len(prompt.system.encode()) + len(prompt.user.encode()) + len(schema)) // 4 + 8


class MisbehavingServer:
    """See the module. `spoil(fault, right)` makes the content faults that depend on the form of the reply."""

    def __init__(
        self,
        answer: Answer,
        *,
        schedule: Schedule | None = None,
        spoil: Callable[[str, dict[str, Any]], dict[str, Any]] = mutate_support,
        key: str | None = None,
        latency: float = 0.0,
        stall_seconds: float = 60.0,
        retry_after: str = "0.2",
        polls_until_done: int = 2,
        input_tokens: Callable[[Prompt], int] | None = None,
        output_tokens: Callable[[Prompt, str], int] | None = None,
        batch_fault: Callable[[int, str], str | None] | None = None,
        keep_alive: bool = True,
    ) -> None:
        self.answer = answer
        self.schedule: Schedule = {} if schedule is None else schedule
        self.spoil = spoil
        self.key = key
        self.latency = latency
        self.keep_alive = keep_alive
        self.stall_seconds = stall_seconds
        self.retry_after = retry_after
        self.polls_until_done = polls_until_done
        self.input_tokens = input_tokens or four_bytes_each
        self.output_tokens = output_tokens or (lambda _prompt, text: max(1, len(text) // 4))
        # For the n-th line of a batch and its custom id: missing, error, expired, or a fault of a single request.
        self.batch_fault = batch_fault or (lambda _number, _id: None)
        # While set, a batch is taken in but its sender gets no answer.
        self.hold_batches = False
        self.served: list[Served] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.batches: dict[str, _Batch] = {}
        self.files: dict[str, str] = {}
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Address without a path, as Anthropic's SDK wants it."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def openai_url(self) -> str:
        """Address as OpenAI's SDK wants it."""
        return f"{self.url}/v1"

    def __enter__(self) -> MisbehavingServer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()

    def billed(self, dollars_in: float, dollars_out: float, batch_discount: float = 0.0) -> float:
        """Dollars for everything that was generated, at prices per million tokens."""
        total = 0.0
        for one in self.served:
            price = (one.input_tokens * dollars_in + one.output_tokens * dollars_out) / 1e6
            total += price * (1 - batch_discount if one.batch else 1)
        return total

    def prompt_of(self, protocol: str, body: dict[str, Any]) -> Prompt:
        """Read a request body of either protocol."""
        with self.lock:
            number = len(self.served)
            if protocol == "anthropic":
                schema = (body.get("output_config") or {}).get("format", {}).get("schema")
                if body.get("tools"):
                    schema = body["tools"][0]["input_schema"]
                system = body.get("system", "")
                user = "".join(m["content"] for m in body["messages"] if m["role"] == "user")
                most = body["max_tokens"]
            elif protocol == "responses":
                schema = (body.get("text") or {}).get("format", {}).get("schema")
                system, user = body.get("instructions", ""), body["input"]
                most = body.get("max_output_tokens", 0)
            else:
                schema = (body.get("response_format") or {}).get("json_schema", {}).get("schema")
                system = "".join(m["content"] for m in body["messages"] if m["role"] == "system")
                user = "".join(m["content"] for m in body["messages"] if m["role"] == "user")
                most = body.get("max_completion_tokens") or body.get("max_tokens") or 0
            prompt = Prompt(protocol, body["model"], system, user, schema, most, body, number)
            fault = self.schedule(number, prompt) if callable(self.schedule) else self.schedule.get(number)
            self.served.append(Served(number, prompt, fault, time.time()))
        return prompt

    def generate(self, prompt: Prompt, fault: str | None, *, batch: bool = False) -> tuple[str, str]:
        """Text and ending (stop, length, refusal, content_filter) of a reply; bills it."""
        right = self.answer(prompt)
        text = json.dumps(right, ensure_ascii=False)
        ending = fault if fault in ENDINGS else "stop"
        if fault == "invalid_json":
            text = text[:-1] + ",]"
        elif fault == "wrong_shape":
            text = json.dumps({"verdicts": "all of them", "score": 3})
        elif fault == "prose_around":
            text = f"Here is the reply you asked for:\n{text}\nLet me know!"
        elif fault == "fenced":
            text = f"```json\n{text}\n```"
        elif fault == "two_fences":
            text = f"```json\n{text}\n```\n```json\n{text}\n```"
        elif fault == "empty":
            text = ""
        elif fault == "doubled_key":
            text = text[:-1] + ", " + text[1:]
        elif fault == "echo":
            text = prompt.user
        elif fault in ("left_out", "unknown_document", "doubled_document"):
            text = json.dumps(self.spoil(fault, right), ensure_ascii=False)
        elif fault == "length":
            text = text[: len(text) // 2]
        elif fault == "refusal":
            text = "I am sorry, I cannot help with that."
        elif fault == "content_filter":
            text = ""
        with self.lock:
            one = self.served[prompt.number]
            one.input_tokens = self.input_tokens(prompt)
            one.output_tokens = self.output_tokens(prompt, text)
            if prompt.max_tokens:
                one.output_tokens = min(one.output_tokens, prompt.max_tokens)
            one.batch = batch
        return text, ending

    def shape(self, prompt: Prompt, text: str, ending: str) -> dict[str, Any]:
        """The response body in the protocol of the request."""
        one = self.served[prompt.number]
        if prompt.protocol == "anthropic":
            stop = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal", "content_filter": "refusal"}[
                ending
            ]
            content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
            if prompt.body.get("tools") and ending == "stop":
                try:
                    content = [{"type": "tool_use", "id": "toolu_1", "name": "reply", "input": json.loads(text)}]
                    stop = "tool_use"
                except ValueError:
                    pass
            return {
                "id": f"msg_{prompt.number}", "type": "message", "role": "assistant", "model": prompt.model,
                "content": content, "stop_reason": stop, "stop_sequence": None,
                "usage": {"input_tokens": one.input_tokens, "output_tokens": one.output_tokens},
            }  # fmt: skip
        if prompt.protocol == "responses":
            part = {"type": "refusal", "refusal": text} if ending == "refusal" else {
                "type": "output_text", "text": text, "annotations": []}  # fmt: skip
            reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(ending)
            return {
                "id": f"resp_{prompt.number}", "object": "response", "created_at": 1, "model": prompt.model,
                "status": "incomplete" if reason else "completed", "error": None,
                "incomplete_details": {"reason": reason} if reason else None,
                "output": [{"type": "message", "id": "m", "role": "assistant", "content": [part]}],
                "usage": {
                    "input_tokens": one.input_tokens, "output_tokens": one.output_tokens,
                    "total_tokens": one.input_tokens + one.output_tokens,
                },
            }  # fmt: skip
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if ending == "refusal":
            message = {"role": "assistant", "content": None, "refusal": text}
        return {
            "id": f"chatcmpl-{prompt.number}", "object": "chat.completion", "created": 1, "model": prompt.model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop" if ending == "refusal" else ending}],
            "usage": {
                "prompt_tokens": one.input_tokens, "completion_tokens": one.output_tokens,
                "total_tokens": one.input_tokens + one.output_tokens,
            },
        }  # fmt: skip

    # ── batches ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def start_batch(self, protocol: str, lines: list[dict[str, Any]], metadata: dict[str, Any]) -> _Batch:
        """Take in a batch."""
        with self.lock:
            batch = _Batch(f"batch_{len(self.batches)}", protocol, lines, metadata, time.time())
            self.batches[batch.id] = batch
        while self.hold_batches and not self.closing.wait(0.01):
            pass
        return batch

    def poll(self, batch: _Batch) -> bool:
        """Count a poll; finish the batch when it has been polled often enough. Whether it has ended."""
        batch.polls += 1
        if batch.polls >= self.polls_until_done and batch.output is None and batch.errors is None and not batch.failed:
            self._finish(batch)
        return batch.output is not None or batch.errors is not None or batch.failed

    def _finish(self, batch: _Batch) -> None:
        good, bad = [], []
        for number, line in enumerate(batch.lines):
            custom_id = line["custom_id"]
            fault = self.batch_fault(number, custom_id)
            if fault == "missing":
                continue
            if fault == "batch_failed":
                batch.failed = True
                return
            if batch.protocol == "anthropic":
                good.append(self._anthropic_line(custom_id, line["params"], fault))
                continue
            entry: dict[str, Any] = {"id": f"r{number}", "custom_id": custom_id, "error": None, "response": None}
            if fault == "error":
                error = {"message": "The server had an error", "type": "server_error", "code": None}
                bad.append({**entry, "response": {"status_code": 500, "body": {"error": error}}})
            elif fault == "expired":
                bad.append(
                    {**entry, "error": {"code": "batch_expired", "message": "This request could not be executed."}}
                )
            else:
                prompt = self.prompt_of("responses" if line["url"] == "/v1/responses" else "chat", line["body"])
                text, ending = self.generate(prompt, fault, batch=True)
                good.append({**entry, "response": {"status_code": 200, "body": self.shape(prompt, text, ending)}})
        # Results come in any order.
        if good or batch.protocol == "anthropic":
            batch.output = "".join(json.dumps(entry) + "\n" for entry in reversed(good))
        if bad or not good:
            batch.errors = "".join(json.dumps(entry) + "\n" for entry in reversed(bad))

    def _anthropic_line(self, custom_id: str, params: dict[str, Any], fault: str | None) -> dict[str, Any]:
        if fault == "error":
            error = {"type": "error", "error": {"type": "api_error", "message": "Internal server error"}}
            return {"custom_id": custom_id, "result": {"type": "errored", "error": error}}
        if fault == "expired":
            return {"custom_id": custom_id, "result": {"type": "expired"}}
        prompt = self.prompt_of("anthropic", params)
        text, ending = self.generate(prompt, fault, batch=True)
        return {"custom_id": custom_id, "result": {"type": "succeeded", "message": self.shape(prompt, text, ending)}}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    owner: MisbehavingServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is a part of the play."""


@dataclass
class _Page:
    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _answer(self, data: bytes) -> None:
        owner = self.server.owner
        path = self.path.split("?")[0]
        with owner.lock:
            owner.requests.append((self.command, path, {name.lower(): value for name, value in self.headers.items()}))
        sent = self.headers.get("Authorization", "").removeprefix("Bearer ") or self.headers.get("x-api-key")
        if owner.key is not None and sent != owner.key:
            error = {
                "type": "authentication_error",
                "message": f"Incorrect API key provided: {sent}.",
                "code": "bad_key",
            }
            self._send(_Page({"type": "error", "error": error}, 401))
            return
        generation = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "anthropic"}
        if self.command == "POST" and path in generation:
            self._generation(generation[path], json.loads(data))
        else:
            self._send(self._other(path, data))

    def _generation(self, protocol: str, body: dict[str, Any]) -> None:
        owner = self.server.owner
        prompt = owner.prompt_of(protocol, body)
        one = owner.served[prompt.number]
        with owner.lock:
            owner.in_flight += 1
            owner.most_in_flight = max(owner.most_in_flight, owner.in_flight)
        try:
            if owner.latency:
                time.sleep(owner.latency)
            if one.fault == "stall":
                owner.closing.wait(owner.stall_seconds)
                self._reset()
            elif one.fault == "reset":
                self._reset()
            elif one.fault == "http_429":
                error = {"type": "rate_limit_error", "message": "Rate limit reached", "code": "rate_limit_exceeded"}
                self._send(_Page({"type": "error", "error": error}, 429, {"Retry-After": owner.retry_after}))
            elif one.fault in ("http_500", "http_529", "http_400", "http_404", "http_403"):
                error = {"type": "api_error", "message": f"no luck with key {self.headers.get('Authorization')}"}
                self._send(_Page({"type": "error", "error": error}, int(one.fault[5:])))
            elif one.fault == "too_long":
                error = {
                    "type": "invalid_request_error",
                    "message": "prompt is too long",
                    "code": "context_length_exceeded",
                }
                self._send(_Page({"type": "error", "error": error}, 400))
            elif one.fault == "no_money":
                error = {
                    "type": "insufficient_quota",
                    "message": "You exceeded your quota",
                    "code": "insufficient_quota",
                }
                self._send(_Page({"error": error}, 429, {"Retry-After": owner.retry_after}))
            elif one.fault == "not_json_body":
                self._send(_Page(None, raw=b"<html>gateway</html>"))
            elif one.fault == "no_choices":
                self._send(_Page({"id": "x", "model": prompt.model}))
            else:
                if one.fault == "slow":
                    time.sleep(0.1)
                text, ending = owner.generate(prompt, one.fault)
                page = _Page(owner.shape(prompt, text, ending))
                if one.fault == "reset_body":
                    self._half(page)
                else:
                    self._send(page)
                    one.answered_at = time.time()
        finally:
            with owner.lock:
                owner.in_flight -= 1

    def _other(self, path: str, data: bytes) -> _Page:
        owner = self.server.owner
        parts = path.strip("/").split("/")[1:]
        if self.command == "POST" and parts == ["files"]:
            # The one file part of a multipart body is JSON lines.
            lines = [line.strip(b"\r") for line in data.split(b"\n")]
            text = b"\n".join(line for line in lines if line.startswith(b'{"custom_id"')).decode()
            name = f"file-in-{len(owner.files)}"
            owner.files[name] = text
            return _Page({"id": name, "object": "file", "bytes": len(text), "purpose": "batch", "filename": "b.jsonl",
                          "created_at": 1, "status": "processed"})  # fmt: skip
        if parts[:1] == ["files"] and parts[2:] == ["content"]:
            kind, _, batch_id = parts[1].partition(":")
            batch = owner.batches[batch_id]
            text = (batch.output if kind == "out" else batch.errors) or ""
            return _Page(None, raw=text.encode())
        if parts[:1] == ["batches"]:
            return self._openai_batch(parts[1:], data)
        if parts[:2] == ["messages", "batches"]:
            return self._anthropic_batch(parts[2:], data)
        return _Page({"error": {"message": f"no such page {path}", "type": "not_found_error"}}, 404)

    def _openai_batch(self, rest: list[str], data: bytes) -> _Page:
        owner = self.server.owner
        if self.command == "POST":
            body = json.loads(data)
            lines = [json.loads(line) for line in owner.files[body["input_file_id"]].splitlines()]
            return _Page(self._openai_state(owner.start_batch("openai", lines, body.get("metadata") or {}), False))
        if not rest:
            states = [self._openai_state(batch, False) for batch in owner.batches.values()]
            return _Page({"object": "list", "data": states, "has_more": False})
        if rest[0] not in owner.batches:
            return _Page({"error": {"message": f"No batch {rest[0]}", "type": "not_found_error"}}, 404)
        batch = owner.batches[rest[0]]
        return _Page(self._openai_state(batch, owner.poll(batch)))

    def _openai_state(self, batch: _Batch, ended: bool) -> dict[str, Any]:
        status = "failed" if batch.failed else "completed" if ended else "in_progress"
        return {
            "id": batch.id, "object": "batch", "endpoint": "/v1/chat/completions", "completion_window": "24h",
            "created_at": int(batch.created_at), "input_file_id": "f", "status": status, "metadata": batch.metadata,
            "output_file_id": f"out:{batch.id}" if ended and batch.output else None,
            "error_file_id": f"err:{batch.id}" if ended and batch.errors else None,
            "errors": {"data": [{"code": "invalid", "message": "bad line 1"}]} if batch.failed else None,
        }  # fmt: skip

    def _anthropic_batch(self, rest: list[str], data: bytes) -> _Page:
        owner = self.server.owner
        if self.command == "POST":
            return _Page(self._anthropic_state(owner.start_batch("anthropic", json.loads(data)["requests"], {}), False))
        if not rest:
            states = [self._anthropic_state(batch, False) for batch in owner.batches.values()]
            return _Page({"data": states, "has_more": False, "first_id": None, "last_id": None})
        if rest[0] not in owner.batches:
            return _Page({"type": "error", "error": {"message": f"No batch {rest[0]}", "type": "not_found_error"}}, 404)
        batch = owner.batches[rest[0]]
        if rest[1:] == ["results"]:
            return _Page(None, raw=(batch.output or "").encode())
        return _Page(self._anthropic_state(batch, owner.poll(batch)))

    def _anthropic_state(self, batch: _Batch, ended: bool) -> dict[str, Any]:
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(batch.created_at + 1))
        counts = {"processing": 0 if ended else len(batch.lines), "succeeded": len(batch.lines) if ended else 0,
                  "errored": 0, "canceled": 0, "expired": 0}  # fmt: skip
        return {
            "id": batch.id, "type": "message_batch", "processing_status": "ended" if ended else "in_progress",
            "request_counts": counts, "created_at": created, "expires_at": created, "ended_at": None,
            "archived_at": None, "cancel_initiated_at": None,
            "results_url": f"{owner_url(self)}/v1/messages/batches/{batch.id}/results" if ended else None,
        }  # fmt: skip

    def _send(self, page: _Page) -> None:
        data = page.raw if page.raw is not None else json.dumps(page.body).encode()
        self.send_response(page.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in page.headers.items():
            self.send_header(name, value)
        if not self.server.owner.keep_alive:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _half(self, page: _Page) -> None:
        data = json.dumps(page.body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        self._reset()

    def _reset(self) -> None:
        # Linger of zero seconds: the peer gets a reset, not an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def owner_url(handler: _Handler) -> str:
    """Address of the server of a handler."""
    return handler.server.owner.url

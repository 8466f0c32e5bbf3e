"""Anthropic: messages with an output schema (or a forced tool), and the message batches API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from freshstack_dagster.language_models.providers import (
    HOOKS,
    TRANSPORT_RETRIES,
    BatchApi,
    BatchStatus,
    ClientPerLoop,
    Fault,
    fault_of,
    json_body,
    translate,
)
from freshstack_dagster.language_models.providers.openai import schema_instruction, with_options
from freshstack_dagster.language_models.replies import Finish, Reply
from freshstack_dagster.language_models.request import Request
from freshstack_dagster.language_models.scrub import Scrubber
from freshstack_dagster.settings import ModelRole

_TOOL = "reply"
_FINISH: dict[str, Finish] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class AnthropicMessages:
    """Messages of Anthropic. `options: {structured_output: tool}` forces a tool where a model has no output schema."""

    default_key_env: str | None = "ANTHROPIC_API_KEY"

    def __init__(
        self, role_name: str, role: ModelRole, key: str | None, environ: Mapping[str, str], scrubber: Scrubber
    ) -> None:
        self._role = role
        self._key = key
        self._scrubber = scrubber
        self._where = f"role {role_name}, {role.provider}:{role.model}"
        self._base_url = role.base_url or environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
        self._options = {name: value for name, value in role.options.items() if name != "structured_output"}
        self._tool = role.options.get("structured_output") == "tool"
        self._clients = ClientPerLoop(self._client)
        self.batches: BatchApi | None = AnthropicBatches(self)

    async def complete(self, request: Request) -> Reply:
        """One message."""
        body = self.body(request)
        response = await self.ask(
            lambda client: client.messages.with_raw_response.create(
                model=body.pop("model"),
                max_tokens=body.pop("max_tokens"),
                messages=body.pop("messages"),
                extra_body=body,
            )
        )
        return read_message(json_body(response))

    def read(self, body: dict[str, Any]) -> Reply:
        """The reply in a response's body. Raises Fault if there is none."""
        return read_message(body)

    def body(self, request: Request) -> dict[str, Any]:
        """What is sent for one request."""
        from anthropic import transform_schema

        role = self._role
        system = request.system if role.json_schema else f"{request.system}\n\n{schema_instruction(request.schema)}"
        body: dict[str, Any] = {
            "model": role.model,
            "max_tokens": role.max_output_tokens,
            "system": system,
            "messages": [{"role": "user", "content": request.user}],
        }
        if role.temperature is not None:
            body["temperature"] = role.temperature
        if role.json_schema and self._tool:
            body["tools"] = [{"name": _TOOL, "description": "Give the reply.", "input_schema": request.schema}]
            body["tool_choice"] = {"type": "tool", "name": _TOOL}
        elif role.json_schema:
            body["output_config"] = {"format": {"type": "json_schema", "schema": transform_schema(request.schema)}}
        return with_options(body, self._options)

    async def ask(self, call: Any) -> Any:
        """Make one SDK call; raises Fault or ModelError in place of the SDK's exceptions."""
        import anthropic

        try:
            return await call(self._clients.get())
        except (anthropic.AnthropicError, ValueError) as error:
            raise translate(error, anthropic, self._where, self._scrubber, self._role.timeout_seconds) from None

    def fault(self, body: Any) -> Fault:
        """A fault of one request of a batch."""
        message = body.get("message") if isinstance(body, dict) else None
        kind = body.get("type") if isinstance(body, dict) else None
        status = {"invalid_request_error": 400, "request_too_large": 413}.get(str(kind), 500)
        found = fault_of(status, body, f"{kind}: {message or body}", self._where, self._scrubber)
        return found if isinstance(found, Fault) else Fault("transport", str(found))

    def _client(self) -> Any:
        import anthropic

        return anthropic.AsyncAnthropic(
            api_key=self._key,
            base_url=self._base_url,
            timeout=self._role.timeout_seconds,
            max_retries=TRANSPORT_RETRIES,
            http_client=anthropic.DefaultAsyncHttpxClient(event_hooks=HOOKS),
        )


class AnthropicBatches:
    """Message batches: requests go in with the call, results come as JSON lines."""

    max_requests = 100_000
    max_bytes = 240_000_000

    def __init__(self, messages: AnthropicMessages) -> None:
        self._messages = messages

    def body(self, request: Request) -> dict[str, Any]:
        """What is sent for one request."""
        return self._messages.body(request)

    async def submit(self, requests: Mapping[str, Request], tag: str) -> str:
        """Start a batch; this API has no place for `tag`."""
        bodies = [{"custom_id": key, "params": self.body(request)} for key, request in requests.items()]
        batch = await self._messages.ask(
            lambda client: client.with_options(max_retries=0).messages.batches.create(requests=bodies)
        )
        return str(batch.id)

    async def find(self, custom_ids: set[str], tag: str, since: float) -> str | None:
        """A batch of as many requests started since then, and, as soon as it has ended, with the same ids."""
        page = await self._messages.ask(lambda client: client.messages.batches.list(limit=100))
        for batch in page.data:
            created = batch.created_at if isinstance(batch.created_at, datetime) else None
            if created is None or created.timestamp() < since - 1:
                continue
            counts = batch.request_counts
            asked = counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
            if asked != len(custom_ids):
                continue
            if batch.processing_status != "ended" or set(await self.results(batch.id)) == custom_ids:
                return str(batch.id)
        return None

    async def status(self, batch: str) -> BatchStatus:
        """How far the batch is."""
        found = await self._messages.ask(lambda client: client.messages.batches.retrieve(batch))
        return BatchStatus(found.processing_status == "ended", detail=found.processing_status)

    async def results(self, batch: str) -> dict[str, Reply | Fault]:
        """Every result by custom id."""

        async def read(client: Any) -> list[Any]:
            return [entry async for entry in await client.messages.batches.results(batch)]

        entries = await self._messages.ask(read)
        return {entry.custom_id: self._result(entry.to_dict()) for entry in entries}

    def _result(self, entry: dict[str, Any]) -> Reply | Fault:
        result = entry.get("result") or {}
        if result.get("type") == "succeeded" and isinstance(result.get("message"), dict):
            try:
                return read_message(result["message"])
            except Fault as fault:
                return fault
        if result.get("type") == "errored":
            error = result.get("error") or {}
            return self._messages.fault(error.get("error") or error)
        return Fault("missing", f"the batch ended before this request was answered: {result.get('type')}")


def read_message(body: dict[str, Any]) -> Reply:
    """A message as a reply. Raises Fault if there is none in it."""
    content = body.get("content")
    if not isinstance(content, list):
        raise Fault(
            "transport", f"a response without content: {str(body.get('error') or sorted(body))[:200]}", again=True
        )
    blocks = [block for block in content if isinstance(block, dict)]
    tools = [block for block in blocks if block.get("type") == "tool_use"]
    text = "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")
    if tools:
        text = json.dumps(tools[0].get("input"), ensure_ascii=False)
    reason = str(body.get("stop_reason") or "")
    usage = body.get("usage") or {}
    cached = int(usage.get("cache_read_input_tokens") or 0)
    return Reply(
        text=text,
        finish=_FINISH.get(reason, "stop"),
        finish_reason=reason,
        input_tokens=int(usage.get("input_tokens") or 0) + int(usage.get("cache_creation_input_tokens") or 0) + cached,
        output_tokens=int(usage.get("output_tokens") or 0),
        cached_tokens=cached,
        served_model=str(body.get("model") or ""),
    )

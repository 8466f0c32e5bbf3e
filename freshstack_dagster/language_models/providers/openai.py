"""OpenAI: chat completions or responses with a JSON schema, and the batch API over them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from freshstack_dagster.errors import ModelError
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
from freshstack_dagster.language_models.replies import Finish, Reply
from freshstack_dagster.language_models.request import Request
from freshstack_dagster.language_models.scrub import Scrubber
from freshstack_dagster.settings import ModelRole

_FINISH: dict[str, Finish] = {"length": "length", "content_filter": "content_filter"}
_ENDED = ("completed", "expired", "cancelled")


class OpenAIChat:
    """Chat completions of OpenAI, or its responses with `options: {api: responses}`."""

    default_key_env: str | None = "OPENAI_API_KEY"
    default_base_url: str | None = "https://api.openai.com/v1"
    base_url_env: str | None = "OPENAI_BASE_URL"
    max_tokens_name = "max_completion_tokens"
    has_batches = True

    def __init__(
        self, role_name: str, role: ModelRole, key: str | None, environ: Mapping[str, str], scrubber: Scrubber
    ) -> None:
        self._role = role
        self._key = key
        self._scrubber = scrubber
        self._where = f"role {role_name}, {role.provider}:{role.model}"
        self._options = {name: value for name, value in role.options.items() if name != "api"}
        self._responses = role.options.get("api") == "responses"
        self.endpoint = "/v1/responses" if self._responses else "/v1/chat/completions"
        from_environment = environ.get(self.base_url_env) if self.base_url_env else None
        self._base_url = role.base_url or from_environment or self.default_base_url
        self._clients = ClientPerLoop(self._client)
        self.batches: BatchApi | None = OpenAIBatches(self) if self.has_batches else None

    async def complete(self, request: Request) -> Reply:
        """One chat completion or response."""
        body = self.body(request)
        if self._responses:
            response = await self.ask(
                lambda client: client.responses.with_raw_response.create(model=body.pop("model"), extra_body=body)
            )
            return read_response(json_body(response))
        response = await self.ask(
            lambda client: client.chat.completions.with_raw_response.create(
                model=body.pop("model"), messages=body.pop("messages"), extra_body=body
            )
        )
        return read_completion(json_body(response))

    def read(self, body: dict[str, Any]) -> Reply:
        """The reply in a response's body. Raises Fault if there is none."""
        return read_response(body) if self._responses else read_completion(body)

    def body(self, request: Request) -> dict[str, Any]:
        """What is sent for one request."""
        role = self._role
        system = request.system if role.json_schema else f"{request.system}\n\n{schema_instruction(request.schema)}"
        schema = {"name": request.task, "schema": strict_schema(request.schema), "strict": True}
        body: dict[str, Any]
        if self._responses:
            body = {
                "model": role.model,
                "instructions": system,
                "input": request.user,
                "max_output_tokens": role.max_output_tokens,
                # Replies lie in our own cache; the provider need not keep them.
                "store": False,
            }
            if role.json_schema:
                body["text"] = {"format": {"type": "json_schema", **schema}}
            if role.temperature is not None:
                body["temperature"] = role.temperature
            return with_options(body, self._options)
        body = {
            "model": role.model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": request.user}],
            self.max_tokens_name: role.max_output_tokens,
        }
        if role.temperature is not None:
            body["temperature"] = role.temperature
        if role.json_schema:
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return with_options(body, self._options)

    async def ask(self, call: Any) -> Any:
        """Make one SDK call; raises Fault or ModelError in place of the SDK's exceptions."""
        import openai

        try:
            return await call(self._clients.get())
        except (openai.OpenAIError, ValueError) as error:
            raise translate(error, openai, self._where, self._scrubber, self._role.timeout_seconds) from None

    def fault(self, status: int | None, body: Any) -> Fault:
        """A fault of one request of a batch."""
        message = body.get("message") if isinstance(body, dict) else None
        found = fault_of(status, body, str(message or body), self._where, self._scrubber)
        return found if isinstance(found, Fault) else Fault("transport", str(found))

    def stop(self, message: str) -> ModelError:
        """An error that stops the run."""
        return ModelError(f"{self._where}: {self._scrubber.message(message)}")

    def _client(self) -> Any:
        import openai

        return openai.AsyncOpenAI(
            # A server without keys gets a word in its place: the SDK wants one, and would else take OPENAI_API_KEY.
            api_key=self._key or "none",
            base_url=self._base_url,
            timeout=self._role.timeout_seconds,
            max_retries=TRANSPORT_RETRIES,
            http_client=openai.DefaultAsyncHttpxClient(event_hooks=HOOKS),
        )


class OpenAIBatches:
    """The batch API of OpenAI: a file of requests goes in, a file of replies and a file of errors come out."""

    max_requests = 50_000
    max_bytes = 190_000_000

    def __init__(self, chat: OpenAIChat) -> None:
        self._chat = chat

    def body(self, request: Request) -> dict[str, Any]:
        """What is sent for one request."""
        return self._chat.body(request)

    async def submit(self, requests: Mapping[str, Request], tag: str) -> str:
        """Upload the requests and start the batch."""
        lines = (
            json.dumps({"custom_id": key, "method": "POST", "url": self._chat.endpoint, "body": self.body(request)})
            for key, request in requests.items()
        )
        content = "".join(f"{line}\n" for line in lines).encode()
        file = await self._chat.ask(lambda client: client.files.create(file=(f"{tag}.jsonl", content), purpose="batch"))
        batch = await self._chat.ask(
            lambda client: client.with_options(max_retries=0).batches.create(
                input_file_id=file.id,
                endpoint=self._chat.endpoint,
                completion_window="24h",
                metadata={"freshstack": tag},
            )
        )
        return str(batch.id)

    async def find(self, custom_ids: set[str], tag: str, since: float) -> str | None:
        """The batch with this tag, if it was started."""
        page = await self._chat.ask(lambda client: client.batches.list(limit=100))
        for batch in page.data:
            if (batch.metadata or {}).get("freshstack") == tag:
                return str(batch.id)
        return None

    async def status(self, batch: str) -> BatchStatus:
        """How far the batch is."""
        found = await self._chat.ask(lambda client: client.batches.retrieve(batch))
        if found.status == "failed":
            errors = [f"{fault.code}: {fault.message}" for fault in (found.errors and found.errors.data) or []]
            return BatchStatus(True, "; ".join(errors[:3]) or "the provider gives no reason")
        return BatchStatus(found.status in _ENDED, detail=found.status)

    async def results(self, batch: str) -> dict[str, Reply | Fault]:
        """Every result by custom id; a batch may have only an error file."""
        found = await self._chat.ask(lambda client: client.batches.retrieve(batch))
        results: dict[str, Reply | Fault] = {}
        for file in (found.error_file_id, found.output_file_id):
            if file:
                content = await self._chat.ask(lambda client, file=file: client.files.content(file))
                results.update(self._read(content.text))
        return results

    def _read(self, text: str) -> dict[str, Reply | Fault]:
        results: dict[str, Reply | Fault] = {}
        for line in text.split("\n"):
            try:
                entry = json.loads(line) if line.strip() else {}
            except ValueError:
                continue
            if not isinstance(entry, dict) or "custom_id" not in entry:
                continue
            results[str(entry["custom_id"])] = self._result(entry)
        return results

    def _result(self, entry: dict[str, Any]) -> Reply | Fault:
        response = entry.get("response") or {}
        body = response.get("body")
        status = response.get("status_code")
        if entry.get("error") or status != 200 or not isinstance(body, dict):
            error = entry.get("error") or (body.get("error") if isinstance(body, dict) else body)
            if isinstance(error, dict) and error.get("code") in ("batch_expired", "batch_cancelled"):
                return Fault("missing", f"the batch ended before this request was answered: {error['code']}")
            return self._chat.fault(status, error or "no response in the batch's result")
        try:
            return self._chat.read(body)
        except Fault as fault:
            return fault


def read_completion(body: dict[str, Any]) -> Reply:
    """A chat completion as a reply. Raises Fault if there is none in it."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Fault(
            "transport", f"a response without choices: {str(body.get('error') or sorted(body))[:200]}", again=True
        )
    message = choices[0].get("message") or {}
    reason = str(choices[0].get("finish_reason") or "")
    usage = body.get("usage") or {}
    refusal = message.get("refusal")
    return Reply(
        text=str(refusal or message.get("content") or ""),
        finish="refusal" if refusal else _FINISH.get(reason, "stop"),
        finish_reason="refusal" if refusal else reason,
        input_tokens=int(usage.get("prompt_tokens") or 0),
        output_tokens=int(usage.get("completion_tokens") or 0),
        cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        served_model=str(body.get("model") or ""),
    )


def read_response(body: dict[str, Any]) -> Reply:
    """A response of the responses API as a reply. Raises Fault if there is none in it."""
    output, error = body.get("output"), body.get("error")
    if not isinstance(output, list) or error or body.get("status") in ("failed", "cancelled"):
        raise Fault("transport", f"a response without output: {str(error or sorted(body))[:200]}", again=True)
    messages = [item for item in output if isinstance(item, dict) and item.get("type") == "message"]
    parts = [part for message in messages for part in message.get("content") or [] if isinstance(part, dict)]
    refusals = [str(part.get("refusal")) for part in parts if part.get("type") == "refusal"]
    text = "".join(str(part.get("text") or "") for part in parts if part.get("type") == "output_text")
    reason = str((body.get("incomplete_details") or {}).get("reason") or body.get("status") or "")
    finish: Finish = {"max_output_tokens": "length", "content_filter": "content_filter"}.get(reason, "stop")  # type: ignore[assignment]
    usage = body.get("usage") or {}
    return Reply(
        text=refusals[0] if refusals else text,
        finish="refusal" if refusals else finish,
        finish_reason="refusal" if refusals else reason,
        input_tokens=int(usage.get("input_tokens") or 0),
        output_tokens=int(usage.get("output_tokens") or 0),
        cached_tokens=int((usage.get("input_tokens_details") or {}).get("cached_tokens") or 0),
        served_model=str(body.get("model") or ""),
    )


def with_options(body: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """`body` with a role's options; objects on both sides, such as `text` or `output_config`, are joined."""
    joined = {
        name: {**body[name], **value} if isinstance(value, dict) and isinstance(body.get(name), dict) else value
        for name, value in options.items()
    }
    return {**body, **joined}


def schema_instruction(schema: dict[str, Any]) -> str:
    """What a prompt says to a model that cannot be held to a schema."""
    return (
        "Reply with one JSON object that fits the JSON schema below, and with nothing else: no text before or after "
        f"it, no comment.\n\n{json.dumps(schema, ensure_ascii=False)}"
    )


def strict_schema(schema: Any) -> Any:
    """`schema` in the strict form: every object closed, every property required."""
    if isinstance(schema, list):
        return [strict_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    properties = schema.get("properties")
    strict = {
        key: value if key in ("enum", "const", "required") else strict_schema(value) for key, value in schema.items()
    }
    if isinstance(properties, dict):
        strict["properties"] = {name: strict_schema(part) for name, part in properties.items()}
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
    return strict

"""POST requests to embedding and rerank services, with patience for what passes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from freshstack_dagster.errors import ModelError, SettingsError

ATTEMPTS = 6
LONGEST_WAIT = 60.0


class Service:
    """A service at a base URL, with its key from the environment.

    `what` names the retriever or reranker in errors. A key that the environment lacks is an error where the service is
    the provider's own, or where `key_variable` was set; a server of one's own needs none.
    """

    def __init__(
        self,
        what: str,
        *,
        base_url: str | None,
        default_url: str,
        key_variable: str | None,
        default_key_variable: str,
        timeout: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.what = what
        self.url = (base_url or default_url).rstrip("/")
        self._sleep, self._timeout = sleep, timeout
        variable = key_variable or (None if base_url else default_key_variable)
        self._key = os.environ.get(variable, "") if variable else ""
        if variable and not self._key:
            raise SettingsError(f"{what}: the environment variable {variable} holds no API key; set it")
        self._client: Any = None

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON reply. Waits out 408, 409, 429 and 5xx replies and broken connections, a few times.

        Raises ModelError that names the service, the status and the reason; never the key.
        """
        import httpx

        if self._client is None:
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            self._client = httpx.Client(headers=headers, timeout=self._timeout)
        for attempt in range(1, ATTEMPTS + 1):
            wait = min(LONGEST_WAIT, 0.5 * 2**attempt)
            try:
                reply = self._client.post(f"{self.url}/{path}", json=body)
            except httpx.TransportError as error:
                fault = f"the connection failed ({type(error).__name__})"
            else:
                if reply.is_success:
                    return self._json(reply)
                fault = f"status {reply.status_code}: {_reason(reply)}"
                if reply.status_code not in (408, 409, 429) and reply.status_code < 500:
                    break
                wait = min(LONGEST_WAIT, _retry_after(reply) or wait)
            if attempt < ATTEMPTS:
                self._sleep(wait)
        raise ModelError(f"{self.what}: {self.url}/{path}: {fault}")

    def _json(self, reply: Any) -> dict[str, Any]:
        try:
            document = reply.json()
        except ValueError as error:
            raise ModelError(f"{self.what}: {self.url} replied with something that is not JSON") from error
        if not isinstance(document, dict):
            raise ModelError(f"{self.what}: {self.url} replied with {type(document).__name__}, not an object")
        return document


def _retry_after(reply: Any) -> float | None:
    try:
        return max(0.0, float(reply.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def _reason(reply: Any) -> str:
    return " ".join(reply.text.split())[:200] or "no reason given"

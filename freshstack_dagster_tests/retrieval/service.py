"""A local server that speaks the embedding and rerank protocols of OpenAI, Voyage and Cohere, faults on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Answer = Callable[[str, dict[str, Any]], Any]


class Service:
    """Serves `answer(path, body)`; `faults` are (status, headers) given before the first right answers."""

    def __init__(self, answer: Answer, faults: list[tuple[int, dict[str, str]]] | None = None) -> None:
        self.requests: list[tuple[str, dict[str, Any], str | None]] = []
        self.faults = list(faults or [])
        lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    service.requests.append((self.path, body, self.headers.get("authorization")))
                    status, headers = service.faults.pop(0) if service.faults else (200, {})
                reply = answer(self.path, body) if status == 200 else {"error": "busy"}
                data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Service:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

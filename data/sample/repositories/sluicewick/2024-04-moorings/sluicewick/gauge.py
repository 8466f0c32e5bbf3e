"""Gauges: metrics in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
_lock = threading.Lock()


def count(name: str, amount: float = 1, **labels: str) -> None:
    """Add to a counter. Label values are cut at 64 characters."""
    key = (name, tuple(sorted((label, value[:64]) for label, value in labels.items())))
    with _lock:
        _values[key] = _values.get(key, 0) + amount


def level(name: str, value: float, **labels: str) -> None:
    """Set a value that goes up and down, such as the fill of a weir."""
    with _lock:
        _values[(name, tuple(sorted(labels.items())))] = value


def render() -> str:
    with _lock:
        lines = [
            f"{name}{{{','.join(f'{label}={value!r}' for label, value in labels)}}} {value}".replace("'", '"')
            for (name, labels), value in sorted(_values.items())
        ]
    return "\n".join(lines) + "\n"


def serve(port: int = 9417, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Serve the metrics at ``/gauge`` in a thread of its own.

    The port is 9417 unless told, and only this machine can reach it unless ``host="0.0.0.0"``. With process lanes the
    numbers of the lanes are sent to the parent once a second; a lane that is killed loses its last second.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/gauge":
                self.send_error(404, "metrics are at /gauge")
                return
            body = render().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True, name="gauge").start()
    return server

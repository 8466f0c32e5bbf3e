"""Real git repositories for the tests of the corpus: dated commits, odd trees, and a server that asks for a token."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SYMLINK, SUBMODULE = "120000", "160000"
Content = bytes | tuple[str, bytes]

_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "LC_ALL": "C",
}


def git(directory: Path, *arguments: str, stdin: bytes = b"") -> str:
    ran = subprocess.run(
        ["git", "--git-dir", str(directory), *arguments],
        input=stdin,
        capture_output=True,
        env=_ENVIRONMENT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout.decode("utf-8", "replace").strip()


@dataclass
class Made:
    """A bare repository that a test makes commit by commit."""

    path: Path
    default: str = "main"
    tips: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True)
        git(self.path, "init", "--quiet", "--bare", "--template=", str(self.path))
        self.default_branch(self.default)

    def default_branch(self, branch: str) -> None:
        git(self.path, "symbolic-ref", "HEAD", f"refs/heads/{branch}")

    def commit(
        self,
        at: str,
        files: Mapping[str | bytes, Content] | None = None,
        *,
        branch: str | None = None,
        authored: str | None = None,
        parents: list[str] | None = None,
    ) -> str:
        """Commit a whole tree (`files`: content, or mode and content) at ISO times with a zone; its id."""
        branch = branch or self.default
        files = {"a.md": at.encode()} if files is None else files
        parents = parents if parents is not None else [self.tips[branch]] if branch in self.tips else []
        lines = [
            f"commit refs/heads/made\nauthor A <a@example.invalid> {_raw(authored or at)}\n".encode(),
            f"committer A <a@example.invalid> {_raw(at)}\ndata 0\n".encode(),
            *(f"{'merge' if number else 'from'} {parent}\n".encode() for number, parent in enumerate(parents)),
            b"deleteall\n",
        ]
        for path, content in files.items():
            mode, data = content if isinstance(content, tuple) else ("100644", content)
            if mode == SUBMODULE:
                lines.append(b"M %s %s %s\n" % (mode.encode(), data, _quoted(path)))
            else:
                lines.append(b"M %s inline %s\ndata %d\n%s\n" % (mode.encode(), _quoted(path), len(data), data))
        git(self.path, "fast-import", "--quiet", "--force", stdin=b"".join([b"reset refs/heads/made\n", *lines]))
        made = git(self.path, "rev-parse", "refs/heads/made")
        git(self.path, "update-ref", "-d", "refs/heads/made")
        git(self.path, "update-ref", f"refs/heads/{branch}", made)
        self.tips[branch] = made
        return made


def _raw(at: str) -> str:
    when = datetime.fromisoformat(at)
    offset = when.utcoffset()
    assert offset is not None
    minutes = int(offset.total_seconds()) // 60
    return f"{int(when.timestamp())} {'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}{abs(minutes) % 60:02}"


def _quoted(path: str | bytes) -> bytes:
    raw = path.encode() if isinstance(path, str) else path
    return b'"' + b"".join(b"\\%03o" % byte for byte in raw) + b'"'


@dataclass
class Server:
    """A git server over HTTP: what it asks for, where it sends people, and what it was asked."""

    address: str
    token: str | None = None
    redirects: dict[str, str] = field(default_factory=dict)
    authorizations: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    before_answer: Callable[[str], object] | None = None


@contextmanager
def serving(folder: Path, token: str | None = None) -> Iterator[Server]:
    """Serve the bare repositories below `folder`; with `token`, to its holder only."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self._body())

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            return b"".join(parts)

        def _answer(self, body: bytes) -> None:
            path, _, query = self.path.partition("?")
            server.requests.append(path)
            if server.before_answer is not None:
                server.before_answer(path)
            for old, new in server.redirects.items():
                if path.startswith(old):
                    self.send_response(301)
                    self.send_header("Location", new + self.path.removeprefix(old))
                    self.end_headers()
                    return
            given = self.headers.get("Authorization", "")
            if given:
                server.authorizations.append(given)
            if server.token and given != "Basic " + base64.b64encode(f"x-access-token:{server.token}".encode()).decode(
                "ascii"
            ):
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.end_headers()
                return
            variables = {
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            ran = subprocess.run(
                ["git", "http-backend"], input=body, capture_output=True, env={**_ENVIRONMENT, **variables}, check=False
            )
            head, _, rest = ran.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(rest)

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{listening.server_address[1]}", token)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()

"""A real `dagster dev` over a fresh project that holds the sample topic, and a real browser."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from freshstack_dagster_tests.conftest import PROJECT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
START_SECONDS = 180


@dataclass(frozen=True)
class Server:
    """A running Dagster with its GraphQL address."""

    root: Path
    url: str

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Send a GraphQL request and return its data; errors come back as text of the assertion."""
        reply = httpx.post(f"{self.url}/graphql", json={"query": query, "variables": variables}, timeout=120)
        document = reply.json()
        assert "errors" not in document, document["errors"]
        return document["data"]

    def wait_for_run(self, run_id: str, seconds: float = 180) -> str:
        """The final status of a run."""
        end = time.monotonic() + seconds
        status = ""
        while time.monotonic() < end:
            status = self.ask("query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }", id=run_id)[
                "runOrError"
            ]["status"]
            if status in {"SUCCESS", "FAILURE", "CANCELED"}:
                break
            time.sleep(1)
        return status


@pytest.fixture(scope="session")
def sample_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with the sample topic only."""
    root = tmp_path_factory.mktemp("project")
    (root / "data" / "topics").mkdir(parents=True)
    for name in ("dagster.yaml", "workspace.yaml", "data/snapshots.yaml", "data/topics/sample.yaml"):
        shutil.copy(PROJECT / name, root / name)
    shutil.copytree(PROJECT / "data" / "sample", root / "data" / "sample")
    return root


@pytest.fixture(scope="session")
def dagster_dev(sample_project: Path) -> Iterator[Server]:
    """`dagster dev` from the project's root, as the README starts it."""
    root = sample_project
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "FRESHSTACK_ROOT": str(root), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("DAGSTER_HOME", None)
    subprocess.run([scripts / "freshstack-dagster", "init"], cwd=root, env=environment, check=True)
    log = root / "dagster-dev.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [scripts / "dagster", "dev", "--port", str(port)],
            cwd=root,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # A child of a background shell inherits an ignored SIGINT, to which Dagster maps SIGTERM.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    server = Server(root, f"http://127.0.0.1:{port}")
    try:
        _wait(server, process, log)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            if httpx.get(f"{server.url}/server_info", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    pytest.fail(f"dagster dev did not start within {START_SECONDS} s: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; tests that need it skip where it or Playwright is not installed."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()

"""A real `dagster dev` over a project, and what the tests ask of it through GraphQL, as the UI does."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from freshstack_dagster_tests.conftest import PROJECT

SCRIPTS = Path(sys.executable).parent
START_SECONDS = 240
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}
SELECTOR = {"repositoryLocationName": "freshstack_dagster", "repositoryName": "__repository__"}

LAUNCH = """
mutation($parameters: ExecutionParams!) {
  launchRun(executionParams: $parameters) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
BACKFILL = """
mutation($parameters: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $parameters) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
RUNS = """
query($filter: RunsFilter) {
  runsOrError(filter: $filter) {
    ... on Runs { results { runId jobName status startTime endTime tags { key value } } }
  }
}
"""


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

    def launch(
        self, topic: str | None, snapshot: str | None = None, *, job: str = "__ASSET_JOB", assets: Sequence[str] = ()
    ) -> str:
        """Launch one partition of a job or of assets, as the UI does, and return the run's id."""
        if snapshot is None:
            tags = {"dagster/partition": topic} if topic else {}
        else:
            tags = {
                "dagster/partition": f"{snapshot}|{topic}",
                "dagster/partition/topic": topic,
                "dagster/partition/snapshot": snapshot,
            }
        selected = {"assetSelection": [{"path": [asset]} for asset in assets]} if assets else {}
        reply = self.ask(
            LAUNCH,
            parameters={
                "selector": {**SELECTOR, "pipelineName": job, **selected},
                "runConfigData": {},
                "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
            },
        )["launchRun"]
        assert reply["__typename"] == "LaunchRunSuccess", reply
        return str(reply["run"]["runId"])

    def backfill(self, assets: Sequence[str], partitions: Sequence[str]) -> str:
        """Launch a backfill of assets over partitions and return its id."""
        parameters = {"assetSelection": [{"path": [asset]} for asset in assets], "partitionNames": list(partitions)}
        reply = self.ask(BACKFILL, parameters=parameters)["launchPartitionBackfill"]
        assert reply["__typename"] == "LaunchBackfillSuccess", reply
        return str(reply["backfillId"])

    def runs(self, **tags: str) -> list[dict[str, Any]]:
        """Runs with the given tags (`a__b` stands for `a/b`), newest first."""
        wanted = [{"key": key.replace("__", "/"), "value": value} for key, value in tags.items()]
        return self.ask(RUNS, filter={"tags": wanted})["runsOrError"]["results"]

    def wait_for_run(self, run_id: str, seconds: float = 300) -> str:
        """The final status of a run."""
        query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
        return self._wait(query, "runOrError", ENDED, seconds, id=run_id)

    def wait_for_backfill(self, backfill: str, seconds: float = 600) -> str:
        """The final status of a backfill."""
        query = (
            "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"
        )
        ended = {"COMPLETED_SUCCESS", "COMPLETED_FAILED", "COMPLETED", "FAILED", "CANCELED"}
        return self._wait(query, "partitionBackfillOrError", ended, seconds, id=backfill)

    def _wait(self, query: str, field: str, ended: set[str], seconds: float, **variables: Any) -> str:
        end = time.monotonic() + seconds
        status = ""
        while time.monotonic() < end and status not in ended:
            time.sleep(0.5)
            status = str(self.ask(query, **variables)[field]["status"])
        return status


def make_project(root: Path) -> Path:
    """Make a project folder with the sample topic only."""
    (root / "data" / "topics").mkdir(parents=True)
    for name in ("dagster.yaml", "workspace.yaml", "data/snapshots.yaml", "data/topics/sample.yaml"):
        shutil.copy(PROJECT / name, root / name)
    shutil.copytree(PROJECT / "data" / "sample", root / "data" / "sample")
    return root


def environment(root: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a project's commands; nothing of the tests' own project leaks into it."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("FRESHSTACK_", "DAGSTER_"))}
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    return {**outside, "PATH": path, "FRESHSTACK_ROOT": str(root), **(variables or {})}


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def dagster_dev(root: Path, variables: Mapping[str, str] | None = None) -> Iterator[Server]:
    """`dagster dev` from the project's root, as the README starts it."""
    port = free_port()
    env = environment(root, variables)
    subprocess.run([SCRIPTS / "freshstack-dagster", "init"], cwd=root, env=env, check=True, capture_output=True)
    log = root / f"dagster-dev-{port}.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [SCRIPTS / "dagster", "dev", "--port", str(port)],
            cwd=root,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # A child of a background shell inherits an ignored SIGINT, to which Dagster maps SIGTERM.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    server = Server(root, f"http://127.0.0.1:{port}")
    try:
        _wait_for(server, process, log)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _wait_for(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            if httpx.get(f"{server.url}/server_info", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"dagster dev did not start within {START_SECONDS} s: {log.read_text()[-2000:]}")

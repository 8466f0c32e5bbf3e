"""The same DAG with its lake in a bucket, Dagster's storage in Postgres, and its steps on two Celery workers.

Postgres, Redis and the bucket are started here; where they are not installed, the tests skip.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from freshstack_dagster_tests.conftest import PROJECT
from freshstack_dagster_tests.dagster_server import SCRIPTS, Server, dagster_dev, free_port
from freshstack_dagster_tests.operations.conftest import Project

pytestmark = pytest.mark.slow

# How long a task may go unanswered before it is given to another worker; in earnest longer than the longest step.
VISIBILITY_SECONDS = 20


def _programs() -> Path:
    found = shutil.which("initdb")
    folders = [*([Path(found).parent] if found else []), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    if not folders:
        pytest.skip("Postgres is not installed")
    return folders[-1]


def _wait_for_postgres(port: int) -> None:
    import psycopg2

    for _ in range(200):
        try:
            psycopg2.connect(host="127.0.0.1", port=port, user="dagster", password="dagster", dbname="postgres").close()
            return
        except psycopg2.OperationalError:
            time.sleep(0.3)
    raise AssertionError("Postgres did not start")


@pytest.fixture(scope="module")
def postgres() -> Iterator[int]:
    """A new Postgres; its port. It refuses to run as root, so it then runs as the user of its package."""
    pytest.importorskip("dagster_postgres")
    programs = _programs()
    user: dict[str, Any] = {"user": "postgres"} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    if user:
        shutil.chown(folder, "postgres")
    port = free_port()
    (folder / "password").write_text("dagster")
    (folder / "password").chmod(0o644)
    command = [programs / "initdb", "-D", folder / "data", "-U", "dagster", "-A", "scram-sha-256"]
    subprocess.run([*command, "--pwfile", folder / "password"], check=True, capture_output=True, cwd=folder, **user)
    server = subprocess.Popen(
        [
            programs / "postgres",
            "-D",
            folder / "data",
            "-p",
            str(port),
            "-k",
            folder,
            "-c",
            "listen_addresses=127.0.0.1",
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **user,
    )
    try:
        _wait_for_postgres(port)
        yield port
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A new Redis; its port."""
    pytest.importorskip("dagster_celery")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("Redis is not installed")
    port = free_port()
    command = [program, "--port", str(port), "--save", "", "--dir", str(tmp_path_factory.mktemp("redis"))]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    yield port
    server.terminate()
    server.wait(timeout=30)


@dataclass
class Workers:
    """Two Celery workers, each a process group of its own."""

    project: Project
    config: Path
    processes: list[subprocess.Popen[bytes]]

    def start(self, name: str) -> None:
        """Start a worker that does one step at a time."""
        command = [SCRIPTS / "dagster-celery", "worker", "start", "-A", "dagster_celery.app", "-y", self.config]
        with open(self.project.root / f"worker-{name}.log", "wb") as log:
            process = subprocess.Popen(
                [*command, "--name", name, "--", "--concurrency", "1"],
                cwd=self.project.root,
                env=self.project.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)

    def kill(self, number: int) -> None:
        """SIGKILL to a worker and its children, as when its machine is gone."""
        process = self.processes.pop(number)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def far(
    postgres: int, redis: int, s3_server: dict[str, str], new_project: Callable[..., Project]
) -> Iterator[tuple[Server, Workers]]:
    """A project beyond one machine, its Dagster and its workers."""
    bucket = f"far-{secrets.token_hex(4)}"
    httpx.put(f"{s3_server['AWS_ENDPOINT_URL']}/{bucket}").raise_for_status()
    project = new_project()
    config = project.root / "celery.yaml"
    # The file that is shipped, but for the time until a lost worker is noticed.
    settings = yaml.safe_load((PROJECT / "deploy" / "celery.yaml").read_text())
    options = settings["execution"]["config"]["config_source"]["broker_transport_options"]
    options["visibility_timeout"] = VISIBILITY_SECONDS
    config.write_text(yaml.safe_dump(settings))
    project.variables = {
        **s3_server,
        "FRESHSTACK_LAKE": f"s3://{bucket}/lake",
        "FRESHSTACK_EXECUTOR": "dagster_celery:celery_executor",
        "FRESHSTACK_EXECUTOR_CONFIG": str(config),
        "CELERY_BROKER_URL": f"redis://127.0.0.1:{redis}/0",
        "CELERY_RESULT_BACKEND": f"redis://127.0.0.1:{redis}/1",
        "DAGSTER_HOME": str(project.root),
        "DAGSTER_PG_USERNAME": "dagster",
        "DAGSTER_PG_PASSWORD": "dagster",
        "DAGSTER_PG_HOST": "127.0.0.1",
        "DAGSTER_PG_DB": "postgres",
        "C_FORCE_ROOT": "1",
        "USER": getpass.getuser(),
    }
    dagster = yaml.safe_load((PROJECT / "deploy" / "dagster.yaml").read_text())
    dagster["storage"]["postgres"]["postgres_db"]["port"] = postgres
    (project.root / "dagster.yaml").write_text(yaml.safe_dump(dagster))
    workers = Workers(project, config, [])
    with dagster_dev(project.root, project.variables) as server:
        for name in ("one", "two"):
            workers.start(name)
        yield server, workers
        while workers.processes:
            workers.kill(0)


def test_the_sample_ends_in_the_same_tables_though_a_worker_is_killed(
    far: tuple[Server, Workers], demo: Project, monkeypatch: pytest.MonkeyPatch
):
    server, workers = far
    started = time.monotonic()
    assert server.wait_for_run(server.launch("sample", job="build_questions")) == "SUCCESS"
    runs = [server.launch("sample", month, job="build_snapshot") for month in ("2024-10", "2025-10")]
    while not _steps_done(server, runs[0]):
        time.sleep(0.5)
    workers.kill(0)
    assert [server.wait_for_run(run, seconds=900) for run in runs] == ["SUCCESS", "SUCCESS"]
    workers.start("three")
    assert server.wait_for_run(server.launch("sample", job="compare_snapshots"), seconds=600) == "SUCCESS"
    print(f"{time.monotonic() - started:.0f} s on two workers; the demo takes {demo.seconds:.0f} s in one process")
    for name, value in workers.project.variables.items():
        monkeypatch.setenv(name, value)
    assert workers.project.contents() == demo.contents()


def test_the_catalogue_of_a_bucket_answers_in_sql(far: tuple[Server, Workers], demo: Project):
    _, workers = far
    question = ("freshstack-dagster", "sql", "--csv", "select count(*) as n from chunks")
    assert workers.project.run(*question) == demo.run(*question)


def _steps_done(server: Server, run: str) -> int:
    query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { stepStats { status } } } }"
    stats = server.ask(query, id=run)["runOrError"]["stepStats"]
    return sum(step["status"] == "SUCCESS" for step in stats)

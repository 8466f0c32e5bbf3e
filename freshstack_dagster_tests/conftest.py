"""Fixtures shared by every room's tests."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from freshstack_dagster.lake import Lake

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture
def project() -> Path:
    """The project's root."""
    return PROJECT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real inputs and published figures beside the project; tests that need them skip where they are absent."""
    folder = PROJECT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no folder of shared inputs beside the project")
    return folder


@pytest.fixture(scope="session")
def s3_server() -> Iterator[dict[str, str]]:
    """A server that speaks S3, and the variables by which its clients find it."""
    pytest.importorskip("obstore")
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }
    server.stop()


@pytest.fixture
def object_store(s3_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket's URL with a prefix, reachable from this process."""
    for name, value in s3_server.items():
        monkeypatch.setenv(name, value)
    bucket = f"lake-{secrets.token_hex(4)}"
    httpx.put(f"{s3_server['AWS_ENDPOINT_URL']}/{bucket}").raise_for_status()
    return f"s3://{bucket}/lake"


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """An empty lake with a catalogue, in a directory unless the test asks for a bucket too."""
    remote = getattr(request, "param", "directory") == "bucket"
    root = request.getfixturevalue("object_store") if remote else tmp_path / "lake"
    return Lake(root, tmp_path / "freshstack.duckdb")

"""Fixtures shared by every room's tests."""

from __future__ import annotations

from pathlib import Path

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


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake with a catalogue."""
    return Lake(tmp_path / "lake", tmp_path / "freshstack.duckdb")

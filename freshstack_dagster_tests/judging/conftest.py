"""The embedded heuristic behind the real client."""

from __future__ import annotations

from pathlib import Path

import pytest

from freshstack_dagster.language_models import Models
from freshstack_dagster.settings import Budget


@pytest.fixture
def heuristic_models(tmp_path: Path) -> Models:
    """The real client with an empty cache."""
    return Models(cache=tmp_path / "cache", budget=Budget())

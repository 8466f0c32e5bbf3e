"""The sample topic's corpora, built once."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.corpus.build import build_corpus, resolve_commits
from freshstack_dagster.judging.truth import load_truth
from freshstack_dagster.settings import load_topic

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture(scope="session")
def truth() -> dict:
    """What is true of the sample."""
    return load_truth(DATA / "sample" / "truth.yaml")


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    """The sample's chunks in its two snapshots."""
    root = tmp_path_factory.mktemp("sample")
    topic = load_topic(DATA / "topics" / "sample.yaml")
    mirrors = root / "mirrors"
    return {
        month: build_corpus(topic, resolve_commits(topic, month, mirrors), mirrors, root / "cache", workers=1).chunks
        for month in ("2024-10", "2025-10")
    }

"""A real `dagster dev` over a project with four months of the sample and a topic without questions, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freshstack_dagster_tests import dagster_server
from freshstack_dagster_tests.dagster_server import Server, make_project

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
MONTHS = ["2024-10", "2025-01", "2025-04", "2025-10"]
# Nobody asks under its tag, so its check questions_found must fail.
SILENT = """
title: silent
tags: [nobody-asks]
questions: {kind: dump, path: data/sample/Posts.xml}
repositories:
  - name: sluicewick/sluicewick
    history: data/sample/repositories/sluicewick/history.yaml
    branch: main
"""


@pytest.fixture(scope="session")
def sample_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's folder."""
    root = make_project(tmp_path_factory.mktemp("project"))
    (root / "data" / "topics" / "silent.yaml").write_text(SILENT)
    (root / "data" / "snapshots.yaml").write_text(f"months: [{', '.join(MONTHS)}]\nlive_from: 2026-12\n")
    return root


@pytest.fixture(scope="session")
def dagster_dev(sample_project: Path) -> Iterator[Server]:
    """`dagster dev` from the project's root, as the README starts it."""
    with dagster_server.dagster_dev(sample_project) as server:
        yield server


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


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of a browser that shows times in UTC."""
    context = browser.new_context(timezone_id="UTC", viewport={"width": 1600, "height": 2000})
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()

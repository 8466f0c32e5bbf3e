from __future__ import annotations

from typing import Any

import pytest

from freshstack_dagster.lake import connect
from freshstack_dagster_tests.ui.conftest import Server

pytestmark = pytest.mark.slow

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
STAGES = [
    "questions", "corpus", "nuggets", "answers", "pools", "judgments", "calibration", "qrels", "evaluation", "drift",
    "publishing",
]  # fmt: skip


def launch(server: Server, assets: list[str], topic: str, snapshot: str) -> str:
    """Launch one partition of assets as the UI does, and return the run's id."""
    tags = {
        "dagster/partition": f"{snapshot}|{topic}",
        "dagster/partition/topic": topic,
        "dagster/partition/snapshot": snapshot,
    }
    reply = server.ask(
        LAUNCH,
        parameters={
            "selector": {
                "repositoryLocationName": "freshstack_dagster",
                "repositoryName": "__repository__",
                "pipelineName": "__ASSET_JOB",
                "assetSelection": [{"path": [asset]} for asset in assets],
            },
            "runConfigData": {},
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
        },
    )["launchRun"]
    assert reply["__typename"] == "LaunchRunSuccess", reply
    return str(reply["run"]["runId"])


@pytest.fixture(scope="module")
def built_chunks(dagster_dev: Server) -> Server:
    """A Dagster in which `chunks` of one partition was launched through GraphQL."""
    run = launch(dagster_dev, ["commits", "files", "chunks"], "sample", "2024-10")
    assert dagster_dev.wait_for_run(run) == "SUCCESS"
    return dagster_dev


def test_a_partition_launched_from_the_ui_is_in_the_catalogue(built_chunks: Server):
    with connect(built_chunks.root / "data" / "freshstack.duckdb") as connection:
        rows = connection.execute("select snapshot, count(*) from chunks group by snapshot").fetchall()
    assert [month for month, _ in rows] == ["2024-10"]
    assert rows[0][1] > 50


def test_the_asset_graph_shows_every_stage_in_order(built_chunks: Server, browser: Any):
    """Groups start collapsed, a box each; from left to right a stage follows what it reads."""
    page = browser.new_page(viewport={"width": 2600, "height": 1600})
    page.goto(f"{built_chunks.url}/asset-groups")
    page.wait_for_selector("foreignObject >> text=publishing", timeout=60_000, state="attached")
    page.wait_for_timeout(2000)
    places = page.evaluate(
        "names => names.map(name => { const found = [...document.querySelectorAll('foreignObject')]"
        ".filter(node => node.textContent.trim().startsWith(name)); "
        "return found.length ? Math.min(...found.map(node => node.getBoundingClientRect().x)) : null })",
        STAGES,
    )
    page.close()
    x = dict(zip(STAGES, places, strict=True))
    assert None not in places
    for order in (
        ["questions", "nuggets", "pools", "judgments", "calibration", "qrels", "evaluation", "publishing"],
        ["nuggets", "answers"],
        ["corpus", "pools"],
        ["judgments", "drift", "publishing"],
    ):
        assert [x[stage] for stage in order] == sorted(x[stage] for stage in order)


def test_the_metadata_panel_shows_counts_and_a_preview(built_chunks: Server, browser: Any):
    page = browser.new_page(viewport={"width": 1600, "height": 2400})
    page.goto(f"{built_chunks.url}/assets/chunks?view=overview")
    page.wait_for_selector("text=chunks, by repository", timeout=30_000)
    text = page.inner_text("body")
    page.close()
    assert "preview" in text
    assert "files, by outcome" in text
    assert "doc_id" in text


def test_every_group_is_known_to_the_ui(dagster_dev: Server):
    groups = dagster_dev.ask("{ assetNodes { groupName } }")["assetNodes"]
    assert {node["groupName"] for node in groups} == set(STAGES)

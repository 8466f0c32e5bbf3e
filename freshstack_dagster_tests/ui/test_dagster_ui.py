from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from freshstack_dagster.automation.jobs import SNAPSHOT_GROUPS
from freshstack_dagster.definitions import defs
from freshstack_dagster.lake import connect
from freshstack_dagster_tests.dagster_server import Server
from freshstack_dagster_tests.ui.conftest import MONTHS

pytestmark = pytest.mark.slow

STAGES = ["questions", "corpus", "nuggets", "pools", "judgments", "qrels", "evaluation", "drift", "publishing"]
SECONDS_TO_RENDER = 1.5


@dataclass(frozen=True)
class Backfill:
    """A backfill that has ended."""

    id: str
    status: str
    runs: list[dict[str, Any]]


@pytest.fixture(scope="module")
def questions(dagster_dev: Server) -> dict[str, str]:
    """Questions of both topics, and how their runs ended."""
    runs = {topic: dagster_dev.launch(topic, job="build_questions") for topic in ("sample", "silent")}
    return {topic: dagster_dev.wait_for_run(run) for topic, run in runs.items()}


@pytest.fixture(scope="module")
def backfill(dagster_dev: Server, questions: dict[str, str]) -> Backfill:
    """All tables of the sample's four months, by a backfill."""
    assets = [
        spec.key.to_user_string() for spec in defs.resolve_all_asset_specs() if spec.group_name in SNAPSHOT_GROUPS
    ]
    backfill = dagster_dev.backfill(assets, [f"{month}|sample" for month in MONTHS])
    status = dagster_dev.wait_for_backfill(backfill)
    return Backfill(backfill, status, dagster_dev.runs(dagster__backfill=backfill))


def open_page(page: Any, server: Server, path: str, text: str) -> str:
    """Open a page of the UI, wait for a text on it, and return all its text."""
    page.goto(f"{server.url}{path}")
    page.wait_for_selector(f"text={text}", state="attached")
    page.wait_for_timeout(1000 * SECONDS_TO_RENDER)
    return str(page.inner_text("body"))


def test_a_partition_is_materialised_by_clicks(dagster_dev: Server, page: Any):
    open_page(page, dagster_dev, "/assets/commits?view=overview", "Materialize…")
    page.click("text=Materialize…")
    months = page.get_by_placeholder("ex: 2024-10")
    months.fill("2024-10")
    months.press("Enter")
    page.click("text=Select a partition or create one")
    page.locator("text=sample >> visible=true").last.click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Launch 1 run").click()
    end = time.monotonic() + 60
    while not (runs := dagster_dev.runs(dagster__partition="2024-10|sample")) and time.monotonic() < end:
        time.sleep(0.5)
    assert dagster_dev.wait_for_run(runs[0]["runId"]) == "SUCCESS"
    with connect(dagster_dev.root / "data" / "freshstack.duckdb") as connection:
        assert connection.execute("select distinct snapshot from commits").fetchall() == [("2024-10",)]


def test_a_backfill_over_four_months_runs_at_once_and_ends_green(dagster_dev: Server, backfill: Backfill, page: Any):
    assert backfill.status == "COMPLETED_SUCCESS"
    assert len(backfill.runs) == len(MONTHS)
    spans = sorted((run["startTime"], run["endTime"]) for run in backfill.runs)
    assert any(later[0] < earlier[1] for earlier, later in pairwise(spans)), spans
    for run in backfill.runs:
        tags = {tag["key"]: tag["value"] for tag in run["tags"]}
        assert tags["freshstack/topic"] == "sample"
        assert tags["freshstack/snapshot"] in MONTHS
    with connect(dagster_dev.root / "data" / "freshstack.duckdb") as connection:
        months = connection.execute("select distinct snapshot from comparisons order by all").fetchall()
    assert [month for (month,) in months] == MONTHS
    text = open_page(page, dagster_dev, "/overview/backfills", backfill.id)
    assert "4 partitions" in text
    assert "Success" in text


def test_the_asset_graph_shows_every_stage_in_order(dagster_dev: Server, browser: Any):
    """Groups start collapsed, a box each; from left to right a stage follows what it reads."""
    page = browser.new_page(viewport={"width": 2600, "height": 1600})
    page.goto(f"{dagster_dev.url}/asset-groups")
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
        ["questions", "nuggets", "pools", "judgments", "qrels", "evaluation", "publishing"],
        ["corpus", "pools"],
        ["judgments", "drift", "publishing"],
    ):
        assert [x[stage] for stage in order] == sorted(x[stage] for stage in order)


def test_the_metadata_panel_shows_counts_and_a_preview(dagster_dev: Server, backfill: Backfill, page: Any):
    text = open_page(page, dagster_dev, "/assets/chunks?view=overview", "chunks, by repository")
    assert "preview" in text
    assert "files, by outcome" in text
    assert "doc_id" in text


def test_a_comparison_shows_its_plot_and_where_its_columns_come_from(
    dagster_dev: Server, backfill: Backfill, page: Any
):
    assert dagster_dev.wait_for_run(dagster_dev.launch("sample", job="compare_snapshots")) == "SUCCESS"
    open_page(page, dagster_dev, "/assets/support_drift?view=overview", "questions, by support")
    page.locator("tr:has-text('plot') >> text=Show Markdown").last.click()
    page.wait_for_selector("img[alt=plot]")
    page.wait_for_function("document.querySelector('img[alt=plot]').naturalWidth > 500")
    query = (
        "query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { "
        "assetMaterializations(limit: 1) { metadataEntries { ... on TableColumnLineageMetadataEntry { lineage { "
        "columnName columnDeps { assetKey { path } columnName } } } } } } } }"
    )
    node = dagster_dev.ask(query, key={"path": ["support_drift"]})["assetNodeOrError"]
    (lineage,) = [entry["lineage"] for entry in node["assetMaterializations"][0]["metadataEntries"] if entry]
    deps = {
        column["columnName"]: [(d["assetKey"]["path"][-1], d["columnName"]) for d in column["columnDeps"]]
        for column in lineage
    }
    assert set(deps["question_support"]) == {("judgments", "verdict"), ("annotations", "verdict")}


def test_publishing_writes_a_snapshot_for_other_tools(dagster_dev: Server, backfill: Backfill):
    run = dagster_dev.launch("sample", "2024-10", job="publish")
    assert dagster_dev.wait_for_run(run) == "SUCCESS"
    folder = dagster_dev.root / "data" / "exports" / "sample" / "2024-10" / "freshstack"
    assert {path.name for path in folder.iterdir()} == {"README.md", "corpus.parquet", "queries.parquet"}


def test_a_failed_check_shows_its_reason(dagster_dev: Server, questions: dict[str, str], page: Any):
    assert questions == {"sample": "SUCCESS", "silent": "FAILURE"}
    text = open_page(page, dagster_dev, "/assets/questions?view=checks", "questions_found")
    assert "no question is kept; left out: none" in text
    assert "The source holds at least one question of the topic with its accepted answer." in text
    page.click("text=Show Markdown")
    page.wait_for_selector("text=no question")


def test_one_click_turns_the_schedule_on_and_its_next_tick_is_right(dagster_dev: Server, page: Any):
    now = datetime.now(UTC)
    tick = now.replace(day=1, hour=3, minute=0)
    while tick <= now:
        tick = (tick + timedelta(days=32)).replace(day=1)
    text = open_page(page, dagster_dev, "/locations/freshstack_dagster/schedules/monthly_build", "Preview tick result")
    assert "Next tick" not in text
    switch = page.locator("label:has(input[type=checkbox])").first
    switch.click()
    page.wait_for_selector("text=Next tick")
    text = page.inner_text("body")
    switch.click()
    assert f"{tick:%b} 1, 3:00:00 AM UTC" in text


def test_the_daily_check_fails_and_says_what_failed(dagster_dev: Server, questions: dict[str, str]):
    run = dagster_dev.launch(None, job="check_partitions")
    assert dagster_dev.wait_for_run(run) == "FAILURE"
    query = (
        "query($id: ID!) { runOrError(runId: $id) { ... on Run { eventConnection { events "
        "{ ... on ExecutionStepFailureEvent { error { message } failureMetadata { description } } } } } } }"
    )
    events = dagster_dev.ask(query, id=run)["runOrError"]["eventConnection"]["events"]
    said = [event["failureMetadata"]["description"] for event in events if event.get("failureMetadata")]
    assert any("partitions failed at their last build" in (line or "") for line in said)


def test_every_group_is_known_to_the_ui(dagster_dev: Server):
    groups = dagster_dev.ask("{ assetNodes { groupName } }")["assetNodes"]
    assert set(STAGES) <= {node["groupName"] for node in groups}

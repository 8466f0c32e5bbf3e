"""Schedules and sensors over a project of their own, evaluated as the daemon does, without a daemon."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from freshstack_dagster.assets.tables import STAGES, open_stage
from freshstack_dagster.automation import schedules, sensors
from freshstack_dagster.definitions import build_definitions, defs
from freshstack_dagster.errors import ModelError, SettingsError
from freshstack_dagster.partitions import month_before, multi_key, topic_partitions
from freshstack_dagster.resources import Project
from freshstack_dagster.settings import places
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.conftest import PROJECT
from freshstack_dagster_tests.judging.fakes import questions
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer
from freshstack_dagster_tests.language_models.support import (
    KEY,
    answer,
    assert_right_or_error,
    judge,
    make_models,
    make_role,
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with every topic file and the sample's source, nothing built."""
    shutil.copytree(PROJECT / "data" / "topics", tmp_path / "data" / "topics")
    (tmp_path / "data" / "sample").mkdir()
    shutil.copy(PROJECT / "data" / "sample" / "Posts.xml", tmp_path / "data" / "sample")
    os.utime(tmp_path / "data" / "sample" / "Posts.xml", (0, 0))
    return Project(root=str(tmp_path))


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


def _ask(sensor: dg.SensorDefinition, project: Project, instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    context = dg.build_sensor_context(instance=instance, resources={"project": project}, repository_def=_repository())
    return list(sensor.evaluate_tick(context).run_requests or [])


def _repository() -> dg.RepositoryDefinition:
    return defs.get_repository_def()


@contextmanager
def busy_with(partition: str) -> Iterator[dg.DagsterInstance]:
    """An instance in which a run of the partition is under way."""
    with dg.instance_for_test() as instance:
        tags = {"dagster/partition": partition}
        instance.add_run(dg.DagsterRun(job_name="build_snapshot", status=dg.DagsterRunStatus.STARTED, tags=tags))
        yield instance


def _stand(project: Project, table: str, topic: str, snapshot: str | None = None, frame: pl.DataFrame | None = None):
    """Write a stage's tables as if it had just built them."""
    definition = next(stage for stage in STAGES if table in stage.tables)
    inputs = definition.inputs(open_stage(project, topic, snapshot))
    for name in definition.tables:
        rows = frame if frame is not None and name == table else TABLES[name].empty()
        project.lake.write(name, rows, topic=topic, snapshot=snapshot, inputs=inputs)


@pytest.mark.parametrize(
    ("moment", "month"), [("2027-01-01T03:00+00:00", "2026-12"), ("2027-03-01T01:00+09:00", "2027-01")]
)
def test_the_month_that_ended_is_counted_in_utc(moment: str, month: str):
    assert month_before(datetime.fromisoformat(moment)) == month


def test_nothing_is_on_by_default_but_what_follows_the_schedule():
    repository = _repository()
    assert {s.name for s in repository.schedule_defs if s.default_status.value != "STOPPED"} == set()
    on = {s.name for s in repository.sensor_defs if s.default_status.value != "STOPPED"}
    assert on == {"monthly_build_goes_on"}


def test_tables_grow_stale_only_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    assert all(spec.freshness_policy is None for spec in defs.resolve_all_asset_specs())
    monkeypatch.setenv("FRESHSTACK_FRESHNESS_DAYS", "40")
    definitions = build_definitions(places())
    assert all(spec.freshness_policy is not None for spec in definitions.resolve_all_asset_specs())
    assert len(list(definitions.resolve_all_asset_specs())) == len(list(defs.resolve_all_asset_specs()))
    monkeypatch.setenv("FRESHSTACK_FRESHNESS_DAYS", "soon")
    with pytest.raises(SettingsError, match="FRESHSTACK_FRESHNESS_DAYS=soon"):
        build_definitions(places())


def test_a_month_before_the_live_months_is_skipped(instance: dg.DagsterInstance):
    context = dg.build_schedule_context(
        instance=instance, scheduled_execution_time=datetime(2026, 3, 1, 3, tzinfo=UTC), repository_def=_repository()
    )
    tick = schedules.monthly_build.evaluate_tick(context)
    assert not tick.run_requests
    assert "2026-02 is no partition" in (tick.skip_message or "")


@pytest.mark.parametrize(
    ("job", "key", "tags", "then"),
    [
        ("build_questions", "sample", {"freshstack/monthly": "2026-12"}, ("build_snapshot", "2026-12|sample")),
        ("build_snapshot", "2026-12|sample", {"freshstack/monthly": "2026-12"}, ("compare_snapshots", "sample")),
        ("build_questions", "sample", {}, None),
    ],
)
def test_a_monthly_run_is_followed_by_the_next(
    instance: dg.DagsterInstance, job: str, key: str, tags: dict[str, str], then: tuple[str, str] | None
):
    run = dg.DagsterRun(job_name=job, tags={"dagster/partition": key, **tags})
    event = dg.DagsterEvent(event_type_value="PIPELINE_SUCCESS", job_name=job)
    context = dg.build_run_status_sensor_context(
        sensor_name="monthly_build_goes_on", dagster_event=event, dagster_instance=instance, dagster_run=run
    )
    asked = schedules.monthly_build_goes_on(context)
    if then is None:
        assert isinstance(asked, dg.SkipReason)
    else:
        assert isinstance(asked, dg.RunRequest)
        assert (asked.job_name, str(asked.partition_key)) == then
        assert asked.tags["freshstack/topic"] == "sample"


def test_a_new_dump_is_asked_for_once_it_rests(project: Project, instance: dg.DagsterInstance):
    asked = _ask(sensors.new_dump, project, instance)
    assert [request.partition_key for request in asked] == ["sample"]
    assert [request.run_key for request in _ask(sensors.new_dump, project, instance)] == [asked[0].run_key]
    _stand(project, "questions", "sample")
    assert _ask(sensors.new_dump, project, instance) == []
    dump = Path(project.root) / "data" / "sample" / "Posts.xml"
    with dump.open("a") as file:
        file.write(" ")
    assert _ask(sensors.new_dump, project, instance) == []
    os.utime(dump, (1, 1))
    again = _ask(sensors.new_dump, project, instance)
    assert [request.partition_key for request in again] == ["sample"]
    assert again[0].run_key != asked[0].run_key


def test_a_new_topic_file_asks_for_a_reload(
    project: Project, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    assert _ask(sensors.new_topic, project, instance) == []
    (Path(project.root) / "data" / "topics" / "mine.yaml").write_text("title: mine\nrepositories: [a/b]\n")
    with pytest.raises(SettingsError, match="topics mine were added"):
        _ask(sensors.new_topic, project, instance)
    seen: list[Any] = []

    class Webserver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps({"data": {"reloadRepositoryLocation": {"__typename": "WorkspaceLocationEntry"}}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Webserver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("FRESHSTACK_DAGSTER_URL", f"http://127.0.0.1:{server.server_port}")
    assert _ask(sensors.new_topic, project, instance) == []
    server.shutdown()
    assert "reloadRepositoryLocation" in seen[0]["query"]


def test_a_submitted_run_is_scored_once(project: Project, instance: dg.DagsterInstance):
    for table in sensors._stage_of("retrieval_results").reads:
        snapshot = "2024-10" if "snapshot" in TABLES[table].by else None
        project.lake.write(table, TABLES[table].empty(), topic="sample", snapshot=snapshot)
    folder = project.places.submitted_runs / "sample" / "2024-10"
    assert _ask(sensors.submitted_runs, project, instance) == []
    folder.mkdir(parents=True)
    (folder / "mine.trec").write_text("q Q0 d 1 1.0 mine\n")
    assert _ask(sensors.submitted_runs, project, instance) == []
    os.utime(folder / "mine.trec", (1, 1))
    asked = _ask(sensors.submitted_runs, project, instance)
    assert [request.partition_key for request in asked] == [multi_key("sample", "2024-10")]
    _stand(project, "retrieval_results", "sample", "2024-10")
    assert _ask(sensors.submitted_runs, project, instance) == []


def test_a_run_that_was_taken_away_is_noticed_and_a_folder_is_no_run(project: Project, instance: dg.DagsterInstance):
    for table in sensors._stage_of("retrieval_results").reads:
        snapshot = "2024-10" if "snapshot" in TABLES[table].by else None
        project.lake.write(table, TABLES[table].empty(), topic="sample", snapshot=snapshot)
    folder = project.places.submitted_runs / "sample" / "2024-10"
    (folder / "drafts").mkdir(parents=True)
    (folder / "mine.trec").write_text("q Q0 d 1 1.0 mine\n")
    os.utime(folder / "mine.trec", (1, 1))
    assert len(_ask(sensors.submitted_runs, project, instance)) == 1
    _stand(project, "retrieval_results", "sample", "2024-10")
    assert _ask(sensors.submitted_runs, project, instance) == []
    (folder / "mine.trec").unlink()
    assert len(_ask(sensors.submitted_runs, project, instance)) == 1


def test_one_broken_topic_file_holds_up_no_other(project: Project, instance: dg.DagsterInstance):
    (project.places.topics / "angular.yaml").write_text("titel: x\n")
    assert [request.partition_key for request in _ask(sensors.new_dump, project, instance)] == ["sample"]


def test_with_top_up_a_submitted_run_asks_for_the_whole_snapshot(project: Project, instance: dg.DagsterInstance):
    topic = project.places.topics / "sample.yaml"
    topic.write_text(topic.read_text() + "pooling: {top_up: true}\n")
    for table in ("questions", "query_variants", "nuggets"):
        project.lake.write(table, TABLES[table].empty(), topic="sample")
    for table in ("chunks", "runs", "qrels"):
        project.lake.write(table, TABLES[table].empty(), topic="sample", snapshot="2024-10")
    folder = project.places.submitted_runs / "sample" / "2024-10"
    folder.mkdir(parents=True)
    (folder / "mine.trec").write_text("q Q0 d 1 1.0 mine\n")
    os.utime(folder / "mine.trec", (1, 1))
    (asked,) = _ask(sensors.submitted_runs, project, instance)
    assert (asked.job_name, asked.partition_key) == ("build_snapshot", multi_key("sample", "2024-10"))
    _stand(project, "pools", "sample", "2024-10")
    assert _ask(sensors.submitted_runs, project, instance) == []


def test_a_batch_that_ended_asks_for_the_run_that_collects_it(
    project: Project, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
):
    """A run sends a batch and stops waiting; the sensor asks the provider until it has ended."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    never = 10**9
    with MisbehavingServer(answer, polls_until_done=never) as server:
        role = make_role(server, batch=True)
        topic = project.places.topics / "sample.yaml"
        topic.write_text(
            topic.read_text()
            + f"roles: {{judge: {{provider: openai, model: {role.model}, base_url: '{role.base_url}', batch: true}}}}\n"
        )
        project.lake.write("questions", questions(**{"0": "Do it so.", "1": "Or so."}), topic="sample")
        for table in ("nuggets", "query_variants"):
            project.lake.write(table, TABLES[table].empty(), topic="sample")
        for snapshot in ("2024-10", "2025-10"):
            for table in ("chunks", "pools"):
                project.lake.write(table, TABLES[table].empty(), topic="sample", snapshot=snapshot)
        assert _ask(sensors.finished_batches, project, instance) == []
        models = make_models(project.places.cache / "language_models", batch_wait_seconds=0.05)
        with pytest.raises(ModelError, match="run again to collect it"):
            judge(models.role("judge", role), range(2))

        assert _ask(sensors.finished_batches, project, instance) == []
        server.polls_until_done = 0
        with busy_with("2025-10|sample") as busy:
            assert _ask(sensors.finished_batches, project, busy) == []
        # Verdicts on answers come from the same judge: where they were never built, the batch may be theirs.
        first = next(iter(_ask(sensors.finished_batches, project, instance)))
        assert first.job_name == "build_questions"
        for table in ("closed_book_judgments", "answer_judgments"):
            _stand(project, table, "sample")
        asked = _ask(sensors.finished_batches, project, instance)
        keys = [multi_key("sample", "2024-10"), multi_key("sample", "2025-10")]
        assert [(request.job_name, request.partition_key) for request in asked] == [("build_snapshot", k) for k in keys]
        again = _ask(sensors.finished_batches, project, instance)
        assert [request.run_key for request in again] == [request.run_key for request in asked]

        for table in ("judgments", "annotations"):
            _stand(project, table, "sample", "2024-10")
        assert [request.partition_key for request in _ask(sensors.finished_batches, project, instance)] == keys[1:]
        served = len(server.served)
        outcomes = judge(make_models(project.places.cache / "language_models").role("judge", role), range(2))
        assert assert_right_or_error(outcomes) == 2
        assert (len(server.served), len(server.batches)) == (served, 1)
        assert _ask(sensors.finished_batches, project, instance) == []


def test_changed_snapshots_are_compared_when_no_run_is_under_way(project: Project, instance: dg.DagsterInstance):
    assert _ask(sensors.snapshots_changed, project, instance) == []
    for table in ("questions", "nuggets"):
        project.lake.write(table, TABLES[table].empty(), topic="sample")
    for table in [name for name, table in TABLES.items() if "snapshot" in table.by]:
        project.lake.write(table, TABLES[table].empty(), topic="sample", snapshot="2024-10")
    asked = _ask(sensors.snapshots_changed, project, instance)
    assert [request.partition_key for request in asked] == ["sample"]
    with busy_with("2025-10|sample") as busy:
        assert _ask(sensors.snapshots_changed, project, busy) == []


def test_the_daily_check_finds_what_failed(instance: dg.DagsterInstance):
    faulty = True

    @dg.asset(partitions_def=topic_partitions)
    def fails() -> None:
        if faulty:
            raise RuntimeError("no")

    graph = dg.Definitions(assets=[fails]).resolve_asset_graph()
    assert schedules.failed_partitions(instance, graph) == []
    dg.materialize([fails], partition_key="sample", instance=instance, raise_on_error=False)
    assert schedules.failed_partitions(instance, graph) == [("fails", "sample")]
    faulty = False
    dg.materialize([fails], partition_key="sample", instance=instance)
    assert schedules.failed_partitions(instance, graph) == []

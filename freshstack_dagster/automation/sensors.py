"""What may happen outside and should set something going; every sensor is off until switched on.

A sensor looks at the state of things, not at events: it asks for a run where a table's fingerprint of its inputs is no
longer the one it was built from. The run key holds that fingerprint, so that nothing is asked for twice, and a file
that is still being copied is left alone until it has rested.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from freshstack_dagster.assets.tables import STAGES, StageDefinition, open_stage
from freshstack_dagster.automation.jobs import (
    DRIFT_GROUPS,
    build_questions,
    build_snapshot,
    compare_snapshots,
    score_runs,
)
from freshstack_dagster.errors import FreshstackError, SettingsError
from freshstack_dagster.partitions import (
    multi_key,
    run_tags,
    snapshot_partitions_def,
    topic_partitions,
)
from freshstack_dagster.resources import Project
from freshstack_dagster.settings import ModelRole, Topic

REST_SECONDS = 30
UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
OFF = dg.DefaultSensorStatus.STOPPED
Requests = Iterator[dg.RunRequest | dg.SkipReason]


@dg.sensor(
    job=build_questions,
    minimum_interval_seconds=300,
    default_status=OFF,
    description="A topic's source of questions changed, such as a new dump: build its questions, nuggets and variants.",
)
def new_dump(context: dg.SensorEvaluationContext, project: Project) -> Requests:
    """Ask for the questions of each topic whose source file is there, has rested and is not the one they came from."""
    for topic in _readable(context, project):
        source = project.topic(topic).questions
        if source is None or source.path is None or not _rests(source.path):
            continue
        if inputs := _inputs_if_changed(_stage_of("questions"), project, topic, None):
            yield _request(build_questions, inputs, topic)


@dg.sensor(
    job=build_questions,
    minimum_interval_seconds=60,
    default_status=OFF,
    description="A topic file was added or taken away: reload the code location, which reads them at its start.",
)
def new_topic(context: dg.SensorEvaluationContext, project: Project) -> dg.SkipReason:
    """Reload through the webserver at FRESHSTACK_DAGSTER_URL; fail with what to do where that is not set.

    Topics are partitions that are read when the code location loads. A failing tick is what the UI shows in red.
    """
    there = {path.stem for path in project.places.topics.glob("*.yaml")}
    known = set(topic_partitions.get_partition_keys())
    if there == known:
        return dg.SkipReason(f"all {len(known)} topic files are loaded")
    changed = f"topics {', '.join(sorted(there ^ known))} were added or taken away since this code location was loaded"
    url = os.environ.get("FRESHSTACK_DAGSTER_URL")
    if not url:
        raise SettingsError(f"{changed}; reload it on the page Deployment, or set FRESHSTACK_DAGSTER_URL")
    _reload(url)
    return dg.SkipReason(f"{changed}; asked {url} to reload it")


@dg.sensor(
    jobs=[score_runs, build_snapshot],
    minimum_interval_seconds=60,
    default_status=OFF,
    description="A run was put into data/runs/<topic>/<snapshot>: score it and compare it with the others; with "
    "`pooling.top_up` judge first what only it retrieved.",
)
def submitted_runs(context: dg.SensorEvaluationContext, project: Project) -> Requests:
    """Ask for the results of each snapshot whose folder of runs is not the one they were made from.

    With `pooling.top_up` that is the whole snapshot: what did not change is skipped.
    """
    folder = project.places.submitted_runs
    for topic in _readable(context, project):
        top_up = project.topic(topic).pooling.top_up
        job, table = (build_snapshot, "pools") if top_up else (score_runs, "retrieval_results")
        for snapshot in project.lake.snapshots("qrels", topic):
            files = sorted(path for path in (folder / topic / snapshot).glob("[!.]*") if path.is_file())
            scored = project.lake.current("retrieval_results", topic, snapshot) is not None
            # A run that was taken away changes the results as well.
            if not (files or scored) or not all(map(_rests, files)):
                continue
            if inputs := _inputs_if_changed(_stage_of(table), project, topic, snapshot):
                yield _request(job, inputs, topic, snapshot)


@dg.sensor(
    job=compare_snapshots,
    minimum_interval_seconds=120,
    default_status=OFF,
    description="Snapshots were built, by a backfill or by hand: compare them once no run of the topic is under way.",
)
def snapshots_changed(context: dg.SensorEvaluationContext, project: Project) -> Requests:
    """Ask for the drift of each topic that has a snapshot that its drift does not know yet, and no run under way."""
    busy = _busy_topics(context.instance)
    for topic in topic_partitions.get_partition_keys():
        if topic in busy or not project.lake.snapshots("comparisons", topic):
            continue
        stages = [stage for stage in STAGES if stage.group in DRIFT_GROUPS]
        changed = [inputs for stage in stages if (inputs := _inputs_if_changed(stage, project, topic, None))]
        if changed:
            yield _request(compare_snapshots, " ".join(changed), topic)


@dg.sensor(
    jobs=[build_questions, build_snapshot],
    minimum_interval_seconds=300,
    default_status=OFF,
    description="A batch of model calls that a stopped run left behind has ended: run again to collect it, paid once.",
)
def finished_batches(context: dg.SensorEvaluationContext, project: Project) -> Requests:
    """Ask the provider for each open batch that no run waits for; if it ended, ask for the run that collects it."""
    from freshstack_dagster.language_models.batch import read_open

    busy = _busy_topics(context.instance)
    topics = [name for name in topic_partitions.get_partition_keys() if name not in busy]
    for batch in read_open(project.places.cache / "language_models" / "batches"):
        tasks = {item.asked.task for item in batch.items.values()}
        asked = {item.asked.question_id for item in batch.items.values()}
        for name in topics:
            role = _role_that_sent(project.topic(name), batch.who)
            if role is None or not _asks_of(project, name, asked):
                continue
            if batch.batch is not None and not _ended(role, batch.batch):
                continue
            collectors = ("closed_book_judgments", "answer_judgments") if tasks == {"support"} else ()
            stages = [_stage_of(table) for table in collectors]
            if not stages or any(_inputs_if_changed(stage, project, name, None) for stage in stages):
                yield _request(build_questions, batch.tag, name)
            if not stages:
                continue
            judging = [_stage_of("judgments"), _stage_of("annotations")]
            for snapshot in project.lake.snapshots("pools", name):
                if any(_inputs_if_changed(stage, project, name, snapshot) for stage in judging):
                    yield _request(build_snapshot, batch.tag, name, snapshot)


@dg.run_failure_sensor(
    default_status=OFF,
    description="Tell FRESHSTACK_ALERT_URL, a webhook that takes JSON with a key `text`, of each run that failed.",
)
def alert(context: dg.RunFailureSensorContext) -> None:
    """Post one line: the job, the partition and what failed."""
    import httpx

    url = os.environ.get("FRESHSTACK_ALERT_URL")
    if not url:
        raise SettingsError("the sensor alert is on, but FRESHSTACK_ALERT_URL is not set")
    run = context.dagster_run
    where = run.tags.get("dagster/partition", "no partition")
    text = f"{run.job_name} {where} failed: {context.failure_event.message} (run {run.run_id})"
    httpx.post(url, json={"text": text}, timeout=30).raise_for_status()


SENSORS = [new_dump, new_topic, submitted_runs, snapshots_changed, finished_batches, alert]


def _request(job: Any, why: str, topic: str, snapshot: str | None = None) -> dg.RunRequest:
    """A run of a job over a topic, or a topic's snapshot; `why` is in its key, so that it is asked for once."""
    return dg.RunRequest(
        run_key=" ".join(filter(None, (topic, snapshot, why))),
        job_name=job.name,
        partition_key=topic if snapshot is None else multi_key(topic, snapshot),
        tags=run_tags(topic, snapshot),
    )


def _readable(context: dg.SensorEvaluationContext, project: Project) -> Iterator[str]:
    """The topics whose files can be read; one that cannot is logged, and holds up no other."""
    for topic in topic_partitions.get_partition_keys():
        try:
            project.topic(topic)
        except SettingsError as error:
            context.log.error(str(error))
        else:
            yield topic


def _stage_of(table: str) -> StageDefinition:
    return next(stage for stage in STAGES if table in stage.tables)


def _inputs_if_changed(definition: StageDefinition, project: Project, topic: str, snapshot: str | None) -> str | None:
    """The fingerprint of a stage's inputs if its tables were not built from them; None if they were, or cannot be."""
    keys = topic_partitions if snapshot is None else snapshot_partitions_def
    if (snapshot or topic) not in keys.get_partition_keys():
        return None
    stage = open_stage(project, topic, snapshot)
    try:
        inputs = definition.inputs(stage)
    except FreshstackError:
        return None
    built_from = {pointer and pointer.inputs for pointer in definition.standing(stage).values()}
    return None if built_from == {inputs} else inputs


def _rests(path: Path) -> bool:
    """Whether a file exists and was not written to for a while."""
    return path.is_file() and time.time() - path.stat().st_mtime >= REST_SECONDS


def _busy_topics(instance: dg.DagsterInstance) -> set[str]:
    """Topics of runs that have not ended; the topic comes last in a partition's key."""
    runs = instance.get_runs(filters=dg.RunsFilter(statuses=UNFINISHED))
    return {run.tags.get("dagster/partition", "").rsplit("|", 1)[-1] for run in runs}


def _reload(url: str) -> None:
    import httpx

    mutation = (
        "mutation { reloadRepositoryLocation(repositoryLocationName: "
        '"freshstack_dagster") { __typename ... on PythonError { message } } }'
    )
    try:
        reply = httpx.post(f"{url.rstrip('/')}/graphql", json={"query": mutation}, timeout=120)
        kind = reply.json()["data"]["reloadRepositoryLocation"]["__typename"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"FRESHSTACK_DAGSTER_URL {url}: cannot be asked to reload: {error}") from error
    if kind != "WorkspaceLocationEntry":
        raise SettingsError(f"FRESHSTACK_DAGSTER_URL {url}: did not reload: {kind}")


def _role_that_sent(topic: Topic, who: str) -> ModelRole | None:
    """The role of a topic that would take up a batch: the same provider, model and address."""
    from freshstack_dagster.language_models.scrub import public_url

    roles = topic.roles
    for role in (roles.nuggets, roles.sub_questions, roles.closed_book_answer, roles.judge, *roles.annotators.values()):
        if role.batch and who == f"{role.provider}:{role.model} {public_url(role.base_url or '')}".strip():
            return role
    return None


def _asks_of(project: Project, topic: str, questions: set[str | None]) -> bool:
    if project.lake.current("questions", topic) is None:
        return False
    return bool(questions & set(project.lake.read("questions", topic)["question_id"]))


def _ended(role: ModelRole, batch: str) -> bool:
    from freshstack_dagster.language_models.providers import make_provider

    api = make_provider("sensor finished_batches", role, os.environ)[0].batches
    return api is not None and asyncio.run(api.status(batch)).ended

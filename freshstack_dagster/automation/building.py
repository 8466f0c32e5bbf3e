"""Building in process, without a daemon: what `freshstack-dagster build` and `demo` do, with Dagster's own lineage.

Here Dagster's instance is opened too: the project's `dagster.yaml`, storage under `data/dagster`.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.instance.ref import InstanceRef

from freshstack_dagster.assets.publishing import REPORT_VERSION
from freshstack_dagster.assets.tables import STAGES, open_stage
from freshstack_dagster.automation.jobs import (
    DRIFT_GROUPS,
    SNAPSHOT_GROUPS,
    TOPIC_GROUPS,
    build_questions,
    build_snapshot,
    compare_snapshots,
)
from freshstack_dagster.corpus.mirrors import local_git_directory
from freshstack_dagster.definitions import build_definitions
from freshstack_dagster.errors import FreshstackError, SettingsError
from freshstack_dagster.partitions import multi_key, snapshot_partitions_def, topic_partitions
from freshstack_dagster.publishing.report import is_current, report_inputs
from freshstack_dagster.resources import Project
from freshstack_dagster.settings import Places, Topic, find_topic, snapshot_end

# Steps that share a scarce thing: a model's rate limit, memory for vectors, a mirror's lock.
POOL_LIMITS = {"model_calls": 2, "embeddings": 1, "git": 2}


UNDER_WAY = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
MOST_RUNS_WITH_SLOTS = 200
EVENTS_AT_ONCE = 500
# Who builds without a daemon: host and process, by which `reap` knows the living from the dead.
PROCESS = "freshstack/process"


def this_process() -> str:
    """This process, as the tag of its runs names it: host, number, and start, because numbers come again."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started_at(os.getpid())}"


def _started_at(process: int) -> str:
    """When a process started, in ticks since the machine did; empty where the system does not tell."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


@contextmanager
def open_instance(places: Places) -> Iterator[dg.DagsterInstance]:
    """The project's Dagster instance: `DAGSTER_HOME` if set, else the project's own files.

    The storage paths of `dagster.yaml` are relative to the project's root, so that becomes the working directory.
    """
    if os.environ.get("DAGSTER_HOME"):
        with dg.DagsterInstance.get() as instance:
            yield instance
        return
    home = places.data / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    here = Path.cwd()
    os.chdir(places.root)
    try:
        with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home), config_dir=str(places.root))) as instance:
            yield instance
    finally:
        os.chdir(here)


def prepare_instance(instance: dg.DagsterInstance) -> dict[str, int]:
    """Create the storage and set the pools' limits, once and serially: first uses at the same time would race."""
    storage = instance.event_log_storage
    known = storage.get_concurrency_keys()
    for pool, limit in POOL_LIMITS.items():
        if pool not in known:  # a limit that somebody set stays
            storage.set_concurrency_slots(pool, limit)
    return {pool: storage.get_concurrency_info(pool).slot_count for pool in POOL_LIMITS}


def build(
    places: Places,
    topic: str,
    snapshots: Sequence[str],
    *,
    instance: dg.DagsterInstance,
    drift: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> int:
    """Materialise a topic's questions and nuggets, each snapshot, and (with `drift`) the comparison and the report.

    Returns how many runs that took: none for what did not change. Raises FreshstackError with the failed asset's own
    line; tables that stood before still stand.
    """
    _check_names(topic, snapshots)
    _check_places(find_topic(places, topic))
    for run_id in reap(instance, builds_only=True):
        say(f"{topic}: ended run {run_id[:8]} of a build that was killed")
    definitions = build_definitions(places)
    project = Project(root=str(places.root))
    launched = 0

    def run(what: str, job: str, groups: Sequence[str], snapshot: str | None = None) -> None:
        if _is_current(project, topic, snapshot, groups):
            say(f"{what}: unchanged")
            return
        nonlocal launched
        launched += 1
        say(what)
        result = _run(definitions, job, multi_key(topic, snapshot) if snapshot else topic, instance)
        if not result.success:
            for check in _failed_checks(result):
                # Not current until the check passes: the next build looks at it again.
                project.lake.doubt(check.asset_key.to_user_string(), topic, snapshot)
            raise FreshstackError(_first_failure(result))

    run(f"{topic}: questions and nuggets", build_questions.name, TOPIC_GROUPS)
    for snapshot in snapshots:
        what = f"{topic} {snapshot}: corpus, pools, judgments, evaluation"
        run(what, build_snapshot.name, SNAPSHOT_GROUPS, snapshot)
    if drift:
        run(f"{topic}: drift and report", compare_snapshots.name, DRIFT_GROUPS)
    project.lake.ensure_catalogue()
    return launched


def _is_current(project: Project, topic: str, snapshot: str | None, groups: Sequence[str]) -> bool:
    """Whether a run over these groups would change nothing; then none is launched, and none is recorded."""
    stage = open_stage(project, topic, snapshot)
    if "publishing" in groups and not is_current(
        project.places.reports / f"{topic}.html", report_inputs(project.lake, stage.topic, REPORT_VERSION)
    ):
        return False
    return all(definition.is_current(stage) for definition in STAGES if definition.group in groups)


def _check_names(topic: str, snapshots: Sequence[str]) -> None:
    if topic not in (topics := topic_partitions.get_partition_keys()):
        raise SettingsError(f"no topic {topic}; there are {', '.join(topics)}")
    known = snapshot_partitions_def.get_partition_keys()
    for snapshot in snapshots:
        snapshot_end(snapshot)
        if snapshot not in known:
            raise SettingsError(
                f"no snapshot {snapshot}; there are {', '.join(known)}. Add a past month to data/snapshots.yaml"
            )


def _check_places(topic: Topic) -> None:
    """Look at local repositories before a model is paid for nuggets: the corpus is built after them."""
    for repository in topic.repositories:
        if repository.path is not None:
            local_git_directory(repository, repository.path)


def _run(definitions: dg.Definitions, job: str, key: str, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    return definitions.resolve_job_def(job).execute_in_process(
        instance=instance,
        partition_key=key,
        tags={PROCESS: this_process()},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
    )


def _failed_checks(result: dg.ExecuteInProcessResult) -> list[Any]:
    checks = result.get_asset_check_evaluations()
    return [check for check in checks if not check.passed and check.severity == dg.AssetCheckSeverity.ERROR]


def _first_failure(result: dg.ExecuteInProcessResult) -> str:
    for check in _failed_checks(result):
        return f"{check.asset_key.to_user_string()}: the check {check.check_name} failed: {check.description}"
    for event in result.get_step_failure_events():
        data = event.step_failure_data
        if data.user_failure_data is not None and data.user_failure_data.description:
            return f"{event.step_key}: {data.user_failure_data.description}"
        if data.error is not None:
            cause = data.error.cause or data.error
            return f"{event.step_key}: {cause.message.strip()}"
    return "the run failed; its log is in the UI"


def reap(instance: dg.DagsterInstance, *, builds_only: bool = False) -> list[str]:
    """End the runs that a killed machine left under way and free their places in pools; return their ids.

    Runs of a `build` that lives on this host are left alone. Runs of a daemon cannot be told from dead ones: it must be
    stopped first, or its runs end too. With `builds_only` only runs of dead `build`s of this host are ended: that is
    safe at any time, and needed before another build, which would wait for their places for ever.
    """
    ended = []
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=UNDER_WAY)):
        process = run.tags.get(PROCESS, "")
        ours = process.startswith(f"{socket.gethostname()}:")
        if (ours or not builds_only) and not _lives(process):
            instance.report_run_failed(run, "reaped: its process is gone")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            ended.append(run.run_id)
    if not builds_only:
        for run in instance.get_runs(filters=dg.RunsFilter(statuses=ENDED), limit=MOST_RUNS_WITH_SLOTS):
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return ended


def _lives(process: str) -> bool:
    host, _, rest = process.partition(":")
    number, _, started_at = rest.partition(":")
    if host != socket.gethostname() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _started_at(int(number)) == started_at


def prune(instance: dg.DagsterInstance, before: datetime) -> int:
    """Delete runs that ended before a moment, but none that a partition's newest table came from; return how many.

    Deleting the newest would make its partition look as if it had never been built. Tables are not touched.
    """
    kept = _runs_of_newest_tables(instance)
    pruned = 0
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=ENDED, created_before=before)):
        if run.run_id not in kept:
            instance.delete_run(run.run_id)
            pruned += 1
    return pruned


def _runs_of_newest_tables(instance: dg.DagsterInstance) -> set[str]:
    kept: set[str] = set()
    for key in instance.all_asset_keys():
        newest = instance.event_log_storage.get_latest_storage_id_by_partition(
            key, dg.DagsterEventType.ASSET_MATERIALIZATION
        )
        ids = list(newest.values())
        for first in range(0, len(ids), EVENTS_AT_ONCE):
            some = ids[first : first + EVENTS_AT_ONCE]
            records = instance.fetch_materializations(
                dg.AssetRecordsFilter(asset_key=key, storage_ids=some), limit=len(some)
            ).records
            kept |= {record.run_id for record in records}
    return kept

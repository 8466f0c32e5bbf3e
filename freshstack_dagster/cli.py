"""The console script: everything that is done from a terminal, each with one clear line on bad input."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import polars as pl

from freshstack_dagster import __version__, console
from freshstack_dagster.console import print_frame
from freshstack_dagster.errors import FreshstackError, SettingsError
from freshstack_dagster.lake import Lake, connect
from freshstack_dagster.settings import Topic, find_topic, load_topic, load_topics, places, topic_files

SAMPLE = "sample"
SAMPLE_SNAPSHOTS = ("2024-10", "2025-10")


class Commands(click.Group):
    """A group whose commands end with one line and exit code 1 on an error that a user can mend."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; our own errors become a line, everything else is a fault of ours and shows its trace."""
        try:
            return super().invoke(ctx)
        except FreshstackError as error:
            click.secho(f"error: {error}", fg="red", err=True)
            sys.exit(1)
        except BrokenPipeError:
            sys.exit(0)


@click.group(cls=Commands)
@click.version_option(__version__)
def main() -> None:
    """Build test collections for retrieval on technical material, month by month."""


@main.command()
def init() -> None:
    """Create Dagster's storage and set the limits of its pools. Run once, before several processes use it."""
    from freshstack_dagster.automation.building import open_instance, prepare_instance

    with open_instance(places()) as instance:
        limits = prepare_instance(instance)
    click.echo("pools: " + ", ".join(f"{pool} {limit}" for pool, limit in limits.items()))


@main.command()
@click.argument("topic")
@click.argument("snapshots", nargs=-1, required=True)
@click.option("--drift/--no-drift", default=True, help="Compare the topic's snapshots afterwards and write its report.")
def build(topic: str, snapshots: tuple[str, ...], drift: bool) -> None:
    """Build TOPIC at each of SNAPSHOTS (months such as 2024-10), and print what comes out."""
    _build(topic, snapshots, drift)


@main.command()
def demo() -> None:
    """Build the bundled sample topic for two months and print what comes out."""
    _build(SAMPLE, SAMPLE_SNAPSHOTS, drift=True)
    click.echo("  UI       make ui   (http://127.0.0.1:3000)")
    click.echo('  SQL      .venv/bin/freshstack-dagster sql "select * from support_drift"')


@main.command()
def topics() -> None:
    """List the topics, their repositories and the snapshots that are built."""
    where = places()
    lake = Lake(where.lake)
    faults, files = [], topic_files(where.topics)
    for path in files:
        built = ", ".join(lake.snapshots("chunks", path.stem)) or "nothing built"
        try:
            topic = load_topic(path)
        except SettingsError as error:
            faults.append(str(error))
            click.echo(f"{path.stem:12} {'cannot be read, see below':42} {built}")
            continue
        click.echo(f"{path.stem:12} {topic.title:24} {len(topic.repositories):2} repositories   {built}")
    left = sorted(lake.topics() - {path.stem for path in files})
    if left:
        click.echo(f"tables of topics without a file: {', '.join(left)}; `freshstack-dagster forget` deletes them")
    if faults:
        raise FreshstackError("; ".join(faults))


@main.command()
@click.argument("topic")
@click.argument("snapshot")
@click.option(
    "--pilot",
    type=click.IntRange(1),
    metavar="N",
    help="First ask the models about N questions, within the budget: it makes the figures true, and the build uses "
    "the replies.",
)
def estimate(topic: str, snapshot: str, pilot: int | None) -> None:
    """Say what language models will cost to build TOPIC at SNAPSHOT, by role, before anything is paid."""
    from freshstack_dagster.estimate import estimate_build
    from freshstack_dagster.estimate import pilot as ask_a_few

    where = places()

    def say(line: str) -> None:
        click.echo(f"  {line}", err=True)

    settings = find_topic(where, topic)
    if pilot is not None:
        asked = ask_a_few(where, settings, snapshot, pilot, say=say)
        paid = "a price that is unknown" if asked["dollars"] is None else f"${asked['dollars']:.4f}"
        failed = sum(asked["errors"].values())
        errors = f", {failed} requests got no reply that can be used" if failed else ""
        click.echo(f"pilot: {asked['calls']} calls for {paid}{errors}; the build will not pay for them again\n")
    found = estimate_build(where, settings, snapshot, say=say)
    print_frame(found.printed(), f"{topic} {snapshot}: what is not in the cache")
    click.echo()
    for line in found.summary():
        click.echo(line)


@main.command()
@click.argument("run", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--topic", required=True, help="Topic whose qrels to score on.")
@click.option("--snapshot", required=True, help="Month of the qrels, such as 2024-10.")
@click.option("--missing", type=click.Choice(["error", "zero"]), default="error", help="A question without a ranking.")
@click.option("--measures", help="Measures at any depth, such as 'alpha_ndcg@20 p@5'; by default the table's seven.")
def score(run: Path, topic: str, snapshot: str, missing: str, measures: str | None) -> None:
    """Score RUN (a TREC run or a Parquet file with question_id, doc_id, score) and print the table."""
    from freshstack_dagster.evaluation.measures import DEFAULT
    from freshstack_dagster.evaluation.results import retrieval_results
    from freshstack_dagster.evaluation.runs import read_checked
    from freshstack_dagster.judging.annotation import verdicts_that_count
    from freshstack_dagster.tables import TABLES

    where = places()
    lake = Lake(where.lake)
    described = find_topic(where, topic)
    _require_built(lake, described, snapshot)
    qrels = lake.read("qrels", topic, snapshot)
    if not qrels.height:
        raise FreshstackError(f"the qrels of {topic} {snapshot} are empty: no question was kept, so nothing is scored")
    outcomes = lake.read("question_outcomes", topic, snapshot)
    documents = lake.scan("chunks", topic, snapshot).select("doc_id").collect()["doc_id"]
    ranking = read_checked(run, documents, outcomes["question_id"])
    judgments, annotations = lake.read("judgments", topic, snapshot), lake.read("annotations", topic, snapshot)
    # As the table retrieval_results scores a submitted run, so that both show the same figures.
    results = retrieval_results(
        TABLES["runs"].empty(),
        qrels,
        verdicts_that_count(judgments, annotations, described.judging),
        {run.name: ranking},
        measures.replace(",", " ").split() if measures else DEFAULT,
        missing="zero" if missing == "zero" else "error",
    )
    means = results.filter(pl.col("question_id") == "all").select("measure", "value", "lower", "upper", "holes")
    print_frame(means, f"{run.name} on {topic} {snapshot}: {qrels['question_id'].n_unique()} questions")
    kinds = qrels["judge_kind"].unique().to_list()
    if kinds == ["heuristic"]:
        click.secho("judged by the heuristic, not by a model or a person: no benchmark result", fg="yellow", err=True)


@main.command()
@click.argument("topic")
@click.argument("snapshot")
@click.option("--layout", type=click.Choice(["freshstack", "beir", "trec"]), default="freshstack", show_default=True)
@click.option("--to", "folder", type=click.Path(file_okay=False, path_type=Path), help="Folder to write to.")
def export(topic: str, snapshot: str, layout: str, folder: Path | None) -> None:
    """Write TOPIC's collection at SNAPSHOT in a layout that other tools read, with a card that says what it is."""
    from freshstack_dagster.publishing.export import export as write
    from freshstack_dagster.publishing.export import load

    where = places()
    lake, described = Lake(where.lake), find_topic(where, topic)
    _require_built(lake, described, snapshot)
    collection = load(lake, described, snapshot)
    for path in write(collection, layout, folder or where.exports / topic / snapshot / layout):
        click.echo(f"{path.stat().st_size:12,}  {path}")


@main.command()
@click.argument("query")
@click.option("--csv", is_flag=True, help="Print comma-separated values.")
def sql(query: str, csv: bool) -> None:
    """Ask the catalogue of tables a question in SQL. Long cells are cut; --csv prints them whole."""
    import duckdb

    with connect(places().catalogue) as connection:
        try:
            relation = connection.sql(query)
            frame = pl.DataFrame() if relation is None else relation.pl()
        except duckdb.Error as error:
            raise FreshstackError(str(error).splitlines()[0]) from error
    if csv:
        click.echo(frame.write_csv(), nl=False)
    else:
        print_frame(frame)


@main.command()
def reap() -> None:
    """End the runs and free the pool slots that a killed machine left behind. Stop `dagster dev` first."""
    from freshstack_dagster.automation.building import open_instance
    from freshstack_dagster.automation.building import reap as reap_runs

    with open_instance(places()) as instance:
        click.echo(f"reaped {len(reap_runs(instance))} runs")


@main.command()
@click.option("--days", type=click.IntRange(min=0), default=90, show_default=True, help="Keep what is younger.")
def prune(days: int) -> None:
    """Delete old runs with their logs from Dagster's storage, and indexes that no run used for so long.

    Runs that current tables came from stay. So do embeddings, model replies and chunks in the cache.
    """
    from freshstack_dagster.automation.building import open_instance
    from freshstack_dagster.automation.building import prune as prune_runs
    from freshstack_dagster.retrieval import prune as prune_indexes

    where = places()
    with open_instance(where) as instance:
        pruned = prune_runs(instance, datetime.now(UTC) - timedelta(days=days))
    click.echo(f"pruned {pruned} runs that were made more than {days} days ago")
    freed = prune_indexes(where.cache, days)
    click.echo(f"pruned {len(freed)} indexes that were not used since, {sum(freed.values()) / 1e6:,.1f} MB")


@main.command()
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget(topic: str, yes: bool) -> None:
    """Delete all tables of TOPIC. Its file, mirrors and cached replies stay, so that it can be built again."""
    where = places()
    lake = Lake(where.lake, where.catalogue)
    if topic not in (known := lake.topics()):
        raise FreshstackError(f"no table of {topic}; there are tables of {', '.join(sorted(known)) or 'no topic'}")
    if not yes:
        click.confirm(f"Delete all tables of {topic} in {where.lake}?", abort=True)
    click.echo(f"deleted {lake.forget(topic)} partitions of {topic}")


@main.command()
def doctor() -> None:
    """Check that this installation can work: git, tokenizer, settings, lake, catalogue, extras."""
    where = places()
    failures = 0
    for name, check in _doctor_checks(where).items():
        try:
            click.echo(f"ok       {name}: {check()}")
        except Exception as error:
            failures += 1
            click.echo(f"FAILED   {name}: {error}")
    if failures:
        raise FreshstackError(f"{failures} of the checks failed")


def _doctor_checks(where: Any) -> dict[str, Callable[[], str]]:
    import importlib.util
    import shutil
    import subprocess

    def git() -> str:
        if shutil.which("git") is None:
            raise SettingsError("git is not on the PATH; install it")
        return subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.strip()

    def tokenizer() -> str:
        from freshstack_dagster.corpus import chunk_file

        return f"one chunk of {chunk_file('a.py', b'print(1)')[0].tokens} tokens"

    def settings() -> str:
        topics = load_topics(where.topics)
        absent: dict[Path, list[str]] = {}
        for name, topic in topics.items():
            source = topic.questions
            if source and source.kind != "collection" and source.path and not source.path.exists():
                absent.setdefault(source.path, []).append(name)
        lacking = "; ".join(f"{path} (of {', '.join(names)})" for path, names in absent.items())
        return f"{len(topics)} topics" + (f"; not there yet: {lacking}" if lacking else "")

    def lake() -> str:
        Lake(where.lake).probe()
        return f"{where.lake} can be written"

    def catalogue() -> str:
        if not where.catalogue.exists():
            return "none yet; the first build makes it"
        with connect(where.catalogue) as connection:
            return f"{len(connection.execute('show tables').fetchall())} views"

    def dense() -> str:
        found = importlib.util.find_spec("sentence_transformers") is not None
        return "installed" if found else "not installed; pip install 'freshstack-dagster[dense]' adds dense retrieval"

    return {
        "git": git,
        "tokenizer": tokenizer,
        "settings": settings,
        "lake": lake,
        "catalogue": catalogue,
        "dense extra": dense,
    }


def _require_built(lake: Lake, topic: Topic, snapshot: str) -> None:
    built = lake.snapshots("question_outcomes", topic.name)
    if snapshot not in built:
        raise FreshstackError(
            f"{topic.name} is not built at {snapshot} but at {', '.join(built) or 'no snapshot'}; "
            f"`freshstack-dagster build {topic.name} {snapshot}` does"
        )


def _build(name: str, snapshots: tuple[str, ...], drift: bool) -> None:
    from freshstack_dagster.automation.building import build as build_in_process
    from freshstack_dagster.automation.building import open_instance, prepare_instance

    started, where = time.perf_counter(), places()
    _show_progress()
    with open_instance(where) as instance:
        prepare_instance(instance)
        launched = build_in_process(where, name, snapshots, instance=instance, drift=drift, say=_say)
    lake, topic = Lake(where.lake), find_topic(where, name)
    console.print_results(lake, topic)
    if drift:
        console.print_drift(lake, topic)
    console.warn_of_heuristic(topic)
    took = f"in {time.perf_counter() - started:.0f} s"
    click.echo(f"\nBuilt {took}." if launched else f"\nNothing had changed, nothing was built; looked through {took}.")
    if drift:
        click.echo(f"  report   {where.reports / f'{name}.html'}")


def _say(line: str) -> None:
    click.secho(line, bold=True, err=True)


def _show_progress() -> None:
    """Show the lines that stages log, each as it comes, and nothing of the framework's."""
    from freshstack_dagster.assets.tables import PROGRESS

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("  %(message)s"))
    logger = logging.getLogger(PROGRESS)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


if __name__ == "__main__":
    main()

"""What the terminal shows of a topic that is built: questions by outcome, systems, what changed between months."""

from __future__ import annotations

import shutil
import sys

import click
import polars as pl

from freshstack_dagster.lake import Lake
from freshstack_dagster.settings import Topic

SUPPORT = ["fully", "partly", "none", "not_judged"]
HEADLINE = ["alpha_ndcg@10", "coverage@20", "recall@50"]
CELL_CHARACTERS = 60
UNLIMITED = -1


def print_frame(frame: pl.DataFrame, title: str | None = None) -> None:
    """A frame as a table: as wide as the terminal, and as it needs where the output goes to a file or a pipe."""
    if title:
        click.secho(f"\n{title}", bold=True)
    with pl.Config(
        tbl_rows=UNLIMITED,
        tbl_cols=UNLIMITED,
        tbl_width_chars=shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED,
        fmt_str_lengths=CELL_CHARACTERS,
        float_precision=3,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        tbl_formatting="ASCII_MARKDOWN",
    ):
        click.echo(str(frame))


def print_results(lake: Lake, topic: Topic) -> None:
    """Every snapshot of a topic that is built: its questions by outcome, and retrieval with the question alone."""
    rows, frames = [], []
    for snapshot in lake.snapshots("question_outcomes", topic.name):
        outcomes = lake.read("question_outcomes", topic.name, snapshot)
        counts = dict(outcomes.group_by("outcome").len().sort("outcome").iter_rows())
        rows.append({"snapshot": snapshot, "questions": outcomes.height, **counts})
    for snapshot in lake.snapshots("retrieval_results", topic.name):
        means = lake.read("retrieval_results", topic.name, snapshot).filter(pl.col("question_id") == "all")
        frames.append(
            means.filter(pl.col("measure").is_in(HEADLINE)).select(
                "system", pl.lit(snapshot).alias("snapshot"), "measure", "value"
            )
        )
    if rows:
        print_frame(pl.from_dicts(rows, infer_schema_length=None).fill_null(0), "Questions, by outcome")
    means = pl.concat(frames) if frames else pl.DataFrame()
    if means.is_empty():
        click.echo("\nNo question was kept, so no system is scored; question_outcomes says why.")
        return
    table = means.pivot("measure", index=["system", "snapshot"], values="value").sort("system", "snapshot")
    print_frame(table, "Retrieval with the question alone, over the kept questions of each month")


def print_drift(lake: Lake, topic: Topic) -> None:
    """What changed between a topic's snapshots; nothing where there is but one."""
    name = topic.name
    drift = lake.read("support_drift", name)
    if drift["snapshot"].n_unique() < 2:
        return
    questions = drift.unique(["question_id", "snapshot"]).group_by("snapshot", "question_support").len("questions")
    table = questions.pivot("question_support", index="snapshot", values="questions").fill_null(0).sort("snapshot")
    table = table.select("snapshot", *(name for name in SUPPORT if name in table.columns))
    print_frame(table, "Questions, by support of their nuggets")
    lineage = lake.read("chunk_lineage", name).group_by("snapshot", "outcome").len("supporting chunks")
    print_frame(lineage.sort("snapshot", "outcome"), "What became of the baseline's supporting chunks")
    shift = lake.read("repository_shift", name)
    print_frame(
        shift.select("snapshot", "repository", "documents", "supporting", "supporting_share"), "Support, by repository"
    )
    correlation = lake.read("ranking_correlation", name).select(
        "measure", "snapshot_a", "snapshot_b", "systems", "questions", "tau_b"
    )
    if correlation.is_empty():
        click.echo("\nNo question is kept in two months, so rankings are not compared.")
        return
    title = "Agreement of rankings between snapshots, on the questions kept in both (Kendall's tau-b)"
    print_frame(correlation, title)


def warn_of_heuristic(topic: Topic) -> None:
    """Say what of a topic the heuristic made, where it did."""
    made = {"Nuggets": topic.roles.nuggets, "judgments": topic.roles.judge}
    of_heuristic = [what for what, role in made.items() if role.provider == "heuristic"]
    published = topic.questions is not None and topic.questions.nuggets == "published"
    if published and "Nuggets" in of_heuristic:
        of_heuristic.remove("Nuggets")
    if of_heuristic:
        what = " and ".join(of_heuristic)
        click.secho(
            f"\n{what[0].upper()}{what[1:]} were made by the embedded heuristic: it shows that the pipeline runs and "
            "is no judge. Set model roles in the topic file for a benchmark.",
            fg="yellow",
        )

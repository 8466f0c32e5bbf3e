"""The report of a topic: one HTML file with every figure as a plot and as a table."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from freshstack_dagster.errors import LakeError
from freshstack_dagster.lake import Lake
from freshstack_dagster.publishing import plots
from freshstack_dagster.settings import Topic

HEADLINE = ("alpha_ndcg@10", "coverage@20", "recall@50")
MOST_ROWS = 40


@dataclass(frozen=True)
class Section:
    """A part of the report: what it shows, how it is read, its plots (SVG) and its tables (HTML)."""

    id: str
    title: str
    text: str
    parts: Sequence[str]


def write_report(lake: Lake, topic: Topic, path: Path) -> bool:
    """Render the topic's report to `path`; return whether its content changed.

    Raises LakeError if no snapshot of the topic is built, or the file cannot be written.
    """
    page = render_report(lake, topic)
    if path.exists() and path.read_text(encoding="utf-8") == page:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise LakeError(f"{path}: the report cannot be written: {error.strerror}") from error
    return True


def render_report(lake: Lake, topic: Topic) -> str:
    """The report as HTML."""
    from jinja2 import Environment, PackageLoader

    snapshots = lake.snapshots("question_outcomes", topic.name)
    if not snapshots:
        raise LakeError(f"topic {topic.name} has no snapshot yet; build one first")
    environment = Environment(loader=PackageLoader("freshstack_dagster.publishing"), autoescape=True)
    tables = _Tables(lake, topic.name, snapshots)
    return environment.get_template("report.html").render(
        topic=topic,
        snapshots=snapshots,
        judge_kinds=tables.judge_kinds(),
        sections=[section for section in _sections(tables) if section is not None],
    )


class _Tables:
    """The topic's tables, each read once; a table of every snapshot has a column `snapshot`."""

    def __init__(self, lake: Lake, topic: str, snapshots: Sequence[str]) -> None:
        self.lake, self.topic, self.snapshots = lake, topic, list(snapshots)

    def of_topic(self, table: str) -> pl.DataFrame:
        """A topic-level table."""
        return self.lake.read(table, self.topic)

    def of_snapshots(self, table: str) -> pl.DataFrame:
        """All snapshots of a table, with their month."""
        months = [month for month in self.snapshots if self.lake.current(table, self.topic, month) is not None]
        frames = [self.lake.read(table, self.topic, month).with_columns(snapshot=pl.lit(month)) for month in months]
        return pl.concat(frames)

    def judge_kinds(self) -> list[str]:
        """Who judged."""
        kinds = [
            self.lake.scan("judgments", self.topic, month).select(pl.col("judge_kind").unique()).collect()
            for month in self.snapshots
        ]
        return pl.concat(kinds)["judge_kind"].unique().sort().to_list()


def _sections(tables: _Tables) -> list[Section | None]:
    return [
        _outcomes(tables),
        _statistics(tables),
        _retrieval(tables),
        _pooling(tables),
        _comparisons(tables),
        _support(tables),
        _changed(tables),
        _repositories(tables),
        _lineage(tables),
        _rankings(tables),
    ]


def _outcomes(tables: _Tables) -> Section:
    counts = tables.of_snapshots("question_outcomes").group_by("snapshot", "outcome").len("questions")
    wide = counts.pivot("outcome", index="snapshot", values="questions").fill_null(0).sort("snapshot")
    rows = {row["snapshot"]: {k: v for k, v in row.items() if k != "snapshot"} for row in wide.iter_rows(named=True)}
    text = (
        "A question is kept if every nugget of its answer is supported by some chunk. One without support, or with a "
        "nugget without support, leaves the benchmark of that snapshot; an error of the judge leaves it undecided."
    )
    return Section(
        "questions", "Questions, by outcome", text, [plots.stacked("Questions, by outcome", rows), table(wide)]
    )


def _statistics(tables: _Tables) -> Section:
    statistics = tables.of_snapshots("statistics")
    wide = statistics.pivot("snapshot", index=["statistic", "description"], values="value", maintain_order=True)
    columns = ["statistic", *tables.snapshots, "description"]
    text = "The columns of FreshStack's Table 3, and more. Tokens are those of GPT-4o's tokenizer (o200k_base)."
    return Section("statistics", "The collection in figures", text, [table(wide.select(columns))])


def _means(tables: _Tables, name: str) -> pl.DataFrame:
    return tables.of_snapshots(name).filter(pl.col("question_id") == "all")


def _retrieval(tables: _Tables) -> Section | None:
    means = _means(tables, "retrieval_results")
    if means.is_empty():
        return None
    parts = []
    for measure in HEADLINE:
        chosen = means.filter(pl.col("measure") == measure)
        by_system = chosen.pivot("snapshot", index="system", values="value").sort("system")
        months = [month for month in tables.snapshots if month in by_system.columns]
        scores = {row["system"]: [row[month] for month in months] for row in by_system.iter_rows(named=True)}
        parts.append(plots.slopes(f"{measure} by system and snapshot", scores, months))
    wide = means.select(
        "system",
        "snapshot",
        "measure",
        score=pl.format("{} [{}, {}]", *(_three(c) for c in ("value", "lower", "upper"))),
    ).pivot("measure", index=["system", "snapshot"], values="score")
    holes = means.group_by("system", "snapshot").agg(holes=pl.col("holes").max().round(3))
    parts.append(table(wide.join(holes, on=["system", "snapshot"]).sort("snapshot", "system")))
    text = (
        "Systems see the question alone. In brackets stand the bounds: the score if every retrieved chunk that nobody "
        "judged were wrong, and if every one were right."
    )
    return Section("retrieval", "Retrieval", text, parts)


def _pooling(tables: _Tables) -> Section | None:
    means = _means(tables, "pooling_results").filter(pl.col("measure").is_in(HEADLINE))
    if means.is_empty():
        return None
    wide = means.with_columns(pl.col("value").round(3)).pivot(
        ["measure", "snapshot"], index=["setting", "variant", "retriever"], values="value"
    )
    names = {name: name.strip('{}"').replace('","', " ") for name in wide.columns}
    text = (
        "Every form of the question with every retriever (FreshStack, Table 4). Inference variants know the question "
        "only; oracle variants know the answer, and show what can be reached."
    )
    return Section("pooling", "Pooling", text, [table(wide.rename(names).sort("setting", "variant", "retriever"))])


def _comparisons(tables: _Tables) -> Section | None:
    comparisons = tables.of_snapshots("comparisons").filter(pl.col("measure").is_in(HEADLINE))
    if comparisons.is_empty():
        return None
    shown = comparisons.sort("p_corrected", "measure", "snapshot").head(MOST_ROWS)
    columns = ["snapshot", "measure", "system_a", "system_b", "questions", "difference"]
    columns += ["interval_low", "interval_high", "effect_size", "p_value", "p_corrected"]
    text = (
        "Paired randomisation tests on the questions, corrected by Holm over all pairs of a measure; intervals are 95% "
        f"bootstraps of the mean difference. The {min(MOST_ROWS, comparisons.height)} smallest corrected p-values."
    )
    return Section("comparisons", "Differences between systems", text, [table(shown.select(columns))])


def _support(tables: _Tables) -> Section:
    questions = tables.of_topic("support_drift").unique(["question_id", "snapshot"])
    counts = questions.group_by("snapshot", "question_support").len("questions")
    wide = counts.pivot("question_support", index="snapshot", values="questions").fill_null(0).sort("snapshot")
    order = [name for name in ("fully", "partly", "none", "not_judged") if name in wide.columns]
    rows = {str(row["snapshot"]): {str(name): float(row[name]) for name in order} for row in wide.iter_rows(named=True)}
    text = "A question is fully supported if each of its nuggets is; an unjudged nugget leaves it not judged."
    plot = plots.stacked("Questions, by support", rows)
    return Section(
        "support", "Are the questions still answerable?", text, [plot, table(wide.select("snapshot", *order))]
    )


def _changed(tables: _Tables) -> Section:
    drift = tables.of_topic("support_drift").filter(pl.col("change_from_baseline").is_in(["lost", "gained"]))
    nuggets = tables.of_topic("nuggets").select("nugget_id", nugget="text")
    titles = tables.of_topic("questions").select("question_id", question="title")
    changed = (
        drift.join(nuggets, on="nugget_id")
        .join(titles, on="question_id")
        .select("snapshot", "question_id", "question", "change_from_baseline", "nugget", "question_support")
        .sort("change_from_baseline", "question_id", "snapshot", descending=[True, False, False])
    )
    text = "Nuggets that some chunk of the baseline supported and none does now, and the other way round."
    return Section("changed", "Nuggets that lost or gained support", text, [table(changed)])


def _repositories(tables: _Tables) -> Section:
    shift = tables.of_topic("repository_shift")
    groups: dict[str, dict[str, float]] = {}
    for row in shift.sort("supporting", descending=True).iter_rows(named=True):
        groups.setdefault(row["repository"], {})
    for row in shift.sort("snapshot").iter_rows(named=True):
        groups[row["repository"]][row["snapshot"]] = row["supporting_share"]
    plot = plots.bars("Share of supporting chunks, by repository", groups, percent=True)
    text = "Where the chunks stand that support some nugget, and how the corpus grew (the second paper's Table 1)."
    return Section("repositories", "Where support stands", text, [plot, table(shift)])


def _lineage(tables: _Tables) -> Section | None:
    lineage = tables.of_topic("chunk_lineage")
    if lineage.is_empty():
        return None
    last = str(lineage["snapshot"].max())
    destination = pl.col("successors").list.first().str.split("/").list.first()
    counts = (
        lineage.filter(pl.col("snapshot") == last)
        .with_columns(
            target=pl.when(pl.col("outcome") == "migrated")
            .then(pl.format("migrated to {}", destination))
            .otherwise("outcome")
        )
        .group_by("repository", "target")
        .len("chunks")
        .sort("repository", "target")
    )
    bands = [plots.Flow(row["repository"], row["target"], row["chunks"]) for row in counts.iter_rows(named=True)]
    moved = lineage.filter(pl.col("outcome") != "unchanged").select(
        "snapshot",
        "doc_id",
        "outcome",
        successor=pl.col("successors").list.first(),
        score=pl.col("score").round(2),
        evidence="evidence",
    )
    summary = tables.of_topic("lineage_summary").pivot("outcome", index=["snapshot", "repository"], values="chunks")
    text = (
        f"What became of the baseline's supporting chunks by {last}, and below of all chunks. A chunk is edited if its "
        "file still holds enough of its passages; moved, renamed or migrated if another place now does; gone if none."
    )
    parts = [
        plots.flows(f"Supporting chunks of the baseline and their outcome in {last}", bands),
        table(counts),
        "<h3>Supporting chunks that changed</h3>",
        table(moved),
        "<h3>All chunks of the baseline</h3>",
        table(summary.fill_null(0).sort("snapshot", "repository")),
    ]
    return Section("lineage", "Where support went", text, parts)


def _rankings(tables: _Tables) -> Section | None:
    correlation = tables.of_topic("ranking_correlation")
    if correlation.is_empty():
        return None
    shown = correlation.filter(pl.col("measure").is_in(HEADLINE)).drop_nulls(["tau_b", "questions_low"])
    rows = {
        f"{row['measure']} {row['snapshot_a']} to {row['snapshot_b']}": (
            row["tau_b"],
            row["questions_low"],
            row["questions_high"],
        )
        for row in shown.iter_rows(named=True)
    }
    text = (
        "Kendall's tau-b between the rankings of systems in two snapshots, on the questions kept in both; the line is "
        "the 95% bootstrap interval over questions. With few systems even a high tau says little: see the interval "
        "over systems in the table."
    )
    parts = [plots.intervals("Agreement of rankings", rows), table(correlation.drop("judge_kind"))]
    return Section("rankings", "Do rankings hold?", text, parts)


def _three(column: str) -> pl.Expr:
    return pl.col(column).map_elements(lambda value: f"{value:.3f}", return_dtype=pl.String)


def table(frame: pl.DataFrame) -> str:
    """A frame as an HTML table; numbers are aligned and shortened, texts are escaped."""

    def cell(value: Any) -> str:
        if value is None:
            return "<td></td>"
        if isinstance(value, bool):
            return f"<td>{'yes' if value else 'no'}</td>"
        if isinstance(value, int):
            return f'<td class="n">{value:,}</td>'
        if isinstance(value, float):
            return f'<td class="n">{value:,.3f}</td>'
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        return f"<td>{html.escape(text)}</td>"

    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in frame.columns)
    rows = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in frame.iter_rows())
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'

"""What the report shows, section by section: each plot with its numbers below, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from freshstack_dagster.publishing import plots
from freshstack_dagster.publishing.cases import case_studies
from freshstack_dagster.publishing.html import MOST_ROWS, Markup, figure, number, rows_table, table
from freshstack_dagster.publishing.topic_tables import TopicTables

HEADLINE = ("alpha_ndcg@10", "coverage@20", "recall@50")
OUTCOMES = ("kept", "partial_support", "no_support", "not_judged")
SUPPORT = ("fully", "partly", "none", "not_judged")
LINEAGE = ("unchanged", "edited", "moved", "renamed", "split", "merged", "migrated", "gone")
AGES = ((182, "under half a year"), (365, "half a year to one"), (730, "one to two years"), (None, "over two years"))


@dataclass(frozen=True)
class Section:
    """A part of the report: what it shows, how it is read, its plots and tables as HTML."""

    id: str
    title: str
    text: str
    parts: Sequence[str]


def sections(tables: TopicTables) -> list[Section]:
    """The report's sections, in order; one whose tables are empty is left out."""
    made = [
        _outcomes(tables),
        _statistics(tables),
        _support(tables),
        _changed(tables),
        _cases(tables),
        _repositories(tables),
        _lineage(tables),
        _freshness(tables),
        _retrieval(tables),
        _rankings(tables),
        _system_drift(tables),
        _decomposition(tables),
        _pooling(tables),
        _comparisons(tables),
        _agreement(tables),
        _contamination(tables),
        _answers(tables),
    ]
    return [section for section in made if section is not None]


def _counts(frame: pl.DataFrame, column: str, order: Sequence[str]) -> pl.DataFrame:
    """Questions by snapshot, a column for each value of `column` that occurs, in a sensible order."""
    wide = frame.group_by("snapshot", column).len("questions").pivot(column, index="snapshot", values="questions")
    names = [name for name in order if name in wide.columns]
    names += sorted(set(wide.columns) - {*names, "snapshot"})
    return wide.fill_null(0).sort("snapshot").select("snapshot", *names)


def _by_month(wide: pl.DataFrame) -> dict[str, dict[str, float]]:
    return {
        row["snapshot"]: {name.replace("_", " "): value for name, value in row.items() if name != "snapshot"}
        for row in wide.iter_rows(named=True)
    }


def _outcomes(tables: TopicTables) -> Section:
    wide = _counts(tables.of_snapshots("question_outcomes"), "outcome", OUTCOMES)
    text = (
        "A question is kept if every nugget of its answer is supported by some chunk. One without support, or with a "
        "nugget without support, leaves the benchmark of that snapshot; an error of the judge leaves it undecided."
    )
    plot = plots.stacked("Questions, by outcome", _by_month(wide))
    return Section("questions", "Questions, by outcome", text, [figure(plot), table(wide)])


def _statistics(tables: TopicTables) -> Section:
    wide = tables.of_snapshots("statistics").pivot(
        "snapshot", index=["statistic", "description"], values="value", maintain_order=True
    )

    def written(values: Sequence[float | None]) -> list[str | None]:
        whole = all(value is None or float(value).is_integer() for value in values)
        return [None if value is None else f"{value:,.0f}" if whole else f"{value:,.2f}" for value in values]

    months = [month for month in tables.snapshots if month in wide.columns]
    rows = [
        [row["statistic"].replace("_", " "), *written([row[month] for month in months]), row["description"]]
        for row in wide.iter_rows(named=True)
    ]
    text = "The columns of FreshStack's Table 3, and more. Tokens are those of GPT-4o's tokenizer (o200k_base)."
    parts = [rows_table(["statistic", *months, "description"], rows)]
    return Section("statistics", "The collection in figures", text, parts)


def _means(tables: TopicTables, name: str) -> pl.DataFrame:
    return tables.of_snapshots(name).filter(pl.col("question_id") == "all")


def _retrieval(tables: TopicTables) -> Section | None:
    means = _means(tables, "retrieval_results")
    if means.is_empty():
        return None
    score = pl.format("{} [{}, {}]", *(_three(column) for column in ("value", "lower", "upper")))
    parts = []
    for measure in HEADLINE:
        chosen = means.filter(pl.col("measure") == measure)
        by_system = chosen.pivot("snapshot", index="system", values="value").sort("system")
        months = [month for month in tables.snapshots if month in by_system.columns]
        scores = {row["system"]: [row[month] for month in months] for row in by_system.iter_rows(named=True)}
        parts.append(figure(plots.slopes(f"{measure}, by system and snapshot", scores, months)))
        numbers = chosen.with_columns(score=score).pivot("snapshot", index="system", values="score").sort("system")
        parts.append(table(numbers.select("system", *months)))
    others = means.filter(~pl.col("measure").is_in(HEADLINE)).pivot(
        "measure", index=["snapshot", "system"], values="value", sort_columns=True
    )
    holes = means.group_by("system", "snapshot").agg(holes=pl.col("holes").max())
    parts.append("<h3>Other measures, and the largest share of holes</h3>")
    parts.append(table(others.join(holes, on=["system", "snapshot"]).sort("snapshot", "system"), most=MOST_ROWS))
    text = (
        "Systems see the question alone. In brackets stand the bounds: the score if every retrieved chunk that nobody "
        "judged were wrong, and if every one were right."
    )
    return Section("retrieval", "Retrieval", text, parts)


def _pooling(tables: TopicTables) -> Section | None:
    means = _means(tables, "pooling_results").filter(pl.col("measure").is_in(HEADLINE))
    if means.is_empty():
        return None
    months = means["snapshot"].unique().sort().to_list()
    shown = months if len(months) <= 3 else [months[0], months[-1]]
    parts = []
    for month in shown:
        wide = means.filter(pl.col("snapshot") == month).pivot(
            "measure", index=["setting", "variant", "retriever"], values="value"
        )
        names = [name for name in HEADLINE if name in wide.columns]
        parts.append(f"<h3>{month}</h3>")
        wide = wide.select("setting", "variant", "retriever", *names).sort("setting", "variant", "retriever")
        parts.append(table(wide))
    if len(shown) < len(months):
        parts.append(f'<p class="note">{len(months) - len(shown)} months between are left out.</p>')
    text = (
        "Every form of the question with every retriever (FreshStack, Table 4). Inference variants know the question "
        "only; oracle variants know the answer, and show what can be reached."
    )
    return Section("pooling", "Pooling", text, parts)


def _comparisons(tables: TopicTables) -> Section | None:
    comparisons = tables.of_snapshots("comparisons").filter(pl.col("measure").is_in(HEADLINE))
    if comparisons.is_empty():
        return None
    shown = comparisons.sort("p_corrected", "measure", "snapshot").head(MOST_ROWS)
    columns = ["snapshot", "measure", "system_a", "system_b", "questions", "difference"]
    columns += ["interval_low", "interval_high", "effect_size", "p_value", "p_corrected"]
    left_out = comparisons.height - shown.height
    text = (
        "Paired randomisation tests on the questions, corrected by Holm over all pairs of a measure; intervals are 95% "
        f"bootstraps of the mean difference. The {shown.height} smallest corrected p-values"
        + (f"; {left_out:,} pairs are left out." if left_out else ".")
    )
    return Section("comparisons", "Differences between systems", text, [table(shown.select(columns))])


def _agreement(tables: TopicTables) -> Section | None:
    agreement = tables.of_snapshots("agreement")
    if agreement.is_empty():
        return None
    rows = [
        [
            row["snapshot"],
            "all judges" if row["statistic"] == "fleiss" else f"{row['judge_a']} and {row['judge_b']}",
            row["judge_kinds"],
            row["pairs"],
            row["left_out"],
            _bracketed(row, "agreement"),
            _bracketed(row, "kappa"),
            None if row["base_rate"] is None else f"{row['base_rate']:.0%}",
        ]
        for row in agreement.sort("snapshot", "statistic", "judge_a", "judge_b").iter_rows(named=True)
    ]
    columns = ["snapshot", "judges", "kinds", "verdicts", "left_out", "equal", "kappa", "supported"]
    divided = tables.of_snapshots("disagreements").group_by("snapshot").len().sort("snapshot").rows()
    text = (
        "Each two judges on the nuggets and chunks on which both gave a verdict (Cohen's kappa), and all together "
        "(Fleiss' kappa), with 95% bootstrap intervals over questions. Where few pairs are supported, judges agree on "
        "most by saying no: kappa leaves out what chance would give. What they part on, for people to read, stands in "
        f"the table disagreements: {', '.join(f'{count:,} in {month}' for month, count in divided) or 'nothing'}."
    )
    return Section("agreement", "Do judges agree?", text, [rows_table(columns, rows)])


def _contamination(tables: TopicTables) -> Section | None:
    stated = tables.of_topic("contamination")
    if not stated["questions"].sum():
        return None
    rows = [
        [
            "all questions" if row["asked"] == "all" else row["asked"],
            *(row[name] for name in ("questions", "skipped", "nuggets", "stated", "unjudged")),
            _bracketed(row, "share", low="share_low", high="share_high"),
            row["fully_stated"],
        ]
        for row in stated.iter_rows(named=True)
    ]
    columns = ["asked", "questions", "without_answer", "nuggets", "stated", "unjudged", "share", "fully_stated"]
    text = (
        "The model that writes closed-book answers sees the question alone. The nuggets that its answers state it knew "
        "beforehand; a share that falls for questions asked after its training ended says that the older ones were "
        f"learnt. Shares are of judged nuggets, with 95% Wilson intervals. Judged by: {_kinds(stated)}."
    )
    return Section("contamination", "What did the model know already?", text, [rows_table(columns, rows)])


def _answers(tables: TopicTables) -> Section | None:
    results = tables.of_topic("answer_results")
    means = results.filter(pl.col("question_id") == "all").sort(
        "measure", "value", "system", descending=[False, True, False]
    )
    if means.is_empty():
        return None
    per_question = results.filter(pl.col("question_id") != "all")
    counted = per_question.group_by("system", "measure").agg(questions=pl.len())
    shown = means.join(counted, on=["system", "measure"], how="left", maintain_order="left").select(
        "measure", "system", "questions", "nuggets", "stated", "unjudged", "value", "lower", "upper"
    )
    text = (
        "The share of a question's nuggets that the answer of a system states, in the mean over questions: with what "
        f"is unjudged taken as not stated (lower) and as stated (upper). Judged by: {_kinds(means)}."
    )
    return Section("answers", "Answers of systems", text, [table(shown)])


def _kinds(frame: pl.DataFrame) -> str:
    return ", ".join(kind for kind in frame["judge_kind"].unique().sort() if kind != "none")


def _bracketed(row: Mapping[str, Any], name: str, *, low: str = "", high: str = "") -> str | None:
    """A value with its interval."""
    ends = (row[low or f"{name}_low"], row[high or f"{name}_high"])
    if row[name] is None:
        return None
    return f"{row[name]:.3f}" if None in ends else f"{row[name]:.3f} [{ends[0]:.3f}, {ends[1]:.3f}]"


def _support(tables: TopicTables) -> Section | None:
    drift = tables.of_topic("support_drift")
    if drift.is_empty():
        return None
    wide = _counts(drift.unique(["question_id", "snapshot"]), "question_support", SUPPORT)
    text = "A question is fully supported if each of its nuggets is; an unjudged nugget leaves it not judged."
    parts = [figure(plots.stacked("Questions, by support", _by_month(wide))), table(wide)]
    nuggets = drift.group_by("snapshot").agg(
        supported=pl.col("nugget_supported").sum(),
        unsupported=(~pl.col("nugget_supported")).sum(),
        not_judged=pl.col("nugget_supported").is_null().sum(),
        lost_since_baseline=(pl.col("change_from_baseline") == "lost").sum(),
        gained_since_baseline=(pl.col("change_from_baseline") == "gained").sum(),
        lost_since_month_before=(pl.col("change_from_previous") == "lost").sum(),
        gained_since_month_before=(pl.col("change_from_previous") == "gained").sum(),
    )
    nuggets = nuggets.sort("snapshot")
    if nuggets.height > 2:
        names = ["supported", "lost_since_baseline", "gained_since_baseline"]
        series = {name.replace("_", " "): nuggets[name].to_list() for name in names}
        parts.append(figure(plots.lines("Nuggets, by snapshot", series, nuggets["snapshot"].to_list(), from_zero=True)))
    parts += ["<h3>Nuggets</h3>", table(nuggets)]
    return Section("support", "Are the questions still answerable?", text, parts)


def _changed(tables: TopicTables) -> Section | None:
    drift = tables.of_topic("support_drift").filter(pl.col("change_from_baseline").is_in(["lost", "gained"]))
    nuggets = tables.of_topic("nuggets").select("nugget_id", nugget="text")
    titles = tables.of_topic("questions").select("question_id", question="title")
    changed = (
        drift.join(nuggets, on="nugget_id")
        .join(titles, on="question_id")
        .group_by("question_id", "question", "nugget_id", "nugget", change="change_from_baseline")
        .agg(snapshots=pl.col("snapshot").sort().str.join(", "))
        .sort("change", "question_id", "nugget_id", descending=[True, False, False])
        .select("change", "snapshots", "question_id", "question", "nugget")
    )
    if tables.of_topic("support_drift").is_empty():
        return None
    text = (
        f"Nuggets that some chunk of {tables.baseline} supported and none did in the snapshots named, and the other "
        "way round."
    )
    parts = [table(changed, most=MOST_ROWS) if changed.height else "<p>None.</p>"]
    return Section("changed", "Nuggets that lost or gained support", text, parts)


def _cases(tables: TopicTables) -> Section | None:
    parts, left_out = case_studies(tables)
    if not parts:
        return None
    text = (
        "Questions whose support changed between the baseline and the last snapshot: their nuggets, the chunks that "
        "supported them then and do now, and where each of the earlier ones went."
        + (f" {left_out} more such questions are left out." if left_out else "")
    )
    return Section("cases", "Case studies", text, parts)


def _repositories(tables: TopicTables) -> Section | None:
    shift = tables.of_topic("repository_shift")
    if shift.is_empty():
        return None
    largest = (
        shift.group_by("repository").agg(most=pl.col("supporting").max()).sort("most", "repository", descending=True)
    )
    order = largest["repository"].to_list()
    months = shift["snapshot"].unique().sort().to_list()
    values = {(row["repository"], row["snapshot"]): row for row in shift.iter_rows(named=True)}
    shown = months if len(months) <= 3 else [months[0], months[-1]]
    shares = {name: {month: values[name, month]["supporting_share"] for month in shown} for name in order}
    parts = [figure(plots.bars("Share of supporting chunks, by repository", shares, percent=True))]
    if len(months) > 2:
        for column, title in (("supporting", "Supporting chunks"), ("documents", "Chunks")):
            series = {name: [values[name, month][column] for month in months] for name in order[:8]}
            parts.append(figure(plots.lines(f"{title}, by repository and month", series, months, from_zero=True)))
        if len(order) > 8:
            parts.append(f'<p class="note">{len(order) - 8} repositories are in the table only.</p>')
    totals = shift.group_by("snapshot").agg(pl.col("documents", "supporting").sum(), repository=pl.lit("all"))
    shown_table = (
        pl.concat([shift, totals], how="diagonal")
        .with_columns(last=pl.col("repository") == "all")
        .sort("snapshot", "last", "repository")
        .drop("last")
        .with_columns(
            *(_percent(name) for name in ("documents_share", "supporting_share")),
            *(_signed_percent(name) for name in ("documents_growth", "supporting_growth")),
        )
    )
    parts.append(table(shown_table, most=150))
    text = (
        "Where the chunks stand that support some nugget, and how the corpus grew against the baseline (Table 1 of "
        "“Still Fresh?”)."
    )
    return Section("repositories", "Where support stands", text, parts)


def _lineage(tables: TopicTables) -> Section | None:
    lineage = tables.of_topic("chunk_lineage")
    if lineage.is_empty():
        return None
    last = str(lineage["snapshot"].max())
    here = lineage.filter(pl.col("snapshot") == last)
    destination = pl.col("successors").list.first().str.split("/").list.first()
    where = here.with_columns(
        target=pl.when(pl.col("outcome") == "gone").then(pl.lit("gone")).otherwise(pl.format("in {}", destination))
    )
    parts = [
        figure(plots.flows(f"Where the supporting chunks of {tables.baseline} are in {last}", _bands(where, "target"))),
        _flow_table(where, "target"),
        figure(plots.flows(f"What became of them by {last}", _bands(here, "outcome"))),
        _flow_table(here, "outcome"),
    ]
    summary = tables.of_topic("lineage_summary")
    months = summary["snapshot"].unique().sort().to_list()
    totals = summary.group_by("snapshot", "outcome").agg(pl.col("chunks").sum())
    names = [name for name in LINEAGE if name in set(totals["outcome"])]
    if len(months) > 1:
        known = dict(zip(totals.select("snapshot", "outcome").rows(), totals["chunks"], strict=True))
        series: Mapping[str, list[float | None]] = {
            name: [known.get((month, name), 0) for month in months] for name in names
        }
        parts.append(
            figure(plots.lines("All chunks of the baseline, by outcome and month", series, months, from_zero=True))
        )
    moved = here.filter(pl.col("outcome") != "unchanged").select(
        "doc_id", "outcome", successor=pl.col("successors").list.first(), score=pl.col("score"), evidence="evidence"
    )
    by_outcome = pl.col("outcome").replace_strict({name: i for i, name in enumerate(LINEAGE)}, return_dtype=pl.Int64)
    wide = summary.pivot("outcome", index=["snapshot", "repository"], values="chunks").fill_null(0)
    parts += [
        f"<h3>Supporting chunks that changed by {last}</h3>",
        table(moved.sort(by_outcome, "doc_id", descending=[True, False]), most=MOST_ROWS, digits=2),
        "<h3>All chunks of the baseline</h3>",
        table(wide.select("snapshot", "repository", *names).sort("snapshot", "repository"), most=150),
    ]
    text = (
        "A chunk is unchanged if its text stands in its file as it was; edited if its file still holds enough of its "
        "passages; moved, renamed, split, merged or migrated to another repository if another place does now that did "
        "not before; gone if none does."
    )
    return Section("lineage", "Where support went", text, parts)


def _bands(frame: pl.DataFrame, target: str) -> list[plots.Flow]:
    counts = frame.group_by("repository", target).len("chunks").sort("repository", "chunks", descending=[False, True])
    return [plots.Flow(row["repository"], row[target], row["chunks"]) for row in counts.iter_rows(named=True)]


def _flow_table(frame: pl.DataFrame, target: str) -> str:
    wide = frame.group_by("repository", target).len("chunks").pivot(target, index="repository", values="chunks")
    names = [name for name in LINEAGE if name in wide.columns]
    names = sorted(set(wide.columns) - {*names, "repository"}) + names
    return table(wide.fill_null(0).sort("repository").select("repository", *names))


def _freshness(tables: TopicTables) -> Section | None:
    freshness = tables.of_topic("question_freshness")
    if freshness.is_empty():
        return None
    bucket = pl.lit("undated")
    for days, name in reversed(AGES):
        within = pl.col("age_days").is_not_null() if days is None else pl.col("age_days") < days
        bucket = pl.when(within).then(pl.lit(name)).otherwise(bucket)
    order = {name: place for place, (_, name) in enumerate(AGES)}
    by_age = (
        freshness.with_columns(age=bucket)
        .group_by("snapshot", "age")
        .agg(
            questions=pl.len(),
            fully_supported=(pl.col("question_support") == "fully").sum(),
            answer_edited_after=pl.col("answer_edited_after").sum(),
            with_a_deprecation_marker=(pl.col("deprecated_chunks") > 0).sum(),
        )
        .with_columns(fully_supported_share=_share("fully_supported", "questions"))
        .sort("snapshot", pl.col("age").replace_strict(order, default=len(order), return_dtype=pl.Int64))
    )
    last = str(freshness["snapshot"].max())
    titles = tables.of_topic("questions").select("question_id", question="title")
    signs = (
        freshness.filter(
            (pl.col("deprecated_chunks") > 0) | ((pl.col("snapshot") == last) & pl.col("answer_edited_after"))
        )
        .filter(pl.col("snapshot") == last)
        .join(titles, on="question_id")
        .sort("deprecated_chunks", "question_id", descending=[True, False])
        .select(
            "question_id",
            "question",
            "supporting_chunks",
            "deprecated_chunks",
            "answer_edited_after",
            markers=pl.col("markers").list.join(" … "),
        )
    )
    edited = freshness.filter(pl.col("answer_edited_after")).join(titles, on="question_id")
    parts = [table(by_age, most=80), f"<h3>Signs of ageing in {last}</h3>"]
    parts.append(table(signs, most=MOST_ROWS) if signs.height else "<p>None.</p>")
    if edited.height:
        parts.append("<h3>Answers edited after a snapshot</h3>")
        parts.append(table(edited.select("snapshot", "question_id", "question", "question_support"), most=MOST_ROWS))
    text = (
        "Questions by their age at each snapshot. An answer that was edited after a snapshot may say what that corpus "
        "could not know. A marker is a line of a supporting chunk that speaks of a deprecation or removal, of whatever "
        "thing: it says where to look, not that the answer is wrong."
    )
    return Section("freshness", "How fresh are the questions?", text, parts)


def _rankings(tables: TopicTables) -> Section | None:
    correlation = tables.of_topic("ranking_correlation")
    if correlation.is_empty():
        return None
    months = sorted({*correlation["snapshot_a"], *correlation["snapshot_b"]})
    last = months[-1]
    against = correlation.filter(pl.col("snapshot_a") == tables.baseline).filter(pl.col("measure").is_in(HEADLINE))
    shown = against.filter(pl.col("snapshot_b") == last).drop_nulls(["tau_b", "questions_low"])
    taus = {
        f"{row['measure']}, {row['snapshot_a']} to {row['snapshot_b']}": (
            row["tau_b"],
            row["questions_low"],
            row["questions_high"],
        )
        for row in shown.iter_rows(named=True)
    }
    parts = [figure(plots.intervals("Agreement of rankings (tau-b, interval over questions)", taus))] if taus else []
    if len(months) > 2:
        later = [month for month in months if month > tables.baseline]
        known = {(row["measure"], row["snapshot_b"]): row["tau_b"] for row in against.iter_rows(named=True)}
        series = {measure: [known.get((measure, month)) for month in later] for measure in HEADLINE}
        title = f"tau-b against {tables.baseline}, by month"
        parts.append(figure(plots.slopes(title, series, later)))
    numbers = correlation.filter(
        pl.col("measure").is_in(HEADLINE)
        & ((pl.col("snapshot_a") == tables.baseline) | (pl.col("snapshot_b") == tables.baseline))
    )
    rows = [
        [row["measure"], row["snapshot_a"], row["snapshot_b"], row["systems"], row["questions"], row["tau_b"]]
        + [_between(row[f"{name}_low"], row[f"{name}_high"]) for name in ("questions", "systems", "tie")]
        + [row["rbo"]]
        for row in numbers.iter_rows(named=True)
    ]
    columns = [
        "measure",
        "from",
        "to",
        "systems",
        "questions",
        "tau-b",
        "over questions",
        "over systems",
        "ties",
        "rbo",
    ]
    parts.append(rows_table(columns, rows, most=60))
    text = (
        "Kendall's tau-b between the rankings of systems in two snapshots, on the questions kept in both; the line is "
        "the 95% bootstrap interval over questions. With few systems even a high tau says little: see the interval "
        "over systems in the table. The bounds of ties are the lowest and highest tau that breaking them could give; "
        "rbo is rank-biased overlap, which weighs the top."
    )
    return Section("rankings", "Do rankings hold?", text, parts)


def _system_drift(tables: TopicTables) -> Section | None:
    drift = tables.of_topic("system_drift").filter(pl.col("measure").is_in(HEADLINE))
    if drift.is_empty():
        return None
    last = str(drift["snapshot_b"].max())
    shown = drift.filter((pl.col("snapshot_a") == tables.baseline) & (pl.col("snapshot_b") == last))
    parts = []
    for measure in HEADLINE:
        rows = {
            row["system"]: (row["difference"], row["interval_low"], row["interval_high"])
            for row in shown.filter(pl.col("measure") == measure).iter_rows(named=True)
        }
        if rows:
            most = max(0.01, *(abs(end) for _, *ends in rows.values() for end in ends))
            title = f"Change of {measure}, {tables.baseline} to {last}"
            parts.append(figure(plots.intervals(title, rows, low=-most, high=most)))
    columns = ["measure", "system", "questions", "score_a", "score_b", "difference"]
    columns += ["interval_low", "interval_high", "p_value", "p_corrected"]
    parts.append(table(shown.select(columns), most=60))
    significant = drift.filter(pl.col("p_corrected") < 0.05).height
    text = (
        "Each system against itself: later minus earlier, on the questions kept in both, with 95% bootstrap "
        "intervals; p-values of paired randomisation tests, corrected by Holm over the systems. Of all changes against "
        f"the baseline and the month before, {significant} of {drift.height} are significant at 0.05."
    )
    return Section("system-drift", "Which systems changed?", text, parts)


def _decomposition(tables: TopicTables) -> Section | None:
    decomposition = tables.of_topic("decomposition")
    if decomposition.is_empty():
        return None
    measured = decomposition.filter((pl.col("outcome") == "measured") & pl.col("measure").is_in(HEADLINE))
    # Of many months the last stands for the corpus.
    months = measured.filter(pl.col("factor") == "corpus")["variation"].max()
    shown = measured.filter((pl.col("factor") != "corpus") | pl.col("variation").eq_missing(pl.lit(months)))
    first = shown.filter(pl.col("measure") == HEADLINE[0])
    parts = []
    if first.height:
        most = max(0.01, float(first["difference"].abs().max() or 0))  # type: ignore[arg-type]
        changes = {
            f"{row['factor']}: {row['variation']}": (
                row["difference"],
                min(0.0, row["difference"]),
                max(0.0, row["difference"]),
            )
            for row in first.iter_rows(named=True)
        }
        taus = {
            f"{row['factor']}: {row['variation']}": (row["tau_b"], row["questions_low"], row["questions_high"])
            for row in first.drop_nulls(["tau_b", "questions_low"]).iter_rows(named=True)
        }
        title = f"Effect on {HEADLINE[0]}, mean over systems"
        parts.append(figure(plots.intervals(title, changes, low=-most, high=most)))
        title = f"Effect on rankings by {HEADLINE[0]} (tau-b, interval over questions)"
        if taus:
            parts.append(figure(plots.intervals(title, taus)))
    for measure in HEADLINE:
        rows = shown.filter(pl.col("measure") == measure).sort("factor", "variation").to_dicts()
        if rows:
            parts += [f"<h3>{measure}</h3>", rows_table(_EFFECT, [_effect(row) for row in rows], most=60)]
    skipped = decomposition.filter(pl.col("outcome") == "skipped").select("factor", "variation", why="detail")
    if skipped.height:
        parts += ["<h3>Not measured</h3>", table(skipped)]
    text = (
        f"At {tables.baseline} one of corpus, judge, pool and chunker is varied while the other three are held. Scores "
        "and rankings are compared on the questions that both conditions keep; how many each keeps is an effect too. A "
        "factor's effect is that of the variations shown, not of every judge or pool that could be. In brackets stands "
        "the 95% bootstrap interval of tau-b over questions."
    )
    return Section("decomposition", "Corpus, judge, pool or chunker?", text, parts)


_EFFECT = [
    "factor",
    "variation",
    "difference",
    "tau-b",
    "score",
    "most, of one system",
    "questions kept",
    "in both",
    "note",
]


def _between(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"[{number(low)}, {number(high)}]"


def _effect(row: dict[str, Any]) -> list[Any]:
    def arrow(before: str, after: str) -> Markup:
        return Markup(f"{before}&nbsp;→&nbsp;{after}")

    tau = None if row["tau_b"] is None else number(row["tau_b"])
    interval = _between(row["questions_low"], row["questions_high"])
    return [
        row["factor"],
        row["variation"],
        row["difference"],
        tau if tau is None or interval is None else f"{tau} {interval}",
        arrow(number(row["score_before"]), number(row["score_after"])),
        row["largest_difference"],
        arrow(f"{row['questions_before']}", f"{row['questions_after']}"),
        row["questions"],
        row["detail"],
    ]


def _three(column: str) -> pl.Expr:
    return pl.col(column).map_elements(lambda value: f"{value:.3f}", return_dtype=pl.String)


def _share(part: str, whole: str) -> pl.Expr:
    return (100 * pl.col(part) / pl.col(whole)).map_elements(lambda value: f"{value:.0f}%", return_dtype=pl.String)


def _percent(column: str) -> pl.Expr:
    return pl.col(column).map_elements(lambda value: f"{100 * value:.1f}%", return_dtype=pl.String)


def _signed_percent(column: str) -> pl.Expr:
    return pl.col(column).map_elements(lambda value: f"{100 * value:+.1f}%", return_dtype=pl.String)

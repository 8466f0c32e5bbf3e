"""Case studies: a question whose support changed, its nuggets, and its supporting chunks then and now, side by side."""

from __future__ import annotations

import html
from typing import Any

import polars as pl

from freshstack_dagster.publishing.html import link, rows_table
from freshstack_dagster.publishing.topic_tables import TopicTables

MOST_CASES = 12
MOST_CHUNKS = 4
QUOTE_CHARACTERS = 320


def case_studies(tables: TopicTables) -> tuple[list[str], int]:
    """The case studies as HTML, those that lost most first, and how many more are left out.

    A question is a case if one of its nuggets lost or gained support between the baseline and the last snapshot.
    """
    drift = tables.of_topic("support_drift")
    if drift.is_empty():
        return [], 0
    last = str(drift["snapshot"].max())
    if last == tables.baseline:
        return [], 0
    now = drift.filter((pl.col("snapshot") == last) & pl.col("change_from_baseline").is_in(["lost", "gained"]))
    ranked = (
        now.group_by("question_id")
        .agg(lost=(pl.col("change_from_baseline") == "lost").sum(), changed=pl.len())
        .sort("lost", "changed", "question_id", descending=[True, True, False])
    )
    chosen = ranked.head(MOST_CASES)["question_id"].to_list()
    evidence = _Evidence(tables, chosen, last)
    return [_case(question_id, evidence) for question_id in chosen], ranked.height - len(chosen)


class _Evidence:
    """What the case studies show: questions, nuggets, support by snapshot, supporting chunks then and now."""

    def __init__(self, tables: TopicTables, chosen: list[str], last: str) -> None:
        of_case = pl.col("question_id").is_in(chosen)
        self.baseline, self.last, self.snapshots = tables.baseline, last, tables.snapshots
        self.questions = {row["question_id"]: row for row in _rows(tables.of_topic("questions").filter(of_case))}
        self.nuggets = tables.of_topic("nuggets").filter(of_case).sort("question_id", "position")
        self.support = {
            (row["nugget_id"], row["snapshot"]): row for row in _rows(tables.of_topic("support_drift").filter(of_case))
        }
        self.chunks = {month: self._supporting(tables, month, of_case) for month in (tables.baseline, last)}
        lineage = tables.of_topic("chunk_lineage").filter(pl.col("snapshot") == last)
        self.lineage = {row["doc_id"]: row for row in _rows(lineage)}
        successors = {doc_id for row in self.lineage.values() for doc_id in row["successors"][:1]}
        pages = tables.scan("chunks", last).select("doc_id", "url").filter(pl.col("doc_id").is_in(list(successors)))
        self.pages: dict[str, str | None] = dict(pages.collect().iter_rows())

    def _supporting(self, tables: TopicTables, month: str, of_case: pl.Expr) -> dict[str, list[dict[str, Any]]]:
        """By nugget the chunks that supported it in a month, with their pages."""
        supporting = (
            tables.counted_judgments(month)
            .lazy()
            .filter(of_case & (pl.col("verdict") == "supported"))
            .select("nugget_id", "doc_id", "quote")
            .join(tables.scan("chunks", month).select("doc_id", "url", "start_line", "end_line"), on="doc_id")
            .unique(["nugget_id", "doc_id"])
            .sort("nugget_id", "doc_id")
            .collect()
        )
        by_nugget: dict[str, list[dict[str, Any]]] = {}
        for row in _rows(supporting):
            by_nugget.setdefault(row["nugget_id"], []).append(row)
        return by_nugget


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dicts()


def _case(question_id: str, evidence: _Evidence) -> str:
    question = evidence.questions[question_id]
    asked = f", asked {question['asked_at']:%Y-%m-%d}" if question["asked_at"] else ""
    source = link(f"question {question_id}", question["url"])
    nuggets = _rows(evidence.nuggets.filter(pl.col("question_id") == question_id))
    months = [m for m in evidence.snapshots if any((n["nugget_id"], m) in evidence.support for n in nuggets)]
    shown = months if len(months) <= 4 else [months[0], *months[-3:]]
    rows = [
        [number, n["text"], *(_state(n, month, evidence) for month in shown)] for number, n in enumerate(nuggets, 1)
    ]
    parts = [
        f'<article class="case" id="case-{html.escape(question_id)}">',
        f"<h3>{html.escape(question['title'])}</h3>",
        f"<p>{source}{asked}. Chunks that support each nugget:</p>",
        rows_table(["", "nugget", *shown], rows),
    ]
    for number, nugget in enumerate(nuggets, 1):
        row = evidence.support.get((nugget["nugget_id"], evidence.last))
        if row is not None and row["change_from_baseline"] in ("lost", "gained"):
            parts.append(_side_by_side(number, nugget, row["change_from_baseline"], evidence))
    return "".join([*parts, "</article>"])


def _state(nugget: dict[str, Any], month: str, evidence: _Evidence) -> str | int:
    row = evidence.support.get((nugget["nugget_id"], month))
    if row is None:
        return "not asked yet"
    return "not judged" if row["supporting_chunks"] is None else row["supporting_chunks"]


def _side_by_side(number: int, nugget: dict[str, Any], change: str, evidence: _Evidence) -> str:
    then = evidence.chunks[evidence.baseline].get(nugget["nugget_id"], [])
    now = evidence.chunks[evidence.last].get(nugget["nugget_id"], [])
    return (
        f'<p class="change"><strong>Nugget {number} {change} its support.</strong> {html.escape(nugget["text"])}</p>'
        f'<div class="sides"><div><h4>{evidence.baseline}</h4>{_chunks(then, evidence, went=True)}</div>'
        f"<div><h4>{evidence.last}</h4>{_chunks(now, evidence, went=False)}</div></div>"
    )


def _chunks(chunks: list[dict[str, Any]], evidence: _Evidence, *, went: bool) -> str:
    if not chunks:
        return "<p>No chunk supports it.</p>"
    parts = []
    for chunk in chunks[:MOST_CHUNKS]:
        quote = chunk["quote"] or ""
        quote = quote if len(quote) <= QUOTE_CHARACTERS else quote[:QUOTE_CHARACTERS] + " …"
        where = link(_name(chunk["doc_id"]), chunk["url"])
        lines = f"lines {chunk['start_line']} to {chunk['end_line']}"
        parts.append(f"<p>{where}, {lines}</p>")
        if quote:
            parts.append(f"<pre>{html.escape(quote)}</pre>")
        if went:
            parts.append(_whereabouts(chunk["doc_id"], evidence))
    left_out = len(chunks) - MOST_CHUNKS
    if left_out > 0:
        parts.append(f'<p class="note">{left_out} more chunks are left out.</p>')
    return "".join(parts)


def _whereabouts(doc_id: str, evidence: _Evidence) -> str:
    row = evidence.lineage.get(doc_id)
    if row is None:
        return ""
    to = ""
    if row["successors"] and row["outcome"] != "unchanged":
        first = row["successors"][0]
        more = len(row["successors"]) - 1
        to = f": now {link(_name(first), evidence.pages.get(first))}" + (f" and {more} more" if more else "")
    why = f"<small>{html.escape(row['evidence'])}</small>"
    return f'<p class="went">By {evidence.last} <strong>{row["outcome"]}</strong>{to}. {why}</p>'


def _name(doc_id: str) -> str:
    """Repository and path of a chunk."""
    return doc_id.rsplit("_", 2)[0]

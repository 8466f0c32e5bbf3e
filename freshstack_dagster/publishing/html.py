"""Pieces of a page: tables and figures as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

import polars as pl

MOST_ROWS = 40
# Texts longer than this, and paths, may be broken over lines; shorter ones are kept whole.
_WHOLE = 28


class Markup(str):
    """Text that is HTML already."""


def table(frame: pl.DataFrame, *, most: int | None = None, digits: int = 3) -> str:
    """A frame as an HTML table; numbers are aligned and rounded to `digits`, texts are escaped.

    At most `most` rows are shown, and a line says how many are left out.
    """
    return rows_table(frame.columns, frame.rows(), most=most, digits=digits)


def rows_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, most: int | None = None, digits: int = 3
) -> str:
    """As `table`, from rows of values that a frame cannot hold together. Values of `Markup` go in as they are."""
    shown = rows if most is None else rows[:most]
    cells = [[_cell(value, digits) for value in row] for row in shown]
    numeric = [
        bool(cells) and all(row[at].startswith(('<td class="n"', "<td></td>")) for row in cells)
        for at in range(len(columns))
    ]
    head = "".join(_head(name, number) for name, number in zip(columns, numeric, strict=True))
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    left_out = len(rows) - len(shown)
    note = f'<p class="note">{left_out:,} more rows are left out.</p>' if left_out else ""
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}'


def _head(name: str, numeric: bool) -> str:
    # A month is not broken at its hyphen.
    shown = re.sub(r"(?<=\d{4})-(?=\d{2})", "\u2011", name.replace("_", " "))
    kind = ' class="n"' if numeric else ""
    return f"<th{kind}>{html.escape(shown)}</th>"


def _cell(value: Any, digits: int) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, Markup):
        return f"<td>{value}</td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    if isinstance(value, float):
        return f'<td class="n">{number(value, digits)}</td>'
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    # Figures that were written already; long runs of digits are ids.
    if re.fullmatch(r"([-+]?[\d.,]+%?)? ?(\[.*\])?", text) and not re.fullmatch(r"\d{5,}", text):
        return f'<td class="n">{html.escape(text)}</td>'
    if len(text) <= _WHOLE:
        return f'<td class="short">{html.escape(text)}</td>'
    if "/" in text and " " not in text:
        return f'<td class="path">{html.escape(text).replace("/", "/<wbr>")}</td>'
    return f'<td class="long">{html.escape(text)}</td>'


def number(value: float, digits: int = 3) -> str:
    """A number rounded to `digits`; what rounds to zero has no sign."""
    return f"{round(value, digits) + 0.0:,.{digits}f}"


def figure(svg: str) -> str:
    """A plot with its title in sight; on a narrow screen it scrolls instead of shrinking beyond reading."""
    title = re.search(r"<title>(.*?)</title>", svg)
    caption = f"<figcaption>{title.group(1)}</figcaption>" if title else ""
    return f'<figure>{caption}<div class="plot">{svg}</div></figure>'


def link(text: str, url: str | None) -> Markup:
    """A link, or the text alone where there is no page."""
    shown = html.escape(text)
    return Markup(f'<a href="{html.escape(url)}">{shown}</a>' if url else f"<code>{shown}</code>")

"""Pieces of a page: tables and figures as HTML."""

from __future__ import annotations

import html
import re
from typing import Any

import polars as pl

MOST_ROWS = 40
# Texts longer than this, and paths, may be broken over lines; shorter ones are kept whole.
_WHOLE = 28


class Markup(str):
    """Text that is HTML already."""


def table(frame: pl.DataFrame, *, most: int | None = None, digits: int = 3) -> str:
    """A frame as an HTML table; numbers are aligned and rounded to `digits`, texts are escaped.

    At most `most` rows are shown, and a line says how many are left out. Values of `Markup` go in as they are.
    """
    rows = frame.rows()
    shown = rows if most is None else rows[:most]
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in frame.columns)
    body = "".join(f"<tr>{''.join(_cell(value, digits) for value in row)}</tr>" for row in shown)
    left_out = len(rows) - len(shown)
    note = f'<p class="note">{left_out:,} more rows are left out.</p>' if left_out else ""
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}'


def rows_table(columns: list[str], rows: list[list[Any]], *, most: int | None = None) -> str:
    """As `table`, from rows of values that a frame cannot hold together."""
    shown = rows if most is None else rows[:most]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(_cell(value, 3) for value in row)}</tr>" for row in shown)
    left_out = len(rows) - len(shown)
    note = f'<p class="note">{left_out:,} more rows are left out.</p>' if left_out else ""
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}'


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
        return f'<td class="n">{value:,.{digits}f}</td>'
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if re.fullmatch(r"-?[\d.,]+( \[.*\])?%?", text):
        return f'<td class="n">{html.escape(text)}</td>'
    wraps = len(text) > _WHOLE
    kind = "path" if "/" in text and " " not in text and wraps else "long" if wraps else "short"
    return f'<td class="{kind}">{html.escape(text)}</td>'


def figure(svg: str) -> str:
    """A plot with its title in sight; on a narrow screen it scrolls instead of shrinking beyond reading."""
    title = re.search(r"<title>(.*?)</title>", svg)
    caption = f"<figcaption>{title.group(1)}</figcaption>" if title else ""
    return f'<figure>{caption}<div class="plot">{svg}</div></figure>'


def link(text: str, url: str | None) -> Markup:
    """A link, or the text alone where there is no page."""
    shown = html.escape(text)
    return Markup(f'<a href="{html.escape(url)}">{shown}</a>' if url else f"<code>{shown}</code>")

"""Plots as inline SVG: no script, no network, readable in print, each with a title and a text alternative."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Distinct also without colour vision (Okabe and Ito, 2008), and in print by lightness.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a8a", "#f0e442")
WIDTH = 720
FONT = 'font-family="system-ui, sans-serif" font-size="12" fill="#222"'


@dataclass(frozen=True)
class Flow:
    """A band of a flow diagram: from a node on the left to one on the right, as wide as its value."""

    source: str
    target: str
    value: float


def bars(title: str, groups: Mapping[str, Mapping[str, float]], *, percent: bool = False) -> str:
    """Horizontal bars: a group a label (repository), a bar a series (snapshot). Values are not negative."""
    series = list(dict.fromkeys(name for values in groups.values() for name in values))
    most = max((value for values in groups.values() for value in values.values()), default=0) or 1
    row, left, right = 14, 190, 60
    body, y = [], 8
    for label, values in groups.items():
        middle = y + row * len(series) / 2 + 4
        body.append(_text(left - 8, middle, _short(label, 28), anchor="end"))
        for index, name in enumerate(series):
            value = values.get(name, 0.0)
            width = (WIDTH - left - right) * value / most
            colour = COLOURS[index % len(COLOURS)]
            body.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{row - 2}" fill="{colour}"/>')
            shown = f"{value:.1%}" if percent else f"{value:,.0f}"
            body.append(_text(left + width + 4, y + row - 4, shown))
            y += row
        y += 8
    described = "; ".join(
        f"{label}: "
        + ", ".join(f"{name} {value:.1%}" if percent else f"{name} {value:,.0f}" for name, value in v.items())
        for label, v in groups.items()
    )
    legend, height = _legend(series, y + 6)
    return _svg(title, described, height, [*body, *legend])


def stacked(title: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Horizontal bars to 100%: a row a label (snapshot), a part a series (outcome), with the counts in the parts."""
    series = list(dict.fromkeys(name for values in rows.values() for name in values))
    left, row, body, y = 90, 26, [], 8
    for label, values in rows.items():
        total = sum(values.values()) or 1
        x = float(left)
        body.append(_text(left - 8, y + row / 2 + 2, label, anchor="end"))
        for index, name in enumerate(series):
            width = (WIDTH - left - 10) * values.get(name, 0) / total
            if width:
                colour = COLOURS[index % len(COLOURS)]
                body.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{row - 6}" fill="{colour}"/>')
            if width > 8 + 7 * len(f"{values.get(name, 0):,.0f}"):
                body.append(_text(x + width / 2, y + row / 2 + 2, f"{values[name]:,.0f}", anchor="middle", fill="#fff"))
            x += width
        y += row
    described = "; ".join(
        f"{label}: " + ", ".join(f"{n} {v:,.0f}" for n, v in values.items()) for label, values in rows.items()
    )
    legend, height = _legend(series, y + 6)
    return _svg(title, described, height, [*body, *legend])


def slopes(title: str, systems: Mapping[str, Sequence[float | None]], columns: Sequence[str]) -> str:
    """A line a system over two or more snapshots, ranked by height; a gap where a snapshot has no value."""
    return lines(title, systems, columns, shown=lambda value: f"{value:.3f}")


def lines(
    title: str,
    series: Mapping[str, Sequence[float | None]],
    columns: Sequence[str],
    *,
    from_zero: bool = False,
    shown: Callable[[float], str] = lambda value: f"{value:,.0f}",
) -> str:
    """A line a series over snapshots, its last value beside it; a gap where a snapshot has no value.

    `from_zero` starts the scale at 0; `shown` writes values.
    """
    values = [value for scores in series.values() for value in scores if value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(0.0, low) if from_zero else low
    span = (high - low) or 1.0
    left, right, top, height = 70, 200, 26, 40 + 22 * max(6, len(series))
    step = (WIDTH - left - right) / max(1, len(columns) - 1)

    def x(column: int) -> float:
        return left + column * step

    def y(value: float) -> float:
        return top + (height - top - 20) * (high - value) / span

    # Names of months are about 50 wide, with some air; where they do not all fit, every second or third is named.
    every = -(-58 // max(1, int(step)))
    body = [_text(x(i), 14, column, anchor="middle") for i, column in enumerate(columns) if i % every == 0]
    body += [
        f'<line x1="{x(i):.1f}" x2="{x(i):.1f}" y1="20" y2="{height - 16}" stroke="#ddd"/>' for i in range(len(columns))
    ]
    last = {name: next((v for v in reversed(scores) if v is not None), None) for name, scores in series.items()}
    labels = _apart({name: y(low if value is None else value) for name, value in last.items()}, 14)
    for index, (name, scores) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = [None if value is None else (x(i), y(value)) for i, value in enumerate(scores)]
        for run in _runs(points):
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in run)
            body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            body += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in run]
        value = last[name]
        label = f"{_short(name, 24)} {'no value' if value is None else shown(value)}"
        body.append(_text(WIDTH - right + 10, labels[name] + 4, label, fill=colour))
    body += [_text(left - 10, y(value) + 4, shown(value), anchor="end") for value in sorted({low, high})]
    described = "; ".join(
        f"{name}: " + ", ".join("none" if v is None else shown(v) for v in scores) for name, scores in series.items()
    )
    return _svg(title, described, max(height, *(y + 10 for y in labels.values())) if labels else height, body)


def _runs(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    """Neighbouring points without gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def intervals(title: str, rows: Mapping[str, tuple[float, float, float]], *, low: float = -1, high: float = 1) -> str:
    """A point with its interval a row: value, lower end, upper end, on a scale from `low` to `high`."""
    left, right, row, body, y = 300, 60, 24, [], 16

    def x(value: float) -> float:
        return left + (WIDTH - left - right) * (value - low) / (high - low)

    for label, (value, start, end) in rows.items():
        body.append(_text(left - 12, y + 4, _short(label, 46), anchor="end"))
        body.append(
            f'<line x1="{x(start):.1f}" x2="{x(end):.1f}" y1="{y}" y2="{y}" stroke="#0072b2" stroke-width="3"/>'
        )
        body.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="5" fill="#d55e00"/>')
        body.append(_text(WIDTH - right + 8, y + 4, f"{round(value, 3) + 0.0:.3f}"))
        y += row
    for tick in (low, (low + high) / 2, high):
        body.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="4" y2="{y - 8}" stroke="#bbb" stroke-dasharray="2 3"/>'
        )
        body.append(_text(x(tick), y + 6, f"{tick:.3g}", anchor="middle"))
    described = "; ".join(f"{label}: {v:.3f} [{a:.3f}, {b:.3f}]" for label, (v, a, b) in rows.items())
    return _svg(title, described, y + 12, body)


def flows(title: str, bands: Sequence[Flow]) -> str:
    """A flow diagram of two columns: where things were, and what became of them."""
    total = sum(band.value for band in bands) or 1
    sources = list(dict.fromkeys(band.source for band in bands))
    targets = sorted({band.target for band in bands}, key=lambda target: _middle(target, bands, sources))
    gap, left, right, thick = 10, 170, 210, 12
    height = 40 + 22 * max(len(sources), len(targets)) + 120
    room = height - 20 - gap * (max(len(sources), len(targets)) - 1)

    def place(names: list[str], ends: str) -> dict[str, float]:
        tops, y = {}, 10.0
        for name in names:
            tops[name] = y
            y += room * sum(band.value for band in bands if getattr(band, ends) == name) / total + gap
        return tops

    top_of_source, top_of_target = place(sources, "source"), place(targets, "target")
    body, from_y, to_y = [], dict(top_of_source), dict(top_of_target)
    x0, x1 = left + thick, WIDTH - right - thick
    for band in sorted(bands, key=lambda band: (sources.index(band.source), targets.index(band.target))):
        wide = room * band.value / total
        a, b = from_y[band.source] + wide / 2, to_y[band.target] + wide / 2
        from_y[band.source] += wide
        to_y[band.target] += wide
        colour = COLOURS[sources.index(band.source) % len(COLOURS)]
        middle = (x0 + x1) / 2
        body.append(
            f'<path d="M{x0},{a:.1f} C{middle},{a:.1f} {middle},{b:.1f} {x1},{b:.1f}" fill="none" '
            f'stroke="{colour}" stroke-opacity="0.45" stroke-width="{max(1.0, wide):.1f}"/>'
        )
    for names, tops, ends, x in ((sources, top_of_source, "source", left), (targets, top_of_target, "target", x1)):
        for name in names:
            value = sum(band.value for band in bands if getattr(band, ends) == name)
            tall = max(1.0, room * value / total)
            body.append(f'<rect x="{x}" y="{tops[name]:.1f}" width="{thick}" height="{tall:.1f}" fill="#444"/>')
            at, anchor = (x - 6, "end") if ends == "source" else (x + thick + 6, "start")
            body.append(_text(at, tops[name] + tall / 2 + 4, f"{_short(name, 24)} ({value:,.0f})", anchor=anchor))
    described = "; ".join(f"{band.source} to {band.target}: {band.value:,.0f}" for band in bands)
    return _svg(title, described, height, body)


def _middle(target: str, bands: Sequence[Flow], sources: Sequence[str]) -> tuple[float, float, str]:
    """Where a target comes from, as a place among the sources, so that few bands cross; larger ones first."""
    own = [band for band in bands if band.target == target]
    total = sum(band.value for band in own)
    return sum(sources.index(band.source) * band.value for band in own) / (total or 1), -total, target


def _apart(heights: Mapping[str, float], least: float) -> dict[str, float]:
    """Label heights moved apart so that none covers another."""
    placed: dict[str, float] = {}
    previous = float("-inf")
    for name, y in sorted(heights.items(), key=lambda item: item[1]):
        previous = max(y, previous + least)
        placed[name] = previous
    return placed


def _legend(series: Sequence[str], y: float) -> tuple[list[str], float]:
    parts: list[str] = []
    x = 10.0
    for index, name in enumerate(series):
        width = 30 + 7 * len(name)
        if x + width > WIDTH:
            x, y = 10.0, y + 18
        parts.append(f'<rect x="{x}" y="{y}" width="11" height="11" fill="{COLOURS[index % len(COLOURS)]}"/>')
        parts.append(_text(x + 16, y + 10, name))
        x += width
    return parts, y + 20


def _text(x: float, y: float, text: str, *, anchor: str = "start", fill: str | None = None) -> str:
    colour = f' style="fill:{fill}"' if fill else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{colour}>{escape(text)}</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _svg(title: str, description: str, height: float, body: Sequence[str]) -> str:
    # The page scales it; where it stands alone as an image, it has a size.
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    return (
        f'<svg {size} role="img" aria-label="{escape(title)}" {FONT} '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title><desc>{escape(description)}</desc>'
        + "".join(body)
        + "</svg>"
    )

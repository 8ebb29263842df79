"""Charts as one HTML file without scripts: lines over time, and horizontal bars. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_WIDTH, _HEIGHT = 900, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 16, 34
_BAR_HEIGHT: Final = 22
_BAR_LABEL_WIDTH: Final = 330
_TICKS: Final = 5
SERIES_MAX: Final = 12
"""Maximum number of lines in a chart; more cannot be told apart."""
BARS_MAX: Final = 30

_COLOURS: Final = (
    *("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7"),
    *("#a463f2", "#97bbf5", "#9c6b4e", "#9498a0", "#1f3b73", "#8a1c1c"),
)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines over time.

    Attributes:
        unit: the unit of the values, at the vertical axis.
        series: name of each line -> its points (epoch ms, value), sorted by time.
    """

    title: str
    unit: str
    series: Mapping[str, Sequence[tuple[int, float]]]


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Horizontal bars, in the given order.

    Attributes:
        unit: the unit of the values.
        bars: label -> value, not negative.
    """

    title: str
    unit: str
    bars: Mapping[str, float]


Chart = Lines | Bars


def page(title: str, charts: Sequence[Chart]) -> str:
    """Return an HTML document with the charts; a browser shows it without a network."""
    body = "\n".join(
        f"<h2>{html.escape(chart.title)}</h2>\n"
        + (_lines(chart) if isinstance(chart, Lines) else _bars(chart))
        for chart in charts
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{body}\n</body></html>\n"
    )


_STYLE: Final = (
    "body{font:14px sans-serif;max-width:960px;margin:2em auto;padding:0 1em}"
    "h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}"
    "svg text{font:12px sans-serif;fill:currentColor}"
    "svg .axis{stroke:#8884;stroke-width:1}svg .line{fill:none;stroke-width:1.8}"
    "@media(prefers-color-scheme:dark){body{background:#16181d;color:#e6e6e6}}"
)


def _lines(chart: Lines) -> str:
    shown = dict(list(chart.series.items())[:SERIES_MAX])
    points = [point for series in shown.values() for point in series]
    if not points:
        return "<p>no data</p>"
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    step = nice_step(max(value for _, value in points) / _TICKS)
    top = step * max(1, math.ceil(max(value for _, value in points) / step))
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">']

    def x_of(at: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((at - first) / ((last - first) or 1))

    def y_of(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - max(0.0, value) / top)

    for number in range(round(top / step) + 1):
        y = y_of(number * step)
        parts.append(f'<path class="axis" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        label = f"{number * step:,.10g}"
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for number in range(_TICKS + 1):
        at = first + (last - first) * number // _TICKS
        parts.append(
            f'<text x="{x_of(at):.1f}" y="{_HEIGHT - 14}" text-anchor="middle">'
            f"{_time_label(at, last - first)}</text>"
        )
    for colour, (name, series) in zip(_COLOURS, shown.items(), strict=False):
        path = " ".join(f"{x_of(at):.1f},{y_of(value):.1f}" for at, value in series)
        title = f"<title>{html.escape(name)}</title>"
        parts.append(f'<polyline class="line" stroke="{colour}" points="{path}">{title}</polyline>')
        # A line of one point is invisible, so every point also has a mark.
        parts += _marks(colour, name, [(x_of(at), y_of(v), at, v) for at, v in series])
    return "\n".join([*parts, "</svg>", _legend(chart.unit, list(shown), len(chart.series))])


def _marks(
    colour: str, name: str, points: Sequence[tuple[float, float, int, float]]
) -> Iterator[str]:
    for x, y, at, value in points:
        text = html.escape(f"{name}: {value:,.6g} at {_time_label(at, 0)}")
        mark = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}">'
        yield f"{mark}<title>{text}</title></circle>"


def _legend(unit: str, names: Sequence[str], total: int) -> str:
    marks = " ".join(
        f'<span style="color:{colour}">&#9632;</span> {html.escape(name)}'
        for colour, name in zip(_COLOURS, names, strict=False)
    )
    omitted = f" ({total - len(names)} more are not shown)" if total > len(names) else ""
    return f"<p>{html.escape(unit)}, UTC: {marks}{omitted}</p>"


def _bars(chart: Bars) -> str:
    shown = list(chart.bars.items())[:BARS_MAX]
    if not shown:
        return "<p>no data</p>"
    largest = max(value for _, value in shown) or 1
    room = _WIDTH - _BAR_LABEL_WIDTH - 90
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_BAR_HEIGHT * len(shown) + 4}" role="img">']
    for row, (label, value) in enumerate(shown):
        y = row * _BAR_HEIGHT
        width = max(1.0, room * value / largest)
        text = html.escape(label if len(label) <= 48 else label[:47] + "…")
        parts.append(
            f'<text x="{_BAR_LABEL_WIDTH - 8}" y="{y + 15}" text-anchor="end">{text}'
            f"<title>{html.escape(label)}</title></text>"
            f'<rect x="{_BAR_LABEL_WIDTH}" y="{y + 3}" width="{width:.1f}" '
            f'height="{_BAR_HEIGHT - 6}" fill="{_COLOURS[0]}"/>'
            f'<text x="{_BAR_LABEL_WIDTH + width + 6:.1f}" y="{y + 15}">{value:,.6g}</text>'
        )
    omitted = len(chart.bars) - len(shown)
    note = f" ({omitted} more are not shown)" if omitted else ""
    return "\n".join([*parts, "</svg>", f"<p>{html.escape(chart.unit)}{note}</p>"])


def nice_step(at_least: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is not below `at_least`."""
    if at_least <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(at_least))
    for factor in (1, 2, 5):
        if factor * power >= at_least:
            return factor * power
    return 10 * power


def _time_label(at_ms: int, span_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%m-%d %H:%M}" if span_ms > 86_400_000 else f"{at:%H:%M:%S}"

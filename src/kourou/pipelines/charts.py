"""Charts as one HTML file without scripts: lines over time, and horizontal bars. Pure."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.pipelines.chart_axes import (
    Point,
    number,
    pieces,
    thinned,
    time_span,
    time_ticks,
    value_axis,
)

_WIDTH, _HEIGHT = 900, 300
_RIGHT, _TOP, _BOTTOM = 20, 12, 28
_DIGIT_WIDTH: Final = 7
_CHARACTER_WIDTH: Final = 7
"""Estimates, in pixels, that are too small for some texts: those extend beyond the picture."""
_BAR_HEIGHT: Final = 22
_BAR_LABEL_CHARACTERS: Final = 60
_BAR_VALUE_WIDTH: Final = 110
_MARKED_MAX: Final = 80
"""Maximum number of points of a line that each get a mark with its value."""
SERIES_MAX: Final = 12
"""Maximum number of lines in a chart; more cannot be told apart."""
BARS_MAX: Final = 30

COLOURS: Final = (
    *("#4a78d6", "#c87708", "#e2503f", "#1a9a86", "#6b9a1f", "#d9539f"),
    *("#9163e0", "#1b93c4", "#a87350", "#7f8794", "#b5860b", "#c0507a"),
)
"""Colours that are legible on the light and on the dark background."""
BACKGROUNDS: Final = ("#ffffff", "#16181d")


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines over time.

    Attributes:
        unit: the unit of the values.
        series: name of each line -> its points (epoch ms, value), sorted by time.
        dashed: names of lines that are dashed, in the colour of the line before them.
        gap_ms: a line is interrupted between points that are further apart; None: never.
    """

    title: str
    unit: str
    series: Mapping[str, Sequence[Point]]
    dashed: Collection[str] = ()
    gap_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Horizontal bars, in the given order; those of negative values extend to the left.

    Attributes:
        unit: the unit of the values.
        bars: label -> value.
        more: number of values that are not among the bars.
    """

    title: str
    unit: str
    bars: Mapping[str, float]
    more: int = 0


Chart = Lines | Bars


def page(title: str, charts: Sequence[Chart], notes: Sequence[str] = ()) -> str:
    """Return an HTML document with the charts; a browser shows it without a network.

    Args:
        title: the heading.
        charts: the charts, from top to bottom.
        notes: sentences below the heading.
    """
    body = "\n".join(
        f"<h2>{html.escape(chart.title)} <small>{html.escape(chart.unit)}</small></h2>\n"
        + (_lines(chart) if isinstance(chart, Lines) else _bars(chart))
        for chart in charts
    )
    sentences = "".join(f"<p>{html.escape(note)}</p>\n" for note in notes)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{sentences}{body}\n</body></html>\n"
    )


_STYLE: Final = (
    ":root{color-scheme:light dark}"
    f"body{{font:14px sans-serif;max-width:{_WIDTH}px;margin:2em auto;padding:0 1em;"
    f"background:{BACKGROUNDS[0]};color:#1c1e21;overflow-wrap:anywhere}}"
    "h1{font-size:1.5em}h2{font-size:1.1em;margin:2.2em 0 .4em}"
    "small,.note{font-weight:normal;font-size:12px;opacity:.75}"
    ".legend{display:flex;flex-wrap:wrap;gap:.2em 1.4em;margin:.4em 0}"
    ".legend svg{width:24px;height:8px;margin-right:.4em}"
    "svg{display:block;width:100%;min-width:600px;overflow:visible}"
    ".legend svg{display:inline-block;min-width:0}"
    "svg text{font:12px sans-serif;fill:currentColor}"
    "svg .axis{stroke:#8886;stroke-width:1}"
    "svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}"
    "svg .dashed{stroke-dasharray:5 3}"
    f"@media(prefers-color-scheme:dark){{body{{background:{BACKGROUNDS[1]};color:#e6e6e6}}}}"
)


def _lines(chart: Lines) -> str:
    shown = _largest(chart)
    times = [at for points in shown.values() for at, _ in points]
    if not times:
        return "<p>no data</p>"
    first, last = min(times), max(times)
    if first == last:  # points above one another would be no line
        values = {name: points[-1][1] for name, points in chart.series.items() if points}
        bars = _bars(Bars(title=chart.title, unit=chart.unit, bars=values))
        return f'{bars}\n<p class="note">{time_span(first, last)}</p>'
    axis = value_axis([value for _, value in points] for points in shown.values())
    labels = [f"{tick:,.10g}" for tick in axis.ticks]
    left = 12 + _DIGIT_WIDTH * max(5, *map(len, labels))
    width = _WIDTH - left - _RIGHT

    def x_of(at: int) -> float:
        return left + width * (at - first) / (last - first)

    def y_of(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - axis.height(value))

    parts = [_opening(chart.title, _HEIGHT)]
    for tick, label in zip(axis.ticks, labels, strict=True):
        parts.append(f'<path class="axis" d="M{left} {y_of(tick):.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text(left - 6, y_of(tick) + 4, label, "end"))
    for at, label in time_ticks(first, last):
        parts.append(f'<path class="axis" d="M{x_of(at):.1f} {_HEIGHT - _BOTTOM}v5"/>')
        is_at_edge = x_of(at) > _WIDTH - _RIGHT - 20
        parts.append(_text(x_of(at), _HEIGHT - 8, label, "end" if is_at_edge else "middle"))
    interval_ms = max(1.0, (last - first) / width)
    for name, (colour, kind) in _styles(chart, shown).items():
        parts.append(f'<g stroke="{colour}" fill="{colour}"><title>{html.escape(name)}</title>')
        is_marked = len(shown[name]) <= _MARKED_MAX
        for piece in pieces(shown[name], chart.gap_ms):
            drawn = [(x_of(at), y_of(v), at, v) for at, v in thinned(piece, interval_ms)]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _, _ in drawn)
            parts.append(f'<path class="{kind}" d="M{path}"/>')
            if is_marked or len(piece) == 1:  # a line of one point is invisible
                parts += _marks(name, chart.unit, drawn)
        parts.append("</g>")
    scale = "; logarithmic scale, zeros are at its bottom" if axis.is_logarithmic else ""
    omitted = len(chart.series) - len(shown)
    rest = f"; the lines with the largest values ({omitted} more are not shown)" if omitted else ""
    note = f'<p class="note">{time_span(first, last)}{scale}{rest}{_hidden(shown)}</p>'
    return "\n".join([_legend(chart, shown), *parts, "</svg>", note])


def _hidden(series: Mapping[str, Sequence[Point]]) -> str:
    """Return a note on lines that cover each other; empty if there are none."""
    equal: dict[tuple[Point, ...], list[str]] = {}
    for name, points in series.items():
        equal.setdefault(tuple(points), []).append(html.escape(name))
    texts = [", ".join(names) for names in equal.values() if len(names) > 1]
    return "".join(f"; equal lines: {text}" for text in texts)


def _largest(chart: Lines) -> dict[str, Sequence[Point]]:
    """Return the lines to draw, in their order: those with the largest values.

    A dashed line is kept or left out together with the line before it.
    """
    groups: list[list[str]] = []
    for name in chart.series:
        if groups and name in chart.dashed:
            groups[-1].append(name)
        else:
            groups.append([name])

    def peak(group: Sequence[str]) -> float:
        return max((value for name in group for _, value in chart.series[name]), default=0.0)

    kept: set[str] = set()
    for group in sorted(groups, key=peak, reverse=True):
        if len(kept) + len(group) > SERIES_MAX:
            break
        kept.update(group)
    return {name: points for name, points in chart.series.items() if name in kept}


def _styles(chart: Lines, names: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the colour and the CSS class of each line."""
    styles: dict[str, tuple[str, str]] = {}
    used = 0
    for name in names:
        is_dashed = name in chart.dashed
        used += 0 if is_dashed and used else 1
        styles[name] = (COLOURS[used - 1], "line dashed" if is_dashed else "line")
    return styles


def _legend(chart: Lines, names: Collection[str]) -> str:
    keys = "".join(
        f'<span><svg viewBox="0 0 24 8"><path class="{kind}" stroke="{colour}" d="M0 4H24"/></svg>'
        f"{html.escape(name)}</span>"
        for name, (colour, kind) in _styles(chart, names).items()
    )
    return f'<div class="legend">{keys}</div>'


def _marks(
    name: str, unit: str, points: Sequence[tuple[float, float, int, float]]
) -> Iterator[str]:
    for x, y, at, value in points:
        text = html.escape(f"{name}: {number(value)} {unit} at {time_span(at, at)}")
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{text}</title></circle>'


def _bars(chart: Bars) -> str:
    shown = list(chart.bars.items())[:BARS_MAX]
    if not shown:
        return "<p>no data</p>"
    texts = [_shortened(label) for label, _ in shown]
    left = 12 + _CHARACTER_WIDTH * max(map(len, texts))
    lowest = min(0.0, *(value for _, value in shown))
    span = max(0.0, *(value for _, value in shown)) - lowest or 1.0
    # Values are beside their bars: on the right, and on the left of negative ones.
    left_of_bars = left + (_BAR_VALUE_WIDTH if lowest < 0 else 0)
    width = _WIDTH - left_of_bars - _BAR_VALUE_WIDTH

    def x_of(value: float) -> float:
        return left_of_bars + width * (value - lowest) / span

    parts = [_opening(chart.title, _BAR_HEIGHT * len(shown) + 4)]
    for row, (text, (label, value)) in enumerate(zip(texts, shown, strict=True)):
        y = row * _BAR_HEIGHT
        begin, end = sorted((x_of(0.0), x_of(value)))
        at, anchor = (end + 6, "start") if value >= 0 else (begin - 6, "end")
        parts.append(
            f"<g><title>{html.escape(label)}</title>{_text(left - 8, y + 15, text, 'end')}</g>"
            f'<rect x="{begin:.1f}" y="{y + 3}" width="{end - begin:.1f}" '
            f'height="{_BAR_HEIGHT - 6}" fill="{COLOURS[0]}"/>'
            + _text(at, y + 15, number(value), anchor)
        )
    parts.append(f'<path class="axis" d="M{x_of(0.0):.1f} 0v{_BAR_HEIGHT * len(shown)}"/></svg>')
    omitted = len(chart.bars) - len(shown) + chart.more
    note = f'<p class="note">{omitted:,} more are not shown</p>' if omitted else ""
    return "\n".join([*parts, note])


def _opening(title: str, height: int) -> str:
    label = html.escape(title)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _shortened(label: str) -> str:
    """Return a label with its middle left out if it is long: both ends identify it."""
    if len(label) <= _BAR_LABEL_CHARACTERS:
        return label
    half = (_BAR_LABEL_CHARACTERS - 1) // 2
    return f"{label[:half]}…{label[-half:]}"

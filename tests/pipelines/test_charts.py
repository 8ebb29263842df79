"""Tests of charts: scales, limits, and text that must not become markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from kourou.pipelines.charts import BARS_MAX, SERIES_MAX, Bars, Chart, Lines, nice_step, page


class Collector(HTMLParser):
    """Collects the elements and checks that all are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(*charts: Chart) -> list[tuple[str, dict[str, str | None]]]:
    collector = Collector()
    collector.feed(page("Test", charts))
    assert not collector.open
    return collector.seen


@pytest.mark.parametrize(
    ("at_least", "step"),
    [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (4, 5), (7, 10), (120, 200), (0.0012, 0.002)],
)
def test_steps_of_the_axis_are_round(at_least: float, step: float) -> None:
    assert nice_step(at_least) == pytest.approx(step)


def test_each_point_of_a_line_is_drawn_within_the_picture() -> None:
    points = [(1_000 * n, float(n * n)) for n in range(20)]

    found = elements(Lines(title="Rate", unit="messages", series={"orders": points}))

    marks = [values for tag, values in found if tag == "circle"]
    assert len(marks) == 20
    assert all(0 <= float(one["cx"] or -1) <= 900 for one in marks)
    assert all(0 <= float(one["cy"] or -1) <= 320 for one in marks)
    heights = [float(one["cy"] or 0) for one in marks]
    assert heights == sorted(heights, reverse=True)


def test_a_single_point_and_equal_values_are_drawn() -> None:
    found = elements(Lines(title="Lag", unit="messages", series={"g": [(5, 0.0)]}))

    assert [tag for tag, _ in found].count("circle") == 1


@pytest.mark.parametrize(
    "chart", [Lines(title="Empty", unit="x", series={}), Bars(title="Empty", unit="x", bars={})]
)
def test_a_chart_without_data_says_so(chart: Chart) -> None:
    assert "<p>no data</p>" in page("Test", [chart])


def test_names_from_messages_do_not_become_markup() -> None:
    name = '<script>alert("x")</script>'
    text = page(
        name,
        [
            Lines(title=name, unit=name, series={name: [(1, 1.0)]}),
            Bars(title=name, unit=name, bars={name: 1.0}),
        ],
    )

    assert "<script" not in text


def test_charts_show_a_limited_number_of_series_and_name_the_rest() -> None:
    series = {f"topic-{n}": [(1, 1.0)] for n in range(SERIES_MAX + 3)}
    bars = {f"cause-{n}": 1.0 for n in range(BARS_MAX + 2)}
    charts = (
        Lines(title="Many", unit="x", series=series),
        Bars(title="Many", unit="x", bars=bars),
    )

    tags = [tag for tag, _ in elements(*charts)]
    text = page("Test", charts)
    assert tags.count("polyline") == SERIES_MAX
    assert tags.count("rect") == BARS_MAX
    assert "(3 more are not shown)" in text
    assert "(2 more are not shown)" in text

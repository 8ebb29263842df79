"""Tests of charts: scales, limits, and text that must not become markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from kourou.pipelines.charts import (
    BACKGROUNDS,
    BARS_MAX,
    COLOURS,
    SERIES_MAX,
    Bars,
    Chart,
    Lines,
    page,
)


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


class TextCollector(HTMLParser):
    """Collects the texts of pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.is_text = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.is_text = tag == "text"

    def handle_data(self, data: str) -> None:
        if self.is_text:
            self.texts.append(data)
            self.is_text = False


def elements(*charts: Chart) -> list[tuple[str, dict[str, str | None]]]:
    collector = Collector()
    collector.feed(page("Test", charts))
    assert not collector.open
    return collector.seen


def test_each_point_of_a_line_is_drawn_within_the_picture() -> None:
    points = [(1_000 * n, float(n * n)) for n in range(20)]

    found = elements(Lines(title="Rate", unit="messages", series={"orders": points}))

    marks = [values for tag, values in found if tag == "circle"]
    assert len(marks) == 20
    assert all(0 <= float(one["cx"] or -1) <= 900 for one in marks)
    assert all(0 <= float(one["cy"] or -1) <= 320 for one in marks)
    heights = [float(one["cy"] or 0) for one in marks]
    assert heights == sorted(heights, reverse=True)


def test_lines_of_one_time_are_bars() -> None:
    series = {"one topic": [(5, 3.0)], "another": [(5, 0.0)]}

    text = page("Test", [Lines(title="Lag", unit="messages", series=series)])

    assert "<circle" not in text
    assert text.count("<rect") == 2
    assert ">3</text>" in text
    assert ">1970-01-01 00:00:00 UTC</p>" in text


def test_equal_values_are_drawn() -> None:
    found = elements(Lines(title="Lag", unit="messages", series={"g": [(5, 0.0), (6, 0.0)]}))

    assert [tag for tag, _ in found].count("circle") == 2


def test_lines_that_cover_each_other_are_named() -> None:
    points, other = [(0, 1.0), (1, 2.0)], [(0, 1.0), (1, 3.0)]
    series = {"a": points, "b": other, "c": points}

    assert "equal lines: a, c<" in page("Test", [Lines(title="Lag", unit="x", series=series)])
    del series["c"]
    assert "equal lines" not in page("Test", [Lines(title="Lag", unit="x", series=series)])


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
    series = {f"topic-{n}": [(1, 1.0), (2, 1.0)] for n in range(SERIES_MAX + 3)}
    bars = {f"cause-{n}": 1.0 for n in range(BARS_MAX + 2)}
    charts = (
        Lines(title="Many", unit="x", series=series),
        Bars(title="Many", unit="x", bars=bars),
    )

    tags = [tag for tag, _ in elements(*charts)]
    text = page("Test", charts)
    assert tags.count("circle") == 2 * SERIES_MAX
    assert tags.count("rect") == BARS_MAX
    assert "(3 more are not shown)" in text
    assert "2 more are not shown" in text
    first_rows = Bars(title="Some", unit="x", bars={"cause": 1.0}, more=531)
    assert "531 more are not shown" in page("Test", [first_rows])


def drawn(*charts: Chart) -> list[dict[str, str | None]]:
    """Return the attributes of the paths of lines, without those of the legend."""
    return [
        values
        for tag, values in elements(*charts)
        if tag == "path" and "line" in (values.get("class") or "") and "stroke" not in values
    ]


def test_lines_with_the_largest_values_are_shown() -> None:
    series = {f"topic-{n}": [(1, float(n)), (2, 0.0)] for n in range(SERIES_MAX + 1)}

    text = page("Test", [Lines(title="Many", unit="x", series=series)])

    assert ">topic-0<" not in text
    assert text.index(">topic-1<") < text.index(f">topic-{SERIES_MAX}<")


def test_line_of_many_points_has_a_few_for_each_pixel_and_keeps_its_extremes() -> None:
    points = [(n, float(n % 7)) for n in range(50_000)]
    points[30_000] = (30_000, 1_000.0)

    [line] = drawn(Lines(title="Rate", unit="x", series={"orders": points}))

    heights = [float(point.split()[1]) for point in (line["d"] or "")[1:].split("L")]
    assert len(heights) < 4_000
    assert [round(height) for height in heights].count(12) == 1  # the top of the picture


def test_line_is_interrupted_where_points_are_missing() -> None:
    points = [(at, 1.0) for at in (0, 10, 20, 100, 110, 300)]

    paths = drawn(Lines(title="Latency", unit="ms", series={"orders": points}, gap_ms=10))

    assert [(one["d"] or "").count("L") for one in paths] == [2, 1, 0]


def test_single_points_between_gaps_are_visible_in_a_long_line() -> None:
    points = [*((at, 1.0) for at in range(500)), (5_000, 1.0)]

    found = elements(Lines(title="Lag", unit="x", series={"orders": points}, gap_ms=10))

    assert [tag for tag, _ in found].count("circle") == 1


def test_dashed_line_has_the_colour_of_the_line_before_it() -> None:
    points = [(0, 1.0), (1, 2.0)]
    names = ("orders p50", "orders p99", "payments p50", "payments p99")
    chart = Lines(
        title="Latency", unit="ms", series=dict.fromkeys(names, points), dashed=names[1::2]
    )

    keys = [values for tag, values in elements(chart) if tag == "path" and values.get("stroke")]

    first, second = COLOURS[:2]
    assert [(one["stroke"], one["class"]) for one in keys] == [
        (first, "line"),
        (first, "line dashed"),
        (second, "line"),
        (second, "line dashed"),
    ]


def test_axis_of_lines_of_very_different_size_is_logarithmic() -> None:
    wide = Lines(title="Rate", unit="x", series={"a": [(1, 90_000.0)], "b": [(1, 3.0), (2, 0.0)]})
    near = Lines(title="Rate", unit="x", series={"a": [(1, 90_000.0)], "b": [(1, 3_000.0)]})

    assert "logarithmic" in page("Test", [wide])
    assert "logarithmic" not in page("Test", [near])
    heights = [float(values["cy"] or -1) for tag, values in elements(wide) if tag == "circle"]
    assert heights[0] < heights[1] < heights[2] <= 300


def test_texts_stay_within_the_picture() -> None:
    day_ms = 86_400_000
    points = [(day_ms * n, 1_234_567_890_123.0 * n) for n in range(30)]
    label = "a long name " * 20
    charts = (
        Lines(title="Bytes", unit="bytes", series={label: points}),
        Bars(title="Bytes", unit="bytes", bars={label: 1.0}),
    )

    found = [values for tag, values in elements(*charts) if tag == "text"]

    parser = TextCollector()
    parser.feed(page("Test", charts))
    assert len(parser.texts) == len(found) > 10
    for values, text in zip(found, parser.texts, strict=True):
        at, width = float(values["x"] or 0), 7 * len(text)
        begin = {"start": at, "middle": at - width / 2, "end": at - width}
        anchor = values["text-anchor"] or ""
        assert begin[anchor] >= 0
        assert begin[anchor] + width <= 900


def test_bars_of_negative_values_extend_to_the_left() -> None:
    found = elements(Bars(title="Delay", unit="minutes", bars={"late": 30.0, "early": -10.0}))

    late, early = (values for tag, values in found if tag == "rect")
    zero = float(late["x"] or 0)
    assert float(early["x"] or 0) + float(early["width"] or 0) == pytest.approx(zero, abs=0.2)
    assert float(late["width"] or 0) == pytest.approx(3 * float(early["width"] or 0), rel=0.01)


def test_zero_has_no_bar() -> None:
    found = elements(Bars(title="Copies", unit="messages", bars={"some": 5.0, "none": 0.0}))

    assert [values["width"] for tag, values in found if tag == "rect"][1] == "0.0"


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("colour", COLOURS)
def test_colours_are_legible_on_both_backgrounds(colour: str, background: str) -> None:
    """The ratio for graphics of WCAG 2.1, success criterion 1.4.11."""
    dark, light = sorted((luminance(colour), luminance(background)))

    assert (light + 0.05) / (dark + 0.05) >= 3


def test_notes_are_below_the_title() -> None:
    text = page("Pipeline lag", [], ["3 samples failed: no server answered"])

    assert text.index("<h1>") < text.index("<p>3 samples failed: no server answered</p>")

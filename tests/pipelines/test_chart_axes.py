"""Tests of the axes of charts: round ticks, labels, thinning."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.pipelines.chart_axes import (
    DECADES_MAX,
    nice_step,
    number,
    pieces,
    thinned,
    time_span,
    time_ticks,
    value_axis,
)

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NOON = round(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("at_least", "step"),
    [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (4, 5), (7, 10), (120, 200), (0.0012, 0.002)],
)
def test_steps_of_the_axis_are_round(at_least: float, step: float) -> None:
    assert nice_step(at_least) == pytest.approx(step)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([], [0, 1]),
        ([0.0], [0, 1]),
        ([20_336.0], [0, 5_000, 10_000, 15_000, 20_000, 25_000]),
        ([-3.0, 4.0], [-4, -2, 0, 2, 4]),
        ([-3.0, -1.0], [-3, -2, -1, 0]),
    ],
)
def test_linear_axis_includes_zero_and_all_values(values: list[float], ticks: list[float]) -> None:
    assert value_axis([values]).ticks == pytest.approx(ticks)


finite = st.floats(-1e12, 1e12, allow_nan=False)


@given(st.lists(st.lists(finite, max_size=5), max_size=5))
def test_each_value_is_within_the_axis(lines: list[list[float]]) -> None:
    axis = value_axis(lines)

    assert 2 <= len(axis.ticks) <= 10
    for value in (value for line in lines for value in line):
        assert -1e-9 <= axis.height(value) <= 1 + 1e-9


def test_tiny_values_do_not_stretch_a_logarithmic_axis() -> None:
    axis = value_axis([[1e6], [1e-9, 5.0]])

    assert axis.is_logarithmic
    assert len(axis.ticks) == DECADES_MAX + 1
    assert axis.height(1e-9) == 0
    assert axis.height(1e6) == 1


@pytest.mark.parametrize(
    ("span_ms", "labels"),
    [
        (0, ["12:00:00"]),
        (12, [f"12:00:00.{n:03}" for n in (0, 2, 4, 6, 8, 10, 12)]),
        (39 * SECOND, ["12:00:00", "12:00:10", "12:00:20", "12:00:30"]),
        (HOUR, ["12:00", "12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]),
        (DAY, ["12:00", "18:00", "Feb 1", "06:00", "12:00"]),
        (10 * DAY, ["Feb 2", "Feb 4", "Feb 6", "Feb 8", "Feb 10"]),
        (364 * DAY, ["Mar 2026", "May 2026", "Jul 2026", "Sep 2026", "Nov 2026", "Jan 2027"]),
        (1_500 * DAY, ["2027", "2028", "2029", "2030"]),
    ],
)
def test_labels_of_times_fit_the_span(span_ms: int, labels: list[str]) -> None:
    assert [label for _, label in time_ticks(NOON, NOON + span_ms)] == labels


@given(st.integers(0, 2_000_000_000_000), st.integers(0, 1_000_000_000_000))
def test_ticks_of_times_are_few_and_within_the_span(first_ms: int, span_ms: int) -> None:
    ticks = time_ticks(first_ms, first_ms + span_ms)

    assert len(ticks) <= 8
    assert all(first_ms <= at <= first_ms + span_ms for at, _ in ticks)


def test_span_of_times_names_the_day_once() -> None:
    assert time_span(NOON, NOON + HOUR) == "2026-01-31 12:00:00 to 13:00:00 UTC"
    assert time_span(NOON, NOON + DAY) == "2026-01-31 12:00:00 to 2026-02-01 12:00:00 UTC"
    assert time_span(NOON, NOON) == "2026-01-31 12:00:00 UTC"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1_234_567, "1,234,567"), (73.3913, "73.4"), (0.01234, "0.0123"), (-1.0, "-1")],
)
def test_numbers_have_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_pieces_end_at_gaps() -> None:
    points = [(0, 1.0), (10, 2.0), (21, 3.0)]

    assert pieces(points, 10) == [points[:2], points[2:]]
    assert pieces(points, None) == [points]
    assert pieces([], 10) == []


@given(
    st.lists(st.tuples(st.integers(0, 10_000), finite), max_size=200).map(
        lambda points: sorted(points, key=lambda point: point[0])
    ),
    st.integers(1, 5_000),
)
def test_thinned_points_keep_ends_and_extremes(
    points: list[tuple[int, float]], interval_ms: int
) -> None:
    kept = thinned(points, interval_ms)

    assert len(kept) <= min(len(points), 4 * (10_000 // interval_ms + 1))
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        values = [value for _, value in points]
        assert {min(values), max(values)} <= {value for _, value in kept}
    assert kept == sorted(kept, key=lambda point: point[0])

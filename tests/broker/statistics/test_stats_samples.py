"""Samples of counters over a minute, an hour and a day."""

from __future__ import annotations

import tracemalloc

from kourou.broker.statistics.stats_samples import Growth, Sampler, StatsItem, Window

TEN_S = 10_000
TEN_MIN = 600_000
HOUR = 3_600_000


def count(sampler: Sampler, item: StatsItem, messages: int = 1, *, calls: int = 1) -> None:
    if not item.is_touched:
        sampler.touch(item)
    item.calls += calls
    item.messages += messages


def tick_until(sampler: Sampler, end_ms: int, *, begin_ms: int, step_ms: int = TEN_S) -> None:
    for now_ms in range(begin_ms, end_ms + 1, step_ms):
        sampler.sample(now_ms)


def test_counts_before_the_first_sample_of_the_day_are_in_its_sum() -> None:
    sampler, item = Sampler(0), StatsItem(("x",))
    sampler.touch(item)
    item.calls, item.messages, item.size_bytes, item.took_ms = 2, 6, 60, 1
    assert sampler.growth(Window.DAY, [item]) == Growth()
    for second in range(1, 301):
        sampler.sample(second * 1_000)
    assert sampler.growth(Window.MINUTE, [item]).messages == 0
    assert sampler.growth(Window.HOUR, [item]) == Growth(2, 6, 60, 1)
    assert sampler.growth(Window.DAY, [item]) == Growth(2, 6, 60, 1)


def test_before_the_first_sample_nothing_has_grown() -> None:
    sampler, item = Sampler(0), StatsItem(("x",))
    count(sampler, item)
    sampler.sample(9_999)
    assert sampler.growth(Window.MINUTE, [item]) == Growth()


def test_the_first_sample_contains_the_counts_since_the_start_of_its_interval() -> None:
    sampler, item = Sampler(0), StatsItem(("x",))
    count(sampler, item, 30, calls=3)
    sampler.sample(TEN_S)
    assert sampler.growth(Window.MINUTE, [item]) == Growth(calls=3, messages=30, span_ms=TEN_S)


def test_a_minute_spans_the_last_six_intervals() -> None:
    sampler, item = Sampler(0), StatsItem(("x",))
    for now_ms in range(TEN_S, 10 * TEN_S + 1, TEN_S):
        count(sampler, item)
        sampler.sample(now_ms)
    assert sampler.growth(Window.MINUTE, [item]) == Growth(6, 6, span_ms=6 * TEN_S)


def test_counts_older_than_a_minute_are_not_in_the_minute() -> None:
    sampler, item = Sampler(0), StatsItem(("x",))
    count(sampler, item, 5)
    tick_until(sampler, 6 * TEN_S, begin_ms=TEN_S)
    assert sampler.growth(Window.MINUTE, [item]).messages == 5
    sampler.sample(7 * TEN_S)
    assert sampler.growth(Window.MINUTE, [item]) == Growth(span_ms=6 * TEN_S)


def test_an_item_that_was_idle_grows_only_by_its_new_counts() -> None:
    sampler, item = Sampler(0), StatsItem(("x",))
    count(sampler, item, 5)
    tick_until(sampler, 30 * TEN_S, begin_ms=TEN_S)
    count(sampler, item, 2)
    sampler.sample(31 * TEN_S)
    assert sampler.growth(Window.MINUTE, [item]) == Growth(1, 2, span_ms=6 * TEN_S)


def test_items_are_summed_over_the_time_of_the_oldest() -> None:
    sampler, old, new = Sampler(0), StatsItem(("old",)), StatsItem(("new",))
    count(sampler, old, 1)
    sampler.sample(TEN_S)
    sampler.sample(2 * TEN_S)
    count(sampler, new, 2)
    sampler.sample(3 * TEN_S)
    assert sampler.growth(Window.MINUTE, [old, new]) == Growth(2, 3, span_ms=3 * TEN_S)


def test_an_hour_is_sampled_each_ten_minutes_and_a_day_each_hour() -> None:
    sampler, item = Sampler(0), StatsItem(("x",))
    for now_ms in range(TEN_S, 2 * HOUR + 1, TEN_S):
        count(sampler, item)
        sampler.sample(now_ms)
    assert sampler.growth(Window.HOUR, [item]) == Growth(360, 360, span_ms=HOUR)
    assert sampler.growth(Window.DAY, [item]) == Growth(720, 720, span_ms=2 * HOUR)


def test_an_item_counted_just_before_an_hourly_sample_is_in_it() -> None:
    sampler, item = Sampler(0), StatsItem(("x",))
    sampler.sample(TEN_MIN - 5_000)
    count(sampler, item)
    sampler.sample(TEN_MIN)
    assert sampler.growth(Window.HOUR, [item]).messages == 1


def test_a_long_pause_causes_one_sample() -> None:
    sampler, item = Sampler(0), StatsItem(("x",))
    count(sampler, item, 9)
    sampler.sample(95_000)
    assert sampler.growth(Window.MINUTE, [item]) == Growth(1, 9, span_ms=95_000)
    sampler.sample(99_999)
    assert sampler.growth(Window.MINUTE, [item]).span_ms == 95_000
    sampler.sample(100_000)
    assert sampler.growth(Window.MINUTE, [item]).span_ms == 100_000


def test_an_item_that_is_idle_for_a_day_is_returned_once() -> None:
    sampler, idle, busy = Sampler(0), StatsItem(("idle",)), StatsItem(("busy",))
    count(sampler, idle)
    given_up = []
    for now_ms in range(HOUR, 40 * HOUR, HOUR):
        count(sampler, busy)
        given_up += sampler.sample(now_ms)
    assert given_up == [idle]


def test_a_sample_processes_only_counted_items() -> None:
    sampler, item = Sampler(0), StatsItem(("x",))
    count(sampler, item)
    sampler.sample(TEN_S)
    before = [list(points) for points in item.points]
    sampler.sample(2 * TEN_S)
    assert [list(points) for points in item.points] == before


def test_a_constantly_counted_item_takes_at_most_three_kilobytes() -> None:
    """A broker may have 200,000 of them."""
    sampler, items = Sampler(0), [StatsItem((str(number),)) for number in range(20)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for hour in range(1, 30):
            for item in items:
                item.size_bytes += 10**12  # larger than the integers that Python caches
                count(sampler, item, 10**9)
            sampler.sample(hour * HOUR)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / len(items) < 3_000

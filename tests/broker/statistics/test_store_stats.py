"""Totals, rates and times of a broker's puts and gets."""

from __future__ import annotations

import pytest

from kourou.broker.statistics.store_stats import StoreStats


def test_a_rate_is_none_until_its_span_has_passed() -> None:
    stats = StoreStats(0)
    assert stats.rates("puts") == [None, None, None]
    for second in range(11):
        stats.put_messages = second * 100
        stats.sample(second * 1000)
    assert stats.rates("puts") == [100.0, None, None]


def test_a_rate_is_that_of_its_own_span() -> None:
    stats = StoreStats(0)
    for second in range(602):
        stats.found = 5 * second
        stats.get_messages = 0 if second <= 591 else (second - 591) * 32
        stats.sample(second * 1000)
    assert stats.rates("found") == pytest.approx([5.0, 5.0, 5.0])
    assert stats.rates("transferred") == pytest.approx([32.0, 320 / 60, 320 / 600])
    assert stats.rates("missed") == [0.0, 0.0, 0.0]


def test_the_distribution_is_that_of_the_last_whole_minute() -> None:
    stats = StoreStats(0)
    for took_ms in (0, 0, 1, 9, 10, 49, 99, 1000, 9_999, 10_000, 1_000_000, -5):
        stats.on_put_duration(took_ms)
    stats.sample(59_000)
    assert "[<=0ms]:0 " in stats.distribution()
    stats.sample(60_000)
    assert stats.distribution() == (
        "[<=0ms]:3 [0~10ms]:2 [10~50ms]:2 [50~100ms]:1 [100~200ms]:0 [200~500ms]:0 "
        "[500ms~1s]:0 [1~2s]:1 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:1 [10s~]:2 "
    )
    assert stats.took_max_ms() == 10_001
    stats.sample(120_000)
    assert "[<=0ms]:0 " in stats.distribution()


def test_percentiles_are_interpolated_within_their_range() -> None:
    stats = StoreStats(0)
    for _ in range(99):
        stats.on_put_duration(3)
    stats.on_put_duration(150)
    stats.sample(60_000)
    assert stats.percentile_ms(0.99) == 3.0
    assert stats.percentile_ms(1.0) == 150.0
    assert stats.percentile_ms(0.5) == pytest.approx(2 + 50 / 99)


def test_without_puts_percentiles_are_zero() -> None:
    assert StoreStats(0).percentile_ms(0.99) == 0.0


def test_the_slowest_put_is_known_at_once_and_stays() -> None:
    stats = StoreStats(0)
    stats.on_put_duration(70)
    assert stats.took_max_ms() == 70
    stats.sample(60_000)
    stats.on_put_duration(3)
    assert stats.took_max_ms() == 70


def test_a_new_day_shifts_the_morning_totals() -> None:
    stats = StoreStats(0)
    stats.set_day(1)
    stats.put_messages, stats.get_messages, stats.system_puts = 10, 8, 1
    stats.set_day(1)
    assert stats.morning == (0, 0)
    stats.set_day(2)
    assert (stats.morning, stats.morning_before) == ((9, 8), (0, 0))
    stats.put_messages = 25
    stats.set_day(3)
    assert (stats.morning, stats.morning_before) == ((24, 8), (9, 8))
    assert stats.today == (24, 8)

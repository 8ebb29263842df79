"""Statistics of sends: exact totals, and rates of the last minute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kourou.client.sending.send_stats import SendStats


def test_rates_cover_the_time_since_start_up_to_one_minute() -> None:
    stats = SendStats(started_s=100.0)
    for second in range(100, 110):
        stats.on_begun(3)
        stats.on_stored(3, 0.020 if second % 2 else 0.040, second + 0.5)
    early = stats.snapshot(110.0)
    assert early.sent_per_s == pytest.approx(3.0)
    assert (early.send_time_mean_ms, early.send_time_max_ms) == pytest.approx((30.0, 40.0))

    assert stats.snapshot(165.0).sent_per_s == pytest.approx(12 / 60)
    late = stats.snapshot(1_000.0)
    assert (late.sent_total, late.sent_per_s, late.send_time_mean_ms) == (30, 0.0, 0.0)


def test_slot_is_reused_after_a_minute() -> None:
    stats = SendStats(started_s=0.0)
    for second in (5.0, 65.0):
        stats.on_begun(1)
        stats.on_stored(1, 0.001, second)

    assert stats.snapshot(65.0).sent_per_s == pytest.approx(1 / 60)
    assert stats.snapshot(65.0).sent_total == 2


def test_failures_retries_and_in_flight_are_counted_separately() -> None:
    stats = SendStats(started_s=0.0)
    stats.on_begun(5)
    assert stats.snapshot(1.0).in_flight == 5
    stats.on_retried()
    stats.on_failed(2, 1.0)
    stats.on_cancelled(1)
    found = stats.snapshot(10.0)

    assert (found.sent_total, found.failed_total, found.retries_total) == (0, 2, 1)
    assert found.in_flight == 2
    assert found.failed_per_s == pytest.approx(0.2)


def test_separate_sends_count_the_same_together_and_one_by_one() -> None:
    together, one_by_one = SendStats(started_s=0.0), SendStats(started_s=0.0)
    times_s = [0.005, 0.25, 0.01]
    for stats in (together, one_by_one):
        stats.on_begun(4)
    for time_s in times_s:
        one_by_one.on_stored(1, time_s, 2.0)
    together.on_stored_separately(3, sum(times_s), max(times_s), 2.0)
    found, expected = together.snapshot(3.0), one_by_one.snapshot(3.0)

    assert found.send_time_mean_ms == pytest.approx(expected.send_time_mean_ms)
    assert replace(found, send_time_mean_ms=0) == replace(expected, send_time_mean_ms=0)

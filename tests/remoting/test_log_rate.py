"""Warnings may come in bursts, are bounded in the long run, and suppressed ones are counted."""

from __future__ import annotations

from kourou.remoting.log_rate import LogRate


def test_a_burst_is_logged_and_the_rest_suppressed() -> None:
    rate = LogRate(burst=3, per_s=1)

    assert [rate.take(100.0) for _ in range(5)] == [0, 0, 0, None, None]


def test_the_next_warning_reports_the_number_suppressed() -> None:
    rate = LogRate(burst=1, per_s=1)
    taken = [rate.take(at_s) for at_s in (0.0, 0.1, 0.2, 1.2, 1.3, 9.0)]

    assert taken == [0, None, None, 2, None, 1]


def test_idle_time_refills_at_most_one_burst() -> None:
    rate = LogRate(burst=2, per_s=1)
    rate.take(0.0)

    assert [rate.take(1_000.0) for _ in range(3)] == [0, 0, None]

"""Rates are differences over a minute, failures over an hour."""

from __future__ import annotations

import pytest

from kourou.client.consuming.watching.consume_stats import ConsumerStats, TopicStats

STEP_MS = 10_000


def test_an_unknown_topic_has_no_statistics() -> None:
    stats = ConsumerStats()
    assert stats.topic("T") == TopicStats()
    assert stats.all_topics() == {}


def test_rates_are_those_of_the_last_minute() -> None:
    stats = ConsumerStats()
    for step in range(1, 31):
        stats.count_consumed("T", 20, 4.0, is_ok=step % 2 == 0)
        stats.count_pulled("T", 20, 8.0)
        stats.sample(step * STEP_MS)
    assert stats.topic("T") == TopicStats(
        consume_ok_tps=1.0,
        consume_failed_tps=1.0,
        consume_rt_ms=4.0,
        pull_tps=2.0,
        pull_rt_ms=8.0,
        consume_failed_messages=300,
    )
    for step in range(31, 40):
        stats.sample(step * STEP_MS)
    calm = stats.topic("T")
    assert (calm.consume_ok_tps, calm.pull_tps, calm.pull_rt_ms) == (0.0, 0.0, 0.0)
    assert calm.consume_rt_ms == 4.0, "of the last hour"


def test_failures_older_than_an_hour_are_not_counted() -> None:
    stats = ConsumerStats()
    stats.count_consumed("T", 5, 1.0, is_ok=False)
    for step in range(1, 60 * 6 + 1):
        stats.sample(step * STEP_MS)
    assert stats.topic("T").consume_failed_messages == 5
    for step in range(60 * 6 + 1, 60 * 7 + 1):
        stats.sample(step * STEP_MS)
    assert stats.topic("T").consume_failed_messages == 0


def test_failures_but_no_rates_exist_before_the_first_sample() -> None:
    stats = ConsumerStats(now_ms=1000)
    stats.count_consumed("T", 3, 6.0, is_ok=False)
    assert stats.topic("T").consume_failed_messages == 3
    assert stats.topic("T").consume_failed_tps == 0.0
    stats.sample(11_000)
    assert stats.topic("T").consume_failed_tps == pytest.approx(0.3)

"""Readings of the timer for the broker's state table and metrics.

Source: TimerMessageStore.java, BrokerMetricsManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping

from kourou.broker.java_text import double_text
from kourou.broker.timer.timers import Timers
from kourou.metrics import Family, Kind, Sample


def timer_info(timers: Timers) -> dict[str, str]:
    """Return the timer's entries of the answer to GET_BROKER_RUNTIME_INFO (28)."""
    enqueued, dequeued = timers.counts.rates()
    return {
        "timerCongestNum": str(timers.waiting),
        "timerDequeueTps": double_text(dequeued),
        "timerEnqueueTps": double_text(enqueued),
        "timerOffsetBehind": str(timers.intake_lag),
        "timerReadBehind": str(timers.delivery_lag_ms // 1000),
    }


def timer_families(timers: Timers, base: Mapping[str, str]) -> list[Family]:
    """Return the timer's metrics; counts by topic have a series per topic."""
    counts, labels = timers.counts, dict(base)
    waiting = counts.metrics().timing_count
    gauges = (
        ("enqueue_lag", "Messages that are not in the timer wheel yet.", timers.intake_lag),
        ("dequeue_lag", "Messages that wait for their time.", timers.waiting),
        ("dequeue_latency_milliseconds", "Delay of the first due message.",
         timers.delivery_lag_ms),
    )  # fmt: skip
    totals = (
        ("enqueue_total", "Messages put into the timer wheel.", counts.enqueued_count),
        ("dequeue_total", "Messages taken out of the timer wheel.", counts.dequeued_count),
    )
    return [
        *(
            Family(f"rocketmq_timer_{name}", Kind.GAUGE, text, [Sample(labels, value)])
            for name, text, value in gauges
        ),
        *(
            Family(f"rocketmq_timer_{name}", Kind.COUNTER, text, [Sample(labels, value)])
            for name, text, value in totals
        ),
        Family(
            "rocketmq_timing_messages",
            Kind.GAUGE,
            "Messages that wait for their time, by topic.",
            [Sample({**base, "topic": topic}, one.count) for topic, one in waiting.items()],
        ),
    ]

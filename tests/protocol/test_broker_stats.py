"""Broker statistics are encoded as in Java."""

from __future__ import annotations

from datetime import timedelta, timezone

from kourou.model.queue import MessageQueue
from kourou.protocol.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeOffset,
    ConsumeStats,
    ConsumeStatsList,
    QueueTimeSpan,
    decode_broker_stats,
    decode_consume_stats_list,
    decode_consume_time_spans,
    encode_broker_stats,
    encode_consume_stats_list,
    encode_consume_time_spans,
)

QUEUE = MessageQueue("T", "b", 0)


def test_broker_stats_have_three_time_spans() -> None:
    stats = BrokerStatsData(BrokerStatsItem(3, 0.05, 1.0), day=BrokerStatsItem(9, 1, 2))
    body = encode_broker_stats(stats)

    assert body == (
        b'{"statsDay":{"avgpt":2.0,"sum":9,"tps":1.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        b'"statsMinute":{"avgpt":1.0,"sum":3,"tps":0.05}}'
    )
    assert decode_broker_stats(body) == stats


def test_each_group_is_a_separate_object() -> None:
    stats = ConsumeStatsList(
        {"a": [], "g": [ConsumeStats({QUEUE: ConsumeOffset(9, 5, 7, 1)}, 0.5)]}, "h:1", 4, 2
    )
    body = encode_consume_stats_list(stats)

    assert body.startswith(b'{"brokerAddr":"h:1","consumeStatsList":[{"a":[]},{"g":[{"consumeTps"')
    assert body.endswith(b'"totalDiff":4,"totalInflightDiff":2}')
    assert decode_consume_stats_list(body) == stats


def test_times_are_also_written_as_text_in_the_given_zone() -> None:
    span = QueueTimeSpan(QUEUE, 1_795_228_398_371, 1_795_228_398_000, 0, 5)
    body = encode_consume_time_spans([span])
    east = encode_consume_time_spans([span], zone=timezone(timedelta(hours=8)))

    assert b'"minTimeStampStr":"2026-11-21#02:33:18:371"' in body
    assert b'"maxTimeStampStr":"2026-11-21#02:33:18:000"' in body
    assert b'"consumeTimeStampStr":"1970-01-01#00:00:00:000"' in body
    assert b'"minTimeStampStr":"2026-11-21#10:33:18:371"' in east
    assert decode_consume_time_spans(body) == decode_consume_time_spans(east) == [span]

"""JSON bodies of broker statistics: counters, progress of all groups, ages of queues.

Source: BrokerStatsData.java, BrokerStatsItem.java, ConsumeStatsList.java,
QueryConsumeTimeSpanBody.java, QueueTimeSpan.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

from kourou.model.queue import MessageQueue
from kourou.protocol.bodies_queues import queue_from_json, queue_to_json
from kourou.protocol.bodies_stats import (
    ConsumeStats,
    consume_stats_from_json,
    consume_stats_to_json,
)
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_values import (
    Json,
    as_list,
    as_object,
    get_integer,
    get_list,
    get_number,
    get_object,
    get_optional_text,
)


@dataclass(frozen=True, slots=True)
class BrokerStatsItem:
    """A counter over one time span.

    Attributes:
        sum: sum of the counted values.
        tps: sum per second.
        avgpt: sum per counted event, such as the average size of a message.
    """

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerStatsData:
    """A counter over the last minute, hour and day."""

    minute: BrokerStatsItem = BrokerStatsItem()
    hour: BrokerStatsItem = BrokerStatsItem()
    day: BrokerStatsItem = BrokerStatsItem()


@dataclass(frozen=True, slots=True)
class ConsumeStatsList:
    """Progress of all groups of a broker.

    Attributes:
        stats: group to its statistics, one element per topic.
        total_diff: messages stored but not consumed.
        total_inflight_diff: messages pulled but not consumed.
    """

    stats: Mapping[str, Sequence[ConsumeStats]] = field(default_factory=dict)
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0


@dataclass(frozen=True, slots=True)
class QueueTimeSpan:
    """Age of a queue and of a group's progress in it; timestamps are epoch milliseconds.

    Attributes:
        min_timestamp: store time of the oldest message.
        max_timestamp: store time of the newest message.
        consume_timestamp: store time of the last message that the group consumed.
        delay_time: milliseconds that the next message to consume has waited; 0 if there is none.
    """

    queue: MessageQueue
    min_timestamp: int = 0
    max_timestamp: int = 0
    consume_timestamp: int = 0
    delay_time: int = 0


def encode_broker_stats(stats: BrokerStatsData) -> bytes:
    """Return the response body of VIEW_BROKER_STATS_DATA (315)."""
    return dumps(
        {
            "statsDay": _item_to_json(stats.day),
            "statsHour": _item_to_json(stats.hour),
            "statsMinute": _item_to_json(stats.minute),
        }
    )


def decode_broker_stats(body: bytes) -> BrokerStatsData:
    """Return the counter decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body), "broker stats")
    return BrokerStatsData(
        _item_from_json(get_object(data, "statsMinute")),
        _item_from_json(get_object(data, "statsHour")),
        _item_from_json(get_object(data, "statsDay")),
    )


def encode_consume_stats_list(stats: ConsumeStatsList) -> bytes:
    """Return the response body of GET_BROKER_CONSUME_STATS (317)."""
    return dumps(
        {
            "brokerAddr": stats.broker_addr,
            "consumeStatsList": [
                {group: [consume_stats_to_json(topic_stats) for topic_stats in members]}
                for group, members in stats.stats.items()
            ],
            "totalDiff": stats.total_diff,
            "totalInflightDiff": stats.total_inflight_diff,
        }
    )


def decode_consume_stats_list(body: bytes) -> ConsumeStatsList:
    """Return the statistics decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "consume stats list")
    entries = [as_object(entry, "consumeStatsList") for entry in get_list(data, "consumeStatsList")]
    return ConsumeStatsList(
        {
            group: [
                consume_stats_from_json(as_object(topic_stats, group))
                for topic_stats in as_list(members, group)
            ]
            for entry in entries
            for group, members in entry.items()
        },
        get_optional_text(data, "brokerAddr"),
        get_integer(data, "totalDiff"),
        get_integer(data, "totalInflightDiff"),
    )


def encode_consume_time_spans(spans: Sequence[QueueTimeSpan], *, zone: tzinfo = UTC) -> bytes:
    """Return the response body of QUERY_CONSUME_TIME_SPAN (303).

    Each time is also written as text in the time zone `zone`; Java uses the broker's own zone.

    Raises:
        ValueError: a time is outside the years 1 to 9999.
    """
    return dumps(
        {
            "consumeTimeSpanSet": [
                {
                    "consumeTimeStamp": span.consume_timestamp,
                    "consumeTimeStampStr": _time_text(span.consume_timestamp, zone),
                    "delayTime": span.delay_time,
                    "maxTimeStamp": span.max_timestamp,
                    "maxTimeStampStr": _time_text(span.max_timestamp, zone),
                    "messageQueue": queue_to_json(span.queue),
                    "minTimeStamp": span.min_timestamp,
                    "minTimeStampStr": _time_text(span.min_timestamp, zone),
                }
                for span in spans
            ]
        }
    )


def decode_consume_time_spans(body: bytes) -> list[QueueTimeSpan]:
    """Return the time spans decoded from a body; times written as text are ignored.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body), "time spans")
    spans = [as_object(span, "consumeTimeSpanSet") for span in get_list(data, "consumeTimeSpanSet")]
    return [
        QueueTimeSpan(
            queue_from_json(span.get("messageQueue")),
            get_integer(span, "minTimeStamp"),
            get_integer(span, "maxTimeStamp"),
            get_integer(span, "consumeTimeStamp"),
            get_integer(span, "delayTime"),
        )
        for span in spans
    ]


def _item_to_json(item: BrokerStatsItem) -> dict[str, object]:
    return {"avgpt": float(item.avgpt), "sum": item.sum, "tps": float(item.tps)}


def _item_from_json(data: Json) -> BrokerStatsItem:
    return BrokerStatsItem(
        get_integer(data, "sum"), get_number(data, "tps"), get_number(data, "avgpt")
    )


def _time_text(at_ms: int, zone: tzinfo) -> str:
    """Return a time as `2026-11-21#02:33:18:447`."""
    seconds, milliseconds = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, zone):%Y-%m-%d#%H:%M:%S}:{milliseconds:03d}"

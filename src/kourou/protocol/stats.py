"""Statistics: offsets of topics, progress of groups, counters of a broker, ages of queues.

Maps keyed by queue are written with bare JSON objects as keys.

Source: TopicStatsTable.java, TopicOffset.java, ConsumeStats.java, OffsetWrapper.java,
BrokerStatsData.java, BrokerStatsItem.java, ConsumeStatsList.java, QueryConsumeTimeSpanBody.java,
QueueTimeSpan.java, and the header classes of the same names in
org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Final

from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode
from kourou.protocol.fastjson import dumps
from kourou.protocol.fields import TopicHeader
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_records import (
    FieldCodec,
    from_json,
    list_functions,
    record_functions,
    to_json,
)
from kourou.protocol.json_values import (
    as_list,
    as_object,
)
from kourou.protocol.request_spec import BodyCodec, RequestSpec


@dataclass(slots=True)
class GetTopicStatsInfoRequestHeader(TopicHeader):
    """GET_TOPIC_STATS_INFO (202); has a response body."""

    topic: str


@dataclass(slots=True)
class GetConsumeStatsRequestHeader(TopicHeader):
    """GET_CONSUME_STATS (208); has a response body.

    Attributes:
        topic_list: names, each followed by `;`.
    """

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(slots=True)
class GetConsumeStatsInBrokerHeader:
    """GET_BROKER_CONSUME_STATS (317): the progress of all groups; has a response body.

    Attributes:
        is_order: true selects the groups that consume in order, false the others.
    """

    is_order: bool


@dataclass(slots=True)
class ViewBrokerStatsDataRequestHeader:
    """VIEW_BROKER_STATS_DATA (315): one counter; has a response body.

    Attributes:
        stats_name: type of the counter, such as TOPIC_PUT_NUMS.
        stats_key: the counted object, such as a topic, or `topic@group`.
    """

    stats_name: str
    stats_key: str


@dataclass(slots=True)
class QueryConsumeTimeSpanRequestHeader(TopicHeader):
    """QUERY_CONSUME_TIME_SPAN (303): ages of a topic's queues and of a group's progress in them.

    The response has a body.
    """

    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """Offsets of one queue: it holds messages from `min_offset` to below `max_offset`.

    Attributes:
        last_update_timestamp: store time of the last message in epoch milliseconds; 0 if empty.
    """

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicStatsTable:
    """Offsets of a topic's queues; `topic_put_tps` is in messages per second."""

    offsets: Mapping[MessageQueue, TopicOffset] = field(
        default_factory=dict, metadata={"wire": "offsetTable"}
    )
    topic_put_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class ConsumeOffset:
    """A group's progress in one queue, in queue offsets.

    Attributes:
        broker_offset: offset of the next message to be stored.
        consumer_offset: committed offset: that of the next message to consume.
        pull_offset: offset of the next message to pull.
        last_timestamp: store time of the last consumed message, epoch milliseconds; 0 if none.
        lock_holder: id of the client that holds the queue's lock for ordered consumption; None if
            it is not locked. This and the following are set by Kourou's brokers, and ignored by
            RocketMQ's clients.
        in_flight: messages that are popped and neither acknowledged nor visible again; None for 0,
            or if the broker does not report it.
        block_reason: why an ordered pop gets nothing from the queue; None if it is not blocked.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0
    lock_holder: str | None = field(default=None, metadata={"wire": "kourouLockHolder"})
    in_flight: int | None = field(default=None, metadata={"wire": "kourouInFlight"})
    block_reason: str | None = field(default=None, metadata={"wire": "kourouBlockReason"})


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """A group's progress; `consume_tps` is in messages per second."""

    offsets: Mapping[MessageQueue, ConsumeOffset] = field(
        default_factory=dict, metadata={"wire": "offsetTable"}
    )
    consume_tps: float = 0.0


decode_topic_stats, encode_topic_stats = record_functions(
    TopicStatsTable, "topic stats", bare_keys_bytes_max=FRAME_SIZE_MAX
)

decode_consume_stats, encode_consume_stats = record_functions(
    ConsumeStats, "consume stats", bare_keys_bytes_max=FRAME_SIZE_MAX
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

    minute: BrokerStatsItem = field(default=BrokerStatsItem(), metadata={"wire": "statsMinute"})
    hour: BrokerStatsItem = field(default=BrokerStatsItem(), metadata={"wire": "statsHour"})
    day: BrokerStatsItem = field(default=BrokerStatsItem(), metadata={"wire": "statsDay"})


def _stats_to_json(stats: Mapping[str, Sequence[ConsumeStats]]) -> list[dict[str, object]]:
    return [{group: list(map(to_json, of_topics))} for group, of_topics in stats.items()]


def _stats_from_json(value: object, label: str) -> dict[str, list[ConsumeStats]]:
    return {
        group: [from_json(ConsumeStats, topic, group) for topic in as_list(of_topics, group)]
        for entry in as_list(value, label)
        for group, of_topics in as_object(entry, label).items()
    }


_STATS_OF_GROUPS: Final = FieldCodec(_stats_to_json, _stats_from_json)


@dataclass(frozen=True, slots=True)
class ConsumeStatsList:
    """Progress of all groups of a broker.

    Attributes:
        stats: group to its statistics, one element per topic.
        total_diff: messages stored but not consumed.
        total_inflight_diff: messages pulled but not consumed.
    """

    stats: Mapping[str, Sequence[ConsumeStats]] = field(
        default_factory=dict, metadata={"wire": "consumeStatsList", "codec": _STATS_OF_GROUPS}
    )
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

    queue: MessageQueue = field(metadata={"wire": "messageQueue", "absent": {}})
    min_timestamp: int = field(default=0, metadata={"wire": "minTimeStamp"})
    max_timestamp: int = field(default=0, metadata={"wire": "maxTimeStamp"})
    consume_timestamp: int = field(default=0, metadata={"wire": "consumeTimeStamp"})
    delay_time: int = 0


decode_broker_stats, encode_broker_stats = record_functions(BrokerStatsData, "broker stats")

decode_consume_stats_list, encode_consume_stats_list = record_functions(
    ConsumeStatsList, "consume stats list", bare_keys_bytes_max=FRAME_SIZE_MAX
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
                to_json(span)
                | {
                    "consumeTimeStampStr": _time_text(span.consume_timestamp, zone),
                    "maxTimeStampStr": _time_text(span.max_timestamp, zone),
                    "minTimeStampStr": _time_text(span.min_timestamp, zone),
                }
                for span in spans
            ]
        }
    )


# Ignores the times that are written as text.
decode_consume_time_spans = list_functions("consumeTimeSpanSet", QueueTimeSpan, "time spans")[0]


def _time_text(at_ms: int, zone: tzinfo) -> str:
    """Return a time as `2026-11-21#02:33:18:447`."""
    seconds, milliseconds = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, zone):%Y-%m-%d#%H:%M:%S}:{milliseconds:03d}"


SPECS: Final = (
    RequestSpec(
        RequestCode.GET_TOPIC_STATS_INFO,
        GetTopicStatsInfoRequestHeader,
        response_body=BodyCodec(decode_topic_stats, encode_topic_stats),
    ),
    RequestSpec(
        RequestCode.GET_CONSUME_STATS,
        GetConsumeStatsRequestHeader,
        response_body=BodyCodec(decode_consume_stats, encode_consume_stats),
    ),
    RequestSpec(
        RequestCode.GET_BROKER_CONSUME_STATS,
        GetConsumeStatsInBrokerHeader,
        response_body=BodyCodec(decode_consume_stats_list, encode_consume_stats_list),
    ),
    RequestSpec(
        RequestCode.VIEW_BROKER_STATS_DATA,
        ViewBrokerStatsDataRequestHeader,
        response_body=BodyCodec(decode_broker_stats, encode_broker_stats),
    ),
    RequestSpec(
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        QueryConsumeTimeSpanRequestHeader,
        response_body=BodyCodec(decode_consume_time_spans, encode_consume_time_spans),
    ),
)

"""Statistics: offsets of topics, progress of groups, counters of a broker, ages of queues.

Maps keyed by queue are written with bare JSON objects as keys.

Source: TopicStatsTable.java, TopicOffset.java, ConsumeStats.java, OffsetWrapper.java,
BrokerStatsData.java, BrokerStatsItem.java, ConsumeStatsList.java, QueryConsumeTimeSpanBody.java,
QueueTimeSpan.java, and the header classes of the same names in
org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Final

from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import TopicHeader
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
    items_by_queue,
    queue_from_json,
    queue_to_json,
)
from kourou.protocol.request_spec import BodyCodec, RequestSpec

_LOCK_HOLDER: Final = "kourouLockHolder"


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

    offsets: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)
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
            it is not locked. Set by Kourou's brokers, ignored by RocketMQ's clients.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0
    lock_holder: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """A group's progress; `consume_tps` is in messages per second."""

    offsets: Mapping[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0


def encode_topic_stats(stats: TopicStatsTable) -> bytes:
    """Return the response body of GET_TOPIC_STATS_INFO (202)."""
    return dumps(
        {
            "offsetTable": {
                queue: {
                    "lastUpdateTimestamp": offset.last_update_timestamp,
                    "maxOffset": offset.max_offset,
                    "minOffset": offset.min_offset,
                }
                for queue, offset in stats.offsets.items()
            },
            "topicPutTps": float(stats.topic_put_tps),
        }
    )


def decode_topic_stats(body: bytes) -> TopicStatsTable:
    """Return the statistics decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "topic stats")
    return TopicStatsTable(
        {
            queue: TopicOffset(
                get_integer(offset, "minOffset"),
                get_integer(offset, "maxOffset"),
                get_integer(offset, "lastUpdateTimestamp"),
            )
            for queue, offset in _by_queue(data)
        },
        get_number(data, "topicPutTps"),
    )


def consume_stats_to_json(stats: ConsumeStats) -> dict[str, object]:
    """Return the JSON object of a group's statistics."""
    return {
        "consumeTps": float(stats.consume_tps),
        "offsetTable": {
            queue: {
                "brokerOffset": offset.broker_offset,
                "consumerOffset": offset.consumer_offset,
                "lastTimestamp": offset.last_timestamp,
                "pullOffset": offset.pull_offset,
            }
            | ({} if offset.lock_holder is None else {_LOCK_HOLDER: offset.lock_holder})
            for queue, offset in stats.offsets.items()
        },
    }


def consume_stats_from_json(data: Json) -> ConsumeStats:
    """Return the statistics of a JSON object.

    Raises:
        MalformedBodyError: a member has the wrong type.
    """
    return ConsumeStats(
        {
            queue: ConsumeOffset(
                get_integer(offset, "brokerOffset"),
                get_integer(offset, "consumerOffset"),
                get_integer(offset, "pullOffset"),
                get_integer(offset, "lastTimestamp"),
                get_optional_text(offset, _LOCK_HOLDER),
            )
            for queue, offset in _by_queue(data)
        },
        get_number(data, "consumeTps"),
    )


def encode_consume_stats(stats: ConsumeStats) -> bytes:
    """Return the response body of GET_CONSUME_STATS (208)."""
    return dumps(consume_stats_to_json(stats))


def decode_consume_stats(body: bytes) -> ConsumeStats:
    """Return the statistics decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX)
    return consume_stats_from_json(as_object(data, "consume stats"))


def _by_queue(data: Json) -> Iterator[tuple[MessageQueue, Json]]:
    """Yield the queues and values of the member offsetTable."""
    for queue, value in items_by_queue(get_object(data, "offsetTable")):
        yield queue, as_object(value, "offsetTable")


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

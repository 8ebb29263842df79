"""JSON bodies of statistics: the offsets of a topic's queues, and a group's progress in them.

Both are maps keyed by queue, written with bare JSON objects as keys.

Source: TopicStatsTable.java, TopicOffset.java, ConsumeStats.java, OffsetWrapper.java.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.model.queue import MessageQueue
from kourou.protocol.bodies_queues import items_by_queue
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_values import (
    Json,
    as_object,
    get_integer,
    get_number,
    get_object,
    get_optional_text,
)

_LOCK_HOLDER: Final = "kourouLockHolder"


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

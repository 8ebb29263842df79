"""Offsets of queues and groups: queries, commits, resets, and consumers' positions.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header;
ResetOffsetBody.java, ResetOffsetBodyForC.java, GetConsumerStatusBody.java,
QueryCorrectionOffsetBody.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import Int, Long, RpcHeader, TopicHeader, parse_long
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_records import record_functions
from kourou.protocol.json_values import (
    as_integer,
    as_object,
    get_integer,
    get_object,
    offsets_by_queue,
    queue_from_json,
    queue_to_json,
)
from kourou.protocol.offset_table import QueueOffsets
from kourou.protocol.request_spec import BodyCodec, RequestSpec

_CORRECTION: Final = "correctionOffsets"

TOPIC_BEGIN_FIELD: Final = "kourouTopicBegin"
"""Kourou's own field: the physical offset below which records belong to an earlier, deleted topic
of the same name; 0 if there was none. Brokers add it to responses to QUERY_CONSUMER_OFFSET and
GET_TOPIC_STATS_INFO. Clients return it with UPDATE_CONSUMER_OFFSET, with a pull that follows a
pause and with the pulls of a planned range, because an offset of the deleted topic is meaningless
in the topic that was created again."""


def parse_topic_begin(ext_fields: Mapping[str, str]) -> int | None:
    """Return the value of `TOPIC_BEGIN_FIELD`; None if it is missing or not a number."""
    try:
        return parse_long(ext_fields.get(TOPIC_BEGIN_FIELD, ""))
    except ValueError:
        return None


@dataclass(slots=True)
class QueryConsumerOffsetRequestHeader(TopicHeader):
    """QUERY_CONSUMER_OFFSET (14): the offset that the group committed for a queue.

    Attributes:
        set_zero_if_not_found: if false, the response is never 0 instead of "not found".
    """

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


@dataclass(slots=True)
class QueryConsumerOffsetResponseHeader:
    """The committed queue offset: the next message to consume."""

    offset: Long


@dataclass(slots=True)
class UpdateConsumerOffsetRequestHeader(TopicHeader):
    """UPDATE_CONSUMER_OFFSET (15): commit the queue offset of the next message to consume."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


@dataclass(slots=True)
class SearchOffsetRequestHeader(TopicHeader):
    """SEARCH_OFFSET_BY_TIMESTAMP (29): the queue offset for a store time.

    Attributes:
        timestamp: store time in epoch milliseconds.
        boundary_type: UPPER (in any case) selects the last message of equal times, else the first.
    """

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None
    lite_topic: str | None = None


@dataclass(slots=True)
class SearchOffsetResponseHeader:
    """The queue offset found."""

    offset: Long


@dataclass(slots=True)
class GetMaxOffsetRequestHeader(TopicHeader):
    """GET_MAX_OFFSET (30): the queue offset of the next message to be stored.

    Attributes:
        committed: count only messages visible to consumers; the broker always does so.
    """

    topic: str
    queue_id: Int
    committed: bool = True


@dataclass(slots=True)
class GetMaxOffsetResponseHeader:
    """The queue offset of the next message."""

    offset: Long


@dataclass(slots=True)
class GetMinOffsetRequestHeader(TopicHeader):
    """GET_MIN_OFFSET (31): the smallest queue offset that is still stored."""

    topic: str
    queue_id: Int


@dataclass(slots=True)
class GetMinOffsetResponseHeader:
    """The smallest queue offset."""

    offset: Long


@dataclass(slots=True)
class GetEarliestMsgStoretimeRequestHeader(TopicHeader):
    """GET_EARLIEST_MSG_STORETIME (32): the store time of the oldest message of a queue."""

    topic: str
    queue_id: Int


@dataclass(slots=True)
class GetEarliestMsgStoretimeResponseHeader:
    """The store time in epoch milliseconds; -1 for an empty queue."""

    timestamp: Long


@dataclass(slots=True)
class ResetOffsetRequestHeader(TopicHeader):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), and RESET_CONSUMER_CLIENT_OFFSET (220) to clients.

    Attributes:
        timestamp: store time of the message to continue with, in epoch milliseconds; a negative
            one stands for the end of the queue.
        queue_id: negative for all queues.
        offset: the queue offset to continue with; with a queue id, it overrides `timestamp`.
        is_force: reset also if the group would skip messages.
    """

    topic: str
    group: str
    timestamp: Long
    is_force: bool
    queue_id: Int = -1
    offset: Long | None = None


@dataclass(slots=True)
class GetConsumerStatusRequestHeader(TopicHeader):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), and 221 to clients; has a response body.

    Attributes:
        client_addr: a client id, despite its name; empty or None for all clients of the group.
    """

    topic: str
    group: str
    client_addr: str | None = None


@dataclass(slots=True)
class CloneGroupOffsetRequestHeader(RpcHeader):
    """CLONE_GROUP_OFFSET (314): copy the offsets of one group to another.

    Attributes:
        topic: None for all topics of the source group.
        offline: sent, without effect.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@dataclass(slots=True)
class QueryCorrectionOffsetHeader(TopicHeader):
    """QUERY_CORRECTION_OFFSET (308): the smallest offsets of a topic's groups; has a response body.

    Attributes:
        compare_group: queues in which this group is not behind are omitted.
        filter_groups: groups to ignore, joined by commas.
    """

    topic: str
    compare_group: str
    filter_groups: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """Consumption progress of clients, in queue offsets.

    Attributes:
        offsets: those of the client that answers 221.
        clients: those of each client id, in a broker's response to 223.
    """

    offsets: Mapping[MessageQueue, int] = field(
        default_factory=dict, metadata={"wire": "messageQueueTable"}
    )
    clients: Mapping[str, Mapping[MessageQueue, int]] = field(
        default_factory=dict, metadata={"wire": "consumerTable"}
    )


def encode_reset_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the body of RESET_CONSUMER_CLIENT_OFFSET (220), also the response body of 222."""
    return dumps({"offsetTable": dict(offsets)})


def encode_reset_offsets_for_c(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the body of 220 for a client whose language is CPP: a list instead of a map."""
    return dumps(
        {
            "offsetTable": [
                queue_to_json(queue) | {"offset": offset} for queue, offset in offsets.items()
            ]
        }
    )


def decode_reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    """Return the queue offsets decoded from a body of either form.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "offset reset")
    table = data.get("offsetTable")
    if isinstance(table, list):
        return {
            queue_from_json(entry): get_integer(as_object(entry, "offsetTable"), "offset")
            for entry in table
        }
    return offsets_by_queue(table, "offsetTable")


decode_consumer_status, encode_consumer_status = record_functions(
    ConsumerStatus, "consumer status", bare_keys_bytes_max=FRAME_SIZE_MAX
)


def encode_correction_offsets(offsets: QueueOffsets) -> bytes:
    """Return the response body of QUERY_CORRECTION_OFFSET (308): offsets by queue id."""
    return dumps({_CORRECTION: dict(offsets)})


def decode_correction_offsets(body: bytes) -> dict[int, int]:
    """Return the queue offsets decoded from a body, by queue id.

    Raises:
        MalformedBodyError: the body is not a JSON object of integers.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "correction offsets")
    offsets = get_object(data, _CORRECTION).items()
    # `loads` returns bare keys as texts.
    return {as_integer(key, _CORRECTION): as_integer(value, _CORRECTION) for key, value in offsets}


_RESET: Final = BodyCodec(decode_reset_offsets, encode_reset_offsets)
_STATUS: Final = BodyCodec(decode_consumer_status, encode_consumer_status)

SPECS: Final = (
    RequestSpec(
        RequestCode.QUERY_CONSUMER_OFFSET,
        QueryConsumerOffsetRequestHeader,
        QueryConsumerOffsetResponseHeader,
    ),
    RequestSpec(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader),
    RequestSpec(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        SearchOffsetRequestHeader,
        SearchOffsetResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_MAX_OFFSET,
        GetMaxOffsetRequestHeader,
        GetMaxOffsetResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_MIN_OFFSET,
        GetMinOffsetRequestHeader,
        GetMinOffsetResponseHeader,
    ),
    RequestSpec(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        GetEarliestMsgStoretimeRequestHeader,
        GetEarliestMsgStoretimeResponseHeader,
    ),
    RequestSpec(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        ResetOffsetRequestHeader,
        request_body=_RESET,
        body_bytes_max=1024 * 1024,  # a broker sends the offsets of all queues of a topic
    ),
    RequestSpec(
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        GetConsumerStatusRequestHeader,
        response_body=_STATUS,
    ),
    RequestSpec(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        ResetOffsetRequestHeader,
        response_body=_RESET,
    ),
    RequestSpec(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        GetConsumerStatusRequestHeader,
        response_body=_STATUS,
    ),
    RequestSpec(
        RequestCode.QUERY_CORRECTION_OFFSET,
        QueryCorrectionOffsetHeader,
        response_body=BodyCodec(decode_correction_offsets, encode_correction_offsets),
    ),
    RequestSpec(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffsetRequestHeader),
)

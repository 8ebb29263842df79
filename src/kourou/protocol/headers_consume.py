"""Headers for consumption: codes 11, 12, 14, 15, 29 to 35, 38 and 40 to 42.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.protocol.fields import Int, Long, parse_long
from kourou.protocol.headers_send import RpcHeader, TopicHeader

TOPIC_BEGIN_FIELD: Final = "kourouTopicBegin"
"""Kourou's own field: the physical offset below which records belong to an earlier, deleted topic
of the same name; 0 if there was none. Brokers add it to responses to QUERY_CONSUMER_OFFSET. Clients
return it with UPDATE_CONSUMER_OFFSET and with a pull that follows a pause, because an offset of the
deleted topic is meaningless in the topic that was created again."""


def parse_topic_begin(ext_fields: Mapping[str, str]) -> int | None:
    """Return the value of `TOPIC_BEGIN_FIELD`; None if it is missing or not a number."""
    try:
        return parse_long(ext_fields.get(TOPIC_BEGIN_FIELD, ""))
    except ValueError:
        return None


@dataclass(slots=True)
class PullMessageRequestHeader(TopicHeader):
    """PULL_MESSAGE (11): pull messages of one queue; may be held until one arrives.

    Attributes:
        queue_offset: the first requested message.
        sys_flag: PULL_* bits of `kourou.model.sysflag`.
        commit_offset: committed if PULL_COMMIT_OFFSET is set.
        suspend_timeout_millis: longest time to hold the request if PULL_SUSPEND is set.
        subscription: the expression if PULL_SUBSCRIPTION is set.
        sub_version: that of the heartbeat; a broker that has an older one refuses the pull.
        max_msg_bytes: Java sends it but never reads it.
        request_source: -1 for a client, 0 to 2 for kinds of proxies.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int | None = None
    request_source: Int | None = None
    # Misspelled on the wire.
    proxy_froward_client_id: str | None = None
    lite_topic: str | None = None


@dataclass(slots=True)
class PullMessageResponseHeader:
    """Response to a pull; clients read the first four fields with codes 0, 19, 20 and 21.

    Attributes:
        suggest_which_broker_id: replica for the next pull; 0 is the master.
        next_begin_offset: the queue offset of the next pull.
        offset_delta: for static topics.
        forbidden_type: with code 16, the setting that forbids the pull: 1 broker, 2 group, 3 topic,
            4 broadcast, 5 subscription.
    """

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None
    forbidden_type: Int | None = None


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
class GetConsumerListByGroupRequestHeader(RpcHeader):
    """GET_CONSUMER_LIST_BY_GROUP (38): the client ids of a group's members; has a response body."""

    consumer_group: str


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
class ViewMessageRequestHeader:
    """VIEW_MESSAGE_BY_ID (33): the record at a physical offset; has a response body."""

    offset: Long
    topic: str | None = None


@dataclass(slots=True)
class HeartbeatRequestHeader(RpcHeader):
    """HEART_BEAT (34); the heartbeat is in the body."""


@dataclass(slots=True)
class HeartbeatResponseHeader:
    """Support of short heartbeats by the broker, and whether the subscription changed."""

    is_support_heart_beat_v2: bool | None = field(
        default=None, metadata={"wire": "IS_SUPPORT_HEART_BEAT_V2"}
    )
    is_sub_change: bool | None = field(default=None, metadata={"wire": "IS_SUB_CHANGE"})


@dataclass(slots=True)
class UnregisterClientRequestHeader(RpcHeader):
    """UNREGISTER_CLIENT (35): the client leaves these groups."""

    client_id: str = field(metadata={"wire": "clientID"})
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(slots=True)
class NotifyConsumerIdsChangedRequestHeader(RpcHeader):
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker to client: members changed, rebalance."""

    consumer_group: str


@dataclass(slots=True)
class LockBatchMqRequestHeader(RpcHeader):
    """LOCK_BATCH_MQ (41); the queues are in the body."""


@dataclass(slots=True)
class UnlockBatchMqRequestHeader(RpcHeader):
    """UNLOCK_BATCH_MQ (42); the queues are in the body."""


@dataclass(slots=True)
class QueryMessageRequestHeader(TopicHeader):
    """QUERY_MESSAGE (12): the messages of a key; has a response body.

    Attributes:
        begin_timestamp: smallest store time in epoch milliseconds; `end_timestamp` is the largest.
        index_type: type of `key`: K a key, U a unique id, T a tag; None means K.
        last_key: position at which a page of a tag query continues.
        is_unique_key: forces the type U.
    """

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    index_type: str | None = None
    last_key: str | None = None
    is_unique_key: bool | None = field(default=None, metadata={"wire": "_UNIQUE_KEY_QUERY"})


@dataclass(slots=True)
class QueryMessageResponseHeader:
    """Position of the index: a time in epoch milliseconds, and a physical offset."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long

"""Headers of consuming: codes 11, 12, 14, 15, 29 to 35, 38 and 40 to 42.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.protocol.fields import Int, Long, parse_long
from kourou.protocol.headers_send import RpcHeader, TopicHeader

TOPIC_BEGIN_FIELD: Final = "kourouTopicBegin"
"""Field that is not one of RocketMQ's: the log position below which records are of an earlier topic
of the same name; 0 if there was none. Our brokers add it to answers to QUERY_CONSUMER_OFFSET. Our
clients send it back with UPDATE_CONSUMER_OFFSET, and with a pull that follows a pause: an offset of
a topic that was deleted since means nothing in the one that has the name now."""


def topic_begin_of(ext_fields: Mapping[str, str]) -> int | None:
    """Return the field's number; None where it is not given or no number."""
    try:
        return parse_long(ext_fields.get(TOPIC_BEGIN_FIELD, ""))
    except ValueError:
        return None


@dataclass(slots=True)
class PullMessageRequestHeader(TopicHeader):
    """PULL_MESSAGE (11): read one queue, or wait for it.

    Attributes:
        queue_offset: the first message wanted.
        sys_flag: PULL_* bits of `kourou.model.sysflag`.
        commit_offset: stored if PULL_COMMIT_OFFSET is set.
        suspend_timeout_millis: how long to hold the request if PULL_SUSPEND is set.
        subscription: the expression if PULL_SUBSCRIPTION is set.
        sub_version: the heartbeat's; a broker that knows an older one refuses.
        max_msg_bytes: Java carries it and reads it nowhere.
        request_source: -1 a client, 0 to 2 kinds of proxies.
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
    # The wire's own spelling.
    proxy_froward_client_id: str | None = None
    lite_topic: str | None = None


@dataclass(slots=True)
class PullMessageResponseHeader:
    """Where to go on; clients read the first four with codes 0, 19, 20 and 21 alike.

    Attributes:
        suggest_which_broker_id: whom to ask next; 0 is the master.
        next_begin_offset: the queue offset to ask for next.
        offset_delta: of static topics.
        forbidden_type: who forbids it, with code 16: 1 broker, 2 group, 3 topic, 4 broadcast,
            5 subscription.
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
    """QUERY_CONSUMER_OFFSET (14): what the group committed for a queue.

    Attributes:
        set_zero_if_not_found: false never answers 0 in place of "not found".
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
    """UPDATE_CONSUMER_OFFSET (15): commit the next message to consume."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


@dataclass(slots=True)
class GetConsumerListByGroupRequestHeader(RpcHeader):
    """GET_CONSUMER_LIST_BY_GROUP (38): the client ids of a group's members; a body answers."""

    consumer_group: str


@dataclass(slots=True)
class SearchOffsetRequestHeader(TopicHeader):
    """SEARCH_OFFSET_BY_TIMESTAMP (29): the queue offset of a time.

    Attributes:
        timestamp: epoch milliseconds of the storing.
        boundary_type: UPPER (in any case) for the last of equal times, else the first.
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
    """GET_MAX_OFFSET (30): the queue offset that the next message will have.

    Attributes:
        committed: only what is visible to consumers; the broker always answers that.
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
    """GET_MIN_OFFSET (31): the oldest queue offset that is still stored."""

    topic: str
    queue_id: Int


@dataclass(slots=True)
class GetMinOffsetResponseHeader:
    """The oldest queue offset."""

    offset: Long


@dataclass(slots=True)
class GetEarliestMsgStoretimeRequestHeader(TopicHeader):
    """GET_EARLIEST_MSG_STORETIME (32): when the oldest message of a queue was stored."""

    topic: str
    queue_id: Int


@dataclass(slots=True)
class GetEarliestMsgStoretimeResponseHeader:
    """Epoch milliseconds; -1 for an empty queue."""

    timestamp: Long


@dataclass(slots=True)
class ViewMessageRequestHeader:
    """VIEW_MESSAGE_BY_ID (33): the record at a physical offset; a body answers."""

    offset: Long
    topic: str | None = None


@dataclass(slots=True)
class HeartbeatRequestHeader(RpcHeader):
    """HEART_BEAT (34): what counts is in the body."""


@dataclass(slots=True)
class HeartbeatResponseHeader:
    """Whether short heartbeats are understood, and whether the subscription changed."""

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
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker to client: share the queues out anew."""

    consumer_group: str


@dataclass(slots=True)
class LockBatchMqRequestHeader(RpcHeader):
    """LOCK_BATCH_MQ (41): what counts is in the body."""


@dataclass(slots=True)
class UnlockBatchMqRequestHeader(RpcHeader):
    """UNLOCK_BATCH_MQ (42): what counts is in the body."""


@dataclass(slots=True)
class QueryMessageRequestHeader(TopicHeader):
    """QUERY_MESSAGE (12): the messages of a key; a body answers.

    Attributes:
        begin_timestamp: epoch milliseconds of the storing, to `end_timestamp`.
        index_type: what `key` is: K a key, U a unique id, T a tag; None is K.
        last_key: where a page of tags goes on.
        is_unique_key: forces U.
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
    """How far the index is: epoch milliseconds, and a physical offset."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long

"""Pulls, and queries of messages by key or id.

Source: PullMessageRequestHeader.java, QueryMessageRequestHeader.java, their response headers, and
ViewMessageRequestHeader.java.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.protocol.codes import RequestCode
from kourou.protocol.fields import Int, Long, TopicHeader
from kourou.protocol.request_spec import MESSAGE_CODEC, MESSAGES_CODEC, RequestSpec


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


@dataclass(slots=True)
class ViewMessageRequestHeader:
    """VIEW_MESSAGE_BY_ID (33): the record at a physical offset; has a response body."""

    offset: Long
    topic: str | None = None


SPECS: Final = (
    RequestSpec(
        RequestCode.PULL_MESSAGE,
        PullMessageRequestHeader,
        PullMessageResponseHeader,
        response_body=MESSAGES_CODEC,
    ),
    RequestSpec(
        RequestCode.LITE_PULL_MESSAGE,
        PullMessageRequestHeader,
        PullMessageResponseHeader,
        response_body=MESSAGES_CODEC,
    ),
    RequestSpec(
        RequestCode.QUERY_MESSAGE,
        QueryMessageRequestHeader,
        QueryMessageResponseHeader,
        response_body=MESSAGES_CODEC,
    ),
    RequestSpec(
        RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader, response_body=MESSAGE_CODEC
    ),
)

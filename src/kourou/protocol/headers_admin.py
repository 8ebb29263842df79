"""Headers for administration: codes 17, 18, 21, 201, 202, 207, 208, 215, 351, 352 and 513.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fields import Int
from kourou.protocol.headers_send import RpcHeader, TopicHeader


@dataclass(slots=True)
class CreateTopicRequestHeader(TopicHeader):
    """UPDATE_AND_CREATE_TOPIC (17), and its variant for static topics (513).

    Attributes:
        default_topic: sent, without effect.
        perm: PERM_* bits of `kourou.model.topic`.
        attributes: changes of attributes, in the form `+key=value,-key`.
    """

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@dataclass(slots=True)
class DeleteTopicRequestHeader(TopicHeader):
    """DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


@dataclass(slots=True)
class GetTopicConfigRequestHeader(TopicHeader):
    """GET_TOPIC_CONFIG (351); has a response body."""

    topic: str


@dataclass(slots=True)
class GetTopicStatsInfoRequestHeader(TopicHeader):
    """GET_TOPIC_STATS_INFO (202); has a response body."""

    topic: str


@dataclass(slots=True)
class GetAllTopicConfigRequestHeader:
    """GET_ALL_TOPIC_CONFIG (21): all topics, or a page from `topic_seq` on; has a response body.

    Attributes:
        data_version: version of the previous pages; if it differs, paging restarts at topic 0.
    """

    topic_seq: Int | None = None
    data_version: str | None = None
    max_topic_num: Int | None = None


@dataclass(slots=True)
class GetAllTopicConfigResponseHeader:
    """The number of topics on all pages."""

    total_topic_num: Int | None = None


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
class GetAllSubscriptionGroupRequestHeader:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all groups or one page; has a response body."""

    group_seq: Int | None = None
    data_version: str | None = None
    max_group_num: Int | None = None


@dataclass(slots=True)
class GetAllSubscriptionGroupResponseHeader:
    """The number of groups on all pages."""

    total_group_num: Int | None = None


@dataclass(slots=True)
class DeleteSubscriptionGroupRequestHeader(RpcHeader):
    """DELETE_SUBSCRIPTIONGROUP (207); with `clean_offset`, the group's offsets are deleted too."""

    group_name: str
    clean_offset: bool = False


@dataclass(slots=True)
class GetSubscriptionGroupConfigRequestHeader(RpcHeader):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352); has a response body."""

    group: str


@dataclass(slots=True)
class CreateTopicListRequestHeader(RpcHeader):
    """UPDATE_AND_CREATE_TOPIC_LIST (18); the topic configs are in the body."""

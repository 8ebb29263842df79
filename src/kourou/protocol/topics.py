"""Topics: one topic config, lists of topics, and the requests that change topics.

Source: TopicConfig.java, TopicList.java, and the header classes of the same names in
org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.fields import Int, RpcHeader, TopicHeader
from kourou.protocol.json_records import (
    encode_record,
    list_functions,
    record_functions,
)
from kourou.protocol.request_spec import BodyCodec, RequestSpec, record_codec


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
class CreateTopicListRequestHeader(RpcHeader):
    """UPDATE_AND_CREATE_TOPIC_LIST (18); the topic configs are in the body."""


decode_topic_config, encode_topic_config = record_functions(TopicConfig, "topic config")

decode_topic_config_list, encode_topic_config_list = list_functions(
    "topicConfigList", TopicConfig, "topic list"
)


@dataclass(frozen=True, slots=True)
class TopicList:
    """Names of topics; `broker_addr` is the address of the broker in a response to 343."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


def encode_topic_list(topics: Sequence[str], *, broker_addr: str | None = None) -> bytes:
    """Return the body of a TopicList: response body of 206, 224, 304 and others."""
    return encode_record(TopicList(tuple(topics), broker_addr))


decode_topic_list = list_functions("topicList", str, "topic list")[0]


TOPIC_LIST_CODEC: Final = record_codec(TopicList)

SPECS: Final = (
    RequestSpec(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicRequestHeader),
    RequestSpec(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        CreateTopicListRequestHeader,
        request_body=BodyCodec(decode_topic_config_list, encode_topic_config_list),
        body_bytes_max=32 * 1024,
    ),
    RequestSpec(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader),
    RequestSpec(
        RequestCode.GET_TOPIC_CONFIG,
        GetTopicConfigRequestHeader,
        response_body=BodyCodec(decode_topic_config, encode_topic_config),
    ),
    RequestSpec(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, response_body=TOPIC_LIST_CODEC),
    RequestSpec(RequestCode.CLEAN_UNUSED_TOPIC),
)

"""Topics: one topic config, lists of topics, and the requests that change topics.

Source: TopicConfig.java, TopicList.java, and the header classes of the same names in
org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kourou.errors import MalformedBodyError
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import Int, RpcHeader, TopicHeader
from kourou.protocol.json_values import (
    Json,
    as_object,
    as_text,
    get_boolean,
    get_integer,
    get_list,
    get_text,
    get_text_map,
    get_texts,
)
from kourou.protocol.request_spec import BodyCodec, RequestSpec, record_codec

_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


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


def topic_config_to_json(config: TopicConfig) -> dict[str, object]:
    """Return the JSON object of a topic config."""
    return {
        "attributes": dict(config.attributes),
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queue_nums,
        "topicFilterType": config.topic_filter_type,
        "topicName": config.name,
        "topicSysFlag": config.topic_sys_flag,
        "writeQueueNums": config.write_queue_nums,
    }


def topic_config_from_json(data: Json) -> TopicConfig:
    """Return the topic config of a JSON object; missing members take TopicConfig's defaults.

    Raises:
        MalformedBodyError: the topic name is missing, or a member has the wrong type.
    """
    name = get_text(data, "topicName")
    if not name:
        raise MalformedBodyError("topicName is missing")
    default = TopicConfig(name)
    return TopicConfig(
        name,
        get_integer(data, "readQueueNums", default.read_queue_nums),
        get_integer(data, "writeQueueNums", default.write_queue_nums),
        get_integer(data, "perm", default.perm),
        _filter_type(data.get("topicFilterType")),
        get_integer(data, "topicSysFlag"),
        get_boolean(data, "order"),
        get_text_map(data, "attributes"),
    )


def _filter_type(value: object) -> str:
    """Return the filter type; like fastjson, accept the ordinal too."""
    if value is None:
        return _FILTER_TYPES[0]
    if type(value) is int and 0 <= value < len(_FILTER_TYPES):
        return _FILTER_TYPES[value]
    return as_text(value, "topicFilterType")


def encode_topic_config(config: TopicConfig) -> bytes:
    """Return the response body of GET_TOPIC_CONFIG (351)."""
    return dumps(topic_config_to_json(config))


def decode_topic_config(body: bytes) -> TopicConfig:
    """Return the topic config decoded from a body.

    Raises:
        MalformedBodyError: as for `topic_config_from_json`, or the body is not a JSON object.
    """
    return topic_config_from_json(as_object(loads(body), "topic config"))


def encode_topic_config_list(configs: Sequence[TopicConfig]) -> bytes:
    """Return the body of UPDATE_AND_CREATE_TOPIC_LIST (18)."""
    return dumps({"topicConfigList": [topic_config_to_json(config) for config in configs]})


def decode_topic_config_list(body: bytes) -> list[TopicConfig]:
    """Return the topic configs decoded from a body.

    Raises:
        MalformedBodyError: as for `topic_config_from_json`, or the body is not a JSON object.
    """
    configs = get_list(as_object(loads(body), "topic list"), "topicConfigList")
    return [topic_config_from_json(as_object(config, "topicConfigList")) for config in configs]


@dataclass(frozen=True, slots=True)
class TopicList:
    """Names of topics; `broker_addr` is the address of the broker in a response to 343."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


def encode_topic_list(topics: Sequence[str], *, broker_addr: str | None = None) -> bytes:
    """Return the body of a TopicList: response body of 206, 224, 304 and others."""
    return dumps({"brokerAddr": broker_addr, "topicList": list(topics)})


def decode_topic_list(body: bytes) -> list[str]:
    """Return the topics decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object with an array of texts.
    """
    return get_texts(as_object(loads(body), "topic list"), "topicList")


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

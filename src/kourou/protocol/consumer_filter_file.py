"""Codec of config/consumerFilter.json: the property filters of consumer groups, in Java's format.

    filterDataByTopic  topic -> {groupFilterData: group -> filter, topic}

Source: ConsumerFilterManager.java, ConsumerFilterData.java, BloomFilterData.java, apache/rocketmq
5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.json_values import (
    Json,
    as_integer,
    as_object,
    get_integer,
    get_list,
    get_object,
    get_text,
)

_BY_TOPIC: Final = "filterDataByTopic"
_BY_GROUP: Final = "groupFilterData"


class StoredConsumerFilter(NamedTuple):
    """One filter as stored in the file.

    Attributes:
        born_at_ms: creation time in epoch milliseconds.
        dead_at_ms: time in epoch milliseconds since which no member uses it; 0 while one does.
        bit_count: size of the bit maps for which it was created, in bits; 0 if the file lacks it.
        positions: its bit positions in these bit maps.
    """

    group: str
    topic: str
    expression: str
    expression_type: str
    born_at_ms: int
    dead_at_ms: int
    client_version: int
    bit_count: int
    positions: tuple[int, ...]


def encode_consumer_filters(filters: Iterable[StoredConsumerFilter]) -> bytes:
    """Return the text of the file."""
    topics: dict[str, Json] = {}
    for one in filters:
        topic = topics.setdefault(one.topic, {_BY_GROUP: {}, "topic": one.topic})
        topic[_BY_GROUP][one.group] = consumer_filter_to_json(one)
    return dumps({_BY_TOPIC: topics}, pretty=True)


def consumer_filter_to_json(one: StoredConsumerFilter) -> Json:
    """Return the JSON object of one filter, as in the file and in responses to admin requests."""
    return {
        "bloomFilterData": {"bitNum": one.bit_count, "bitPos": list(one.positions)},
        "bornTime": one.born_at_ms,
        "clientVersion": one.client_version,
        "consumerGroup": one.group,
        "dead": one.dead_at_ms >= one.born_at_ms,
        "deadTime": one.dead_at_ms,
        "expression": one.expression,
        "expressionType": one.expression_type,
        "topic": one.topic,
    }


def decode_consumer_filters(text: bytes) -> list[StoredConsumerFilter]:
    """Return the filters in the text of the file.

    Raises:
        MalformedBodyError: the text is not a JSON object, or a member has the wrong type.
    """
    content = as_object(loads(text), "consumer filters")
    return [
        _filter(topic, group, as_object(one, _BY_GROUP))
        for topic, of_topic in get_object(content, _BY_TOPIC).items()
        for group, one in get_object(as_object(of_topic, _BY_TOPIC), _BY_GROUP).items()
    ]


def _filter(topic: str, group: str, one: Json) -> StoredConsumerFilter:
    bloom = get_object(one, "bloomFilterData")
    return StoredConsumerFilter(
        group,
        topic,
        get_text(one, "expression"),
        get_text(one, "expressionType"),
        get_integer(one, "bornTime"),
        get_integer(one, "deadTime"),
        get_integer(one, "clientVersion"),
        get_integer(bloom, "bitNum"),
        tuple(as_integer(position, "bitPos") for position in get_list(bloom, "bitPos")),
    )

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
    for consumer_filter in filters:
        topic = topics.setdefault(
            consumer_filter.topic, {_BY_GROUP: {}, "topic": consumer_filter.topic}
        )
        topic[_BY_GROUP][consumer_filter.group] = consumer_filter_to_json(consumer_filter)
    return dumps({_BY_TOPIC: topics}, pretty=True)


def consumer_filter_to_json(consumer_filter: StoredConsumerFilter) -> Json:
    """Return the JSON object of one filter, as in the file and in responses to admin requests."""
    return {
        "bloomFilterData": {
            "bitNum": consumer_filter.bit_count,
            "bitPos": list(consumer_filter.positions),
        },
        "bornTime": consumer_filter.born_at_ms,
        "clientVersion": consumer_filter.client_version,
        "consumerGroup": consumer_filter.group,
        "dead": consumer_filter.dead_at_ms >= consumer_filter.born_at_ms,
        "deadTime": consumer_filter.dead_at_ms,
        "expression": consumer_filter.expression,
        "expressionType": consumer_filter.expression_type,
        "topic": consumer_filter.topic,
    }


def decode_consumer_filters(text: bytes) -> list[StoredConsumerFilter]:
    """Return the filters in the text of the file.

    Raises:
        MalformedBodyError: the text is not a JSON object, or a member has the wrong type.
    """
    content = as_object(loads(text), "consumer filters")
    return [
        _filter(topic, group, as_object(value, _BY_GROUP))
        for topic, of_topic in get_object(content, _BY_TOPIC).items()
        for group, value in get_object(as_object(of_topic, _BY_TOPIC), _BY_GROUP).items()
    ]


def _filter(topic: str, group: str, data: Json) -> StoredConsumerFilter:
    bloom = get_object(data, "bloomFilterData")
    return StoredConsumerFilter(
        group,
        topic,
        get_text(data, "expression"),
        get_text(data, "expressionType"),
        get_integer(data, "bornTime"),
        get_integer(data, "deadTime"),
        get_integer(data, "clientVersion"),
        get_integer(bloom, "bitNum"),
        tuple(as_integer(position, "bitPos") for position in get_list(bloom, "bitPos")),
    )

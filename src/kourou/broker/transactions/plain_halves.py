"""Half messages as bytes, for the fast paths of sends and commits.

A plain half message is one whose record the fast path of sends has encoded. The properties of its
committed message end before REAL_TOPIC and REAL_QID, which are last. So a commit, like the send,
decodes neither properties nor body: see `kourou.protocol.record.encode.encode_committed`.

Source: see `kourou.broker.transactions.half_messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from kourou.broker.transactions.half_messages import INTERPRETED
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.topic import TRANS_HALF_TOPIC, TopicConfig
from kourou.protocol.record.layout import topic_field

HALF_TOPIC_BYTES: Final = topic_field(TRANS_HALF_TOPIC.encode())
"""Size and name of the topic as encoded in the record of a half message."""
HALF_KEY: Final = (TRANS_HALF_TOPIC.encode(), 0)
"""Key of the half messages' queue in `SealedRun.queues`."""
TRANSACTION_ID: Final = f"{names.TRANSACTION_ID}\x01"
MORE_BYTES_MAX: Final = len(HALF_TOPIC_BYTES) + len(TRANSACTION_ID) + 32 + 256
"""Upper bound of the bytes that a half message's record has more than another message's."""


class HalfTarget(NamedTuple):
    """Destination queue of half messages.

    Attributes:
        config: topic config it was built from; void once the topic has another config object.
        topic_bytes: size and name of the topic as encoded in records.
        queue_key: key of the queue in `SealedRun.queues`.
        properties: the last properties of the half messages, which hold the destination.
        more_bytes: size of a committed record minus that of its half record; negative.
    """

    config: TopicConfig
    topic: str
    topic_bytes: bytes
    queue_id: int
    queue_key: tuple[bytes, int]
    properties: bytes
    more_bytes: int


@dataclass(slots=True, eq=False)
class PlainHalf:
    """A plain half message.

    Attributes:
        group: producer group that may end it.
        properties_size: size of the committed message's properties, without the checksum.
        code, tags, unique_id, keys: values for the queue entry and the index.
    """

    target: HalfTarget
    group: str
    properties_size: int
    code: int
    tags: str
    unique_id: str
    keys: str


def half_target(config: TopicConfig, queue_id: int) -> HalfTarget:
    """Return the target for a queue; the topic's name must fit into a record of version 1."""
    topic = config.name
    encoded = topic.encode()
    topic_bytes = topic_field(encoded)
    properties = encode_properties({names.REAL_TOPIC: topic, names.REAL_QID: str(queue_id)})
    more_bytes = len(topic_bytes) - len(HALF_TOPIC_BYTES) - len(properties)
    return HalfTarget(
        config, topic, topic_bytes, queue_id, (encoded, queue_id), properties, more_bytes
    )


def plain_group(properties: Mapping[str, str]) -> str:
    """Return the producer group of a half message; "" if the general path must serve it.

    Args:
        properties: properties without unique id and keys.
    """
    is_plain = properties.keys().isdisjoint(INTERPRETED)
    return properties.get(names.PGROUP, "") if is_plain else ""

"""Half messages as bytes, for the fast paths of sends and commits.

A plain half message is one whose record the fast path of sends has encoded. The record of its
committed message differs from it only in known parts:

    head        sizes, queue and positions, times, the commit bits; the body's checksum stays
    body        unchanged
    topic       the destination topic
    properties  cut off before REAL_TOPIC and REAL_QID, which are last

So a commit, like the send, decodes neither properties nor body.

Source: see `kourou.broker.transactions.half_messages`, `kourou.protocol.record.layout`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from kourou.broker.transactions.half_messages import RESERVED_PROPERTIES
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.sysflag import TRANSACTION_COMMIT
from kourou.model.topic import TRANS_HALF_TOPIC, TopicConfig
from kourou.protocol.hashing import crc32
from kourou.protocol.record.layout import HEAD_V4, SEAL_BYTES, encode_seal

HALF_TOPIC_BYTES: Final = bytes((len(TRANS_HALF_TOPIC),)) + TRANS_HALF_TOPIC.encode()
"""Size and name of the topic as encoded in the record of a half message."""
HALF_KEY: Final = (TRANS_HALF_TOPIC.encode(), 0)
"""Key of the half messages' queue in `SealedRun.queues`."""
TRANSACTION_ID: Final = f"{names.TRANSACTION_ID}\x01"
MORE_BYTES_MAX: Final = len(HALF_TOPIC_BYTES) + len(TRANSACTION_ID) + 32 + 256
"""Upper bound of the bytes that a half message's record has more than another message's."""
_SET_BY_BROKER: Final = frozenset({names.TRANSACTION_ID, names.REAL_TOPIC, names.REAL_QID})
"""Properties that only the broker sets."""
END_PROPERTIES: Final = frozenset(
    {names.CHECK_IMMUNITY_TIME_IN_SECONDS, names.CRC32, *RESERVED_PROPERTIES}
)
"""Properties that affect the end of a half message."""
_HEAD_BYTES: Final = HEAD_V4.size
_UNPACK_HEAD: Final = HEAD_V4.unpack_from
_PACK_HEAD: Final = HEAD_V4.pack


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
    topic_bytes = bytes((len(encoded),)) + encoded
    properties = encode_properties({names.REAL_TOPIC: topic, names.REAL_QID: str(queue_id)})
    more_bytes = len(topic_bytes) - len(HALF_TOPIC_BYTES) - len(properties)
    return HalfTarget(
        config, topic, topic_bytes, queue_id, (encoded, queue_id), properties, more_bytes
    )


def plain_group(properties: Mapping[str, str]) -> str:
    """Return the producer group of a half message; "" if the general path must serve it.

    Args:
        properties: properties without unique id and keys; they include TRAN_MSG.
    """
    is_plain = (
        properties[names.TRAN_MSG].lower() == "true"
        and properties.keys().isdisjoint(_SET_BY_BROKER)
        and properties.keys().isdisjoint(END_PROPERTIES)
    )
    return properties.get(names.PGROUP, "") if is_plain else ""


def committed_record(
    record: bytes, half: PlainHalf, prepared_offset: int, position_fields: tuple[int, int, int]
) -> tuple[bytes, bytes]:
    """Return the committed message's record in two parts: all but its seal, and the seal.

    Args:
        record: record of the half message; the end of its properties may be missing.
        half: data of the half message.
        prepared_offset: log position of the half message.
        position_fields: log position, queue offset and store time of the committed message.
    """
    (
        size, magic, body_crc, _, flag, _, _, sys_flag, born_at_ms, born_address, born_port, _,
        store_address, store_port, reconsume_times, _, body_size,
    ) = _UNPACK_HEAD(record)  # fmt: skip
    position, queue_offset, store_at_ms = position_fields
    target, properties_size = half.target, half.properties_size
    body_end = _HEAD_BYTES + body_size
    properties_at = body_end + len(HALF_TOPIC_BYTES) + 2
    sealed = b"".join((
        _PACK_HEAD(
            size + target.more_bytes, magic, body_crc, target.queue_id, flag, queue_offset,
            position, sys_flag | TRANSACTION_COMMIT, born_at_ms, born_address, born_port,
            store_at_ms, store_address, store_port, reconsume_times, prepared_offset, body_size,
        ),
        memoryview(record)[_HEAD_BYTES:body_end],
        target.topic_bytes,
        (properties_size + SEAL_BYTES).to_bytes(2, "big"),
        record[properties_at : properties_at + properties_size],
    ))  # fmt: skip
    return sealed, encode_seal(crc32(sealed))

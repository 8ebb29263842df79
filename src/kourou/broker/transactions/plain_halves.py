"""Half messages as the paths of plain sends and plain commits know them: bytes of records.

A plain half message is one whose record its maker has encoded, and of which the record that is
stored when it is committed differs in a few places that are known beforehand:

    head        sizes, queue and places, times, the commit bits; the checksum of the body stays
    body        as it is
    topic       its own in place of that of half messages
    properties  up to where REAL_TOPIC and REAL_QID begin, which stand at their end

So a commit takes a message apart no more than its send did.

Source: see `kourou.broker.transactions.half_messages`, `kourou.protocol.message_layout`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from kourou.broker.transactions.half_messages import BROKERS_OWN
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.sysflag import TRANSACTION_COMMIT
from kourou.model.topic import TRANS_HALF_TOPIC, TopicConfig
from kourou.protocol.hashing import crc32
from kourou.protocol.message_layout import HEAD_V4
from kourou.store.log.record_seal import SEAL_BYTES, encode_seal

HALF_PART: Final = bytes((len(TRANS_HALF_TOPIC),)) + TRANS_HALF_TOPIC.encode()
"""Topic size and topic, as the record of a half message has them."""
HALF_KEY: Final = (TRANS_HALF_TOPIC.encode(), 0)
"""The queue of half messages in `SealedRun.queues`."""
TRANSACTION_ID: Final = f"{names.TRANSACTION_ID}\x01"
MORE_BYTES_MAX: Final = len(HALF_PART) + len(TRANSACTION_ID) + 32 + 256
"""Bytes that the record of a half message has more than that of another message, and some."""
_OWN: Final = frozenset({names.TRANSACTION_ID, names.REAL_TOPIC, names.REAL_QID})
"""Properties that the broker sets."""
LOOKED_AT: Final = frozenset({names.CHECK_IMMUNITY_TIME_IN_SECONDS, names.CRC32, *BROKERS_OWN})
"""Properties that count when a half message ends."""
_HEAD_BYTES: Final = HEAD_V4.size
_UNPACK_HEAD: Final = HEAD_V4.unpack_from
_PACK_HEAD: Final = HEAD_V4.pack


class HalfTarget(NamedTuple):
    """The queue that half messages are for.

    Attributes:
        config: the topic as it was then; another object, and the target may be void.
        part: topic size and topic, as records have them.
        queue_key: the queue in `SealedRun.queues`.
        properties: the end of the half messages' properties, which say where they go.
        more_bytes: bytes that a message's record has more than its half message's: less than 0.
    """

    config: TopicConfig
    topic: str
    part: bytes
    queue_id: int
    queue_key: tuple[bytes, int]
    properties: bytes
    more_bytes: int


@dataclass(slots=True, eq=False)
class PlainHalf:
    """A plain half message.

    Attributes:
        group: who may end it.
        properties_size: of those that its message has when it is committed, without checksum.
        code, tags, unique_id, keys: what queue and index have of it.
    """

    target: HalfTarget
    group: str
    properties_size: int
    code: int
    tags: str
    unique_id: str
    keys: str


def half_target(config: TopicConfig, queue_id: int) -> HalfTarget:
    """Return the target of half messages for a topic, whose name a record of version 1 can hold."""
    topic = config.name
    encoded = topic.encode()
    part = bytes((len(encoded),)) + encoded
    properties = encode_properties({names.REAL_TOPIC: topic, names.REAL_QID: str(queue_id)})
    more_bytes = len(part) - len(HALF_PART) - len(properties)
    return HalfTarget(config, topic, part, queue_id, (encoded, queue_id), properties, more_bytes)


def plain_group(properties: Mapping[str, str]) -> str:
    """Return who may end a half message; "" if something about it or its end is unusual.

    Args:
        properties: those of a message that says whether it is one, without id and keys.
    """
    is_plain = (
        properties[names.TRAN_MSG].lower() == "true"
        and properties.keys().isdisjoint(_OWN)
        and properties.keys().isdisjoint(LOOKED_AT)
    )
    return properties.get(names.PGROUP, "") if is_plain else ""


def committed_record(
    record: bytes, half: PlainHalf, prepared_at: int, place: tuple[int, int, int]
) -> tuple[bytes, bytes]:
    """Return the record of a plain half message's message, but for its checksum, and that.

    Args:
        record: of the half message; the end of its properties may be missing.
        half: what is known of it.
        prepared_at: where it lies in the log.
        place: where the message is to lie, its queue offset, and its store time.
    """
    (
        size, magic, body_crc, _, flag, _, _, sys_flag, born_at_ms, born_address, born_port, _,
        store_address, store_port, reconsume_times, _, body_size,
    ) = _UNPACK_HEAD(record)  # fmt: skip
    position, queue_offset, store_at_ms = place
    target, properties_size = half.target, half.properties_size
    body_end = _HEAD_BYTES + body_size
    properties_at = body_end + len(HALF_PART) + 2
    sealed = b"".join((
        _PACK_HEAD(
            size + target.more_bytes, magic, body_crc, target.queue_id, flag, queue_offset,
            position, sys_flag | TRANSACTION_COMMIT, born_at_ms, born_address, born_port,
            store_at_ms, store_address, store_port, reconsume_times, prepared_at, body_size,
        ),
        memoryview(record)[_HEAD_BYTES:body_end],
        target.part,
        (properties_size + SEAL_BYTES).to_bytes(2, "big"),
        record[properties_at : properties_at + properties_size],
    ))  # fmt: skip
    return sealed, encode_seal(crc32(sealed))

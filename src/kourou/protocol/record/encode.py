"""Encoders of records: drafts, sealed drafts, committed half messages, and batches by column.

The fast path of sends packs its records in its own loop, with the constants of this module: one
call per message less. All encoders produce the same bytes for the same message.

Source: MessageExtEncoder.java, CommitLog.asyncPutMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from kourou.errors import InvalidMessageError
from kourou.model.host import Host, pack_address
from kourou.model.properties import (
    CRC32,
    INNER_MULTI_QUEUE_OFFSET,
    PROPERTIES_SIZE_MAX,
    decode_properties,
    encode_properties,
)
from kourou.model.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_COMMIT
from kourou.protocol.hashing import crc32, crc32_all, unmasked_crc32
from kourou.protocol.record.layout import (
    CRC_MASK,
    FIXED_BYTES,
    HEAD_BYTES,
    HEAD_FIELDS,
    HEAD_V4,
    HEADS,
    HOST_FLAGS,
    MAGIC_V1,
    MAGIC_V2,
    PAIR_END,
    PROPERTIES_SIZE,
    PROPERTIES_SIZE_BYTES,
    SEAL,
    SEAL_BACKWARDS,
    SEAL_BYTES,
    TAIL_BYTES_V1,
    TOPIC_SIZE_V1_MAX,
    TOPIC_SIZE_V2,
    TOPIC_SIZE_V2_MAX,
    RecordHeader,
    encode_seal,
)

_SEAL_NAME: Final = CRC32.encode()
_LIGHT_OFFSETS: Final = INNER_MULTI_QUEUE_OFFSET.encode()

SEALED_BYTES: Final = FIXED_BYTES + SEAL_BYTES
"""Bytes of a sealed record with two IPv4 hosts without body, topic field and other properties."""
pack_head: Final = HEAD_V4.pack
"""Packs a head with two IPv4 hosts from all of `HEAD_FIELDS`."""
pack_properties_size: Final = PROPERTIES_SIZE.pack
TAIL: Final = b"%b%b%b%b"
"""A format of the bytes between body and seal: topic field, `pack_properties_size` of the
properties and the seal, and the properties in two parts."""
ENDING: Final = SEAL
"""A format of the bytes after the tail, with the seal's digits reversed; see `encode_seal`."""


@dataclass(slots=True)
class RecordDraft:
    """A message to be stored; the store assigns its offsets and its store time.

    Attributes:
        topic: encoded as UTF-8.
        sys_flag: the encoder sets BORN_HOST_V6 and STORE_HOST_V6 according to the hosts.
        body: stored unchanged, compressed or not.
        properties: the property text.
    """

    topic: bytes
    queue_id: int
    flag: int
    sys_flag: int
    born_at_ms: int
    born_host: Host
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: bytes


def draft_from_record(
    record: bytes, header: RecordHeader, topic: str, queue_id: int, properties: bytes
) -> RecordDraft:
    """Return a draft that stores a record again, in another queue and with other properties.

    The other fields are copied, except that `prepared_transaction_offset` is 0.

    Args:
        record: bytes that begin with the record.
        header: its fields.
        topic: the destination.
        queue_id: the destination's queue.
        properties: the new property text.
    """
    return RecordDraft(
        topic=topic.encode(),
        queue_id=queue_id,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_at_ms=header.born_at_ms,
        born_host=header.born_host,
        store_host=header.store_host,
        reconsume_times=header.reconsume_times,
        prepared_transaction_offset=0,
        body=header.body(record),
        properties=properties,
    )


def record_size(draft: RecordDraft) -> int:
    """Return the size of the draft's record in bytes.

    Raises:
        InvalidMessageError: a host is not an IP address.
    """
    size = (
        HEADS[_host_flags(draft)].size
        + TAIL_BYTES_V1
        + len(draft.body)
        + len(draft.topic)
        + len(draft.properties)
    )
    return size if len(draft.topic) <= TOPIC_SIZE_V1_MAX else size + 1


def sealed_size(draft: RecordDraft) -> int:
    """Return the size of the draft's record, with its seal if the properties have room for it."""
    seal_bytes = len(_separator(draft.properties)) + SEAL_BYTES
    fits = len(draft.properties) + seal_bytes <= PROPERTIES_SIZE_MAX
    return record_size(draft) + seal_bytes if fits else record_size(draft)


def encode_record(
    draft: RecordDraft, queue_offset: int, physical_offset: int, store_at_ms: int
) -> bytes:
    """Return the draft's record: v1, or v2 if the topic has more than 127 bytes, as in Java.

    Raises:
        InvalidMessageError: the topic or the properties have more than 32767 bytes, a number does
            not fit its field, or a host is not an IP address.
    """
    return _encode(draft, queue_offset, physical_offset, store_at_ms, draft.properties, 0)


def encode_sealed(
    draft: RecordDraft, queue_offset: int, physical_offset: int, store_at_ms: int
) -> bytes:
    """Return the draft's record with its seal; takes about 1 us more than `encode_record`.

    If the properties leave no room for the seal, the record has none; such messages come from a
    store without seals.

    Raises:
        InvalidMessageError: as `encode_record`.
    """
    properties = draft.properties + _separator(draft.properties)
    if len(properties) + SEAL_BYTES > PROPERTIES_SIZE_MAX:
        return encode_record(draft, queue_offset, physical_offset, store_at_ms)
    record = _encode(draft, queue_offset, physical_offset, store_at_ms, properties, SEAL_BYTES)
    return record + encode_seal(crc32(record))


def _separator(properties: bytes) -> bytes:
    return b"" if not properties or properties.endswith(PAIR_END) else PAIR_END


def _encode(
    draft: RecordDraft,
    queue_offset: int,
    physical_offset: int,
    store_at_ms: int,
    properties: bytes,
    seal_bytes: int,
) -> bytes:
    """Return the record with these properties, without the seal that its sizes include."""
    topic, body = draft.topic, draft.body
    if len(topic) <= TOPIC_SIZE_V1_MAX:
        magic, topic_size = MAGIC_V1, bytes((len(topic),))
    elif len(topic) <= TOPIC_SIZE_V2_MAX:
        magic, topic_size = MAGIC_V2, TOPIC_SIZE_V2.pack(len(topic))
    else:
        raise InvalidMessageError(f"topic of {len(topic)} bytes, at most {TOPIC_SIZE_V2_MAX}")
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise InvalidMessageError(
            f"properties of {len(properties)} bytes, at most {PROPERTIES_SIZE_MAX}"
        )
    properties_size = PROPERTIES_SIZE.pack(len(properties) + seal_bytes)
    tail = b"".join((topic_size, topic, properties_size, properties))
    host_flags = _host_flags(draft)
    head = HEADS[host_flags]
    try:
        packed = head.pack(
            head.size + len(body) + len(tail) + seal_bytes,
            magic,
            crc32(body),
            draft.queue_id,
            draft.flag,
            queue_offset,
            physical_offset,
            draft.sys_flag & ~HOST_FLAGS | host_flags,
            draft.born_at_ms,
            pack_address(draft.born_host[0]),
            draft.born_host[1],
            store_at_ms,
            pack_address(draft.store_host[0]),
            draft.store_host[1],
            draft.reconsume_times,
            draft.prepared_transaction_offset,
            len(body),
        )
    except struct.error as error:
        raise InvalidMessageError(f"a number does not fit the record: {error}") from None
    return b"".join((packed, body, tail))


def _host_flags(draft: RecordDraft) -> int:
    flags = BORN_HOST_V6 if len(pack_address(draft.born_host[0])) > 4 else 0
    if len(pack_address(draft.store_host[0])) > 4:
        flags |= STORE_HOST_V6
    return flags


def unsealed(draft: RecordDraft) -> RecordDraft:
    """Return the draft without the properties that only a store sets.

    A draft with properties copied from a stored record has them: the seal, and the offsets in light
    queues.
    """
    if _SEAL_NAME not in draft.properties and _LIGHT_OFFSETS not in draft.properties:
        return draft
    properties = decode_properties(draft.properties)
    properties.pop(CRC32, None)
    properties.pop(INNER_MULTI_QUEUE_OFFSET, None)
    return replace(draft, properties=encode_properties(properties))


def encode_committed(
    record: bytes,
    half_topic: bytes,
    queue: tuple[bytes, int],
    properties_size: int,
    position_fields: tuple[int, int, int, int],
) -> tuple[bytes, bytes]:
    """Return the record of a committed half message in two parts: all but its seal, and the seal.

    It differs from the half message's record in known parts only, so neither properties nor body
    are decoded: sizes, queue, positions, store time and the commit bits of the head; the topic; and
    the properties, which are cut off before those that only the half message has.

    Args:
        record: record of the half message, as the fast path of sends encodes it; the end of its
            properties may be missing.
        half_topic: topic field of the half message.
        queue: topic field and queue id of the committed message.
        properties_size: size of its properties, without the seal.
        position_fields: its log position, queue offset and store time, and the log position of the
            half message.
    """
    (
        _, magic, body_crc, _, flag, _, _, sys_flag, born_at_ms, born_address, born_port, _,
        store_address, store_port, reconsume_times, _, body_size,
    ) = HEAD_V4.unpack_from(record)  # fmt: skip
    position, queue_offset, store_at_ms, prepared_offset = position_fields
    topic, queue_id = queue
    body_end = HEAD_BYTES + body_size
    properties_at = body_end + len(half_topic) + PROPERTIES_SIZE_BYTES
    total_size = SEALED_BYTES + body_size + len(topic) + properties_size
    sealed = b"".join((
        pack_head(
            total_size, magic, body_crc, queue_id, flag, queue_offset,
            position, sys_flag | TRANSACTION_COMMIT, born_at_ms, born_address, born_port,
            store_at_ms, store_address, store_port, reconsume_times, prepared_offset, body_size,
        ),
        memoryview(record)[HEAD_BYTES:body_end],
        topic,
        sealed_properties_size(properties_size),
        record[properties_at : properties_at + properties_size],
    ))  # fmt: skip
    return sealed, encode_seal(crc32(sealed))


def plain_size(topic: bytes, body: bytes, properties: bytes) -> int:
    """Return the size of the record that `encode_plain` returns."""
    return SEALED_BYTES + len(topic) + len(body) + len(properties)


def encode_plain(
    queue: tuple[bytes, int],
    body: bytes,
    properties: bytes,
    hosts: tuple[int, bytes, int, int, bytes, int],
    place: tuple[int, int],
) -> tuple[bytes, bytes]:
    """Return the record of a message without flags in two parts: all but its seal, and the seal.

    The same bytes as `encode_sealed` returns, in half of the time.

    Args:
        queue: topic field and queue id.
        body: of the message.
        properties: its property text, which ends in `PAIR_END`, without the seal.
        hosts: born time in epoch ms, and the producer's IPv4 address and port; store time, and the
            broker's address and port.
        place: log position and queue offset.
    """
    topic, queue_id = queue
    position, queue_offset = place
    body_size, properties_size = len(body), len(properties) + SEAL_BYTES
    total_size = FIXED_BYTES + body_size + len(topic) + properties_size
    sealed = b"".join((
        pack_head(
            total_size, MAGIC_V1, unmasked_crc32(body) & CRC_MASK, queue_id, 0, queue_offset,
            position, 0, *hosts, 0, 0, body_size,
        ),
        body,
        topic,
        pack_properties_size(properties_size),
        properties,
    ))  # fmt: skip
    return sealed, encode_seal(unmasked_crc32(sealed) & CRC_MASK)


# Batches

_FORMATS: Final = list(HEAD_FIELDS.values())
_SHARED_AT: Final = list(HEAD_FIELDS).index("sys_flag")
_SHARED: Final = struct.Struct(">" + "".join(_FORMATS[_SHARED_AT:-1]))
pack_shared: Final = _SHARED.pack
"""Packs the fields that the records of a batch share: those from the sys flag to the prepared
transaction offset, in the order of `HEAD_FIELDS`."""
_BATCH_HEAD: Final = (*_FORMATS[:_SHARED_AT], f"{_SHARED.size}s", _FORMATS[-1])
"""Formats of a head, with the shared fields as one byte string."""
_HEAD_COLUMNS: Final = len(_BATCH_HEAD)
_CACHED_COUNT_MAX: Final = 256
"""The layout of more records is compiled on each use, which takes as long as the use itself."""
_CACHED_MAX: Final = 64
"""Cached layouts; one takes at most 100 KB, or 12 KB for 32 records."""


class _BatchLayout(NamedTuple):
    """Compiled functions that pack and cut the columns of a given number of records."""

    pack_heads: Callable[..., bytes]
    cut_heads: Callable[[bytes], tuple[Any, ...]]
    cut_seals: Callable[[bytes], tuple[Any, ...]]


def _batch_layout(count: int) -> _BatchLayout:
    return _BatchLayout(
        struct.Struct(">" + "".join(_BATCH_HEAD) * count).pack,
        struct.Struct(f"{HEAD_BYTES}s" * count).unpack,
        struct.Struct(f"{SEAL_BYTES}s" * count).unpack,
    )


_cached_batch_layout = lru_cache(_CACHED_MAX)(_batch_layout)


class RecordColumns(NamedTuple):
    """The messages of a batch, column by column; all columns are in the order of the batch.

    Attributes:
        sizes: record sizes in bytes, seals included.
        tails: columns of the bytes between body and seal: together the topic field, the
            `sealed_properties_size` and the properties of each record.
    """

    sizes: Sequence[int]
    body_sizes: Sequence[int]
    flags: Sequence[int]
    bodies: Sequence[bytes]
    tails: tuple[Iterable[bytes], ...]


def sealed_properties_size(size: int) -> bytes:
    """Return the field before the properties of a sealed record; `size` is without the seal."""
    return PROPERTIES_SIZE.pack(size + SEAL_BYTES)


def encode_batch_records(
    columns: RecordColumns,
    positions: Sequence[int],
    queue_id: int,
    first_offset: int,
    shared: bytes,
) -> bytes:
    """Return the sealed records of a batch, one after another.

    Each step is one call for all messages. One call per step and message took twice the time.

    Args:
        columns: the messages.
        positions: log position at which each record begins.
        queue_id: the queue of all of them.
        first_offset: queue offset of the first one.
        shared: the shared bytes of the heads, packed by `pack_shared`.
    """
    bodies = columns.bodies
    count = len(bodies)
    heads = [0, MAGIC_V1, 0, queue_id, 0, 0, 0, shared, 0] * count
    heads[::_HEAD_COLUMNS] = columns.sizes
    heads[2::_HEAD_COLUMNS] = crc32_all(bodies)
    heads[4::_HEAD_COLUMNS] = columns.flags
    heads[5::_HEAD_COLUMNS] = range(first_offset, first_offset + count)
    heads[6::_HEAD_COLUMNS] = positions
    heads[8::_HEAD_COLUMNS] = columns.body_sizes
    layout = _cached_batch_layout(count) if count <= _CACHED_COUNT_MAX else _batch_layout(count)
    cut = layout.cut_heads(layout.pack_heads(*heads))
    parts = [b""] * (2 * count)
    parts[::2] = records = list(map(b"".join, zip(cut, bodies, *columns.tails, strict=False)))
    checksums = crc32_all(records)
    checksums.reverse()
    # One `%` formats all seals, backwards because their digits are stored backwards.
    parts[1::2] = layout.cut_seals((SEAL_BACKWARDS * count % tuple(checksums))[::-1])
    return b"".join(parts)

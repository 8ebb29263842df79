"""Codec of the message record, the form of a message in the commit log and in responses to pulls.

Integers are big-endian. A v1 record with two IPv4 hosts has 91 bytes plus body, topic and
properties:

    size      field
    4         total size         of the record, in bytes
    4         magic              MAGIC_V1, MAGIC_V2 (topic size of 2 bytes), MAGIC_BLANK
    4         body CRC           CRC-32 of the stored body, 31 bits
    4         queue id
    4         flag               the user's
    8         queue offset
    8         physical offset    byte of the commit log where the record begins
    4         sys flag           `kourou.model.sysflag`
    8         born at            epoch milliseconds
    4 or 16   born host          by BORN_HOST_V6 of the sys flag
    4         born port
    8         store at           epoch milliseconds
    4 or 16   store host         by STORE_HOST_V6
    4         store port
    4         reconsume times
    8         prepared transaction offset
    4 + n     body size, body
    1 + n     topic size, topic              2 + n with MAGIC_V2
    2 + n     properties size, properties    at most 32767

The body of a response to a pull is a sequence of records without gaps.

Source: MessageExtEncoder.java, MessageDecoder.decode, CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from kourou.errors import InvalidMessageError, MalformedMessageError
from kourou.model.host import Host, pack_address, unpack_address
from kourou.model.properties import PROPERTIES_SIZE_MAX
from kourou.model.sysflag import (
    BORN_HOST_V6,
    STORE_HOST_V6,
)
from kourou.protocol.hashing import crc32

Buffer = bytes | bytearray | memoryview

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
MAGIC_BLANK: Final = -875286124
"""Not a record: the unused end of a commit log segment that was too small for the next record."""

TOPIC_SIZE_V1_MAX: Final = 127
"""Longest topic of a v1 record in bytes: its size is a signed byte. Longer ones need v2 records."""

TOPIC_SIZE_V2_MAX: Final = 0x7FFF
"""Longest topic of a v2 record in bytes. A store's limit is lower: see
`ConsumeQueueTable.for_append`."""

HOST_FLAGS: Final = BORN_HOST_V6 | STORE_HOST_V6


def _head(born_address_bytes: int, store_address_bytes: int) -> struct.Struct:
    """Return the layout up to and including the body size."""
    return struct.Struct(f">iiiiiqqiq{born_address_bytes}siq{store_address_bytes}siiqi")


_HEADS: Final = {
    0: _head(4, 4),
    BORN_HOST_V6: _head(16, 4),
    STORE_HOST_V6: _head(4, 16),
    BORN_HOST_V6 | STORE_HOST_V6: _head(16, 16),
}
HEAD_V4: Final = _HEADS[0]
"""The layout of a record with two IPv4 hosts, up to and including the body size."""
_SYS_FLAG: Final = struct.Struct(">i")
_SYS_FLAG_AT: Final = 36
_SIZE16: Final = struct.Struct(">h")
TAIL_SIZE_V1: Final = 3
"""Bytes of the topic's and the properties' size fields in a v1 record."""
assert HEAD_V4.size + TAIL_SIZE_V1 == 91, "the size given in the table above"


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


class RecordHeader(NamedTuple):
    """The fields of a record; body and properties are given by their positions in the buffer."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_at_ms: int
    born_address: bytes
    born_port: int
    store_at_ms: int
    store_address: bytes
    store_port: int
    reconsume_times: int
    prepared_transaction_offset: int
    topic: str
    body_start: int
    body_size: int
    properties_start: int
    properties_size: int

    @property
    def born_host(self) -> Host:
        """The producer's address."""
        return unpack_address(self.born_address), self.born_port

    @property
    def store_host(self) -> Host:
        """The broker's address."""
        return unpack_address(self.store_address), self.store_port


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
        body=record[header.body_start : header.body_start + header.body_size],
        properties=properties,
    )


def record_size(draft: RecordDraft) -> int:
    """Return the size of the draft's record in bytes.

    Raises:
        InvalidMessageError: a host is not an IP address.
    """
    size = (
        _HEADS[_host_flags(draft)].size
        + TAIL_SIZE_V1
        + len(draft.body)
        + len(draft.topic)
        + len(draft.properties)
    )
    return size if len(draft.topic) <= TOPIC_SIZE_V1_MAX else size + 1


def encode_record(
    draft: RecordDraft, queue_offset: int, physical_offset: int, store_at_ms: int
) -> bytes:
    """Return the draft's record: v1, or v2 if the topic has more than 127 bytes, as in Java.

    Raises:
        InvalidMessageError: the topic or the properties have more than 32767 bytes, a number does
            not fit its field, or a host is not an IP address.
    """
    topic, body, properties = draft.topic, draft.body, draft.properties
    if len(topic) <= TOPIC_SIZE_V1_MAX:
        magic, topic_size = MAGIC_V1, bytes((len(topic),))
    elif len(topic) <= TOPIC_SIZE_V2_MAX:
        magic, topic_size = MAGIC_V2, _SIZE16.pack(len(topic))
    else:
        raise InvalidMessageError(f"topic of {len(topic)} bytes, at most {TOPIC_SIZE_V2_MAX}")
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise InvalidMessageError(
            f"properties of {len(properties)} bytes, at most {PROPERTIES_SIZE_MAX}"
        )
    host_flags = _host_flags(draft)
    head = _HEADS[host_flags]
    try:
        packed = head.pack(
            head.size + len(body) + len(topic_size) + len(topic) + 2 + len(properties),
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
    return b"".join((packed, body, topic_size, topic, _SIZE16.pack(len(properties)), properties))


def _host_flags(draft: RecordDraft) -> int:
    flags = BORN_HOST_V6 if len(pack_address(draft.born_host[0])) > 4 else 0
    if len(pack_address(draft.store_host[0])) > 4:
        flags |= STORE_HOST_V6
    return flags


def read_record(buffer: Buffer, at: int = 0, *, check_crc: bool) -> RecordHeader:
    """Return the fields of the record at byte `at`; bytes before and behind it are not read.

    With `check_crc`, the body's checksum is verified, which reads the whole body.

    Raises:
        MalformedMessageError: the record is truncated, its sizes contradict each other, its magic
            is not v1 or v2, its topic is not UTF-8, or the body's checksum differs. The text names
            the reason.
    """
    if len(buffer) - at < HEAD_V4.size:
        raise MalformedMessageError(f"record at byte {at} is truncated")
    head = _HEADS[_SYS_FLAG.unpack_from(buffer, at + _SYS_FLAG_AT)[0] & HOST_FLAGS]
    if len(buffer) - at < head.size:
        raise MalformedMessageError(f"record at byte {at} is truncated")
    fields = head.unpack_from(buffer, at)
    total_size, magic, body_size = fields[0], fields[1], fields[-1]
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise MalformedMessageError(f"record at byte {at}: magic {magic & 0xFFFF_FFFF:#x}")
    # The bytes left for the three variable parts and two size fields, according to the total size.
    end = at + total_size
    topic_size_bytes = 1 if magic == MAGIC_V1 else 2
    body_start = at + head.size
    body_end = body_start + body_size
    topic_start = body_end + topic_size_bytes
    if end > len(buffer) or body_size < 0 or topic_start + 2 > end:
        raise _size_error(at, f"total {total_size}, body {body_size}, of {len(buffer) - at} left")
    topic_size = int.from_bytes(buffer[body_end:topic_start], "big", signed=True)
    topic_end = topic_start + topic_size
    if topic_size < 0 or topic_end + 2 > end:
        raise _size_error(at, f"total {total_size}, body {body_size}, topic {topic_size}")
    properties_size = _SIZE16.unpack_from(buffer, topic_end)[0]
    properties_start = topic_end + 2
    if properties_size < 0 or properties_start + properties_size != end:
        raise _size_error(at, f"total {total_size}, properties {properties_size}")
    try:
        topic = str(buffer[topic_start:topic_end], "utf-8")
    except UnicodeDecodeError:
        raise MalformedMessageError(f"record at byte {at}: the topic is not UTF-8") from None
    if check_crc and crc32(memoryview(buffer)[body_start:body_end]) != fields[2]:
        raise MalformedMessageError(f"record at byte {at}: the body's checksum differs")
    return RecordHeader._make(
        (*fields[:-1], topic, body_start, body_size, properties_start, properties_size)
    )


def _size_error(at: int, sizes: str) -> MalformedMessageError:
    return MalformedMessageError(f"record at byte {at}: sizes do not fit: {sizes}")

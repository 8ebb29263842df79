"""Decoder of the message records in a response to a pull.

Most records are plain (v1, IPv4 hosts, uncompressed body) and are decoded on a fast path.
`read` decodes all others and reports malformed records.

Source: MessageDecoder.decode, decodeMessagesFromInnerBatch, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kourou.errors import CodecMissingError, MalformedMessageError
from kourou.model.message import MessageExt, message_from_record
from kourou.model.properties import INNER_NUM, PROPERTIES_SIZE_MAX, decode_properties
from kourou.model.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from kourou.protocol.compression import DECOMPRESSED_SIZE_MAX, decompress
from kourou.protocol.hashing import unmasked_crc32
from kourou.protocol.message_batch import decode_batch
from kourou.protocol.record.keys import inner_count
from kourou.protocol.record.layout import (
    CRC_MASK,
    HEAD_BYTES,
    HEAD_V4,
    HOST_FLAGS,
    MAGIC_V1,
    PROPERTIES_SIZE_BYTES,
    TAIL_BYTES_V1,
    TOPIC_SIZE_V1_MAX,
    Buffer,
    RecordHeader,
)
from kourou.protocol.record.read import read_record

_unpack_head_v4: Final = HEAD_V4.unpack_from
_UNWRAP_FLAGS: Final = NEED_UNWRAP | INNER_BATCH
_NOT_AS_SENT: Final = _UNWRAP_FLAGS | COMPRESSED
_NOT_PLAIN: Final = _NOT_AS_SENT | HOST_FLAGS
_PLAIN_MIN: Final = HEAD_BYTES + TAIL_BYTES_V1

DECOMPRESSED_TOTAL_MAX: Final = 4 * DECOMPRESSED_SIZE_MAX
"""Largest decompressed size of all bodies in one response together, in bytes."""


def decode_message(
    buffer: Buffer, at: int = 0, *, decompress: bool = True, check_crc: bool = True
) -> MessageExt:
    """Return the message of the record at byte `at`.

    An inner batch (sys_flag NEED_UNWRAP and INNER_BATCH) remains one message; `decode_messages`
    splits it. With `decompress`, a compressed body is decompressed, to at most
    `DECOMPRESSED_SIZE_MAX` bytes, and the flag is cleared.

    Raises:
        MalformedMessageError: as for `read_record`, or the body cannot be decompressed.
        CodecMissingError: the package that decompresses the body is not installed.
    """
    message = _build_message(buffer, read_record(buffer, at, check_crc=check_crc))
    if decompress:
        _decompress_body(message, DECOMPRESSED_SIZE_MAX)
    return message


def decode_messages(buffer: Buffer, *, decompress: bool = True) -> list[MessageExt]:
    """Return all messages in the body of a response, in order, with inner batches split.

    Java drops all records behind one that it cannot decode, which silently loses messages. Here the
    first such record raises an error.

    Raises:
        MalformedMessageError: as for `decode_message`, or the bodies decompress to more than
            `DECOMPRESSED_TOTAL_MAX` bytes together.
        CodecMissingError: as for `decode_message`; `decompress=False` avoids it.
    """
    data = buffer if isinstance(buffer, bytes) else bytes(buffer)
    messages: list[MessageExt] = []
    at, end = 0, len(data)
    budget = DECOMPRESSED_TOTAL_MAX
    while at < end:
        at = decode_plain(data, at, end, messages)
        if at == end:
            break
        message = _build_message(data, read_record(data, at, check_crc=True))
        at += message.store_size
        if not message.sys_flag & _NOT_AS_SENT:
            messages.append(message)
            continue
        if decompress:
            budget -= _decompress_body(message, min(budget, DECOMPRESSED_SIZE_MAX))
        # A batch that is still compressed cannot be split.
        if message.sys_flag & (_UNWRAP_FLAGS | COMPRESSED) == _UNWRAP_FLAGS:
            messages += _unwrap(message)
        else:
            messages.append(message)
    return messages


class UndecodableMessage(NamedTuple):
    """A stored message whose body cannot be decoded.

    Attributes:
        message: the stored message, with its body still compressed or batched; its offsets are
            reliable.
        error: the reason.
    """

    message: MessageExt
    error: MalformedMessageError


class DecodedResponse(NamedTuple):
    """The decoded part of a response to a pull.

    Attributes:
        messages: the decoded messages, in the order of the response.
        undecodable: the messages that cannot be decoded, in the same order.
        resume_offset: None if the whole response was decoded. Otherwise the queue offset of the
            first message that must be pulled again: the bodies before it decompressed to nearly
            `DECOMPRESSED_TOTAL_MAX` bytes, or it cannot be decoded and must be the first of a
            response to raise its error.
    """

    messages: list[MessageExt]
    undecodable: list[UndecodableMessage]
    resume_offset: int | None


def decode_pull_response(
    data: bytes, kind: type[MessageExt] = MessageExt, *, decompress: bool = True
) -> DecodedResponse:
    """Decode the body of a response to a pull; a malformed body does not affect other messages.

    Args:
        data: the records.
        kind: the class of the messages, except of those in inner batches; the fields of a subclass
            are not set.
        decompress: whether to decompress bodies, except those of inner batches, which cannot be
            split otherwise.

    Raises:
        MalformedMessageError: the header of the first record cannot be decoded, so its offset and
            the position of the next record are unknown.
        CodecMissingError: the package that decompresses the first message is not installed.
    """
    messages: list[MessageExt] = []
    undecodable: list[UndecodableMessage] = []
    at, end, next_offset = 0, len(data), 0
    budget = DECOMPRESSED_TOTAL_MAX
    while at < end:
        count = len(messages)
        at = decode_plain(data, at, end, messages, kind)
        if len(messages) > count:
            next_offset = messages[-1].queue_offset + 1
        if at == end:
            break
        limit = min(budget, DECOMPRESSED_SIZE_MAX)
        try:
            message = _build_message(data, read_record(data, at, check_crc=False), kind)
            at += message.store_size
            stored = (message.body, message.sys_flag)
            try:
                read_record(data, at - message.store_size, check_crc=True)
                is_batch = message.sys_flag & _UNWRAP_FLAGS == _UNWRAP_FLAGS
                if decompress or is_batch:
                    budget -= _decompress_body(message, limit)
                decoded = _unwrap(message) if is_batch else [message]
            except MalformedMessageError as error:
                if limit < DECOMPRESSED_SIZE_MAX:  # it may be decodable with the full limit
                    return DecodedResponse(messages, undecodable, message.queue_offset)
                message.body, message.sys_flag = stored
                undecodable.append(UndecodableMessage(message, error))
                next_offset = message.queue_offset + _offset_count(message)
                continue
        except (MalformedMessageError, CodecMissingError):
            if not messages and not undecodable:
                raise
            return DecodedResponse(messages, undecodable, next_offset)
        messages += decoded
        next_offset = decoded[-1].queue_offset + 1 if decoded else message.queue_offset + 1
    return DecodedResponse(messages, undecodable, None)


def decode_plain(
    data: bytes,
    at: int,
    end: int,
    messages: list[MessageExt],
    kind: type[MessageExt] = MessageExt,
) -> int:
    """Append the messages of the plain records from byte `at` on; return the end of the last one.

    A plain record is a complete v1 record with IPv4 hosts whose body is neither compressed nor a
    batch. Nearly all records are plain. This combines `read_record` and `_build_message` in one
    loop, without named fields and without errors: a malformed record ends the loop, and the caller
    reads it with `read_record`. It takes a third of the time.
    """
    topic_bytes, topic = b"", ""
    while end - at >= _PLAIN_MIN:
        fields = _unpack_head_v4(data, at)
        body_start = at + HEAD_BYTES
        body_end = body_start + fields[16]
        record_end = at + fields[0]
        if (
            fields[1] != MAGIC_V1
            or fields[7] & _NOT_PLAIN
            or record_end > end
            or not body_start <= body_end <= record_end - TAIL_BYTES_V1
        ):
            break
        topic_end = body_end + 1 + data[body_end]
        properties_start = topic_end + PROPERTIES_SIZE_BYTES
        if properties_start > record_end or topic_end - body_end > TOPIC_SIZE_V1_MAX + 1:
            break
        properties_size = data[topic_end] << 8 | data[topic_end + 1]
        body = data[body_start:body_end]
        if (
            properties_size > PROPERTIES_SIZE_MAX
            or properties_start + properties_size != record_end
            or unmasked_crc32(body) & CRC_MASK != fields[2]
        ):
            break
        topic_field = data[body_end + 1 : topic_end]
        if topic_field != topic_bytes:
            try:
                topic_bytes, topic = topic_field, str(topic_field, "utf-8")
            except UnicodeDecodeError:
                break
        properties = data[properties_start:record_end]
        messages.append(message_from_record(fields, topic, body, properties, kind))
        at = record_end
    return at


def _build_message(
    buffer: Buffer, record: RecordHeader, kind: type[MessageExt] = MessageExt
) -> MessageExt:
    body_start, properties_start = record.body_start, record.properties_start
    return message_from_record(
        (*record[:16], record.body_size),
        record.topic,
        bytes(buffer[body_start : body_start + record.body_size]),
        bytes(buffer[properties_start : properties_start + record.properties_size]),
        kind,
    )


def _decompress_body(message: MessageExt, size_max: int) -> int:
    """Decompress a compressed body; return its decompressed size, 0 if it was not compressed."""
    if not message.sys_flag & COMPRESSED:
        return 0
    message.body = decompress(message.body, message.sys_flag, size_max=size_max)
    message.sys_flag &= ~COMPRESSED
    return len(message.body)


def _offset_count(message: MessageExt) -> int:
    """Return the number of queue offsets of a message; that of a batch is in its INNER_NUM."""
    if not message.sys_flag & INNER_BATCH:
        return 1
    return inner_count(message.properties.get(INNER_NUM, "")) or 1


def _unwrap(outer: MessageExt) -> list[MessageExt]:
    """Return the messages of an inner batch, each with its own flag, body and properties.

    The other fields are those of the batch, except that reconsume times and transaction offset are
    0, as in MessageDecoder.decodeMessagesFromInnerBatch.
    """
    return [
        MessageExt(
            outer.topic,
            item.body,
            decode_properties(item.properties),
            item.flag,
            outer.queue_id,
            outer.queue_offset + index,
            outer.physical_offset,
            outer.sys_flag,
            outer.born_at_ms,
            outer.born_host,
            outer.store_at_ms,
            outer.store_host,
            0,
            0,
            outer.store_size,
            0,
        )
        for index, item in enumerate(decode_batch(outer.body))
    ]

"""Stored messages as clients see them: the records of a pull's answer, decoded.

Most records are plain ones of the usual layout, which are read in one step; `message_layout` has
the layout, reads all others, and says what is wrong with a record.

Source: MessageDecoder.decode, decodeMessagesFromInnerBatch, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kourou.errors import CodecMissingError, MalformedMessageError
from kourou.model.message import MessageExt, message_of_record
from kourou.model.properties import INNER_NUM, PROPERTIES_SIZE_MAX, decode_properties
from kourou.model.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from kourou.protocol.compression import INFLATED_SIZE_MAX, decompress
from kourou.protocol.hashing import unmasked_crc32
from kourou.protocol.message_batch import decode_batch
from kourou.protocol.message_layout import (
    HEAD_V4,
    HOST_FLAGS,
    MAGIC_V1,
    TAIL_SIZE_V1,
    TOPIC_SIZE_V1_MAX,
    Buffer,
    RecordHeader,
    read_record,
)

_unpack_head_v4: Final = HEAD_V4.unpack_from
_UNWRAP_FLAGS: Final = NEED_UNWRAP | INNER_BATCH
_COUNT_DIGITS_MAX: Final = 5
_NOT_AS_SENT: Final = _UNWRAP_FLAGS | COMPRESSED
_NOT_PLAIN: Final = _NOT_AS_SENT | HOST_FLAGS
_HEAD_SIZE: Final = HEAD_V4.size
_PLAIN_MIN: Final = HEAD_V4.size + TAIL_SIZE_V1
_CRC_MASK: Final = 0x7FFF_FFFF

INFLATED_TOTAL_MAX: Final = 4 * INFLATED_SIZE_MAX
"""Bytes that all bodies of one answer may inflate to together."""


def decode_message(
    buffer: Buffer, at: int = 0, *, decompress: bool = True, check_crc: bool = True
) -> MessageExt:
    """Return the message of the record at byte `at`.

    An inner batch (sys_flag NEED_UNWRAP and INNER_BATCH) stays one message; `decode_messages`
    takes it apart. With `decompress`, a compressed body is inflated, to at most
    `INFLATED_SIZE_MAX` bytes, and the flag cleared.

    Raises:
        MalformedMessageError: as `read_record`, or the body cannot be inflated.
        CodecMissingError: the package that inflates the body is not installed.
    """
    message = _message(buffer, read_record(buffer, at, check_crc=check_crc))
    if decompress:
        _inflate(message, INFLATED_SIZE_MAX)
    return message


def decode_messages(buffer: Buffer, *, decompress: bool = True) -> list[MessageExt]:
    """Return all messages of an answer's body, in its order, inner batches taken apart.

    Java drops what follows a record it cannot read. That would lose messages without a word, so
    here the first such record is an error.

    Raises:
        MalformedMessageError: as `decode_message`, or the bodies inflate to more than
            `INFLATED_TOTAL_MAX` bytes together.
        CodecMissingError: as `decode_message`; `decompress=False` reads the messages all the same.
    """
    data = buffer if isinstance(buffer, bytes) else bytes(buffer)
    messages: list[MessageExt] = []
    at, end = 0, len(data)
    budget = INFLATED_TOTAL_MAX
    while at < end:
        at = _take_plain(data, at, end, messages)
        if at == end:
            break
        message = _message(data, read_record(data, at, check_crc=True))
        at += message.store_size
        if not message.sys_flag & _NOT_AS_SENT:
            messages.append(message)
            continue
        if decompress:
            budget -= _inflate(message, min(budget, INFLATED_SIZE_MAX))
        # A batch left compressed cannot be taken apart.
        if message.sys_flag & (_UNWRAP_FLAGS | COMPRESSED) == _UNWRAP_FLAGS:
            messages += _unwrap(message)
        else:
            messages.append(message)
    return messages


class Undecodable(NamedTuple):
    """A stored message whose body cannot be read.

    Attributes:
        message: as it is stored, its body compressed or a batch; its offsets can be believed.
        error: why.
    """

    message: MessageExt
    error: MalformedMessageError


class DecodedAnswer(NamedTuple):
    """The messages of an answer, as far as they could be decoded.

    Attributes:
        messages: in the order of the answer.
        undecodable: those that cannot be read, in the same order.
        rest_offset: the queue offset of the first message that is left for another pull, where the
            bodies before it inflated to nearly `INFLATED_TOTAL_MAX` bytes, or it must fail alone.
    """

    messages: list[MessageExt]
    undecodable: list[Undecodable]
    rest_offset: int | None


def decode_answer(data: bytes) -> DecodedAnswer:
    """Decode the body of an answer to a pull; one bad body keeps no other message from its reader.

    Raises:
        MalformedMessageError: the first record has no readable header, so that its offset, and
            where the next record begins, are not known.
        CodecMissingError: the package that inflates the first message is not installed.
    """
    messages: list[MessageExt] = []
    undecodable: list[Undecodable] = []
    at, end, next_offset = 0, len(data), 0
    budget = INFLATED_TOTAL_MAX
    while at < end:
        count = len(messages)
        at = _take_plain(data, at, end, messages)
        if len(messages) > count:
            next_offset = messages[-1].queue_offset + 1
        if at == end:
            break
        limit = min(budget, INFLATED_SIZE_MAX)
        try:
            message = _message(data, read_record(data, at, check_crc=False))
            at += message.store_size
            stored = (message.body, message.sys_flag)
            try:
                read_record(data, at - message.store_size, check_crc=True)
                budget -= _inflate(message, limit)
                is_batch = message.sys_flag & _UNWRAP_FLAGS == _UNWRAP_FLAGS
                decoded = _unwrap(message) if is_batch else [message]
            except MalformedMessageError as error:
                if limit < INFLATED_SIZE_MAX:  # it may be readable alone
                    return DecodedAnswer(messages, undecodable, message.queue_offset)
                message.body, message.sys_flag = stored
                undecodable.append(Undecodable(message, error))
                next_offset = message.queue_offset + _count_of(message)
                continue
        except (MalformedMessageError, CodecMissingError):
            if not messages and not undecodable:
                raise
            return DecodedAnswer(messages, undecodable, next_offset)
        messages += decoded
        next_offset = decoded[-1].queue_offset + 1 if decoded else message.queue_offset + 1
    return DecodedAnswer(messages, undecodable, None)


def _take_plain(data: bytes, at: int, end: int, messages: list[MessageExt]) -> int:
    """Append the messages of the plain records from byte `at` on; return where they end.

    Plain is a whole v1 record with IPv4 hosts whose body is as it was sent. Nearly all are. This is
    `read_record` and `_message` in one for many records, without the fields by name and without
    names for what is wrong: `read_record` is asked then. A third of the time.
    """
    topic_bytes, topic = b"", ""
    while end - at >= _PLAIN_MIN:
        fields = _unpack_head_v4(data, at)
        body_start = at + _HEAD_SIZE
        body_end = body_start + fields[16]
        record_end = at + fields[0]
        if (
            fields[1] != MAGIC_V1
            or fields[7] & _NOT_PLAIN
            or record_end > end
            or not body_start <= body_end <= record_end - TAIL_SIZE_V1
        ):
            break
        topic_end = body_end + 1 + data[body_end]
        properties_start = topic_end + 2
        if properties_start > record_end or topic_end - body_end > TOPIC_SIZE_V1_MAX + 1:
            break
        properties_size = data[topic_end] << 8 | data[topic_end + 1]
        body = data[body_start:body_end]
        if (
            properties_size > PROPERTIES_SIZE_MAX
            or properties_start + properties_size != record_end
            or unmasked_crc32(body) & _CRC_MASK != fields[2]
        ):
            break
        named = data[body_end + 1 : topic_end]
        if named != topic_bytes:
            try:
                topic_bytes, topic = named, str(named, "utf-8")
            except UnicodeDecodeError:
                break
        properties = data[properties_start:record_end]
        messages.append(message_of_record(fields, topic, body, properties))
        at = record_end
    return at


def _message(buffer: Buffer, record: RecordHeader) -> MessageExt:
    body_start, properties_start = record.body_start, record.properties_start
    return message_of_record(
        (*record[:16], record.body_size),
        record.topic,
        bytes(buffer[body_start : body_start + record.body_size]),
        bytes(buffer[properties_start : properties_start + record.properties_size]),
    )


def _inflate(message: MessageExt, size_max: int) -> int:
    """Inflate the body where it is compressed; return the bytes it inflated to, else 0."""
    if not message.sys_flag & COMPRESSED:
        return 0
    message.body = decompress(message.body, message.sys_flag, size_max=size_max)
    message.sys_flag &= ~COMPRESSED
    return len(message.body)


def _count_of(message: MessageExt) -> int:
    """Return how many queue offsets a message has: a batch that cannot be read says so itself."""
    said = message.properties.get(INNER_NUM, "")
    is_batch = message.sys_flag & INNER_BATCH and said.isascii() and said.isdigit()
    return max(1, int(said)) if is_batch and len(said) <= _COUNT_DIGITS_MAX else 1


def _unwrap(outer: MessageExt) -> list[MessageExt]:
    """Return the messages of an inner batch: own flag, body and properties, the rest shared.

    Reconsume times and transaction offset are not the batch's to give, as in
    MessageDecoder.decodeMessagesFromInnerBatch.
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

"""Op messages: lists of half messages that have ended, by queue offset. Pure.

An op message is stored in RMQ_SYS_TRANS_OP_HALF_TOPIC with the tag `d`. Its body holds decimal
queue offsets of RMQ_SYS_TRANS_HALF_TOPIC, each followed by a comma: `12,13,17,`. It does not tell
commits from rollbacks. Brokers before 5.0 wrote one offset per message, without a comma.

Source: TransactionalMessageServiceImpl.getOpMessage and fillOpRemoveMap, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kourou.decimals import is_decimal
from kourou.errors import MalformedBodyError
from kourou.model import properties as names
from kourou.model.host import Host
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.topic import TRANS_OP_HALF_TOPIC
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.read import read_record

REMOVED_TAG: Final = "d"
_PROPERTIES: Final = encode_properties({names.TAGS: REMOVED_TAG, names.WAIT: "true"})
_TOPIC: Final = TRANS_OP_HALF_TOPIC.encode()


def encode_op(offsets: Iterable[int]) -> bytes:
    """Encode the body that names these half messages."""
    return "".join([f"{offset}," for offset in offsets]).encode()


def op_size(offsets: Iterable[int]) -> int:
    """Return the size in bytes of the body that names these half messages."""
    return sum([len(str(offset)) + 1 for offset in offsets])


def split_op(offsets: Iterable[int], bytes_max: int) -> list[list[int]]:
    """Split the offsets into as few lists as possible whose bodies have `bytes_max` bytes at most.

    An offset whose body is longer than that gets a list of its own.
    """
    entries: list[list[int]] = []
    size = bytes_max
    for offset in offsets:
        more = len(str(offset)) + 1
        if size + more > bytes_max or not entries:
            entries.append([])
            size = 0
        entries[-1].append(offset)
        size += more
    return entries


def decode_op(body: bytes) -> list[int]:
    """Decode the queue offsets of a body.

    Raises:
        MalformedBodyError: it is not a list of offsets.
    """
    offsets = []
    parts = body.split(b",")
    if parts and not parts[-1]:
        parts.pop()
    for part in parts:
        if not is_decimal(part):
            raise MalformedBodyError(f"op message: {part[:32]!r} is not a queue offset")
        offsets.append(int(part))
    return offsets


def op_draft(body: bytes, queue_id: int, host: Host, now_ms: int) -> RecordDraft:
    """Return the record draft of an op message for half messages of queue `queue_id`."""
    return RecordDraft(
        topic=_TOPIC,
        queue_id=queue_id,
        flag=0,
        sys_flag=0,
        born_at_ms=now_ms,
        born_host=host,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties=_PROPERTIES,
    )


def read_op(record: bytes) -> list[int]:
    """Return the queue offsets that the record of an op message names; none for another tag.

    Raises:
        MalformedMessageError: it is not a record.
        MalformedBodyError: as `decode_op`.
    """
    header = read_record(record, check_crc=True)
    properties = decode_properties(header.properties(record))
    if properties.get(names.TAGS) != REMOVED_TAG:
        return []
    return decode_op(header.body(record))

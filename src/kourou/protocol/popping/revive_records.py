"""Codec of the records of the revive topic: checkpoints and acks.

A pop stores a checkpoint (`ck`), a client's acknowledgement an ack (`ack`, or `bAck` for several
messages of one checkpoint). The timer delivers them to the revive topic when they are due: the
checkpoint a second before its messages become visible again, the acks at that time. A checkpoint's
messages that have no ack then are revived.

    {"bm":0,"bn":"broker-a","c":"group","d":[0,1,3],"it":60000,"n":3,"pt":1700000000000,"q":3,
     "reviveTime":1700000060000,"ro":7,"so":100,"sp":false,"t":"T"}                          ck
    {"ao":101,"bn":"broker-a","c":"group","pt":1700000000000,"q":3,"so":100,"t":"T"}         ack
    {"ao":-1,"aol":[100,103],"bn":"broker-a","c":"group","pt":...,"q":3,"so":100,"t":"T"}    bAck

The bodies are written as by fastjson 2: short names, sorted, without what is null. Those with the
long names of fastjson 1 are read as well.

Source: PopCheckPoint.java, AckMsg.java, BatchAckMsg.java; PopMessageProcessor.buildCkMsg,
genCkUniqueId, genAckUniqueId, genBatchAckUniqueId; AckMessageProcessor.appendAck.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from kourou.errors import MalformedBodyError
from kourou.model import properties as names
from kourou.protocol.fastjson import loads

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
REVIVE_TAGS: Final = (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG)

CHECKPOINT_LEAD_MS: Final = 1_000
"""Time between the delivery of a checkpoint and that of its acks."""

NO_ACK_OFFSET: Final = -1
"""The single offset of an ack that has a list."""

RE_PUTS_UNREADABLE: Final = 127
"""Number of re-puts of a checkpoint whose text is not a number."""

_Byte = Annotated[int, Meta(ge=-0x80, le=0x7F)]
_Int = Annotated[int, Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]
_Long = Annotated[int, Meta(ge=-0x8000_0000_0000_0000, le=0x7FFF_FFFF_FFFF_FFFF)]

_CHECKPOINT_NAMES: Final = {
    "bits": "bm",
    "broker_name": "bn",
    "group": "c",
    "diffs": "d",
    "invisible_ms": "it",
    "count": "n",
    "pop_time_ms": "pt",
    "queue_id": "q",
    "revive_offset": "ro",
    "re_puts": "rp",
    "start_offset": "so",
    "is_suspended": "sp",
    "topic": "t",
}
_ACK_NAMES: Final = {
    "ack_offset": "ao",
    "ack_offsets": "aol",
    "broker_name": "bn",
    "group": "c",
    "pop_time_ms": "pt",
    "queue_id": "q",
    "start_offset": "so",
    "topic": "t",
}
_LONG_NAMES: Final = {
    "ackOffset": "ao",
    "ackOffsetList": "aol",
    "bitMap": "bm",
    "brokerName": "bn",
    "cId": "c",
    "cid": "c",
    "consumerGroup": "c",
    "invisibleTime": "it",
    "num": "n",
    "popTime": "pt",
    "queueId": "q",
    "queueOffsetDiff": "d",
    "rePutTimes": "rp",
    "reviveOffset": "ro",
    "startOffset": "so",
    "suspend": "sp",
    "topic": "t",
}


class CheckpointRecord(msgspec.Struct, frozen=True, gc=False, rename=_CHECKPOINT_NAMES):
    """Body of a checkpoint, unchecked: see `kourou.broker.popping.checkpoint`.

    Attributes:
        start_offset: offset from which the pop read, at most that of the first message.
        pop_time_ms: epoch milliseconds.
        bits: bit n is set if the n-th message was acknowledged when the record was written.
        count: number of messages.
        diffs: differences of the messages' offsets from `start_offset`; None or empty in records of
            old brokers, whose messages have consecutive offsets.
        re_puts: number of checkpoints that replaced this one because a message could not be
            revived, as text.
        revive_offset: unused.
        is_suspended: a revived message keeps its number of deliveries.
    """

    topic: str
    group: str
    queue_id: _Int = 0
    start_offset: _Long = 0
    diffs: tuple[_Int, ...] | None = None
    count: _Byte = 0
    pop_time_ms: _Long = 0
    invisible_ms: _Long = 0
    broker_name: str | None = None
    bits: _Int = 0
    re_puts: str | None = None
    is_suspended: bool = False
    revive_offset: _Long = 0

    @property
    def revive_at_ms(self) -> int:
        """Time at which the messages become visible again, in epoch milliseconds."""
        return self.pop_time_ms + self.invisible_ms


class AckRecord(msgspec.Struct, frozen=True, gc=False, rename=_ACK_NAMES):
    """Body of an ack; topic to `broker_name` are those of the checkpoint.

    Attributes:
        ack_offset: offset of the acknowledged message; NO_ACK_OFFSET if there is a list.
        ack_offsets: offsets of acknowledged messages (`bAck`); None for a single one (`ack`).
    """

    topic: str
    group: str
    queue_id: _Int = 0
    start_offset: _Long = 0
    pop_time_ms: _Long = 0
    broker_name: str | None = None
    ack_offset: _Long = 0
    ack_offsets: tuple[_Long, ...] | None = None

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets of all acknowledged messages."""
        return (self.ack_offset,) if self.ack_offsets is None else self.ack_offsets


_RecordT = TypeVar("_RecordT", CheckpointRecord, AckRecord)

_encode: Final = msgspec.json.Encoder().encode
_read_checkpoint: Final = msgspec.json.Decoder(CheckpointRecord).decode
_read_ack: Final = msgspec.json.Decoder(AckRecord).decode


def encode_checkpoint(record: CheckpointRecord) -> bytes:
    """Return the body of a `ck` record."""
    broker, diffs, re_puts = record.broker_name, record.diffs, record.re_puts
    return b'{"bm":%d,%b"c":%b,%b"it":%d,"n":%d,"pt":%d,"q":%d,"reviveTime":%d,"ro":%d,%b"so":%d,"sp":%b,"t":%b}' % (  # noqa: E501 - one layout
        record.bits,
        b"" if broker is None else b'"bn":%b,' % _encode(broker),
        _encode(record.group),
        b"" if diffs is None else b'"d":%b,' % _encode(diffs),
        record.invisible_ms,
        record.count,
        record.pop_time_ms,
        record.queue_id,
        record.pop_time_ms + record.invisible_ms,
        record.revive_offset,
        b"" if re_puts is None else b'"rp":%b,' % _encode(re_puts),
        record.start_offset,
        b"true" if record.is_suspended else b"false",
        _encode(record.topic),
    )  # fmt: skip


def encode_ack(record: AckRecord) -> bytes:
    """Return the body of an `ack` record, or of a `bAck` record if it has a list."""
    broker, offsets = record.broker_name, record.ack_offsets
    return b'{"ao":%d,%b%b"c":%b,"pt":%d,"q":%d,"so":%d,"t":%b}' % (
        record.ack_offset,
        b"" if offsets is None else b'"aol":%b,' % _encode(offsets),
        b"" if broker is None else b'"bn":%b,' % _encode(broker),
        _encode(record.group),
        record.pop_time_ms,
        record.queue_id,
        record.start_offset,
        _encode(record.topic),
    )


def decode_checkpoint(body: bytes) -> CheckpointRecord:
    """Return the checkpoint of a `ck` record.

    Raises:
        MalformedBodyError: the body is not a JSON object, names no topic or group, or a member has
            the wrong type or does not fit it.
    """
    try:
        return _read_checkpoint(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _read_any(CheckpointRecord, body)


def decode_ack(body: bytes) -> AckRecord:
    """Return the ack of an `ack` or `bAck` record. Raises like `decode_checkpoint`."""
    try:
        return _read_ack(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _read_any(AckRecord, body)


def _read_any(record_class: type[_RecordT], body: bytes) -> _RecordT:
    """Return the record of a body with long names, numbers as text, or null."""
    value = loads(body)
    if not isinstance(value, dict):
        raise MalformedBodyError(f"a revive record is {type(value).__name__}, not an object")
    members: dict[str, Any] = {
        str(_LONG_NAMES.get(name, name)): member
        for name, member in value.items()
        if member is not None
    }
    if isinstance(members.get("rp"), int):
        members["rp"] = str(members["rp"])
    try:
        return msgspec.convert(members, record_class, strict=False)
    except msgspec.ValidationError as error:
        raise MalformedBodyError(f"not a revive record: {error}") from None


def re_put_count(record: CheckpointRecord) -> int:
    """Return the number of re-puts; RE_PUTS_UNREADABLE if it is not a number."""
    if record.re_puts is None:
        return 0
    try:
        count = int(record.re_puts)
    except ValueError:
        return RE_PUTS_UNREADABLE
    return max(0, min(count, 0x7FFF_FFFF))


def checkpoint_properties(record: CheckpointRecord) -> dict[str, str]:
    """Return the properties of a `ck` record, with the time of its delivery."""
    return {
        names.UNIQ_KEY: f"{record.topic}@{record.queue_id}@{record.start_offset}@{record.group}@"
        f"{record.pop_time_ms}@{record.broker_name}@{CHECKPOINT_TAG}",
        names.TAGS: CHECKPOINT_TAG,
        names.TIMER_DELIVER_MS: str(record.revive_at_ms - CHECKPOINT_LEAD_MS),
    }


def ack_properties(record: AckRecord, revive_at_ms: int) -> dict[str, str]:
    """Return the properties of an `ack` or `bAck` record, with the time of its delivery.

    As in Java, the key of a `bAck` has the form of a single ack; `buffered_ack_key` is the other
    form.
    """
    return {
        names.UNIQ_KEY: f"{record.topic}@{record.queue_id}@{record.ack_offset}@{record.group}@"
        f"{record.pop_time_ms}@{record.broker_name}@{ACK_TAG}",
        names.TAGS: ACK_TAG if record.ack_offsets is None else BATCH_ACK_TAG,
        names.TIMER_DELIVER_MS: str(revive_at_ms),
    }


def buffered_ack_key(record: AckRecord) -> str:
    """Return the UNIQ_KEY of a `bAck` record that Java's merge buffer writes."""
    return (
        f"{record.topic}@{record.queue_id}@{list(record.offsets)}@{record.group}@"
        f"{record.pop_time_ms}@{BATCH_ACK_TAG}"
    )

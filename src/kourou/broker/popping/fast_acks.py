"""Fast path of acks: ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151).

Used by `fast_pops.py`, which finds the frames. An ack is accepted only if all its messages are of
live checkpoints of this broker, within their queues, and popped without order; and the merge buffer
is empty. All others are left to the general path (`acks.py`). Both use the same writer.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from functools import partial
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from kourou.broker.context import BrokerContext
from kourou.broker.popping.ack_writer import BITS_MAX, AckAnswer, AckWriter
from kourou.broker.popping.checkpoint import CheckpointKey
from kourou.broker.popping.in_flight import InFlight
from kourou.broker.popping.revive_log import ReviveLog
from kourou.broker.reserved import reserved_reason
from kourou.decimals import decimal_or
from kourou.errors import MalformedHeaderError, RemoteError
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.frame import HEADER_AT, encode_frame, frame_of
from kourou.protocol.popping.receipt_handles import decode_receipt_handle
from kourou.protocol.popping.topic_names import NOT_RETRY, ORDER_REVIVE_QUEUE, real_topic
from kourou.remoting.connection import Connection, Request
from kourou.remoting.dispatch import reply_error

_ACK_CODE: Final = b"%d" % RequestCode.ACK_MESSAGE
_OPAQUE: Final = 1_444_444_444
_USERS_MAX: Final = 4_096

_Int32 = Annotated[int, msgspec.Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]


class _Fields(msgspec.Struct, rename="camel", gc=False):
    """The fields of `AckMessageRequestHeader` that this path reads; others are ignored."""

    consumer_group: str
    topic: str
    queue_id: str
    extra_info: str
    offset: str


class _Header(msgspec.Struct, gc=False):
    code: Literal[200051]
    extFields: _Fields  # noqa: N815 - wire name
    flag: Literal[0]
    opaque: _Int32
    version: _Int32 = 0
    remark: str | None = None


class _BatchHeader(msgspec.Struct, gc=False):
    code: Literal[200151]
    flag: Literal[0]
    opaque: _Int32
    extFields: dict[str, str] | None = None  # noqa: N815 - wire name
    version: _Int32 = 0
    remark: str | None = None


class _BatchAck(msgspec.Struct, gc=False):
    """A `BatchAck` with the short names of its members."""

    c: str
    t: str
    b: str
    so: _Offset
    q: _Natural
    rq: _Natural
    pt: _Offset
    it: _Offset
    r: str = NOT_RETRY


class _Batch(msgspec.Struct, gc=False):
    acks: list[_BatchAck]
    brokerName: str | None = None  # noqa: N815 - wire name


_decode_ack: Final = msgspec.json.Decoder(_Header).decode
_decode_batch_header: Final = msgspec.json.Decoder(_BatchHeader).decode
_decode_batch: Final = msgspec.json.Decoder(_Batch).decode


class _Acks(NamedTuple):
    """Acks of one checkpoint; `place` is its revive queue, and when its messages are visible."""

    key: CheckpointKey
    bits: int
    place: tuple[int, int]


class _Handle(NamedTuple):
    """A receipt handle without its queue offset, and the fields beside it."""

    words: str
    queue: tuple[str, str, str]


class FastAcks:
    """Serves acks on the fast path."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        writer: AckWriter,
        in_flight: InFlight,
        revive_log: ReviveLog,
        buffer_is_empty: Callable[[], bool],
    ) -> None:
        """Acknowledge messages of `in_flight` by `writer`."""
        self._topics = context.topics
        self._reader = context.store.reader
        self._broker_name = context.config.broker_name
        self._writer = writer
        self._in_flight = in_flight
        self._revive_log = revive_log
        self._buffer_is_empty = buffer_is_empty
        self._users: set[tuple[str, str]] = set()
        self._handle = _Handle("", ("", "", ""))  # that of the last ack, and its key
        self._key: tuple[CheckpointKey, int] | None = None

    def serve(
        self,
        connection: Connection,
        code: bytearray,
        header: bytearray,
        body: bytearray,
        size: int,
    ) -> str | None:
        """Serve an ack; return why the general path must do that, None if it is served.

        Args:
            connection: of the client.
            code: the digits of the request code.
            header: of the frame.
            body: of the frame.
            size: of the frame, as it counts among the unanswered requests.
        """
        if not self._buffer_is_empty():
            return "buffer"
        try:
            if code == _ACK_CODE:
                ack_header = _decode_ack(header)
                found = self._one(ack_header.extFields)
                opaque = ack_header.opaque
                code_number = RequestCode.ACK_MESSAGE
            else:
                opaque = _decode_batch_header(header).opaque
                found = self._all(_decode_batch(body))
                code_number = RequestCode.BATCH_ACK_MESSAGE
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return "header"
        if isinstance(found, str):
            return found
        answer = AckAnswer(partial(_reply, connection, code_number, opaque, size))
        connection.unanswered.add_all(size, 1)
        add = self._writer.add_bits
        for key, bits, place in found:
            add(key, bits, place, answer)
        answer.settle()
        return None

    def _one(self, fields: _Fields) -> list[_Acks] | str:
        """Return what a single ack acknowledges, or why the general path must decide."""
        offset = decimal_or(fields.offset, -1)
        handle = fields.extra_info.rpartition(" ")[0]
        queue = (fields.topic, fields.consumer_group, fields.queue_id)
        if self._key is None or self._handle != (handle, queue):
            self._key = None
            reason = self._decode_handle(fields)
            if reason is not None:
                return reason
            self._handle = _Handle(handle, queue)
        assert self._key is not None, "it was decoded"
        key, revive_queue = self._key
        topic = self._topics.get(key.topic)
        if topic is None or key.queue_id >= topic.read_queue_nums:
            return "topic"
        return self._acks_of(key, 1 << max(0, offset - key.start_offset), offset, revive_queue)

    def _decode_handle(self, fields: _Fields) -> str | None:
        """Set the key of the checkpoint that a single ack names; return a reason to decline."""
        try:
            handle = decode_receipt_handle(fields.extra_info)
        except MalformedHeaderError:
            return "handle"
        queue_id = decimal_or(fields.queue_id, -1)
        group, topic = fields.consumer_group, fields.topic
        if handle.is_ordered:
            return "order"
        if queue_id < 0 or not self._is_permitted(group, topic):
            return "queue"
        if handle.start_offset < 0 or handle.offset is None:
            return "handle"
        self._key = (
            CheckpointKey(
                topic, group, queue_id, handle.start_offset, handle.pop_time_ms, handle.broker_name
            ),
            handle.revive_queue,
        )
        return None

    def _all(self, batch: _Batch) -> list[_Acks] | str:
        """Return what a batch acknowledges, or why the general path must decide."""
        found: list[_Acks] = []
        broker_name = batch.brokerName or self._broker_name
        for ack in batch.acks:
            group, topic = ack.c, ack.t
            if ack.rq == ORDER_REVIVE_QUEUE:
                return "order"
            if not self._is_permitted(group, topic):
                return "queue"
            if ack.r != NOT_RETRY:
                topic = real_topic(topic, group, ack.r)
            try:
                bits = int.from_bytes(binascii.a2b_base64(ack.b, strict_mode=True), "little")
            except ValueError:
                return "bits"
            if not bits:
                return "bits"
            key = CheckpointKey(topic, group, ack.q, ack.so, ack.pt, broker_name)
            acks = self._acks_of(key, bits, ack.so + bits.bit_length() - 1, ack.rq)
            if isinstance(acks, str):
                return acks
            found += acks
        return found or "empty"

    def _acks_of(
        self, key: CheckpointKey, bits: int, last: int, revive_queue: int
    ) -> list[_Acks] | str:
        """Return the acks of one checkpoint, all of whose messages must be in flight.

        Args:
            key: of the checkpoint.
            bits: of the messages.
            last: queue offset of the last message.
            revive_queue: that of the receipt handle.
        """
        topic, _, queue_id, start, _, _ = key
        live = self._in_flight.in_flight_bits(key)
        if live is None or last < start or last - start > BITS_MAX or bits & ~live[0]:
            return "checkpoint"
        if start < self._reader.min_offset(topic, queue_id):
            return "offset"
        if revive_queue >= self._revive_log.queue_count:
            return "revive queue"
        return [_Acks(key, bits, (revive_queue, live[1]))]

    def _is_permitted(self, group: str, topic: str) -> bool:
        """Return whether clients may acknowledge as this group; it never changes."""
        user = (group, topic)
        if user in self._users:
            return True
        if reserved_reason(group, topic) is not None:
            return False
        if len(self._users) >= _USERS_MAX:
            self._users.clear()
        self._users.add(user)
        return True


def _reply(
    connection: Connection, code: int, opaque: int, size: int, error: RemoteError | None
) -> None:
    """Answer a request whose acks are stored, or refused."""
    if error is None:
        connection.unanswered.remove(size)
        connection.send_frames(frame_of(_ANSWER % opaque))
    else:
        reply_error(Request(RemotingCommand(code, opaque=opaque), connection, size), error)


_ANSWER: Final = encode_frame(response(RemotingCommand(RequestCode.ACK_MESSAGE, opaque=_OPAQUE)))[
    HEADER_AT:
].replace(b"%d" % _OPAQUE, b"%d")
"""Header of the answer to stored acks, as a format of the opaque."""

"""Fast path of AckMessage: requests for messages of one broker.

Such a request becomes the frame of an ack on the client's own connection, of a batch if it has
several messages, and the broker's answer becomes the response, without messages of protobuf,
headers or tasks. The request is

    10 len              group
    18 len              topic
    26 len              a message, any number of times
      10 len              id
      18 len              receipt handle

All others are left to `kourou.proxy.receipt_calls`: those of clients without a connection to the
broker, with handles that have expired, and of messages that were renewed or are being renewed.
`tests/proxy/test_plain_acks.py` compares the two.

Source: definition.proto and service.proto beside this package; protobuf's wire format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec

from kourou.client.calls_pop import ack_batch_command
from kourou.errors import KourouError, TransportError
from kourou.http2.calls import Call
from kourou.model.route import TopicRoute
from kourou.protocol.codes import LanguageCode, RequestCode
from kourou.protocol.command import FLAG_RESPONSE, RemotingCommand, raise_for_response, request
from kourou.protocol.frame import (
    HEADER_AT,
    bare_frame_end,
    encode_frame,
    frame_of,
    header_template,
)
from kourou.protocol.popping.headers import AckMessageRequestHeader, BatchAck
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.protocol.popping.topic_names import real_topic
from kourou.proxy.call_counts import CallCounts
from kourou.proxy.checks import check_group, check_topic, is_blank
from kourou.proxy.cluster import REQUEST_TIMEOUT_S
from kourou.proxy.deliveries import batch_requests
from kourou.proxy.metadata import client_of
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import Code
from kourou.proxy.receipts import (
    OffsetsByCheckpoint,
    is_expired,
    offsets_by_checkpoint,
    read_handle,
)
from kourou.proxy.status import error_status, is_not_served, ok, status
from kourou.proxy.varints import encode_varint, read_varint
from kourou.remoting.connection import Connection
from kourou.remoting.pending import PendingRequest

METHOD: Final = "AckMessage"
_PLANS_MAX: Final = 4_096
_HEAD_BYTES_MAX: Final = 1_024
"""Longer names are not kept."""
_ACK: Final = RequestCode.ACK_MESSAGE
_BATCH_ACK: Final = RequestCode.BATCH_ACK_MESSAGE
_ENTRIES_MAX: Final = 256
"""Messages of a plain request: the event loop serves nothing else meanwhile."""
_ENTRIES_PER_FRAME: Final = 8
"""Messages that cost about as much as a frame; see `Call.spend`."""

_GROUP: Final = 0x0A
_TOPIC: Final = 0x12
_ENTRY: Final = 0x1A
_MESSAGE_ID: Final = 0x0A
_HANDLE: Final = 0x12

_QUEUE_MARKER: Final = 2_147_483_629
_OFFSET_MARKER: Final = 8_191_919_191_919_191_919
_OPAQUE_MARKER: Final = 2_147_483_543
_HANDLE_MARKER: Final = "\x7f handle \x7f"  # no name of a topic, group or broker has blanks

_ANSWER_BYTES_MAX: Final = 1_024
_encode_text: Final = msgspec.json.Encoder().encode
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_START: Final = v2.AckMessageResponse(status=ok()).SerializeToString()
_ENTRY_END: Final = v2.AckMessageResultEntry(status=ok()).SerializeToString()


class _Answer(msgspec.Struct, gc=False):
    """The fields of an answer that tell whether the messages are acknowledged."""

    flag: int
    opaque: int
    code: Annotated[int, msgspec.Meta(ge=0, le=0)]


_decode: Final = msgspec.json.Decoder(_Answer).decode


class Brokers(Protocol):
    """Brokers of a proxy; see `kourou.proxy.cluster.Cluster`."""

    def now_ms(self) -> int: ...

    def known_route(self, topic: str) -> TopicRoute | None: ...


class Clients(Protocol):
    """Clients of a proxy; see `kourou.proxy.clients.ClientTable`."""

    def connection(self, client_id: str, address: str) -> Connection | None: ...


class Held(Protocol):
    """Messages that are renewed; see `kourou.proxy.held_messages.HeldMessages`."""

    def holds_any(self, client_id: str, group: str) -> bool: ...

    def take_unrenewed(
        self, client_id: str, group: str, message_id: str, receipt: ReceiptHandle
    ) -> bool: ...


class PlainEntry(msgspec.Struct, frozen=True, gc=False):
    """One message of a plain request.

    Attributes:
        encoded: the entry, as encoded.
        message_id: in ASCII.
        handle: likewise.
    """

    encoded: bytes
    message_id: bytes
    handle: str


class PlainRequest(NamedTuple):
    """The parts of a plain request.

    Attributes:
        head: group and topic, as encoded.
        entries: the messages, at least one.
    """

    head: bytes
    entries: list[PlainEntry]


class AckPlan(NamedTuple):
    """The common part of the acks of one group, topic and broker.

    Attributes:
        topic: as the client named it.
        group: likewise.
        template: header of the broker's request, as a format of queue, handle, offset and opaque,
            in the order of the general encoder.
    """

    topic: str
    group: str
    template: bytes

    def frame(self, handle: str, queue_id: int, offset: int, opaque: int) -> bytes:
        """Return the request to the broker for a message with a client's handle."""
        handle = handle.rpartition(" ")[0]  # the broker does not need the commit log offset
        return frame_of(self.template % (queue_id, _encode_text(handle), offset, opaque))


def read_ack(data: bytes) -> PlainRequest | None:
    """Return the parts of a request; None if it is not plain."""
    try:
        if data[0] != _GROUP:
            return None
        size, at = read_varint(data, 1)
        at += size
        if data[at] != _TOPIC:
            return None
        size, at = read_varint(data, at + 1)
        at += size
        if data[at] != _ENTRY:
            return None
        head, end = data[:at], len(data)
        entries: list[PlainEntry] = []
        while at < end and len(entries) < _ENTRIES_MAX:
            if data[at] != _ENTRY:
                return None
            size, entry_at = read_varint(data, at + 1)
            at = entry_at + size
            entry = _read_entry(data, entry_at, at)
            if entry is None:
                return None
            entries.append(entry)
    except (IndexError, UnicodeDecodeError):
        return None
    return PlainRequest(head, entries) if at == end else None


def _read_entry(data: bytes, at: int, end: int) -> PlainEntry | None:
    """Return the entry between two bytes of a request; None if it is not plain.

    Raises:
        IndexError: it is cut off.
        UnicodeDecodeError: the handle is not ASCII.
    """
    if data[at] != _MESSAGE_ID:
        return None
    size, id_at = read_varint(data, at + 1)
    id_end = id_at + size
    if data[id_end] != _HANDLE:
        return None
    size, handle_at = read_varint(data, id_end + 1)
    if handle_at + size != end:
        return None
    message_id = data[id_at:id_end]
    if not message_id.isascii():
        return None
    return PlainEntry(data[at:end], message_id, data[handle_at:end].decode("ascii"))


class PlainAck(PendingRequest[None]):
    """One call in flight.

    Attributes:
        acks: the fast path.
        call: its call, and the bytes of its request.
        entries: the messages.
        language: of the client.
    """

    __slots__ = ("acks", "call", "data", "entries", "language")

    def __init__(
        self,
        acks: PlainAcks,
        call: Call,
        data: bytes,
        entries: list[PlainEntry],
        language: LanguageCode | None,
    ) -> None:
        super().__init__(loop=acks.loop)
        self.acks = acks
        self.call = call
        self.data = data
        self.entries = entries
        self.language = language
        self.code = int(_ACK if len(entries) == 1 else _BATCH_ACK)
        self.timeout_s = REQUEST_TIMEOUT_S

    def succeed(self) -> None:
        """Answer that the messages are acknowledged."""
        self.call.reply(acknowledged_response(self.entries))
        self.acks.counts.add(METHOD, self.language, Code.OK)

    def on_answer(self, answer: RemotingCommand) -> None:
        """Handle an answer that `complete_acks` has left: refusals, mostly."""
        try:
            raise_for_response(answer)
        except KourouError as error:
            if not is_not_served(error):
                self._fail(error)
            elif self.call.is_active:
                self.acks.in_general(self.call, self.data)
        else:
            self.succeed()

    def on_failure(self, error: TransportError) -> None:
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        outcome = error_status(error)
        code = outcome.code
        entries = [parse(v2.AckMessageResultEntry, one.encoded) for one in self.entries]
        for entry in entries:
            entry.status.CopyFrom(outcome)
        response = v2.AckMessageResponse(status=status(code), entries=entries)
        self.call.reply(response.SerializeToString())
        self.acks.counts.add(METHOD, self.language, code)


class PlainAcks:
    """Serves plain acks.

    Attributes:
        loop: the event loop.
        in_general: serves all others, and those that must be sent again.
        counts: counts the calls.
        count: number of plain acks.
    """

    def __init__(
        self,
        brokers: Brokers,
        clients: Clients,
        held: Held,
        in_general: Callable[[Call, bytes], None],
        counts: CallCounts,
    ) -> None:
        """Create the fast path.

        Args:
            brokers: those of the proxy.
            clients: likewise.
            held: messages that are renewed until they are acknowledged.
            in_general: serves a call on the general path.
            counts: counts the calls.
        """
        self.loop = asyncio.get_running_loop()
        self.in_general = in_general
        self.counts = counts
        self.count = 0
        self._brokers = brokers
        self._clients = clients
        self._held = held
        self._plans: dict[tuple[bytes, str, str], AckPlan | None] = {}

    def serve(self, call: Call, data: bytes) -> None:
        """Serve a call of AckMessage."""
        if not self._begin(call, data):
            self.in_general(call, data)

    def _begin(self, call: Call, data: bytes) -> bool:
        """Send the ack; return False, if the call is not plain.

        A message that was held for its client is then not held any more, as on the general path.
        """
        plain = read_ack(data)
        if plain is None:
            return False
        client_id, language = client_of(call)
        offsets = current_offsets(plain.entries, self._brokers.now_ms())
        if not offsets or is_blank(client_id):
            return False
        first = next(iter(offsets))
        plan = self._plan(plain.head, first.kind, first.broker_name)
        connection = None if plan is None else self._connection(plan, client_id, first.broker_name)
        if plan is None or connection is None:
            return False
        batches: list[list[BatchAck]] = []
        if len(plain.entries) > 1:
            batches = batch_requests(plan.topic, plan.group, offsets)
            if len(batches) != 1:
                return False
        if not self._take_unrenewed(client_id, plan.group, plain.entries):
            return False
        ack = PlainAck(self, call, data, plain.entries, language)
        if not connection.register_pending(ack, call.connection.read_at_s + REQUEST_TIMEOUT_S):
            return False
        if batches:
            connection.send_frames(batch_frame(first.broker_name, batches[0], ack.opaque))
            call.spend(len(plain.entries) // _ENTRIES_PER_FRAME)
        else:
            handle, (offset,) = plain.entries[0].handle, offsets[first]
            connection.send_frames(plan.frame(handle, first.queue_id, offset, ack.opaque))
        self.count += 1
        return True

    def _take_unrenewed(self, client_id: str, group: str, entries: list[PlainEntry]) -> bool:
        """Stop to renew messages; False if one has another receipt now, or is about to."""
        if not self._held.holds_any(client_id, group):
            return True
        return all(
            self._held.take_unrenewed(
                client_id, group, entry.message_id.decode(), read_handle(entry.handle)
            )
            for entry in entries
        )

    def _connection(self, plan: AckPlan, client_id: str, broker_name: str) -> Connection | None:
        """Return the client's connection to the broker's master; None if it has none."""
        route = self._brokers.known_route(plan.topic)
        address = None if route is None else route.master_address(broker_name)
        return None if address is None else self._clients.connection(client_id, address)

    def _plan(self, head: bytes, kind: str, broker_name: str) -> AckPlan | None:
        """Return the plan of a request's group and topic; None if they need the general path."""
        key = head, kind, broker_name
        try:
            return self._plans[key]
        except KeyError:
            plan = plan_of(head, kind, broker_name)
        if len(head) + len(kind) + len(broker_name) <= _HEAD_BYTES_MAX:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            self._plans[key] = plan
        return plan


def current_offsets(entries: list[PlainEntry], now_ms: int) -> OffsetsByCheckpoint:
    """Return the messages of a request; empty if they need the general path.

    They do with several brokers, or if a handle is not as this proxy writes it or has expired.
    """
    offsets = offsets_by_checkpoint([entry.handle for entry in entries])
    if any(is_expired(checkpoint, now_ms) for checkpoint in offsets):
        return {}
    is_one_broker = len({checkpoint.broker_name for checkpoint in offsets}) == 1
    return offsets if is_one_broker else {}


def plan_of(head: bytes, kind: str, broker_name: str) -> AckPlan | None:
    """Return the plan of a request's group and topic; None if they need the general path."""
    try:
        asked = parse(v2.AckMessageRequest, head)
        topic, group = asked.topic.name, asked.group.name
        check_topic(topic)
        check_group(group)
    except KourouError:
        return None
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=real_topic(topic, group, kind),
        queue_id=_QUEUE_MARKER,
        extra_info=_HANDLE_MARKER,
        offset=_OFFSET_MARKER,
        broker_name=broker_name,
    )
    command = request(_ACK, header)
    command.opaque = _OPAQUE_MARKER
    markers = {
        _encode_text(_HANDLE_MARKER): b"%b",
        b"%d" % _OFFSET_MARKER: b"%d",
        b"%d" % _QUEUE_MARKER: b"%d",
        b"%d" % _OPAQUE_MARKER: b"%d",
    }
    template = header_template(command, markers)
    return None if template is None else AckPlan(topic, group, template)


def batch_frame(broker_name: str, acks: list[BatchAck], opaque: int) -> bytes:
    """Return the request to the broker for several messages."""
    command = ack_batch_command(broker_name, acks)
    command.opaque = opaque
    return encode_frame(command)


def complete_acks(connection: Connection, buffer: bytearray, at: int, end: int) -> int:
    """Answer the calls whose messages are acknowledged, by the frames from byte `at` on.

    Returns the position of the first frame that was not processed. This is the `FastPath` of the
    connections of clients to brokers.
    """
    waiting = connection.pending.by_opaque
    while next_at := bare_frame_end(buffer, at, end, _ANSWER_BYTES_MAX):
        try:
            answer = _decode(buffer[at + HEADER_AT : next_at])
        except _MALFORMED:
            break
        ack = waiting.get(answer.opaque)
        if answer.flag != FLAG_RESPONSE or type(ack) is not PlainAck:
            break
        del waiting[answer.opaque]
        ack.tick.pop(answer.opaque, None)
        ack.succeed()
        at = next_at
    return at


def acknowledged_response(entries: list[PlainEntry]) -> bytes:
    """Return the encoded response for messages of a request."""
    # Entries of requests and responses have the same numbers of id and handle.
    parts = [_START]
    for entry in entries:
        size = len(entry.encoded) + len(_ENTRY_END)
        parts += (b"\x12", encode_varint(size), entry.encoded, _ENTRY_END)
    return b"".join(parts)

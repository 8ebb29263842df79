"""Fast path of SendMessage: plain requests, by callbacks instead of a task.

A plain request (`kourou.proxy.plain_requests`) with a known route and a known topic is sent
without messages of protobuf, commands, headers or tasks:

    broker              the message goes           the result comes from
    of this process     to its `LocalQueue`        `PlainSend.on_stored`
    another one         in the frame of a send     the broker's answer, in `complete_stored`

A message that the broker of this process declines goes in a frame too. Everything else is left to
`kourou.proxy.sends`, which serves every call; `tests/proxy/test_plain_sends.py` compares the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from kourou.client.sending.send_plans import SendFrames
from kourou.decimals import is_decimal
from kourou.errors import KourouError, TransportError
from kourou.http2.calls import Call
from kourou.model.queue import MessageQueue
from kourou.model.route import TopicRoute, publish_queues
from kourou.protocol.codes import LanguageCode, RequestCode
from kourou.protocol.command import FLAG_RESPONSE, RemotingCommand
from kourou.protocol.frame import HEADER_AT, bare_frame_end
from kourou.proxy.call_counts import CallCounts
from kourou.proxy.checks import CallLimits, is_blank
from kourou.proxy.convert import send_result
from kourou.proxy.metadata import client_of
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code
from kourou.proxy.plain_requests import PlainRequest, Shape, Shapes, read_plain
from kourou.proxy.queue_choice import Turns, consistent_hash
from kourou.proxy.status import is_not_served, ok, status
from kourou.proxy.varints import encode_varint
from kourou.remoting.connection import Connection
from kourou.remoting.pending import PendingRequest
from kourou.remoting.pool import ConnectionPool

if TYPE_CHECKING:  # a proxy in front of other processes stores nothing
    from kourou.broker.sending.local_sends import LocalQueue, LocalSends

DEFAULT_QUEUES: Final = 4
"""Queues of a topic that the broker creates for a send."""
TIMEOUT_S: Final = 3.0
"""Time for the broker's answer."""
_PLANS_MAX: Final = 4_096
_CODE: Final = int(RequestCode.SEND_MESSAGE_V2)
METHOD: Final = "SendMessage"

_ANSWER_BYTES_MAX: Final = 4_096

_START: Final = v2.SendMessageResponse(status=ok()).SerializeToString()
_ENTRY_START: Final = v2.SendResultEntry(status=ok()).SerializeToString()

SendInGeneral = Callable[[Call, bytes], None]
"""Serves a call whose request is given on the general path."""


class _Stored(msgspec.Struct, gc=False):
    """The decoded fields; see `SendMessageResponseHeader`."""

    queueOffset: str  # noqa: N815 - wire name
    transactionId: str = ""  # noqa: N815 - wire name
    recallHandle: str = ""  # noqa: N815 - wire name


class _Answer(msgspec.Struct, gc=False):
    extFields: _Stored  # noqa: N815 - wire name
    flag: int
    opaque: int
    code: int


_decode: Final = msgspec.json.Decoder(_Answer).decode
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class TopicTypes(Protocol):
    """Types of topics; see `kourou.proxy.cluster.Metadata`."""

    def known_topic_type(self, topic: str) -> str | None: ...


class Brokers(Protocol):
    """Brokers of a proxy; see `kourou.proxy.cluster.Cluster`."""

    @property
    def pool(self) -> ConnectionPool: ...

    @property
    def metadata(self) -> TopicTypes: ...

    @property
    def has_failed_brokers(self) -> bool: ...

    def known_route(self, topic: str) -> TopicRoute | None: ...

    def local_sends(self, address: str) -> LocalSends | None: ...

    def on_failure(self, topic: str, broker_name: str, error: KourouError) -> None: ...


class _Target(NamedTuple):
    """One queue of a topic, and how messages get there.

    Attributes:
        address: of its broker.
        queue: the queue.
        frames: the frame template of its broker.
        local: takes its messages without frames; None if it is not of this process.
    """

    address: str
    queue: MessageQueue
    frames: SendFrames
    local: LocalQueue | None


class _Plan(NamedTuple):
    """Queues for the messages of a topic, as long as its route is the same."""

    route: TopicRoute
    targets: tuple[_Target, ...]


class PlainSend:
    """One call in flight; a `LocalSend` if its broker is in this process.

    Attributes:
        sends: the fast path.
        call: its call.
        data: the bytes of its request.
        language: of the client.
        message: the parts of the request.
        shape: what the rest of it means.
        target: the destination.
    """

    __slots__ = ("call", "data", "language", "message", "sends", "shape", "target")

    def __init__(
        self, sends: PlainSends, call: Call, data: bytes, message: PlainRequest, shape: Shape,
        target: _Target, language: LanguageCode | None,
    ) -> None:  # fmt: skip
        self.sends = sends
        self.call = call
        self.data = data
        self.message = message
        self.shape = shape
        self.target = target
        self.language = language

    def on_stored(self, queue_offset: int) -> None:
        """Answer that the message is stored. The broker uses the message id as transaction id."""
        message_id = self.message.message_id
        self.reply(stored_response(message_id, message_id, queue_offset), Code.OK)

    def on_declined(self) -> None:
        """Send the message in a frame."""
        self.sends.serve_in_frame(self)

    def on_answer(self, answer: RemotingCommand) -> None:
        """Handle an answer other than that the message is stored: refusals, mostly."""
        try:
            entry = send_result(answer, self.message.message_id.decode())
        except KourouError as error:
            self._on_refused(error)
            return
        code = entry.status.code
        response = v2.SendMessageResponse(status=status(code), entries=[entry])
        self.reply(response.SerializeToString(), code)

    def _on_refused(self, error: KourouError) -> None:
        self._note_failure(error)
        if not is_not_served(error):
            self._fail(error)
        elif self.call.is_active:
            self.sends.in_general(self.call, self.data)

    def on_failure(self, error: TransportError) -> None:
        self._note_failure(error)
        self._fail(error)  # the broker may have stored the message

    def _note_failure(self, error: KourouError) -> None:
        queue = self.target.queue
        self.sends.brokers.on_failure(queue.topic, queue.broker_name, error)

    def _fail(self, error: Exception) -> None:
        response = v2.SendMessageResponse(status=self.sends.failure(error))
        self.reply(response.SerializeToString(), response.status.code)

    def reply(self, response: bytes, code: int) -> None:
        """Answer the call, and count it with the code of the response."""
        self.call.reply(response)
        self.sends.counts.add(METHOD, self.language, code)


class _InFrame(PendingRequest[None]):
    """A send whose frame the broker has not answered."""

    __slots__ = ("send",)

    def __init__(self, send: PlainSend) -> None:
        super().__init__(loop=send.sends.loop)
        self.send = send
        self.code = _CODE
        self.timeout_s = TIMEOUT_S

    def on_answer(self, answer: RemotingCommand) -> None:
        self.send.on_answer(answer)

    def on_failure(self, error: TransportError) -> None:
        self.send.on_failure(error)


class PlainSends:
    """Serves plain sends.

    Attributes:
        loop: the event loop.
        brokers: those of the proxy.
        in_general: serves all others, and those that must be sent again.
        failure: returns the status for an error.
        counts: counts the calls.
        count: number of plain sends.
    """

    def __init__(
        self,
        brokers: Brokers,
        limits: CallLimits,
        turns: Turns,
        in_general: SendInGeneral,
        failure: Callable[[Exception], v2.Status],
        counts: CallCounts,
    ) -> None:
        """Create the fast path.

        Args:
            brokers: those of the proxy.
            limits: of the values in calls.
            turns: numbers that grow with each send of the proxy; shared with the general path.
            in_general: serves a call on the general path.
            failure: the status for an error of a send.
            counts: counts the calls.
        """
        self.loop = asyncio.get_running_loop()
        self.in_general = in_general
        self.failure = failure
        self.counts = counts
        self.brokers = brokers
        self._shapes = Shapes(limits)
        self._turns = turns
        self._body_bytes_max = limits.body_bytes_max or (1 << 62)
        self._plans: dict[str, _Plan] = {}
        self._checked: tuple[object, Shape, str] | None = None
        self._targets: tuple[_Target, ...] = ()  # of the turn, shape and client of `_checked`
        self.count = 0

    def serve(self, call: Call, data: bytes) -> None:
        """Serve a call of SendMessage. Takes about 8 us without the broker's part."""
        if not self._begin(call, data):
            self.in_general(call, data)

    def serve_in_frame(self, send: PlainSend) -> None:
        """Serve a call whose message the broker of this process has declined."""
        if not self._send_frame(send):
            self.in_general(send.call, send.data)

    def _begin(self, call: Call, data: bytes) -> bool:
        """Send the message; return False, without any effect, if the call is not plain."""
        plain = read_plain(data)
        if plain is None or len(plain.body) > self._body_bytes_max:
            return False
        client_id, language = client_of(call)
        connection = call.connection
        shape = self._shapes.get(plain, connection.remote_address[0])
        if shape is None:
            return False
        checked = connection.turn, shape, client_id
        if checked != self._checked:
            self._targets = () if is_blank(client_id) else self._find_targets(shape)
            self._checked = checked
        targets = self._targets
        if not targets:
            return False
        count, group_hash = len(targets), shape.group_hash
        turn = self._turns.following % count
        target = targets[turn if group_hash is None else consistent_hash(group_hash, count)]
        send = PlainSend(self, call, data, plain, shape, target, language)
        if target.local is not None:
            target.local.put(send, plain, shape.text.of(plain), shape.constant)
        elif not self._send_frame(send):
            return False
        self._turns.take()  # only now: the general path takes this turn otherwise
        self.count += 1
        return True

    def _send_frame(self, send: PlainSend) -> bool:
        """Send the message in a frame; return False, without any effect, if that is impossible."""
        message, target = send.message, send.target
        connection = self.brokers.pool.existing(target.address)
        if connection is None:
            return False
        pending = _InFrame(send)
        if not connection.register_pending(pending, send.call.connection.read_at_s + TIMEOUT_S):
            return False
        frame = target.frames.frame(
            target.queue.queue_id, message.born_at_ms, 0, send.shape.json.of(message),
            pending.opaque, message.body,
        )  # fmt: skip
        if frame is None:
            pending.abandon()
            return False
        connection.send_frames(frame)
        return True

    def _find_targets(self, shape: Shape) -> tuple[_Target, ...]:
        """Return the queues for a message; empty if it needs the general path."""
        if self.brokers.metadata.known_topic_type(shape.topic) != shape.type:
            return ()
        plan = self._plan(shape.topic)
        return () if plan is None or self.brokers.has_failed_brokers else plan.targets

    def _plan(self, topic: str) -> _Plan | None:
        """Return the plan of a topic; None if its route is not known."""
        route = self.brokers.known_route(topic)
        plan = self._plans.get(topic)
        if route is None:
            return None
        if plan is not None and plan.route is route:
            return plan
        if len(self._plans) >= _PLANS_MAX:
            self._plans.clear()
        plan = self._plans[topic] = self._new_plan(topic, route)
        return plan

    def _new_plan(self, topic: str, route: TopicRoute) -> _Plan:
        """Return a plan; without targets if a queue needs the general path."""
        targets: list[_Target] = []
        frames: dict[str, SendFrames] = {}
        for queue in publish_queues(topic, route):
            name = queue.broker_name
            address = route.master_address(name)
            if name not in frames:
                frames[name] = SendFrames(topic, topic, name, DEFAULT_QUEUES)
            if address is None or not frames[name].is_usable:
                return _Plan(route, ())
            local = self.brokers.local_sends(address)
            taken = None if local is None else local.queue(queue)
            targets.append(_Target(address, queue, frames[name], taken))
        return _Plan(route, tuple(targets))


def complete_stored(connection: Connection, buffer: bytearray, at: int, end: int) -> int:
    """Answer the calls whose messages are stored, by the frames from byte `at` on.

    Returns the position of the first frame that was not processed. This is the `FastPath` of the
    proxy's connections to brokers.
    """
    waiting: dict[int, Any] = connection.pending.by_opaque
    size_max = min(_ANSWER_BYTES_MAX, connection.limits.frame_bytes_max)
    while next_at := bare_frame_end(buffer, at, end, size_max):
        try:
            answer = _decode(buffer[at + HEADER_AT : next_at])
        except _MALFORMED:
            break
        fields, opaque = answer.extFields, answer.opaque
        offset = fields.queueOffset
        pending = waiting.get(opaque)
        if (
            answer.code
            or answer.flag != FLAG_RESPONSE
            or type(pending) is not _InFrame
            or fields.recallHandle
            or not is_decimal(offset)
        ):
            break
        send, transaction_id = pending.send, fields.transactionId.encode()
        response = stored_response(send.message.message_id, transaction_id, int(offset))
        waiting.pop(opaque).tick.pop(opaque, None)
        send.reply(response, Code.OK)
        at = next_at
    return at


def stored_response(message_id: bytes, transaction_id: bytes, offset: int) -> bytes:
    """Return the encoded response for one stored message."""
    entry = b"".join((
        _ENTRY_START, b"\x12", encode_varint(len(message_id)), message_id,
        b"\x1a%b%b" % (encode_varint(len(transaction_id)), transaction_id)
        if transaction_id else b"",
        b"\x20" + encode_varint(offset) if offset else b"",
    ))  # fmt: skip
    return b"".join((_START, b"\x12", encode_varint(len(entry)), entry))

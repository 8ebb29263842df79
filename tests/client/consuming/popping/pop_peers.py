"""Pop brokers with one queue each, in memory, for tests of what a client sends and concludes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from kourou.client.consuming.consumer_config import SimpleConsumerConfig
from kourou.client.consuming.simple_consumer import SimpleConsumer
from kourou.model.route import BrokerData, QueueData, TopicRoute
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.json_records import decode_record
from kourou.protocol.popping.headers import (
    AckMessageRequestHeader,
    BatchAckMessages,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from kourou.protocol.popping.info_strings import offsets_entry, start_offset_entry
from kourou.protocol.popping.receipt_handles import decode_receipt_handle
from kourou.protocol.record.encode import RecordDraft, encode_record
from kourou.protocol.routes import encode_topic_route
from kourou.protocol.sending import ConsumerSendMsgBackRequestHeader
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer
from kourou.testing.network import MemoryNetwork
from kourou.testing.runtime import sim_runtime

TOPIC: Final = "T"
_HOST: Final = "127.0.0.1"
_LOOK_S: Final = 0.01


@dataclass
class Stored:
    """A message of a peer; `visible_at_ms` None: acknowledged. `pop` is time and start offset."""

    draft: RecordDraft
    record: bytes
    visible_at_ms: int | None = 0
    pop: tuple[int, int] = (0, 0)
    times: int = 0


@dataclass
class PopPeer:
    """One broker.

    Attributes:
        requests: request codes in order; `pops` has the headers of pops.
        answers: codes with which the next requests of a kind are refused, in order.
        silent: request codes that get no answer.
    """

    name: str
    port: int
    runtime: Runtime
    messages: list[Stored] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    pops: list[PopMessageRequestHeader] = field(default_factory=list)
    ack_topics: list[str] = field(default_factory=list)
    dead: list[tuple[int, str]] = field(default_factory=list)
    answers: dict[int, list[int]] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    peers: list[PopPeer] = field(default_factory=list)
    topics: tuple[str, ...] = (TOPIC,)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, *bodies: bytes, tags: str | None = None, topic: str = TOPIC) -> None:
        """Store messages."""
        properties = "" if tags is None else f"TAGS\x01{tags}\x02"
        for body in bodies:
            offset = len(self.messages)
            draft = RecordDraft(
                topic.encode(), 0, 0, 0, 0, (_HOST, 1), (_HOST, 2), 0, 0, body, properties.encode()
            )
            self.messages.append(Stored(draft, encode_record(draft, offset, offset * 1000, 0)))

    def set_reconsume_times(self, offset: int, times: int) -> None:
        """Set the number of redeliveries of a message."""
        one = self.messages[offset]
        one.draft.reconsume_times = times
        one.record = encode_record(one.draft, offset, offset * 1000, 0)

    @property
    def unacked(self) -> int:
        """Number of messages that are not acknowledged."""
        return sum(one.visible_at_ms is not None for one in self.messages)

    def count(self, code: RequestCode) -> int:
        """Return the number of requests of a kind."""
        return self.requests.count(code)

    def server(self) -> RemotingServer:
        """Return the server of this broker, which is a name server as well."""
        handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._on_route,
            RequestCode.HEART_BEAT: lambda request: response(request.command),
            RequestCode.UNREGISTER_CLIENT: lambda request: response(request.command),
            RequestCode.POP_MESSAGE: self._on_pop,
            RequestCode.NOTIFICATION: self._on_notification,
            RequestCode.ACK_MESSAGE: self._on_ack,
            RequestCode.BATCH_ACK_MESSAGE: self._on_batch_ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._on_change,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._on_send_back,
        }

        def counted(handler: Any) -> Any:
            def serve(request: Request) -> RemotingCommand | None:
                code = request.command.code
                self.requests.append(code)
                if code == RequestCode.POP_MESSAGE:
                    self.pops.append(request.command.header(PopMessageRequestHeader))
                if code in self.silent:
                    return None
                if self.answers.get(code):
                    refusal = self.answers[code].pop(0)
                    return response(request.command, refusal, "refused by the test")
                answer: RemotingCommand | None = handler(request)
                return answer

            return serve

        wrapped: dict[int, Handler] = {code: counted(handler) for code, handler in handlers.items()}
        return RemotingServer(self.runtime, wrapped, ConnectionLimits(), self.name)

    def _on_route(self, request: Request) -> RemotingCommand:
        if request.command.ext_fields["topic"] not in self.topics:
            return response(request.command, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        route = TopicRoute(
            tuple(QueueData(one.name, 1, 1, 6) for one in self.peers),
            tuple(BrokerData("c", one.name, {0: f"{_HOST}:{one.port}"}) for one in self.peers),
        )
        answer = response(request.command)
        answer.body = encode_topic_route(route, standard=True)
        return answer

    def _now_ms(self) -> int:
        return self.runtime.clock.now_ms()

    def _visible(self) -> list[int]:
        now_ms = self._now_ms()
        return [
            offset
            for offset, one in enumerate(self.messages)
            if one.visible_at_ms is not None and one.visible_at_ms <= now_ms
        ]

    def _later(self, request: Request, wait_ms: int, has: Any, give_up: Any) -> None:
        async def hold() -> None:
            end_ms = self._now_ms() + wait_ms
            while not self._visible() and self._now_ms() < end_ms:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
            request.reply(has() if self._visible() else give_up())

        task = asyncio.create_task(hold())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _on_pop(self, request: Request) -> None:
        header = request.command.header(PopMessageRequestHeader)
        self._later(
            request,
            header.poll_time,
            lambda: self._popped(request.command, header),
            lambda: response(request.command, ResponseCode.POLLING_TIMEOUT, "none"),
        )

    def _popped(self, command: RemotingCommand, header: PopMessageRequestHeader) -> RemotingCommand:
        offsets, now_ms = self._visible()[: header.max_msg_nums], self._now_ms()
        for offset in offsets:
            one = self.messages[offset]
            one.visible_at_ms = now_ms + header.invisible_time
            one.pop, one.times = (now_ms, offsets[0]), one.times + 1
        answer = PopMessageResponseHeader(
            now_ms,
            header.invisible_time,
            0,
            0,
            start_offset_entry("0", 0, offsets[0]),
            offsets_entry("0", 0, offsets),
        )
        body = b"".join(self.messages[offset].record for offset in offsets)
        return response(command, header=answer, body=body)

    def _on_notification(self, request: Request) -> None:
        header = request.command.header(NotificationRequestHeader)

        def answer(has_msg: bool) -> RemotingCommand:
            return response(request.command, header=NotificationResponseHeader(has_msg))

        self._later(request, header.poll_time, lambda: answer(True), lambda: answer(False))

    def _ack(self, offset: int, pop_time_ms: int, start_offset: int) -> bool:
        one = self.messages[offset]
        is_valid = one.pop == (pop_time_ms, start_offset)
        if is_valid:
            one.visible_at_ms = None
        return is_valid

    def _on_ack(self, request: Request) -> RemotingCommand:
        header = request.command.header(AckMessageRequestHeader)
        receipt = decode_receipt_handle(header.extra_info)
        self.ack_topics.append(header.topic)
        self._ack(header.offset, receipt.pop_time_ms, receipt.start_offset)
        return response(request.command)

    def _on_batch_ack(self, request: Request) -> RemotingCommand:
        batch = decode_record(BatchAckMessages, request.command.body)
        for ack in batch.acks:
            bits = int.from_bytes(ack.bits, "little")
            for bit in range(bits.bit_length()):
                if bits >> bit & 1:
                    self._ack(ack.start_offset + bit, ack.pop_time, ack.start_offset)
        return response(request.command)

    def _on_change(self, request: Request) -> RemotingCommand:
        header = request.command.header(ChangeInvisibleTimeRequestHeader)
        receipt = decode_receipt_handle(header.extra_info)
        one, now_ms = self.messages[header.offset], self._now_ms()
        if one.pop == (receipt.pop_time_ms, receipt.start_offset):
            one.visible_at_ms = now_ms + header.invisible_time
            one.pop = (now_ms, header.offset)
        changed = ChangeInvisibleTimeResponseHeader(now_ms, header.invisible_time, 0)
        return response(request.command, header=changed)

    def _on_send_back(self, request: Request) -> RemotingCommand:
        header = request.command.header(ConsumerSendMsgBackRequestHeader)
        reason = request.command.ext_fields.get("KOUROU_DLQ_REASON", "")
        self.dead.append((header.delay_level, reason))
        return response(request.command)


@dataclass
class PopRig:
    """Brokers on one simulated network, and consumers of them."""

    network: MemoryNetwork
    runtime: Runtime
    peers: list[PopPeer]

    def consumer(self, *, tags: str = "*", **options: Any) -> SimpleConsumer:
        """Return a consumer of topic `T`, not started."""
        config = SimpleConsumerConfig(**options)
        address = f"{_HOST}:{self.peers[0].port}"
        consumer = SimpleConsumer("g", address, config=config, runtime=self.runtime)
        consumer.subscribe(TOPIC, tags)
        return consumer


@asynccontextmanager
async def pop_peers(count: int = 1) -> AsyncIterator[PopRig]:
    """Run brokers `b0`, `b1` and so on; the first is the name server as well."""
    network = MemoryNetwork(3)
    runtime = sim_runtime(3, network)
    peers = [PopPeer(f"b{index}", 10_000 + index, runtime) for index in range(count)]
    servers = []
    for peer in peers:
        peer.peers = peers
        server = peer.server()
        await server.start((_HOST, peer.port))
        servers.append(server)
    yield PopRig(network, runtime, peers)
    for peer in peers:
        for task in peer.tasks:
            task.cancel()
    for server in servers:
        await server.stop()

"""A broker for tests of pops, and requests of one consumer."""

from __future__ import annotations

import asyncio
from typing import Any

from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.fastjson import dumps
from kourou.protocol.json_records import to_json
from kourou.protocol.popping.headers import (
    AckMessageRequestHeader,
    BatchAck,
    BatchAckMessages,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from kourou.protocol.popping.info_strings import parse_offsets, parse_start_offsets
from kourou.protocol.popping.receipt_handles import ReceiptHandle, decode_receipt_handle
from kourou.protocol.record.decode import decode_message
from kourou.protocol.record.scan import split_records
from kourou.remoting.steady_time import steady_ms
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker

GROUP = "g"
TOPIC = "T"


class Got:
    """The messages of one answer, with their receipt handles."""

    def __init__(self, answer: RemotingCommand, broker_name: str) -> None:
        self.answer = answer
        self.bodies: list[bytes] = []
        self.handles: list[tuple[int, str]] = []  # queue offset, handle
        self.messages = [decode_message(record) for record in split_records(answer.body)]
        self.bodies = [message.body for message in self.messages]
        if answer.code or not answer.body:
            return
        self.header = header = answer.header(PopMessageResponseHeader)
        starts = parse_start_offsets(header.start_offset_info or "")
        for (kind, queue), offsets in parse_offsets(header.msg_offset_info or "").items():
            for offset in offsets:
                handle = ReceiptHandle(
                    starts[kind, queue], header.pop_time, header.invisible_time, header.revive_qid,
                    kind, broker_name, int(queue), offset,
                )  # fmt: skip
                self.handles.append((offset, handle.encode()))


class Answer(asyncio.Future[RemotingCommand]):
    """The answer to a request.

    Attributes:
        peer: the connection of the request.
    """

    def __init__(self, peer: FakePeer) -> None:
        super().__init__()
        self.peer = peer

    def set(self, command: RemotingCommand) -> None:
        """Complete it."""
        assert not self.done(), "answered once"
        self.set_result(command)


class PopRig:
    """One consumer of a simulated broker."""

    def __init__(self, broker: SimulatedBroker, port: int = 50_000) -> None:
        """Send requests from the local port `port`."""
        self.broker = broker
        self.port = port
        self.handlers = broker.components.popping.handlers()

    def send(self, code: int, header: object | None, body: bytes = b"") -> Answer:
        """Send a request; the result is done when it is answered."""
        return self.send_command(request(code, header, body))

    def send_command(self, command: RemotingCommand) -> Answer:
        """Send an existing request like `send`."""
        peer = FakePeer(self.port)
        answer = Answer(peer)
        peer.send = answer.set  # type: ignore[method-assign]
        peer.ask(self.handlers[command.code], peer.request_of(command))
        return answer

    def pop_later(self, **fields: Any) -> Answer:
        """Send a pop of all queues of topic T by group g."""
        values: dict[str, Any] = {
            "consumer_group": GROUP,
            "topic": TOPIC,
            "queue_id": -1,
            "max_msg_nums": 32,
            "invisible_time": 10_000,
            "poll_time": 0,
            "born_time": self.broker.clock.now_ms(),
            "init_mode": 0,
        }
        return self.send(RequestCode.POP_MESSAGE, PopMessageRequestHeader(**values | fields))

    async def pop(self, **fields: Any) -> Got:
        """Return what a pop gets."""
        return Got(await self.pop_later(**fields), self.broker.config.broker_name)

    async def ack(self, handle: str, offset: int, **fields: Any) -> RemotingCommand:
        values: dict[str, Any] = {
            "consumer_group": GROUP, "topic": TOPIC, "queue_id": queue_of(handle),
            "extra_info": handle, "offset": offset,
        }  # fmt: skip
        header = AckMessageRequestHeader(**values | fields)
        answer: RemotingCommand = await self.send(RequestCode.ACK_MESSAGE, header)
        return answer

    async def ack_all(self, got: Got) -> None:
        for offset, handle in got.handles:
            answer = await self.ack(handle, offset)
            assert answer.code == 0, answer

    async def batch_ack(self, *acks: BatchAck, broker_name: str | None = None) -> RemotingCommand:
        """Acknowledge messages of several pops by one request."""
        name = broker_name or self.broker.config.broker_name
        body = dumps(to_json(BatchAckMessages(name, acks)))
        return await self.send(RequestCode.BATCH_ACK_MESSAGE, None, body)

    async def change(
        self, handle: str, offset: int, invisible_ms: int, **fields: Any
    ) -> RemotingCommand:
        values: dict[str, Any] = {
            "consumer_group": GROUP, "topic": TOPIC, "queue_id": queue_of(handle),
            "extra_info": handle, "offset": offset, "invisible_time": invisible_ms,
        }  # fmt: skip
        header = ChangeInvisibleTimeRequestHeader(**values | fields)
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        answer: RemotingCommand = await self.send(code, header)
        return answer

    async def put(self, *bodies: bytes, queue_id: int = 0, **fields: Any) -> None:
        """Store messages in a queue of topic T."""
        drafts = [self.broker.draft(body, queue_id=queue_id, **fields) for body in bodies]
        await self.broker.store_messages(drafts)


async def until(condition: Any, within_ms: int = 5_000) -> int:
    """Wait for a condition; return the time that it took in ms."""
    began_ms = steady_ms()
    while not condition():
        assert steady_ms() - began_ms <= within_ms, "not within the time"
        await asyncio.sleep(0.001)
    return steady_ms() - began_ms


def batch_of(got: Got, bits: int, *, queue_id: int = 0) -> BatchAck:
    """Return the ack of messages of one queue of a pop; bit n stands for start offset + n."""
    handle = decode_receipt_handle(got.handles[0][1])
    return BatchAck(
        GROUP,
        TOPIC,
        handle.kind,
        handle.start_offset,
        queue_id,
        handle.revive_queue,
        handle.pop_time_ms,
        handle.invisible_ms,
        bits.to_bytes(-(-bits.bit_length() // 8), "little"),
    )


def changed_handle(handle: str, offset: int, answer: RemotingCommand) -> str:
    """Return the handle of a message after a change of its invisible time."""
    header = answer.header(ChangeInvisibleTimeResponseHeader)
    old = decode_receipt_handle(handle)
    return old._replace(
        start_offset=offset,
        pop_time_ms=header.pop_time,
        invisible_ms=header.invisible_time,
        revive_queue=header.revive_qid,
        offset=offset,
    ).encode()


def queue_of(handle: str) -> int:
    """Return the queue id of a handle; 0 if it has none."""
    words = handle.split(" ")
    return int(words[6]) if len(words) > 6 else 0

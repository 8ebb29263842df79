"""Send handlers of a broker without a network: a `FakePeer`, a simulated disk, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kourou.broker.config import BrokerConfig
from kourou.broker.ports import FastPaths
from kourou.broker.sending.fast_batch import FastBatch
from kourou.broker.sending.fast_send import FastSend
from kourou.model.message import MessageExt
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.record.decode import decode_messages
from kourou.protocol.sending import SendMessageRequestHeader, SendMessageRequestHeaderV2
from kourou.remoting.dispatch import Handler
from kourou.remoting.runtime import Offload
from kourou.store.message_store import GetRequest
from kourou.testing.disk import SimDisk
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker

_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
JAVA_HOST = "127.0.0.1:20911"
"""Address of the broker whose answers were recorded as golden bytes."""


class SendRig:
    """Send handlers of a broker on a simulated disk.

    Attributes:
        locks: queue locks of groups that consume in order.
        fast_path: of all requests that have one; requests of `peer` do not use it.
        fast_send, fast_batch: the parts of `fast_path` that serve single messages and batches.
    """

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.locks = broker.queue_locks
        self.peer = FakePeer()
        self.handlers = broker.handlers.sends
        fast_send = broker.fast_paths[RequestCode.SEND_MESSAGE_V2]
        assert isinstance(fast_send, FastSend), "the fast path of single messages"
        self.fast_send = fast_send
        fast_batch = broker.fast_paths[RequestCode.SEND_BATCH_MESSAGE]
        assert isinstance(fast_batch, FastBatch), "the fast path of batches"
        self.fast_batch = fast_batch
        self.fast_path = FastPaths(broker.fast_paths)
        broker.topics.put(TopicConfig("T", 4, 4))

    def connect(self, *, is_fast: bool) -> LoneConnection:
        """Return a producer's connection, with or without the fast path."""
        handlers: dict[int, Handler] = dict.fromkeys(_SENDS, self.handlers.on_send_message)
        return LoneConnection(handlers, self.fast_path if is_fast else None)

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """Send the command and return its answer."""
        before = len(self.peer.sent)
        self.start(command)
        await asyncio.sleep(1)
        (answer,) = self.peer.sent[before:]
        return answer

    async def send(
        self,
        body: bytes = b"hello",
        properties: str | None = "",
        **header: Any,  # noqa: ANN401 - any field of the header
    ) -> RemotingCommand:
        """Send one message, by default to queue 0 of `T`, and return the answer."""
        return await self.ask(message(body, properties, **header))

    def start(self, command: RemotingCommand) -> None:
        """Send the command and return before it is answered."""
        self.peer.ask(self.handlers.on_send_message, self.peer.request_of(command))

    def stored(self, topic: str = "T", queue_id: int = 0) -> list[MessageExt]:
        """Return all messages that consumers can see in a queue."""
        store = self.broker.store
        found = store.reader.get(topic, queue_id, GetRequest(0, 1000, 1 << 25, None))
        return decode_messages(found.body, decompress=False)

    def stored_count(self) -> int:
        """Return the number of messages in all queues."""
        store = self.broker.store
        return sum(
            store.reader.max_offset(topic, queue_id)
            for topic, queue_ids in store.reader.queues().items()
            for queue_id in queue_ids
        )


def message(
    body: bytes = b"hello",
    properties: str | None = "",
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    oneway: bool = False,
    **header: Any,  # noqa: ANN401 - any field of the header
) -> RemotingCommand:
    """Return the request that sends a message, by default to queue 0 of `T`."""
    values: dict[str, Any] = {
        "producer_group": "p",
        "topic": "T",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 0,
        "properties": properties,
    }
    kind = SendMessageRequestHeader if code == 10 else SendMessageRequestHeaderV2
    peer = FakePeer()
    return peer.request(code, kind(**(values | header)), body, oneway=oneway).command


def run_sends(
    test: Callable[[SendRig], Awaitable[None]],
    *,
    seed: int = 0,
    offload: Offload | None = None,
    **options: Any,  # noqa: ANN401 - any option of BrokerConfig
) -> None:
    """Run `test` on a broker with these options, and stop the broker."""

    async def main() -> None:
        config = BrokerConfig(**{"advertise": JAVA_HOST} | options)
        broker = SimulatedBroker(SimDisk(seed), seed=seed, config=config, offload=offload)
        await test(SendRig(broker))
        broker.flusher.release()
        await broker.stop()

    run_virtual(main())

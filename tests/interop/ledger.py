"""Ledger of the acknowledged messages of one topic, to verify a store on any broker.

Each receipt names the position of the message, and `check` reads every queue of the broker that
serves the store now. Messages without an acknowledgment may be stored or not.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Callable, Iterable

from kourou import (
    AdminClient,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    SendReceipt,
)
from kourou.errors import NoRouteError, QueryNotFoundError

ROUTE_SECONDS = 30
SENDERS = 8
QUEUES_LAG_SECONDS = 10
ON_THEIR_WAY_SECONDS = 0.3
"""Wait for answers that a broker sent before it was killed."""


class Ledger:
    """All messages sent to a topic; their bodies have at most `words` words.

    Attributes:
        topic: the name of the topic.
        acknowledged: key by position (queue id, queue offset).
        ids: the unique id of each acknowledged message, by key.
        sent: keys of all messages, acknowledged or not.
    """

    def __init__(self, topic: str, words: int = 50) -> None:
        self.topic = topic
        self._words = words
        self.acknowledged: dict[tuple[int, int], str] = {}
        self.ids: dict[str, str] = {}
        self.sent: set[str] = set()
        self._numbers = itertools.count()

    async def send(self, namesrv_addr: str, origin: str, count: int) -> None:
        """Send `count` messages by several senders; all must be acknowledged."""
        async with Producer("interop-ledger", namesrv_addr) as producer:
            await asyncio.gather(*(self._send(producer, origin) for _ in range(count)))

    async def send_batches(self, namesrv_addr: str, origin: str, count: int, size: int) -> None:
        """Send `count` batches of `size` messages; all must be acknowledged."""

        async def send(producer: Producer) -> None:
            keys = [f"{origin}-{next(self._numbers)}" for _ in range(size)]
            self.sent |= set(keys)
            messages = [Message(self.topic, self._body(key), keys=[key]) for key in keys]
            for key, receipt in zip(
                keys, await producer.send_batch(messages, timeout_ms=15_000), strict=True
            ):
                self._note(key, receipt)

        async with Producer("interop-ledger", namesrv_addr) as producer:
            await asyncio.gather(*(send(producer) for _ in range(count)))

    async def send_until(
        self, namesrv_addr: str, origin: str, count: int, end: Callable[[], object]
    ) -> None:
        """Send until `count` messages are acknowledged, then end the broker with `end`."""
        goal, reached = len(self.acknowledged) + count, asyncio.Event()

        async def keep_sending(producer: Producer) -> None:
            while True:
                await self._send(producer, origin)
                if len(self.acknowledged) >= goal:
                    reached.set()

        async with Producer("interop-ledger", namesrv_addr) as producer:
            senders = [asyncio.create_task(keep_sending(producer)) for _ in range(SENDERS)]
            enough = asyncio.create_task(reached.wait())
            await asyncio.wait([enough, *senders], return_when=asyncio.FIRST_COMPLETED)
            if not reached.is_set():
                await asyncio.gather(*senders)  # raises the error of the sender that failed
            await asyncio.to_thread(end)
            await asyncio.wait(senders, timeout=ON_THEIR_WAY_SECONDS)
            for task in senders:
                task.cancel()
            for failure in await asyncio.gather(*senders, return_exceptions=True):
                if isinstance(failure, AssertionError):
                    raise failure

    async def assert_stored(self, namesrv_addr: str) -> None:
        """Read all queues; assert that they contain exactly the acknowledged messages.

        Messages that were sent without an acknowledgment are also accepted.
        """
        found = await self._find_all(namesrv_addr)
        for place, key in self.acknowledged.items():
            assert place in found, f"{key} was acknowledged at {place}, and is lost"
            assert found[place].keys == [key], f"{place} has {found[place].keys}, not {key}"
        for place, message in found.items():
            (key,) = message.keys
            assert key in self.sent, f"{place} has {key}, which was never sent"
            assert message.body == self._body(key), f"{key} at {place} has another body"
            self.acknowledged[place] = key  # a message that was read must stay

    async def _find_all(self, namesrv_addr: str) -> dict[tuple[int, int], MessageExt]:
        """Return the stored messages by position.

        Java answers a send before it dispatches the message, so missing ones are awaited for a
        moment.
        """
        seconds_left = QUEUES_LAG_SECONDS
        while True:
            found = {
                (message.queue_id, message.queue_offset): message
                for message in await read_all(namesrv_addr, self.topic)
            }
            if not seconds_left or self.acknowledged.keys() <= found.keys():
                return found
            await asyncio.sleep(1)
            seconds_left -= 1

    async def forget_expired(self, namesrv_addr: str) -> int:
        """Remove messages below the minimum offset of their queue; return their number."""
        begins: dict[int, int] = {}
        for message in await read_all(namesrv_addr, self.topic):
            begins.setdefault(message.queue_id, message.queue_offset)
        gone = [place for place in self.acknowledged if place[1] < begins[place[0]]]
        for place in gone:
            self.ids.pop(self.acknowledged.pop(place), None)
        return len(gone)

    async def find(self, namesrv_addr: str, keys: Iterable[str]) -> list[str]:
        """Return those of `keys` whose messages the index does not find by key and unique id."""
        missing = []
        async with AdminClient(namesrv_addr) as admin:
            for key in keys:
                try:
                    by_key = await admin.messages_by_key(self.topic, key)
                    by_id = await admin.messages_by_unique_key(self.topic, self.ids[key])
                except QueryNotFoundError:
                    missing.append(key)
                else:
                    assert {message.body for message in by_key + by_id} == {self._body(key)}
        return missing

    async def _send(self, producer: Producer, origin: str) -> None:
        key = f"{origin}-{next(self._numbers)}"
        self.sent.add(key)
        receipt = await producer.send(
            Message(self.topic, self._body(key), tags=origin, keys=[key]), timeout_ms=15_000
        )
        self._note(key, receipt)

    def _note(self, key: str, receipt: SendReceipt) -> None:
        place = receipt.queue.queue_id, receipt.queue_offset
        assert place not in self.acknowledged, f"{place} was given twice"
        self.acknowledged[place] = key
        self.ids[key] = receipt.msg_id

    def _body(self, key: str) -> bytes:
        return f"{key}:".encode() * (1 + zlib.crc32(key.encode()) % self._words)


async def read_all(namesrv_addr: str, topic: str) -> list[MessageExt]:
    """Return all messages of a topic that are stored, queue by queue."""
    async with PullConsumer("interop-reader", namesrv_addr) as consumer:
        queues = await _queues(consumer, topic)
        parts = await asyncio.gather(*(_read_queue(consumer, queue) for queue in queues))
    return [message for part in parts for message in part]


async def make_topics(namesrv_addr: str, *topics: str, queues: int = 2) -> None:
    """Create topics."""
    async with AdminClient(namesrv_addr) as admin:
        for topic in topics:
            await admin.create_topic(topic, queues=queues)


async def _queues(consumer: PullConsumer, topic: str) -> list[MessageQueue]:
    """Return the topic's queues; wait, since a Java broker listens before it registers them."""
    async with asyncio.timeout(ROUTE_SECONDS):
        while True:
            try:
                return await consumer.fetch_subscribe_message_queues(topic)
            except NoRouteError:
                await asyncio.sleep(0.1)


async def _read_queue(consumer: PullConsumer, queue: MessageQueue) -> list[MessageExt]:
    offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
    messages: list[MessageExt] = []
    while offset < end:
        result = await consumer.pull(queue, offset)
        assert result.next_offset > offset, f"{queue} at {offset}: {result.status}"
        offsets = [message.queue_offset for message in result.messages]
        if offsets and not messages:
            offset = offsets[0]  # the first entries may be expired until Java's cleaner has run
        if messages or offsets:
            assert offsets == list(range(offset, result.next_offset)), f"a hole in {queue}"
        messages += result.messages
        offset = result.next_offset
    return messages

"""Pending work of a broker in a store, and the checks that the next broker completes it.

Delayed and scheduled messages, recalled ones; open and ended transactions; redeliveries and dead
letters of a group.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter

from kourou import (
    ConsumeFromWhere,
    DeadLetter,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    RetryLater,
    TransactionProducer,
    TransactionState,
)
from kourou.client.consuming.listening.listener_calls import Listener
from tests.interop.ledger import read_all

LATER, PAID, WORK = "Later", "Paid", "Work"
GROUP, PAYERS = "workers", "payers"

OPTIONS = """
recallMessageEnable=true
transactionTimeOut=1500
transactionCheckInterval=1000
transactionCheckMax=1000
transactionOpBatchInterval=200
"""
"""Options of both brokers, besides their delay levels, of which the sixth is 12 s."""

LEVEL = 6
LEVEL_MS = 12_000
EARLY_MS = 1_100
"""Maximum early delivery: Java stores whole seconds, and rounds full seconds down by one."""
PATIENCE_S = 90
_OPS_STORED_S = 1.0
"""Time after which Java has stored the op messages of ended transactions."""


class Unfinished:
    """The pending work of both brokers, and its results.

    Args:
        is_exact: whether brokers are stopped cleanly, so that duplicates are errors.
    """

    def __init__(self, *, is_exact: bool) -> None:
        self._is_exact = is_exact
        self._numbers = itertools.count()
        self._due_ms: dict[str, float] = {}
        self._recalled: set[str] = set()
        self._far: dict[str, str] = {}
        self._committed: set[str] = set()
        self._given_back: set[str] = set()
        self._handed: Counter[str] = Counter()
        self._dead: set[str] = set()

    async def begin(self, namesrv_addr: str, origin: str) -> None:
        """Begin work of each kind on the broker named `origin`."""
        await self._send_for_later(namesrv_addr, origin)
        await self._begin_transactions(namesrv_addr, origin)
        await self._give_back(namesrv_addr, origin)
        await asyncio.sleep(_OPS_STORED_S)

    async def finish(self, namesrv_addr: str) -> None:
        """Wait until another broker has completed all work."""
        await self._recall_far(namesrv_addr)
        await self._end_transactions(namesrv_addr)
        await self._take_what_was_given_back(namesrv_addr)
        later = await _read_until(namesrv_addr, LATER, set(self._due_ms))
        self._check(later, set(self._due_ms), "delayed")
        for message in later:
            early_ms = self._due_ms[message.keys[0]] - message.store_at_ms
            assert early_ms <= EARLY_MS, f"{message.keys[0]} came {early_ms} ms early"
        paid = await read_all(namesrv_addr, PAID)
        self._check(paid, self._committed, "paid")
        dead = await read_all(namesrv_addr, f"%DLQ%{GROUP}")
        assert {message.keys[0] for message in dead} == self._dead

    async def _send_for_later(self, namesrv_addr: str, origin: str) -> None:
        async with Producer("delaying", namesrv_addr) as producer:
            now_ms = time.time() * 1_000  # noqa: TID251 - brokers have real time
            level = self._key(f"{origin}-level")
            self._due_ms[level] = now_ms + LEVEL_MS
            await _send(producer, Message(LATER, b"level", keys=[level], delay_level=LEVEL))
            for seconds in (3.0, 11.0, 15.5):
                key = self._key(f"{origin}-timer")
                self._due_ms[key] = now_ms + seconds * 1_000
                at_ms = int(self._due_ms[key])
                await _send(producer, Message(LATER, b"timer", keys=[key], deliver_at_ms=at_ms))
            taken_back = Message(LATER, b"no", keys=["no"], deliver_at_ms=int(now_ms) + 14_000)
            await producer.recall(LATER, await _send(producer, taken_back))
            key = self._key(f"{origin}-far")
            far = Message(LATER, b"far", keys=[key], deliver_at_ms=int(now_ms) + 86_400_000)
            self._far[key] = await _send(producer, far)
            soon = self._key(f"{origin}-never")
            never = Message(LATER, b"never", keys=[soon], deliver_at_ms=int(now_ms) + 60_000)
            self._far[soon] = await _send(producer, never)

    async def _recall_far(self, namesrv_addr: str) -> None:
        """Recall a message that was scheduled on the other broker."""
        async with Producer("delaying", namesrv_addr) as producer:
            for handle in self._far.values():
                assert await producer.recall(LATER, handle, timeout_ms=15_000)
        self._recalled |= set(self._far)
        self._far.clear()

    async def _begin_transactions(self, namesrv_addr: str, origin: str) -> None:
        async def unknown(_: MessageExt) -> TransactionState:
            return TransactionState.UNKNOWN

        async with TransactionProducer(PAYERS, namesrv_addr, check=unknown) as producer:
            for state in TransactionState:
                for _ in range(3):
                    key = self._key(f"{origin}-{state.name}")
                    message = Message(PAID, b"paid", keys=[key], tags="first")
                    begun = await producer.begin_transaction(message, timeout_ms=15_000)
                    if state is not TransactionState.UNKNOWN:
                        ended = await producer.end_transaction(begun, state, timeout_ms=15_000)
                        assert ended.state is state
                    if state is TransactionState.COMMIT:
                        self._committed.add(key)
            for answer in ("commit", "rollback"):
                key = self._key(f"{origin}-open-{answer}")
                message = Message(PAID, b"paid", keys=[key], tags=answer)
                await producer.begin_transaction(message, timeout_ms=15_000)
                if answer == "commit":
                    self._committed.add(key)

    async def _end_transactions(self, namesrv_addr: str) -> None:
        """Answer transaction checks until all messages to be committed are committed."""

        async def check(message: MessageExt) -> TransactionState:
            is_paid = message.tags == "commit"
            return TransactionState.COMMIT if is_paid else TransactionState.ROLLBACK

        async with TransactionProducer(PAYERS, namesrv_addr, check=check, topics=[PAID]):
            await _read_until(namesrv_addr, PAID, self._committed)

    async def _give_back(self, namesrv_addr: str, origin: str) -> None:
        """Make a group fail one message, reject another, and acknowledge a third."""
        kinds = {kind: self._key(f"{origin}-{kind}") for kind in ("back", "dead", "fine")}
        async with Producer("working", namesrv_addr) as producer:
            for key in kinds.values():
                await _send(producer, Message(WORK, b"work", keys=[key]))
        self._given_back.add(kinds["back"])
        self._dead.add(kinds["dead"])

        async def listen(message: MessageExt) -> None:
            key = message.keys[0]
            if key == kinds["back"] and message.reconsume_times == 0:
                raise RetryLater(level=LEVEL)
            if key == kinds["dead"]:
                raise DeadLetter("never")
            assert key != kinds["fine"] or message.reconsume_times == 0
            self._handed[key] += 1
            if key == kinds["fine"]:
                fine.set()

        fine = asyncio.Event()
        async with _consumer(namesrv_addr, listen):
            await asyncio.wait_for(fine.wait(), PATIENCE_S)
            await _read_until(namesrv_addr, f"%DLQ%{GROUP}", self._dead)
            await asyncio.sleep(2)  # for its offsets

    async def _take_what_was_given_back(self, namesrv_addr: str) -> None:
        before = Counter(self._handed)

        async def listen(message: MessageExt) -> None:
            self._handed[message.keys[0]] += 1
            if all(self._handed[key] for key in self._given_back):
                done.set()

        done = asyncio.Event()
        if all(self._handed[key] for key in self._given_back):
            done.set()
        async with _consumer(namesrv_addr, listen):
            await asyncio.wait_for(done.wait(), PATIENCE_S)
            await asyncio.sleep(1)  # for duplicates
        if self._is_exact:
            again = {key for key, count in self._handed.items() if count > 1}
            assert not again, f"delivered again: {again}, before {before}"

    def _check(self, messages: list[MessageExt], expected: set[str], what: str) -> None:
        counts = Counter(message.keys[0] for message in messages)
        assert set(counts) == expected, f"{what}: {set(counts) ^ expected}"
        if self._is_exact:
            assert set(counts.values()) <= {1}, f"{what}, twice: {counts}"

    def _key(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"


def _consumer(namesrv_addr: str, listener: Listener) -> PushConsumer:
    config = PushConsumerConfig(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        route_refresh_interval_ms=1_000,
        rebalance_interval_ms=1_000,
        persist_offset_interval_ms=500,
    )
    consumer = PushConsumer(GROUP, namesrv_addr, config=config)
    consumer.subscribe(WORK)
    consumer.listen(listener)
    return consumer


async def _send(producer: Producer, message: Message) -> str:
    """Send a message; return the recall handle of a scheduled one."""
    receipt = await producer.send(message, timeout_ms=15_000)
    return receipt.recall_handle or ""


async def _read_until(namesrv_addr: str, topic: str, keys: set[str]) -> list[MessageExt]:
    """Return the topic's messages once there is one with each key."""
    missing = keys
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                messages = await read_all(namesrv_addr, topic)
                missing = keys - {message.keys[0] for message in messages}
                if not missing:
                    return messages
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"not in {topic} after {PATIENCE_S} s: {missing}") from None

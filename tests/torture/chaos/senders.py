"""Senders of all kinds: messages, batches, delays, ordered messages, requests, transactions."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

from kourou import MessageExt, Producer, ProducerConfig, Transaction, TransactionProducer
from kourou import TransactionState as State
from kourou.errors import KourouError
from tests.torture.chaos.ledger import (
    MIXED,
    ORDERS,
    REQUESTS,
    TRANSACTIONAL,
    Ledger,
    Tries,
    acknowledge_all,
    body_of,
    fate,
    key_of,
    message_of,
    now_ms,
    truth,
)

LEVELS_MS: Final = (1_000, 2_000, 1_000, 2_000, 3_000, 4_000, 8_000)
"""The broker's delay levels; retries begin with the third."""
ORDER_KEYS: Final = 18
PATIENT: Final = ProducerConfig(send_timeout_ms=10_000)
HASTY: Final = ProducerConfig(send_timeout_ms=300)
_DICE: Final = Random(0)
REST_S: Final = 0.06
"""Longest pause between two messages of a sender."""


class Senders:
    """Sends until `is_over` of the ledger is set.

    Args:
        ledger: records all events.
        namesrv: the name server's address.
        dice: source of random choices.
        journals: directory for the journals of processes that are killed.
        longest_ms: longest delay of scheduled messages.
    """

    def __init__(
        self, ledger: Ledger, namesrv: str, dice: Random, journals: Path, longest_ms: int
    ) -> None:
        self._ledger = ledger
        self._namesrv = namesrv
        self._dice = dice
        self._journals = journals
        self._longest_ms = longest_ms
        self._numbers = itertools.count()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[list[asyncio.Task[None]]]:
        """Send in tasks; the producers close when the block is left."""
        hooks = [Tries(self._ledger)]
        async with AsyncExitStack() as stack:

            async def open_producer(config: ProducerConfig, *, counted: bool = True) -> Producer:
                producer = Producer(
                    f"senders-{next(self._numbers)}",
                    self._namesrv,
                    config=config,
                    hooks=hooks if counted else (),
                )
                return await stack.enter_async_context(producer)

            patient, fast = (
                await open_producer(PATIENT),
                await open_producer(PATIENT, counted=False),
            )
            hasty = await open_producer(HASTY)
            payer = TransactionProducer(
                TRANSACTIONAL,
                self._namesrv,
                check=check,
                topics=[MIXED],
                config=PATIENT,
                hooks=hooks,
            )
            await stack.enter_async_context(payer)
            loops: list[Callable[[], Awaitable[None]]] = [
                *(lambda: self._plain(patient, "plain"), lambda: self._plain(fast, "plain")),
                *(lambda: self._plain(fast, "fast"), lambda: self._plain(hasty, "hasty")),
                *(lambda: self._batch(patient), lambda: self._level(patient)),
                *(lambda: self._timed(patient) for _ in range(3)),
                lambda: self._ask(patient),
                *(lambda: self._pay(payer) for _ in range(3)),
            ]
            tasks = [asyncio.create_task(self._repeat(one)) for one in loops]
            for key in range(ORDER_KEYS):
                producer = patient if key % 3 else hasty
                tasks.append(asyncio.create_task(self._in_order(producer, key)))
            tasks.append(asyncio.create_task(self._kill_producers()))
            yield tasks

    async def _repeat(self, one: Callable[[], Awaitable[None]]) -> None:
        while not self._ledger.is_over:
            try:
                await one()
            except KourouError as error:
                self._ledger.counts[f"sends that failed: {type(error).__name__}"] += 1
            await asyncio.sleep(self._dice.uniform(0, REST_S))

    def _key(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    async def _plain(self, producer: Producer, kind: str) -> None:
        key = self._key(kind)
        self._ledger.begin(key)
        await producer.send(message_of(key))
        self._ledger.acknowledge(key)

    async def _batch(self, producer: Producer) -> None:
        keys = [self._key("batch") for _ in range(self._dice.randint(2, 12))]
        for key in keys:
            self._ledger.begin(key)
        acknowledge_all(
            self._ledger, keys, await producer.send_batch([message_of(key) for key in keys])
        )

    async def _level(self, producer: Producer) -> None:
        key = self._key("level")
        level = self._dice.randint(1, len(LEVELS_MS))
        self._ledger.begin(key)
        self._ledger.due_ms[key] = now_ms() + LEVELS_MS[level - 1]
        await producer.send(message_of(key, delay_level=level))
        self._ledger.acknowledge(key)

    async def _timed(self, producer: Producer) -> None:
        """Send a scheduled message; one of four is recalled after a while."""
        key, ledger = self._key("at"), self._ledger
        is_recalled = fate(key, "recall") % 4 == 0
        shortest_ms = min(6_000, self._longest_ms) if is_recalled else 500
        delay_ms = self._dice.randint(shortest_ms, self._longest_ms)
        ledger.begin(key)
        ledger.due_ms[key] = due_ms = now_ms() + delay_ms
        # A send that is repeated after a lost answer stores the message twice. With a relative
        # delay the copies are due at different times, and a recall cancels one of them.
        if is_recalled or self._dice.random() < 0.5:
            message = message_of(key, deliver_at_ms=due_ms)
        else:
            message = message_of(key, delay_ms=delay_ms)
        receipt = await producer.send(message)
        ledger.acknowledge(key)
        if is_recalled and receipt.recall_handle is not None:
            await asyncio.sleep(self._dice.uniform(0, 2))
            ledger.begin_recall(key)
            await producer.recall(MIXED, receipt.recall_handle)
            if now_ms() + ledger.jumped_ms() < due_ms:
                ledger.finish_recall(key)

    async def _ask(self, producer: Producer) -> None:
        key = self._key("ask")
        self._ledger.counts["requests"] += 1
        reply = await producer.request(message_of(key, REQUESTS), timeout_ms=3_000)
        self._ledger.counts["replies"] += 1
        if reply.body != key.encode():
            self._ledger.fail("bytes never sent", f"{key} was answered {reply.body[:50]!r}")

    async def _pay(self, producer: TransactionProducer) -> None:
        """Run a transaction; one of four is left to a check."""
        key, ledger = self._key("pay"), self._ledger

        async def local(_: Transaction) -> State:
            if truth(key) is State.COMMIT:
                ledger.acknowledge(key)  # committed now or by a check
            return State.UNKNOWN if fate(key, "unknown") % 4 == 0 else truth(key)

        ledger.begin(key)
        await producer.send_in_transaction(message_of(key), local)
        ledger.counts["transactions"] += 1

    async def _in_order(self, producer: Producer, order: int) -> None:
        """Send messages one after the other with one sharding key; skip failed ones."""
        for number in itertools.count():
            if self._ledger.is_over:
                return
            key = f"order-{order}-{number}"
            self._ledger.begin(key, ORDERS)
            try:
                await producer.send(message_of(key, ORDERS), sharding_key=f"k{order}")
                self._ledger.acknowledge(key)
            except KourouError as error:
                self._ledger.counts[f"sends that failed: {type(error).__name__}"] += 1
            await asyncio.sleep(self._dice.uniform(0.05, 0.5))

    async def _kill_producers(self) -> None:
        """Start processes that run transactions, and kill them during these."""
        for number in itertools.count():
            if self._ledger.is_over:
                return
            journal = self._journals / f"{number}.txt"
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.torture.chaos.payer"),
                *(self._namesrv, str(journal), f"pay-doomed{number}"),
                stderr=asyncio.subprocess.DEVNULL,
            )
            await asyncio.sleep(self._dice.uniform(3, 8))
            if process.returncode is not None:
                self._ledger.fail("tracebacks", f"payer {number} ended: {process.returncode}")
            else:
                process.send_signal(signal.SIGKILL)
            await process.wait()
            self._ledger.counts["producers killed"] += 1
            self._read(journal)

    def _read(self, journal: Path) -> None:
        """Read the journal of a killed process; its last line may be incomplete."""
        if not journal.exists():
            return
        whole, _, _ = journal.read_text().rpartition("\n")
        for line in whole.splitlines():
            word, key = line.split(" ")
            if word == "tried":
                self._ledger.begin(key)
                self._ledger.tries[key] += 1
            elif truth(key) is State.COMMIT:
                self._ledger.acknowledge(key)


def check(message: MessageExt) -> State:
    """Return the state of a transaction; sometimes UNKNOWN first."""
    key = key_of(message.body)
    if message.body != body_of(key):
        raise AssertionError(f"asked about {key} with another body")
    return State.UNKNOWN if _DICE.random() < 0.2 else truth(key)

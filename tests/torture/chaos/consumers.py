"""Consumers of all kinds; members of some groups die and join again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

from kourou import (
    ConsumeFromWhere,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
)
from kourou.errors import KourouError
from kourou.testing.inspection import config_of, held_queues_of
from tests.torture.chaos.ledger import (
    BROADCAST,
    CONCURRENT,
    FILTER,
    FILTERED,
    MIXED,
    ORDERLY,
    ORDERS,
    POLLERS,
    REQUESTS,
    TRIES_MAX,
    Ledger,
    fails,
    key_of,
)

DISORDER: Final = "ordered messages skipped or consumed by two members"
MEMBERS: Final = 3
NAMES: Final = itertools.count()


class RefusedError(Exception):
    """Raised by listeners on purpose."""


def config_for(name: str, **options: object) -> PushConsumerConfig:
    given: dict[str, object] = {
        "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
        "instance_name": name,
        "rebalance_interval_ms": 2_000,
        "persist_offset_interval_ms": 1_000,
        "lock_interval_ms": 2_000,
        "lock_expiry_ms": 6_000,
        "heartbeat_interval_ms": 5_000,
        "request_timeout_ms": 10_000,
        **options,
    }
    return PushConsumerConfig(**given)  # type: ignore[arg-type]


class Order:
    """Progress of the ordered group in each queue, and the members that consume it.

    Args:
        ledger: records skipped messages, and queues consumed by two members at once.
        dice: decides when a listener fails.
    """

    def __init__(self, ledger: Ledger, dice: Random) -> None:
        self._ledger = ledger
        self._dice = dice
        self._done: dict[int, int] = {}
        self._consuming: dict[int, str] = {}
        self.members: dict[str, PushConsumer] = {}
        """Running members, by name."""

    async def take(self, name: str, message: MessageExt) -> None:
        """Listener of the member `name`."""
        queue_id, offset = message.queue_id, message.queue_offset
        self._check_alone(name, message)
        if offset > self._done.get(queue_id, -1) + 1:
            text = (
                f"queue {queue_id}: {offset} delivered to {name} after {self._done.get(queue_id)}"
            )
            self._ledger.fail(DISORDER, text)
        self._consuming[queue_id] = name
        try:
            await asyncio.sleep(self._dice.uniform(0, 0.01))
        finally:
            del self._consuming[queue_id]
        if self._dice.random() < 0.02:
            self._ledger.counts["listeners that raised"] += 1
            raise RefusedError
        self._ledger.note(ORDERLY, message)
        self._done[queue_id] = max(offset, self._done.get(queue_id, -1))

    def _check_alone(self, name: str, message: MessageExt) -> None:
        queue_id = message.queue_id
        if queue_id in self._consuming:
            text = f"queue {queue_id} consumed by {self._consuming[queue_id]} and {name}"
            self._ledger.fail(DISORDER, text)
        queue = MessageQueue(ORDERS, message.broker_name, queue_id)
        for other, member in self.members.items():
            locks = held_queues_of(member).locks
            if other != name and locks is not None and locks.is_held(queue):
                self._ledger.fail(DISORDER, f"queue {queue_id} locked by {other} and {name}")


class Consumers:
    """All consumer groups.

    Args:
        ledger: records deliveries.
        namesrv: the name server's address.
        dice: decides when members die.
        directory: stores the offsets of the broadcasting member.
    """

    def __init__(self, ledger: Ledger, namesrv: str, dice: Random, directory: Path) -> None:
        self._ledger = ledger
        self._namesrv = namesrv
        self._dice = dice
        self._directory = directory
        self._order = Order(ledger, dice)

    @asynccontextmanager
    async def consuming(self) -> AsyncIterator[None]:
        """Consume until the block is left."""
        async with AsyncExitStack() as stack:
            for listener in (self._take_async, self._take_in_thread):
                concurrent = self._member(
                    CONCURRENT, max_reconsume_times=TRIES_MAX, local_retry_delay_ms=500
                )
                concurrent.subscribe(MIXED)
                concurrent.listen(listener)
                await stack.enter_async_context(concurrent)
            filtered = self._member(FILTERED)
            filtered.subscribe(MIXED, sql=FILTER)
            filtered.listen(lambda message: self._note(FILTERED, message))
            await stack.enter_async_context(filtered)
            answering = await stack.enter_async_context(Producer("answering", self._namesrv))
            answerer = self._member("answerers")
            answerer.subscribe(REQUESTS)

            async def answer(message: MessageExt) -> None:
                try:
                    await answering.reply(message, key_of(message.body).encode(), timeout_ms=500)
                except KourouError:  # the requester may have timed out
                    self._ledger.counts["replies that failed"] += 1

            answerer.listen(answer)
            await stack.enter_async_context(answerer)
            tasks = [
                asyncio.create_task(one)
                for one in (self._pull(), self._broadcast(), self._keep_order())
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                for member in self._order.members.values():
                    member.abort()
                for ended in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(ended, Exception):
                        self._ledger.fail("tracebacks", repr(ended))

    def _member(self, group: str, **options: object) -> PushConsumer:
        name = str(options.pop("name", f"{group}-{next(NAMES)}"))
        return PushConsumer(group, self._namesrv, config=config_for(name, **options))

    def _note(self, group: str, message: MessageExt) -> None:
        self._ledger.note(group, message)

    async def _take_async(self, message: MessageExt) -> None:
        self._take_in_thread(message)

    def _take_in_thread(self, message: MessageExt) -> None:
        key = self._ledger.note(CONCURRENT, message)
        if fails(key, message.reconsume_times):
            self._ledger.counts["listeners that raised"] += 1
            raise RefusedError

    async def _pull(self) -> None:
        """Poll and commit; sometimes abort the consumer without a commit, and start another."""
        config = PullConsumerConfig(
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            auto_commit=False,
            rebalance_interval_ms=2_000,
            heartbeat_interval_ms=5_000,
        )
        while True:
            consumer = PullConsumer(POLLERS, self._namesrv, config=config)
            consumer.subscribe(MIXED)
            await consumer.start()
            try:
                for _ in range(self._dice.randint(200, 2_000)):
                    for message in await consumer.poll(timeout_ms=1_000, max_messages=100):
                        self._ledger.note(POLLERS, message)
                    try:
                        await consumer.commit()
                    except KourouError:
                        self._ledger.counts["commits that failed"] += 1
            finally:
                consumer.abort()

    async def _broadcast(self) -> None:
        """Run one broadcasting member, which sometimes dies and continues at its saved offsets."""
        while True:
            broadcaster = self._member(
                BROADCAST,
                name=BROADCAST,
                message_model=MessageModel.BROADCASTING,
                local_offset_directory=self._directory,
            )
            broadcaster.subscribe(MIXED)
            broadcaster.listen(lambda message: self._note(BROADCAST, message))
            try:
                if await self._try_start(broadcaster):
                    await asyncio.sleep(self._dice.uniform(15, 60))
            finally:
                broadcaster.abort()

    async def _keep_order(self) -> None:
        """Run some ordered members; sometimes one dies or leaves, and another joins."""
        while True:
            while len(self._order.members) < MEMBERS:
                await self._join()
            await asyncio.sleep(self._dice.uniform(20, 70))
            if self._ledger.is_over:
                return  # locks of dead members last a minute
            name = self._dice.choice(list(self._order.members))
            if self._dice.random() < 0.5:
                await self._order.members[name].close()
                del self._order.members[name]
            else:
                self._order.members.pop(name).abort()
            self._ledger.counts["ordered members gone"] += 1
            await asyncio.sleep(self._dice.uniform(0, 5))

    async def _join(self) -> None:
        member = self._member(ORDERLY)
        name = str(config_of(member).instance_name)
        member.subscribe(ORDERS)

        async def take(message: MessageExt) -> None:
            await self._order.take(name, message)

        member.listen_orderly(take)
        self._order.members[name] = member
        if not await self._try_start(member):
            del self._order.members[name]

    async def _try_start(self, member: PushConsumer) -> bool:
        """Start a member; return whether it could connect."""
        try:
            await member.start()
        except KourouError:
            self._ledger.counts["starts that failed"] += 1
            await asyncio.sleep(0.2)
            return False
        return True

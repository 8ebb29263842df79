"""Topics that are deleted and created again while messages are sent to them and consumed.

A life of a topic begins when its creation is acknowledged, and ends when its deletion is requested.

- A message must be delivered to each group if it was sent and acknowledged within one life, but
  only until the end of that life: messages not consumed by then may be lost with the topic. The run
  waits before every second deletion until all such messages have been consumed.
- A delayed message belongs to the life in which it becomes due. It must be delivered in that life,
  and may only be lost if it was due while the topic did not exist.
- A message that was sent in one life, or in none, and acknowledged in another may be stored in
  either, or lost. It need not be delivered.
- No message that was acknowledged in an earlier life is stored in the last one, except by a second
  attempt of its producer or by its delay.
- Finally each group has committed the end of each queue: no offset of an earlier life is left.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Final

from kourou import (
    AdminClient,
    ConsumeFromWhere,
    MessageExt,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
)
from kourou.errors import KourouError, TopicNotFoundError
from tests.torture.chaos.consumers import DISORDER, RefusedError, config_for
from tests.torture.chaos.ledger import (
    GONE,
    GROUPS,
    MIXED,
    RECREATED,
    Ledger,
    Tries,
    acknowledge_all,
    fails_once,
    key_of,
    message_of,
    now_ms,
)
from tests.torture.chaos.senders import LEVELS_MS

REVIVED: Final = "of a deleted topic, but stored in its successor"
STALE: Final = "committed offsets that are not the end of a consumed queue"
QUEUES: Final = 4
"""Equal to the number that a producer requests when a send creates the topic."""
ORDER_KEYS: Final = 4
HELD_MAX: Final = 5
"""Limit of buffered messages per queue, low enough to trigger flow control often."""
REFRESH_MS: Final = 1_000
REST_S: Final = 0.1
COMMITTED_S: Final = 30


class RecreatedTopic:
    """One topic that is deleted and created again, with its producers and consumers.

    Args:
        name: of the topic, with groups in the ledger.
        ledger: records all events.
        namesrv: the name server's address.
        dice: source of random choices.
        lasts_s: shortest and longest duration of a life.
        is_sent_meanwhile: messages are also sent while the topic does not exist; such a send
            creates it.
    """

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        namesrv: str,
        dice: Random,
        lasts_s: tuple[float, float],
        *,
        is_sent_meanwhile: bool,
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._namesrv = namesrv
        self._dice = dice
        self._lasts_s = lasts_s
        self._is_sent_meanwhile = is_sent_meanwhile
        self._pushers, self._orderly, self._pollers = GROUPS[name]
        self._numbers = itertools.count()
        self._lives = itertools.count()
        self._life: int | None = next(self._lives)  # None during deletion and creation
        self._acknowledged_in: dict[str, int] = {}

    @asynccontextmanager
    async def living(self) -> AsyncIterator[list[asyncio.Task[None]]]:
        """Send and consume until the block is left; the tasks end when `is_over` is set."""
        async with AsyncExitStack() as stack:
            config = ProducerConfig(send_timeout_ms=10_000, route_refresh_interval_ms=REFRESH_MS)
            producer = await stack.enter_async_context(
                Producer("recreated", self._namesrv, config=config, hooks=[Tries(self._ledger)])
            )
            members = [await self._enter(stack, self._pusher()) for _ in range(2)]
            members += [await self._enter(stack, self._in_order()) for _ in range(2)]
            poller = await stack.enter_async_context(self._poller())
            polling = asyncio.create_task(self._poll(poller))
            loops = [self._plain, self._plain, self._batch, self._delayed]
            tasks = [asyncio.create_task(self._repeat(producer, one)) for one in loops]
            others = [
                *(self._send_in_order(producer, order) for order in range(ORDER_KEYS)),
                self._delete_and_create(),
                self._pause(members, poller),
            ]
            tasks += [asyncio.create_task(other) for other in others]
            try:
                yield tasks
            finally:
                polling.cancel()
                [ended] = await asyncio.gather(polling, return_exceptions=True)
                if isinstance(ended, Exception):
                    self._ledger.fail("tracebacks", f"{self._pollers}: {ended!r}")

    async def _delete_and_create(self) -> None:
        async with AdminClient(self._namesrv) as admin:
            for deletion in itertools.count():
                await self._wait(self._dice.uniform(*self._lasts_s))
                if deletion % 2:
                    await self._consumed()
                if self._ledger.is_over:
                    return
                self._life = None
                self._ledger.expect_loss(self._name)
                await self._until_done(lambda: self._delete(admin))
                await asyncio.sleep(self._dice.choice((0, 0, 0.5, 3)))
                await self._until_done(lambda: self._create(admin))
                self._ledger.expect_loss(self._name)  # messages due without the topic
                self._life = next(self._lives)
                self._ledger.counts[f"times that {self._name} was created again"] += 1

    async def _delete(self, admin: AdminClient) -> bool:
        """Delete the topic; return False if the deletion must be retried."""
        try:
            await admin.delete_topic(self._name)
        except TopicNotFoundError:
            # Either an earlier attempt, whose answer was lost, deleted the topic; or the broker
            # has not registered since its start, and no topic is known.
            topics = await admin.topic_list()
            return MIXED in topics and self._name not in topics
        return True

    async def _create(self, admin: AdminClient) -> bool:
        await admin.create_topic(self._name, queues=QUEUES)
        return True

    async def _until_done(self, request: Callable[[], Awaitable[bool]]) -> None:
        """Repeat the request until it succeeds; the broker may be killed meanwhile."""
        while True:
            try:
                if await request():
                    return
            except KourouError as error:
                name = type(error).__name__
                self._ledger.counts[f"deletions or creations that failed: {name}"] += 1
            await asyncio.sleep(0.2)

    async def _consumed(self) -> None:
        """Wait until all currently missing messages are consumed, or `is_over` is set."""
        owed = {(group, key) for group in GROUPS[self._name] for key in self._ledger.missing[group]}
        owed = {(group, key) for group, key in owed if key not in self._ledger.due_ms}
        while not self._ledger.is_over:
            owed = {(group, key) for group, key in owed if key in self._ledger.missing[group]}
            if not owed:
                self._ledger.counts["lives consumed to their end"] += 1
                return
            await asyncio.sleep(0.1)

    async def _wait(self, seconds: float) -> None:
        """Wait, but no longer than until `is_over` is set."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over(), seconds)

    async def _over(self) -> None:
        while not self._ledger.is_over:  # noqa: ASYNC110 - a flag that several loops read
            await asyncio.sleep(0.1)

    async def _pause(self, members: list[PushConsumer], poller: PullConsumer) -> None:
        """Pause and resume members, with all queues or some; finally resume all."""
        while not self._ledger.is_over:
            await self._wait(self._dice.uniform(0.2, 3))
            if self._dice.random() < 0.25:
                poller.pause(poller.queues)
                await self._wait(self._dice.uniform(0.2, 8))
                poller.resume(poller.queues)
            else:
                member = self._dice.choice(members)
                member.pause(*self._dice.choice(((), member.queues)))
                await self._wait(self._dice.uniform(0.2, 8))
                member.resume()

    async def _repeat(self, producer: Producer, one: Callable[[Producer], Awaitable[None]]) -> None:
        while not self._ledger.is_over:
            if self._life is not None or self._is_sent_meanwhile:
                try:
                    await one(producer)
                except KourouError as error:
                    self._ledger.counts[f"sends that failed: {type(error).__name__}"] += 1
            await asyncio.sleep(self._dice.uniform(0, REST_S))

    def _key(self, kind: str) -> str:
        key = f"{kind}-{self._name}-{next(self._numbers)}"
        self._ledger.begin(key, self._name)
        return key

    def _is_same(self, life: int | None, *keys: str) -> bool:
        """Return whether messages sent in this life were acknowledged in it; if so, record it."""
        if life is None or self._life != life:
            self._ledger.counts["acknowledged across a deletion or creation"] += 1
            return False
        self._acknowledged_in.update(dict.fromkeys(keys, life))
        return True

    async def _plain(self, producer: Producer) -> None:
        life, key = self._life, self._key("plain")
        await producer.send(message_of(key, self._name))
        if self._is_same(life, key):
            self._ledger.acknowledge(key)

    async def _batch(self, producer: Producer) -> None:
        life, keys = self._life, [self._key("batch") for _ in range(self._dice.randint(2, 12))]
        receipts = await producer.send_batch([message_of(key, self._name) for key in keys])
        if self._is_same(life, *keys):
            acknowledge_all(self._ledger, keys, receipts)

    async def _delayed(self, producer: Producer) -> None:
        life, key = self._life, self._key("at")
        if self._dice.random() < 0.5:
            level = self._dice.randint(1, len(LEVELS_MS))
            delay_ms, message = LEVELS_MS[level - 1], message_of(key, self._name, delay_level=level)
        else:
            delay_ms = self._dice.randint(300, 8_000)
            message = message_of(key, self._name, delay_ms=delay_ms)
        self._ledger.due_ms[key] = now_ms() + delay_ms
        await producer.send(message)
        if self._is_same(life, key):
            self._ledger.acknowledge(key)

    async def _send_in_order(self, producer: Producer, order: int) -> None:
        """Send messages one after the other with one sharding key; skip failed ones."""

        async def one(producer: Producer) -> None:
            life, key = self._life, self._key(f"order{order}")
            await producer.send(message_of(key, self._name), sharding_key=f"k{order}")
            if self._is_same(life, key):
                self._ledger.acknowledge(key)

        await self._repeat(producer, one)

    async def _enter(self, stack: AsyncExitStack, member: PushConsumer) -> PushConsumer:
        return await stack.enter_async_context(member)

    def _member(self, group: str) -> PushConsumer:
        config = config_for(
            f"{group}-{next(self._numbers)}",
            route_refresh_interval_ms=REFRESH_MS,
            pull_threshold_count=HELD_MAX,
            consume_threads=4,
        )
        member = PushConsumer(group, self._namesrv, config=config)
        member.subscribe(self._name)
        return member

    def _pusher(self) -> PushConsumer:
        async def take(message: MessageExt) -> None:
            await asyncio.sleep(self._dice.uniform(0, 0.02))
            key = key_of(message.body)
            if fails_once(key) and message.reconsume_times == 0:
                self._ledger.counts["listeners that raised"] += 1
                raise RefusedError
            self._ledger.note(self._pushers, message)

        member = self._member(self._pushers)
        member.listen(take)
        return member

    def _in_order(self) -> PushConsumer:
        async def take(message: MessageExt) -> None:
            await asyncio.sleep(self._dice.uniform(0, 0.01))
            self._ledger.note(self._orderly, message)

        member = self._member(self._orderly)
        member.listen_orderly(take)
        return member

    def _poller(self) -> PullConsumer:
        config = PullConsumerConfig(
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            auto_commit=False,
            rebalance_interval_ms=2_000,
            heartbeat_interval_ms=5_000,
            route_refresh_interval_ms=REFRESH_MS,
            pull_threshold_count=HELD_MAX,
        )
        consumer = PullConsumer(self._pollers, self._namesrv, config=config)
        consumer.subscribe(self._name)
        return consumer

    async def _poll(self, consumer: PullConsumer) -> None:
        while True:
            for message in await consumer.poll(timeout_ms=500, max_messages=20):
                self._ledger.note(self._pollers, message)
            try:
                await consumer.commit()
            except KourouError:
                self._ledger.counts["commits that failed"] += 1

    @property
    def name(self) -> str:
        return self._name

    def judge(self, messages: list[MessageExt]) -> None:
        """Judge the messages stored in the last life, and the order of deliveries."""
        for message in messages:
            key = key_of(message.body)
            life = self._acknowledged_in.get(key)
            is_new = life is None or life == self._life
            if not is_new and key not in self._ledger.due_ms and self._ledger.tries[key] == 1:
                text = f"{key} of life {life} is stored in life {self._life} of {self._name}"
                self._ledger.fail(REVIVED, text)

        self._judge_order()

    def _judge_order(self) -> None:
        """Check the order of first deliveries for each sharding key and life."""
        last: dict[tuple[int, str], int] = {}
        for key in self._ledger.seen[self._orderly]:  # in order of delivery
            kind, _, number = key.split("-")
            life = self._acknowledged_in.get(key)
            if kind.startswith("order") and life is not None:
                before = last.get((life, kind), -1)
                if int(number) < before:
                    self._ledger.fail(DISORDER, f"{key} of life {life} came after {before}")
                last[life, kind] = max(before, int(number))

    async def judge_offsets(self) -> None:
        """Check that each group commits the end of each queue within `COMMITTED_S`."""
        wrong: list[str] = []
        async with AdminClient(self._namesrv) as admin:
            for _ in range(COMMITTED_S):
                wrong = [text for group in GROUPS[self._name] for text in await _open(admin, group)]
                if not wrong:
                    return
                await asyncio.sleep(1)
        for text in wrong:
            self._ledger.fail(STALE, text)


async def _open(admin: AdminClient, group: str) -> list[str]:
    """Return the queues whose end the group has not committed."""
    stats = await admin.consume_stats(group)
    return [
        f"{group} in {queue}: {at.consumer_offset} of {at.broker_offset}"
        for queue, at in stats.offsets.items()
        if at.consumer_offset != at.broker_offset
    ]


def recreated_topics(
    ledger: Ledger, namesrv: str, dice: Random, seconds: int
) -> list[RecreatedTopic]:
    """Return the topics; in `seconds` each of them is created again at least once."""
    lasts_s = min(1.0, seconds / 12), min(12.0, seconds / 6)
    return [
        RecreatedTopic(name, ledger, namesrv, dice, lasts_s, is_sent_meanwhile=name == RECREATED)
        for name in (RECREATED, GONE)
    ]

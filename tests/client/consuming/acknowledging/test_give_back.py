"""`give_back`: messages of a loop are redelivered later or become dead letters."""

from __future__ import annotations

import asyncio
import random

import pytest

from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
from kourou.client.consuming.consumer_config import PullConsumerConfig, PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.consuming.watching.consume_hooks import ConsumeContext, ConsumeOutcome
from kourou.errors import ClosedError, UsageError
from kourou.model.group import ConsumeFromWhere, MessageModel
from kourou.model.message import MessageExt
from kourou.model.topic import retry_topic
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

GROUP = "consumers"


def iterated(w: Recording, **options: object) -> PushConsumer:
    """Return a consumer without a listener."""
    options = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET, **options}
    consumer = w.cluster.push_consumer(GROUP, PushConsumerConfig(**options))  # type: ignore[arg-type]
    consumer.subscribe(TOPIC)
    return consumer


async def dead_letters(w: Recording) -> list[MessageExt]:
    async with w.cluster.admin() as admin:
        return [dead.message for dead in await admin.dead_letters(GROUP)]


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def take_first(consumer: PushConsumer) -> MessageExt:
    """Return the next message and leave its loop, so that no loop has it any more."""
    async for message in consumer:
        return message
    raise AssertionError("the loop ended without a message")


def test_a_message_given_back_is_redelivered_at_its_time_and_others_continue() -> None:
    async def main() -> None:
        received: list[tuple[bytes, int]] = []
        asked_s = 0.0
        async with recording(queues=1) as w, iterated(w) as consumer:
            await w.send(b"0", b"1", b"2")
            async for message in consumer:
                received.append((message.body, message.reconsume_times))
                if message.body == b"1" and not message.reconsume_times:
                    asked_s = now_s()
                    await consumer.give_back(message, RetryLater(delay_ms=90_000))
                if len(received) == 4:
                    assert now_s() - asked_s == pytest.approx(90, abs=2)
                    break
            assert received == [(b"0", 0), (b"1", 0), (b"2", 0), (b"1", 1)]

    run_virtual(main())


def test_a_dead_letter_has_the_reason_from_its_loop() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(b"bad", b"good")
            async with iterated(w) as consumer:
                async for message in consumer:
                    if message.body == b"good":
                        break
                    await consumer.give_back(message, DeadLetter("no such account"))
            [dead] = await dead_letters(w)
            assert (dead.body, dead.properties["KOUROU_DLQ_REASON"]) == (b"bad", "no such account")
            assert await w.committed() == 1

    run_virtual(main())


def test_give_back_handles_errors_as_listeners_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        seen: list[ConsumeContext] = []

        class Hook:
            def before(self, context: ConsumeContext) -> None:
                """Do nothing."""

            def after(self, context: ConsumeContext) -> None:
                seen.append(context)

        async with recording(queues=1) as w:
            await w.send(b"x")
            async with iterated(w, max_reconsume_times=1) as consumer:
                consumer.add_hook(Hook())
                times = []
                async for message in consumer:
                    times.append(now_s())
                    await consumer.give_back(message, ValueError("not now"))
                    if len(times) == 2:
                        break
            assert times[1] - times[0] == pytest.approx(10, abs=2)
            [dead] = await dead_letters(w)
            assert dead.properties["KOUROU_DLQ_REASON"] == "ValueError: not now"
            assert [one.outcome for one in seen] == [ConsumeOutcome.EXCEPTION] * 2
            assert all(isinstance(one.error, ValueError) for one in seen)

    run_virtual(main())
    assert "loop.failed" in caplog.text


def test_a_message_no_broker_accepts_is_redelivered_by_the_same_consumer() -> None:
    async def main() -> None:
        received = []
        async with recording(queues=1) as w, iterated(w) as consumer:
            await w.send(b"x")
            async for message in consumer:
                received.append(message.body)
                if len(received) == 2:
                    break
                await w.cluster.crash_broker()
                await consumer.give_back(message)
                assert await asyncio.wait_for(anext(aiter(consumer)), 60) is message
                await w.cluster.restart_broker()
        assert received == [b"x", b"x"]

    run_virtual(main())


def test_a_cancelled_give_back_delivers_the_message_again() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, iterated(w) as consumer:
            await w.send(b"x", b"y")
            received = []
            async for message in consumer:
                received.append(message.body)
                if len(received) == 3:
                    break
                if len(received) == 1:
                    giving = asyncio.create_task(consumer.give_back(message))
                    await asyncio.sleep(0)
                    giving.cancel()
                    await asyncio.gather(giving, return_exceptions=True)
            assert received == [b"x", b"x", b"y"]

    run_virtual(main())


def test_a_poller_gets_given_back_messages_if_it_subscribes_to_the_retry_topic() -> None:
    async def main() -> None:
        received: list[tuple[str, bytes, int]] = []
        config = PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        async with recording(queues=1) as w:
            await w.send(b"bad", b"later", b"good")
            poller = w.cluster.pull_consumer(GROUP, config)
            poller.subscribe(TOPIC)
            poller.subscribe(retry_topic(GROUP))
            async with poller:
                async for message in poller:
                    received.append((message.topic, message.body, message.reconsume_times))
                    if message.body == b"bad":
                        await poller.give_back(message, DeadLetter("no such account"))
                    if message.body == b"later" and message.reconsume_times < 2:
                        delay = None if message.reconsume_times else 45_000
                        await poller.give_back(message, RetryLater(delay_ms=delay))
                    if message.reconsume_times == 2:
                        break
                with pytest.raises(UsageError, match="names other messages"):
                    await poller.give_back(message, RetryLater(messages=[]))
            assert received == [
                (TOPIC, b"bad", 0),
                (TOPIC, b"later", 0),
                (TOPIC, b"good", 0),
                (TOPIC, b"later", 1),
                (TOPIC, b"later", 2),
            ]
            [dead] = await dead_letters(w)
            assert dead.properties["KOUROU_DLQ_REASON"] == "no such account"

    run_virtual(main())


def test_only_the_current_message_can_be_given_back_and_only_once() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(b"x", b"y")
            consumer = iterated(w)
            async with consumer:
                left = await take_first(consumer)
                with pytest.raises(
                    UsageError, match="not the current message of a loop over this consumer"
                ):
                    await consumer.give_back(left)
                async for message in consumer:
                    with pytest.raises(UsageError, match="names other messages"):
                        await consumer.give_back(message, RetryLater(messages=[]))
                    await consumer.give_back(message, RetryLater(level=1))
                    with pytest.raises(UsageError, match="was given back before"):
                        await consumer.give_back(message)
                    break
            with pytest.raises(ClosedError):
                await consumer.give_back(left)

    run_virtual(main())


def test_leaving_a_loop_after_give_back_does_not_redeliver_immediately() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, iterated(w) as consumer:
            await w.send(b"x", b"y")
            async for message in consumer:
                await consumer.give_back(message, RetryLater(level=18))
                break
            assert (await take_first(consumer)).body == b"y"

    run_virtual(main())


class Erratic:
    """Loops over a consumer, and treats each message differently."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.done: set[bytes] = set()
        self.refused: set[bytes] = set()

    async def work(self, consumer: PushConsumer) -> None:
        while True:
            async for message in consumer:
                if await self.use(consumer, message):
                    break

    async def use(self, consumer: PushConsumer, message: MessageExt) -> bool:
        """Return whether to leave the loop."""
        dice = self.chance.randrange(8)
        if dice == 0:
            await consumer.give_back(message, RetryLater(level=self.chance.randint(1, 3)))
        elif dice == 1:
            await consumer.give_back(message, DeadLetter("refused"))
            self.refused.add(message.body)
        elif dice == 2:
            giving = asyncio.create_task(consumer.give_back(message))
            await asyncio.sleep(self.chance.random() / 100)
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)
        elif dice > 3:
            await asyncio.sleep(self.chance.random())
            self.done.add(message.body)
        return dice == 3


@pytest.mark.parametrize("seed", range(4))
def test_each_message_of_erratic_loops_is_done_or_a_dead_letter(seed: int) -> None:
    async def main() -> None:
        bodies, loops = [b"%d" % n for n in range(60)], Erratic(seed)
        async with recording(brokers=2, seed=seed, message_delay_level="1s 2s 3s 4s 5s") as w:
            await w.send(*bodies)
            async with iterated(w) as consumer:
                workers = [asyncio.create_task(loops.work(consumer)) for _ in range(3)]
                await asyncio.sleep(3)
                await w.cluster.crash_broker(1)
                await asyncio.sleep(10)
                await w.cluster.restart_broker(1)
                await w.until(lambda: loops.done | loops.refused == set(bodies), timeout_s=600)
                await asyncio.sleep(60)
                for one in workers:
                    one.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
                assert consumer.health().held_messages == 0
            assert {one.body for one in await dead_letters(w)} >= set(bodies) - loops.done
            assert await w.committed() == len(bodies)

    run_virtual(main())


def test_a_broadcasting_consumer_drops_given_back_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with (
            recording(queues=1) as w,
            iterated(w, message_model=MessageModel.BROADCASTING) as consumer,
        ):
            await w.send(b"x", b"y")
            async for message in consumer:
                if message.body == b"y":
                    break
                await consumer.give_back(message)

    run_virtual(main())
    assert "message.dropped" in caplog.text

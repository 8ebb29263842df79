"""Ordered listeners that raise, hang, return nonsense or make dead letters, and their reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
from kourou.client.consuming.listening.ordered_calls import OrderlyContext
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.consuming.watching.consume_hooks import ConsumeContext
from kourou.errors import UsageError
from kourou.model.message import MessageExt
from kourou.model.topic import dlq_topic
from kourou.testing.inspection import stats_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from tests.client.consuming.ordered_rig import Ordered

BODIES = [b"%d" % number for number in range(8)]


class Hook:
    """Records the outcome of each call."""

    def __init__(self) -> None:
        self.began = 0
        self.ended: list[tuple[str, list[bytes]]] = []

    def before(self, context: ConsumeContext) -> None:
        self.began += 1

    def after(self, context: ConsumeContext) -> None:
        assert context.outcome is not None
        self.ended.append((context.outcome.value, [one.body for one in context.messages]))


async def dead_letters(w: Recording) -> list[bytes]:
    async with w.cluster.pull_consumer("undertaker") as reader:
        [queue] = await reader.fetch_subscribe_message_queues(dlq_topic("consumers"))
        return [message.body for message in (await reader.pull(queue, 0)).messages]


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.getMessage().split(" ", 1)[0] == event]


def test_hooks_and_statistics_see_the_outcome_of_each_ordered_call() -> None:
    async def main() -> None:
        async def listen(message: MessageExt) -> None:
            if message.body == b"slow":
                await asyncio.sleep(50)
            if message.body == b"bad" and not message.reconsume_times:
                raise ValueError("no")

        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(b"good", b"bad", b"slow")
            consumer = rig.consumer(listen, consume_timeout_ms=40_000)
            hook = Hook()
            consumer.add_hook(hook)
            async with consumer:
                await w.until(lambda: len(hook.ended) == 4, timeout_s=70)
                stats = stats_of(consumer).counts(TOPIC)
                assert (stats.ok, stats.failed) == (3, 1)
            assert hook.began == 4
            assert hook.ended == [
                ("SUCCESS", [b"good"]),
                ("EXCEPTION", [b"bad"]),
                ("SUCCESS", [b"bad"]),
                ("TIME_OUT", [b"slow"]),
            ]
            assert await w.committed() == 3

    run_virtual(main())


def test_an_ordered_call_longer_than_consume_timeout_keeps_its_message() -> None:
    async def main() -> None:
        async def slow(message: MessageExt) -> None:
            if message.body == b"1":
                await asyncio.sleep(40 * 60)

        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(b"0", b"1", b"2")
            async with rig.consumer(slow):
                await asyncio.sleep(39 * 60)
                assert rig.received[0] == [b"0", b"1"], "sent back, it would be delivered twice"
                await w.until(lambda: rig.received[0] == [b"0", b"1", b"2"], timeout_s=120)
            assert await w.committed() == 3

    run_virtual(main())


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        BaseExceptionGroup("odd", [ValueError("one"), KeyError("two")]),
        type("Unusual", (BaseException,), {})(),
        StopIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_after_any_exception_the_same_message_is_delivered_again(
    error: BaseException, is_coroutine: bool
) -> None:
    if is_coroutine and isinstance(error, StopIteration):
        error = RuntimeError("what Python makes of it in a coroutine")

    async def main() -> None:
        got: list[bytes] = []

        def listen(message: MessageExt) -> None:
            got.append(message.body)
            if message.body == b"1" and not message.reconsume_times:
                raise error

        async def listen_on_loop(message: MessageExt) -> None:
            listen(message)

        async with recording(queues=1) as w:
            await w.send(b"0", b"1", b"2")
            consumer = Ordered(w).bare()
            consumer.listen_orderly(listen_on_loop if is_coroutine else listen)
            async with consumer:
                await w.until(lambda: got == [b"0", b"1", b"1", b"2"])
            assert await w.committed() == 3

    run_virtual(main())


WAYS: list[Callable[[PushConsumer], Callable[..., Any]]] = [
    lambda consumer: consumer.listen_orderly,
    lambda consumer: consumer.listen_orderly_in_batches,
    lambda consumer: consumer.listen_orderly_and_commit,
]


@pytest.mark.parametrize("way", WAYS)
def test_a_generator_function_is_refused(way: Callable[[PushConsumer], Callable[..., Any]]) -> None:
    def generator(*_: object) -> Iterator[None]:
        yield None

    async def async_generator(*_: object) -> AsyncIterator[None]:
        yield None

    async def main() -> None:
        async with recording() as w:
            for listener in (generator, async_generator):
                with pytest.raises(UsageError, match="is a generator function"):
                    way(Ordered(w).bare())(listener)

    run_virtual(main())


def test_a_returned_generator_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        got: list[bytes] = []

        async with recording(queues=1) as w:
            await w.send(b"0", b"1")
            consumer = Ordered(w).bare()

            @consumer.listen_orderly
            def listen(message: MessageExt) -> object:
                got.append(message.body)
                return (one for one in (message,)) if len(got) == 1 else None

            async with consumer:
                await w.until(lambda: got == [b"0", b"0", b"1"])
            assert await w.committed() == 2

    run_virtual(main())
    [failed] = logged(caplog, "listener.failed")
    assert failed.exc_info is not None
    assert "returned a generator, which has not run" in str(failed.exc_info[1])


def test_a_return_value_is_logged_once_for_all_queues(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        got: list[int] = []

        async with recording(queues=4) as w:
            await w.send(*BODIES)
            consumer = Ordered(w).bare()

            @consumer.listen_orderly_in_batches
            async def listen(messages: list[MessageExt]) -> str:
                got.extend(message.queue_id for message in messages)
                return "SUCCESS"

            async with consumer:
                await w.until(lambda: len(got) == len(BODIES))
            assert set(got) == {0, 1, 2, 3}

    run_virtual(main())
    [once] = logged(caplog, "listener.returned")
    assert "raise to have it redelivered" in once.getMessage()


def test_messages_of_a_batch_become_dead_letters_or_are_delivered_again() -> None:
    async def main() -> None:
        batches: list[list[bytes]] = []

        async with recording(queues=1) as w:
            await w.send(*BODIES)
            consumer = Ordered(w).bare(consume_batch_size=len(BODIES))

            @consumer.listen_orderly_in_batches
            async def listen(messages: list[MessageExt]) -> None:
                batches.append([message.body for message in messages])
                if len(batches) == 1:
                    dead, late = messages[1], messages[5]
                    raise ExceptionGroup(
                        "some",
                        [
                            DeadLetter("never", messages=[dead]),
                            RetryLater("soon", delay_ms=100, messages=[late]),
                        ],
                    )

            async with consumer:
                await w.until(lambda: len(batches) == 2)
            # Messages after one that is delivered again are delivered again after it.
            assert batches == [BODIES, BODIES[5:]]
            assert await dead_letters(w) == [b"1"]
            assert await w.committed() == len(BODIES)

    run_virtual(main())


def test_a_committing_listener_makes_dead_letters_without_committing_others() -> None:
    async def main() -> None:
        got: list[bytes] = []

        async with recording(queues=1) as w:
            await w.send(*BODIES[:4])
            consumer = Ordered(w).bare()

            @consumer.listen_orderly_and_commit
            async def listen(messages: list[MessageExt], context: OrderlyContext) -> None:
                got.extend(message.body for message in messages)
                if messages[0].body == b"1":
                    context.commit()  # has no effect, because it raises
                    raise DeadLetter("never")

            async with consumer:
                await w.until(lambda: got == BODIES[:4])
                await asyncio.sleep(10)
                assert await w.committed() == 0
            assert await dead_letters(w) == [b"1"]
            got.clear()
            again = Ordered(w).bare()

            @again.listen_orderly_and_commit
            async def commit(messages: list[MessageExt], context: OrderlyContext) -> None:
                got.extend(message.body for message in messages)
                context.commit()

            async with again:
                await w.until(lambda: b"3" in got)
            # A committed offset covers all messages below it, so the dead letter is delivered again
            # with those before it.
            assert got == BODIES[:4]

    run_virtual(main())


def test_queues_assigned_by_brokers_are_locked() -> None:
    async def main() -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(0.2)

        def owned(consumer: PushConsumer) -> list[int]:
            return [queue.queue_id for queue in consumer.queues if queue.topic == TOPIC]

        async with recording(queues=4) as w:
            rig = Ordered(w)
            await w.send(*[b"%d" % number for number in range(80)])
            first = rig.consumer(work, instance_name="a", client_rebalance=False)
            second = rig.consumer(work, instance_name="b", client_rebalance=False)
            async with first:
                await w.until(lambda: sum(map(len, rig.received.values())) > 8)
                async with second:
                    await w.until(lambda: owned(second) == [2, 3])
                    assert owned(first) == [0, 1]
                    assert await rig.is_locked(2)
                    await w.until(lambda: sum(map(len, rig.received.values())) > 50)
                await w.until(lambda: sum(map(len, rig.received.values())) == 80)
            for queue_id in range(4):
                assert rig.received[queue_id] == sorted(rig.received[queue_id], key=int)
            assert rig.owners[2] == [first.client_id, second.client_id, first.client_id]
            assert await w.committed() == 80

    run_virtual(main())

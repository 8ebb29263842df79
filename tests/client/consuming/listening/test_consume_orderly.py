"""Ordered consumption: the messages of a queue are delivered in order, and none is skipped."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
from kourou.client.consuming.listening.ordered_calls import OrderlyContext
from kourou.errors import ConfigError, UsageError
from kourou.model.group import MessageModel
from kourou.model.message import MessageExt
from kourou.testing.loop import run_virtual
from kourou.testing.recording import Recording, recording
from tests.client.consuming.ordered_rig import Ordered

BODIES = [b"%d" % number for number in range(20)]


async def dead_letters(world: Recording, group: str = "consumers") -> list[bytes]:
    """Return the bodies of the group's dead letters."""
    async with world.cluster.pull_consumer("undertaker") as reader:
        found: list[bytes] = []
        for queue in await reader.fetch_subscribe_message_queues(f"%DLQ%{group}"):
            result = await reader.pull(queue, 0)
            found += [message.body for message in result.messages]
        return found


def test_the_messages_of_each_queue_are_delivered_one_at_a_time() -> None:
    async def main() -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(0.1)

        async with recording(queues=3) as w:
            rig = Ordered(w)
            await w.send(*BODIES)
            async with rig.consumer(work):
                await w.until(lambda: sum(map(len, rig.received.values())) == len(BODIES))
            for bodies in rig.received.values():
                assert bodies == sorted(bodies, key=int)
            assert await w.committed() == len(BODIES)

    run_virtual(main())


def test_a_queue_is_locked_while_held_and_unlocked_after_close() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            rig = Ordered(w)
            async with rig.consumer():
                assert await rig.is_locked()
                await asyncio.sleep(200)
                assert await rig.is_locked()
            assert not await rig.is_locked()

    run_virtual(main())


def test_a_failing_message_is_delivered_again_before_later_ones() -> None:
    async def main() -> None:
        times: list[float] = []

        def fail(message: MessageExt) -> None:
            if message.body == b"3":
                times.append(asyncio.get_running_loop().time())
                assert message.reconsume_times == len(times) - 1
                if len(times) < 4:
                    raise ValueError

        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(*BODIES[:6])
            async with rig.consumer(fail):
                await w.until(lambda: b"5" in rig.received[0])
            assert rig.received[0] == [b"0", b"1", b"2", b"3", b"3", b"3", b"3", b"4", b"5"]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert gaps == pytest.approx([1.0] * 3, abs=0.05)

    run_virtual(main())


def test_a_message_that_always_fails_is_not_skipped_and_logged_at_powers_of_two(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        def fail(_: MessageExt) -> None:
            raise ValueError

        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(b"0", b"1")
            async with rig.consumer(fail):
                await asyncio.sleep(300)
                assert set(rig.received[0]) == {b"0"}
                assert 290 < len(rig.received[0]) <= 301
            assert await w.committed() == 0

    run_virtual(main())
    failures = [one for one in caplog.records if "listener.failed" in one.getMessage()]
    assert len([one for one in failures if one.levelno == logging.ERROR]) < 20


def test_a_listener_sets_its_queue_s_suspension_within_bounds() -> None:
    async def main() -> None:
        times: list[float] = []
        raised = [
            RetryLater(delay_ms=7_000),
            RetryLater(delay_ms=1),
            RetryLater(level=2),
            RetryLater(delay_ms=3_600_000),
        ]

        def fail(_: MessageExt) -> None:
            times.append(asyncio.get_running_loop().time())
            if raised:
                raise raised.pop(0)

        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(b"0")
            async with rig.consumer(fail):
                await w.until(lambda: len(times) == 5, timeout_s=100)
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert gaps == pytest.approx([7.0, 0.01, 5.0, 30.0], abs=0.02)

    run_virtual(main())


def test_after_max_reconsume_times_a_message_is_a_dead_letter_and_the_queue_continues() -> None:
    async def main() -> None:
        def fail(message: MessageExt) -> None:
            if message.body == b"1":
                raise ValueError("no such account")

        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(b"0", b"1", b"2")
            async with rig.consumer(fail, max_reconsume_times=2):
                await w.until(lambda: b"2" in rig.received[0])
            assert rig.received[0] == [b"0", b"1", b"1", b"1", b"2"]
            assert await dead_letters(w) == [b"1"]
            assert await w.committed() == 3

    run_virtual(main())


def test_a_dead_letter_exception_stores_the_message_at_once() -> None:
    async def main() -> None:
        def give_up(message: MessageExt) -> None:
            if message.body == b"1":
                raise DeadLetter("no such account")

        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(b"0", b"1", b"2")
            async with rig.consumer(give_up):
                await w.until(lambda: b"2" in rig.received[0])
            assert rig.received[0] == [b"0", b"1", b"2"]
            assert await dead_letters(w) == [b"1"]

    run_virtual(main())


def test_a_dead_letter_that_no_broker_accepts_is_not_skipped() -> None:
    async def main() -> None:
        def give_up(message: MessageExt) -> None:
            if message.body == b"1":
                if rig.received[0].count(b"1") == 1:
                    w.cluster.network.cut(w.cluster.broker_address())
                raise DeadLetter

        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(b"0", b"1", b"2")
            async with rig.consumer(give_up):
                await w.until(lambda: rig.received[0].count(b"1") == 2)
                w.cluster.network.heal(w.cluster.broker_address())
                await w.until(lambda: b"2" in rig.received[0])
            first = rig.received[0].index(b"2")
            assert set(rig.received[0][:first]) == {b"0", b"1"}

    run_virtual(main())


def test_a_batch_has_messages_of_one_queue_up_to_the_limit() -> None:
    async def main() -> None:
        batches: list[list[bytes]] = []

        async with recording(queues=1) as w:
            await w.send(*BODIES)
            consumer = Ordered(w).bare(consume_batch_size=8)

            @consumer.listen_orderly_in_batches
            async def take(messages: list[MessageExt]) -> None:
                batches.append([message.body for message in messages])
                if len(batches) == 1:
                    raise RetryLater(messages=[messages[3]])

            async with consumer:
                await w.until(lambda: sum(map(len, batches)) == len(BODIES) + 5)
            assert batches[0] == BODIES[:8]
            assert [body for batch in batches[1:] for body in batch] == BODIES[3:]
            assert max(map(len, batches)) == 8
            assert await w.committed() == len(BODIES)

    run_virtual(main())


def test_rolled_back_messages_are_delivered_again() -> None:
    async def main() -> None:
        got: list[bytes] = []
        rolled_back = False

        async with recording(queues=1) as w:
            await w.send(*BODIES[:10])
            consumer = Ordered(w).bare()

            @consumer.listen_orderly_and_commit
            async def take(messages: list[MessageExt], context: OrderlyContext) -> None:
                nonlocal rolled_back
                got.extend(message.body for message in messages)
                assert context.queue.queue_id == 0
                if messages[0].body == b"3":
                    context.commit()
                    with pytest.raises(UsageError, match="not both"):
                        context.rollback()
                elif messages[0].body == b"6" and not rolled_back:
                    rolled_back = True
                    context.rollback(delay_ms=500)
                    with pytest.raises(UsageError, match="not both"):
                        context.commit()

            async with consumer:
                await w.until(lambda: b"9" in got)
            assert got == BODIES[:7] + BODIES[4:10]
            assert await w.committed() == 4
            got.clear()
            again = Ordered(w).bare()

            @again.listen_orderly_and_commit
            def commit(messages: list[MessageExt], context: OrderlyContext) -> None:
                got.extend(message.body for message in messages)
                context.commit()

            async with again:
                await w.until(lambda: b"9" in got)
            assert got == BODIES[4:10]
            assert await w.committed() == 10

    run_virtual(main())


def test_raising_after_commit_commits_nothing() -> None:
    async def main() -> None:
        got: list[bytes] = []

        async with recording(queues=1) as w:
            await w.send(b"0", b"1")
            consumer = Ordered(w).bare()

            @consumer.listen_orderly_and_commit
            async def take(messages: list[MessageExt], context: OrderlyContext) -> None:
                got.append(messages[0].body)
                if messages[0].body == b"1":
                    context.commit()
                    raise ValueError

            async with consumer:
                await w.until(lambda: got.count(b"1") == 3)
            assert got.count(b"0") == 1
            assert await w.committed() == 0

    run_virtual(main())


def test_a_return_value_is_ignored_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            got = []
            consumer = Ordered(w).bare()

            @consumer.listen_orderly
            def take(message: MessageExt) -> object:
                got.append(message.body)
                return "SUSPEND_CURRENT_QUEUE_A_MOMENT"

            async with consumer:
                await w.until(lambda: got == BODIES)

    run_virtual(main())
    assert caplog.text.count("listener.returned type=str") == 1


def test_a_hanging_listener_blocks_its_queue_only() -> None:
    async def main() -> None:
        async def hang(message: MessageExt) -> None:
            if message.queue_id == 0:
                await asyncio.Event().wait()

        async with recording(queues=2) as w:
            rig = Ordered(w)
            await w.send(*BODIES)
            async with rig.consumer(hang, shutdown_timeout_ms=1000):
                await w.until(lambda: len(rig.received[1]) == 10)
                await asyncio.sleep(3600)
                assert len(rig.received[0]) == 1
            assert await w.committed() == 10

    run_virtual(main())


def test_more_queues_than_threads_take_turns() -> None:
    async def main() -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(1)

        async with recording(queues=2) as w:
            rig = Ordered(w)
            await w.send(*[b"%d" % number for number in range(200)])
            async with rig.consumer(work, consume_threads=1):
                await asyncio.sleep(90)
                counts = sorted(map(len, rig.received.values()))
                assert counts[1] == pytest.approx(60, abs=2)
                assert counts[0] == pytest.approx(29, abs=2)

    run_virtual(main())


def test_broadcasting_members_get_all_messages_in_order_without_locks() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            rigs = [Ordered(w), Ordered(w)]
            consumers = [
                rig.consumer(message_model=MessageModel.BROADCASTING, instance_name=f"m{number}")
                for number, rig in enumerate(rigs)
            ]
            async with consumers[0], consumers[1]:
                await w.until(lambda: all(len(rig.received[0]) == len(BODIES) for rig in rigs))
                assert not await rigs[0].is_locked()
            assert [rig.received[0] for rig in rigs] == [BODIES, BODIES]

    run_virtual(main())


def test_misuse_is_refused() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            consumer = Ordered(w).consumer()
            with pytest.raises(UsageError, match="has a listener"):
                consumer.listen_orderly(print)
            async with consumer:
                with pytest.raises(UsageError, match="has a listener"):
                    aiter(consumer)
                with pytest.raises(UsageError, match="before the start"):
                    consumer.listen_orderly_in_batches(print)
            with pytest.raises(ConfigError, match="suspend_queue_ms"):
                Ordered(w).bare(suspend_queue_ms=5)
            with pytest.raises(ConfigError, match="lock_interval_ms"):
                Ordered(w).bare(lock_interval_ms=40_000)

    run_virtual(main())

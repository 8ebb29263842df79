"""A queue that moves has one owner at a time; a planned move delivers nothing twice."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.message import MessageExt
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording
from tests.client.consuming.ordered_rig import Ordered

BODIES = [b"%d" % number for number in range(40)]


def topic_queues(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == TOPIC]


def delivered(rig: Ordered) -> list[bytes]:
    return [body for bodies in rig.received.values() for body in bodies]


async def work(_: MessageExt) -> None:
    await asyncio.sleep(0.2)


def test_ordered_members_that_join_and_leave_get_each_message_once() -> None:
    async def main() -> None:
        async with recording(queues=4) as w:
            rig = Ordered(w)
            await w.send(*BODIES)
            first = rig.consumer(work, instance_name="first")
            second = rig.consumer(work, instance_name="second")
            async with first:
                await w.until(lambda: len(delivered(rig)) > 4)
                async with second:
                    await w.until(lambda: topic_queues(second) == [2, 3], timeout_s=5)
                    await w.until(lambda: len(delivered(rig)) > 25)
                await w.until(lambda: len(delivered(rig)) == len(BODIES))
            assert Counter(delivered(rig)) == Counter(BODIES)
            assert [rig.owners[2], rig.owners[3]] == [
                [first.client_id, second.client_id, first.client_id]
            ] * 2
            for bodies in rig.received.values():
                assert bodies == sorted(bodies, key=int)
            assert await w.committed() == len(BODIES)

    run_virtual(main())


def test_concurrent_members_that_join_and_leave_get_each_message_once() -> None:
    async def main() -> None:
        async with recording(queues=4) as w:
            first = w.consumer(work, instance_name="first", consume_threads=2)
            second = w.consumer(work, instance_name="second", consume_threads=2)
            await w.send(*BODIES)
            async with first:
                await w.until(lambda: len(w.received) > 4)
                async with second:
                    await w.until(lambda: topic_queues(second) == [2, 3], timeout_s=5)
                    await w.until(lambda: len(w.received) > 25)
                await w.until_received(*BODIES)
            assert Counter(w.received) == Counter(BODIES)

    run_virtual(main())


def test_a_slow_listener_keeps_its_queue_until_its_call_ends() -> None:
    async def main() -> None:
        async def slow(_: MessageExt) -> None:
            await asyncio.sleep(100)

        async with recording(queues=2) as w:
            rig = Ordered(w)
            await w.send(*BODIES[:4])
            old = rig.consumer(slow, instance_name="a")
            new = rig.consumer(instance_name="b")
            async with old, new:
                await asyncio.sleep(50)
                assert topic_queues(old) == [0]
                assert topic_queues(new) == []
                await w.until(lambda: topic_queues(new) == [1], timeout_s=55)
                await w.until(lambda: len(rig.received[1]) == 2, timeout_s=2)
            assert rig.owners[1] == [old.client_id, new.client_id]
            assert len(set(rig.received[1])) == 2

    run_virtual(main())


def test_a_hanging_listener_keeps_its_queue_for_at_most_consume_timeout() -> None:
    async def main() -> None:
        hung = []

        async def hang(message: MessageExt) -> None:
            if message.queue_id == 1:
                hung.append(message.body)
                await asyncio.Event().wait()

        async with recording(queues=2) as w:
            await w.send(*BODIES[:4])
            old = Ordered(w).consumer(
                hang, instance_name="a", consume_timeout_ms=120_000, shutdown_timeout_ms=100
            )
            rig = Ordered(w)
            new = rig.consumer(instance_name="b")
            async with old:
                await w.until(lambda: bool(hung))
                async with new:
                    await asyncio.sleep(110)
                    assert topic_queues(new) == []
                    # A queue is not unlocked while a call may still use its messages.
                    await w.until(lambda: topic_queues(new) == [1], timeout_s=80)
                    await w.until(lambda: len(rig.received[1]) == 2, timeout_s=2)

    run_virtual(main())


def test_a_dead_member_s_queues_are_taken_over_when_its_locks_expire() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            rig = Ordered(w)
            doomed = rig.consumer(work, instance_name="a")
            heir = rig.consumer(instance_name="b")
            await doomed.start()
            await w.send(*BODIES)
            async with heir:
                await w.until(lambda: topic_queues(heir) == [1], timeout_s=5)
                doomed.abort()
                rig.forget(0)
                died_s = asyncio.get_running_loop().time()
                await w.until(lambda: topic_queues(heir) == [0, 1], timeout_s=90)
                waited_s = asyncio.get_running_loop().time() - died_s
                assert 30 < waited_s < 65
                await w.until(lambda: set(delivered(rig)) == set(BODIES))
            assert sorted(set(rig.received[0]), key=int) == list(dict.fromkeys(rig.received[0]))

    run_virtual(main())


def test_a_member_cut_off_from_the_broker_stops_before_another_starts() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(*[b"%d" % number for number in range(300)])
            times = []

            async def note(_: MessageExt) -> None:
                times.append(asyncio.get_running_loop().time())
                await asyncio.sleep(0.5)

            async with rig.consumer(note, instance_name="a"):
                await asyncio.sleep(5)
                stalled_s = asyncio.get_running_loop().time()
                w.cluster.network.stall(w.cluster.broker_address())
                await asyncio.sleep(100)
                assert times[-1] < stalled_s + 31
                count = len(times)
                w.cluster.network.heal(w.cluster.broker_address())
                await w.until(lambda: len(times) > count + 20, timeout_s=60)
                await w.until(lambda: b"299" in rig.received[0], timeout_s=300)
            assert sorted(set(rig.received[0]), key=int) == list(dict.fromkeys(rig.received[0]))

    run_virtual(main())


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restarted_broker_keeps_the_locks_of_a_late_member(
    is_killed: bool,
) -> None:
    async def main() -> None:
        async def slow(_: MessageExt) -> None:
            await asyncio.sleep(3)

        async with recording(queues=2) as w:
            rig = Ordered(w)
            # It reconnects long after the other, which is then the broker's only member.
            late = rig.consumer(slow, instance_name="a", pull_error_delay_ms=15_000)
            other = rig.consumer(slow, instance_name="b")
            async with late, other:
                await w.send(*BODIES[:20])
                await asyncio.sleep(10)
                await (w.cluster.kill_broker() if is_killed else w.cluster.stop_broker())
                await asyncio.sleep(3)
                await w.cluster.restart_broker()
                await asyncio.sleep(5)
                assert topic_queues(other) == [1]
                await w.send(*BODIES[20:])
                await w.until(lambda: set(delivered(rig)) == set(BODIES), timeout_s=120)
            assert [rig.owners[0], rig.owners[1]] == [[late.client_id], [other.client_id]]
            assert Counter(delivered(rig)) == Counter(BODIES)
            for bodies in rig.received.values():
                assert bodies == sorted(bodies, key=int)

    run_virtual(main())


def test_locks_of_a_member_that_died_with_its_broker_expire_a_minute_after_the_restart() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            rig = Ordered(w)
            doomed = rig.consumer(work, instance_name="a")
            heir = rig.consumer(work, instance_name="b")
            await doomed.start()
            async with heir:
                await w.until(lambda: topic_queues(heir) == [1], timeout_s=10)
                await asyncio.sleep(6)  # locks are saved every five seconds
                doomed.abort()
                await w.cluster.kill_broker()
                await w.cluster.restart_broker()
                await asyncio.sleep(50)
                assert topic_queues(heir) == [1]
                await w.until(lambda: topic_queues(heir) == [0, 1], timeout_s=35)
                await w.send(*BODIES)
                await w.until(lambda: set(delivered(rig)) == set(BODIES))

    run_virtual(main())


def test_close_waits_for_the_call_and_the_next_member_continues_after_it() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(*BODIES[:10])
            for name in "abcde":
                async with rig.consumer(work, instance_name=name):
                    before = len(rig.received[0])
                    await w.until(lambda: len(rig.received[0]) > before)  # noqa: B023
            async with rig.consumer(instance_name="last"):
                await w.until(lambda: b"9" in rig.received[0])
            assert rig.received[0] == BODIES[:10]

    run_virtual(main())


def test_a_listener_that_closes_its_own_consumer_keeps_the_lock_until_it_expires() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(b"0", b"1")

            async def close(_: MessageExt) -> None:
                await consumer.close()
                assert await rig.is_locked()

            consumer = rig.consumer(close)
            await consumer.start()
            await w.until(lambda: bool(rig.received[0]))
            await consumer.close()
            assert await rig.is_locked()
            await asyncio.sleep(70)
            assert not await rig.is_locked()

    run_virtual(main())


def test_a_reset_waits_for_the_running_call() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(*BODIES[:10])
            async with rig.consumer(work), w.cluster.admin() as admin:
                await w.until(lambda: len(rig.received[0]) == 5)
                await admin.reset_offset("consumers", TOPIC, to="earliest")
                await w.until(lambda: rig.received[0].count(b"9") == 1, timeout_s=30)
            back = rig.received[0].index(b"0", 1)
            assert rig.received[0][back:] == BODIES[:10]
            assert rig.received[0][:back] == BODIES[:back]

    run_virtual(main())


def test_a_topic_deleted_and_created_again_is_consumed_from_its_start() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            rig = Ordered(w)
            await w.send(*BODIES[:8])
            async with rig.consumer(), w.cluster.admin() as admin:
                await w.until(lambda: len(delivered(rig)) == 8)
                await admin.delete_topic(TOPIC)
                await asyncio.sleep(40)
                await admin.create_topic(TOPIC, queues=1)
                await asyncio.sleep(5)
                await w.send(*BODIES[8:12])
                await w.until(lambda: set(delivered(rig)) >= set(BODIES[8:12]), timeout_s=90)
            assert rig.received[0][-4:] == BODIES[8:12]

    run_virtual(main())


def test_unreadable_queues_are_released_and_the_others_continue() -> None:
    async def main() -> None:
        async with recording(queues=4) as w:
            rig = Ordered(w)
            consumer = rig.consumer(work)
            async with consumer, w.cluster.admin() as admin:
                await w.send(*BODIES[:20])
                await admin.create_topic(TOPIC, queues=2)
                await w.until(lambda: topic_queues(consumer) == [0, 1], timeout_s=60)
                await w.send(*BODIES[20:])
                await w.until(lambda: set(delivered(rig)) >= set(BODIES[20:]), timeout_s=60)
            assert max(Counter(delivered(rig)).values()) == 1

    run_virtual(main())

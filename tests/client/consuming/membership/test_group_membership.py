"""Joining a group, sharing its queues, and leaving it by close or by crash."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from kourou.client.consuming.push_consumer import PushConsumer
from kourou.errors import (
    ClosedError,
    ConnectFailedError,
    FilterSyntaxError,
    InvalidGroupError,
    InvalidTopicError,
    UsageError,
)
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.store.config import StoreConfig
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording
from kourou.testing.runtime import sim_runtime

BODIES = [b"%d" % number for number in range(30)]


def topic_queues(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == TOPIC]


def test_a_topic_created_later_is_found_soon() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.consumer()
            consumer.subscribe("later")
            async with consumer, w.cluster.producer() as producer:
                await asyncio.sleep(100)
                await producer.send(Message("later", b"x"))
                await w.until_received(b"x", timeout_s=25)
                assert w.received == [b"x"]

    run_virtual(main())


def test_two_members_share_the_queues_and_one_takes_all_when_the_other_leaves() -> None:
    async def main() -> None:
        async with recording() as w:
            first = w.consumer(instance_name="first")
            second = w.consumer(instance_name="second")
            async with first:
                assert topic_queues(first) == [0, 1, 2, 3]
                async with second:
                    await w.until(lambda: topic_queues(first) == [0, 1], timeout_s=3)
                    await w.until(lambda: topic_queues(second) == [2, 3], timeout_s=3)
                    await w.send(*BODIES)
                    await w.until_received(*BODIES)
                await w.until(lambda: topic_queues(first) == [0, 1, 2, 3], timeout_s=3)
                await w.send(b"more")
                await w.until_received(b"more")
            assert Counter(w.received) == Counter([*BODIES, b"more"])

    run_virtual(main())


def test_uncommitted_messages_of_a_crashed_member_are_redelivered_to_the_other() -> None:
    async def main() -> None:
        async def hang(_: MessageExt) -> None:
            await asyncio.Event().wait()

        async with recording() as w:
            doomed = w.consumer(hang, instance_name="doomed")
            await doomed.start()
            await w.send(*BODIES)
            await w.until(lambda: len(w.received) == 20)
            doomed.abort()
            w.received.clear()
            async with w.consumer(instance_name="heir"):
                await w.until_received(*BODIES)
            assert Counter(w.received) == Counter(BODIES)

    run_virtual(main())


def test_messages_of_a_moved_queue_belong_to_the_new_owner() -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def wait(_: MessageExt) -> None:
            await released.wait()

        async with recording() as w:
            await w.send(*BODIES)
            old = w.consumer(wait, instance_name="old", consume_threads=4)
            new = w.consumer(wait, instance_name="new")
            async with old:
                await w.until(lambda: len(w.received) == 4)
                in_hand = [message for message in w.deliveries if message.queue_id in (0, 1)]
                assert in_hand
                async with new:
                    await w.until(lambda: topic_queues(old) == [2, 3])
                    await w.until(lambda: topic_queues(new) == [0, 1])
                    released.set()
                    await w.until_received(*BODIES, *(message.body for message in in_hand))
            # Nothing else was delivered twice, and late acknowledgements of the old owner had no
            # effect.
            assert Counter(w.received) == Counter([*BODIES, *(message.body for message in in_hand)])
            assert await w.committed() == len(BODIES)

    run_virtual(main())


def test_a_group_started_at_the_end_continues_there_after_a_crash() -> None:
    async def main() -> None:
        store = StoreConfig(
            commitlog_segment_bytes=64 * 1024, consumequeue_file_bytes=2000, resident_bytes=1000
        )
        where = ConsumeFromWhere.LAST_OFFSET
        async with recording(queues=1, store=store) as w:
            await w.send(*[b"old"] * 30)
            doomed = w.consumer(consume_from_where=where)
            await doomed.start()
            doomed.abort()
            await w.send(b"meanwhile")
            async with w.consumer(consume_from_where=where):
                await w.until_received(b"meanwhile")
            assert w.received == [b"meanwhile"]

    run_virtual(main())


def test_close_waits_for_running_listeners_and_starts_no_more() -> None:
    async def main() -> None:
        done = []

        async def work(message: MessageExt) -> None:
            await asyncio.sleep(2)
            done.append(message.body)

        async with recording() as w:
            await w.send(*BODIES)
            async with w.consumer(work, consume_threads=3):
                await w.until(lambda: len(w.received) == 3)
            assert sorted(done) == sorted(w.received), "three calls were running, and all ended"
            assert len(done) == 3

            first = list(w.received)
            async with w.consumer(consume_threads=3):
                await w.until_received(*BODIES)
            assert len(first) == 3

    run_virtual(main())


def test_a_second_close_waits_for_the_first() -> None:
    async def main() -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(2)

        async with recording() as w:
            await w.send(b"x")
            consumer = w.consumer(work)
            await consumer.start()
            await w.until_received(b"x")
            await asyncio.gather(*(consumer.close() for _ in range(3)))
            assert await w.committed() == 1
            never_started = w.consumer()
            await never_started.close()
            with pytest.raises(ClosedError):
                await never_started.start()

    run_virtual(main())


def test_close_abandons_listeners_that_do_not_end() -> None:
    async def main() -> None:
        async def hang(_: MessageExt) -> None:
            await asyncio.Event().wait()

        async with recording() as w:
            await w.send(b"x")
            loop = asyncio.get_running_loop()
            async with w.consumer(hang, shutdown_timeout_ms=2000):
                await w.until_received(b"x")
                closing_at = loop.time()
            assert loop.time() - closing_at == pytest.approx(2, abs=0.5)
            assert await w.committed() == 0

    run_virtual(main())


def test_a_listener_may_close_its_own_consumer() -> None:
    async def main() -> None:
        async with recording() as w:
            consumers: list[PushConsumer] = []

            async def close(_: MessageExt) -> None:
                await consumers[0].close()

            consumers.append(w.consumer(close))
            await w.send(b"x")
            await consumers[0].start()
            started_at = asyncio.get_running_loop().time()
            await consumers[0].run_forever()
            assert asyncio.get_running_loop().time() - started_at < 2

    run_virtual(main())


def test_a_second_consumer_of_a_group_in_a_process_is_refused_by_name() -> None:
    async def main() -> None:
        async with recording() as w:
            async with w.consumer(group="billing"):
                second = w.consumer(group="billing")
                with pytest.raises(
                    InvalidGroupError,
                    match=r"The consumer group\[billing\] has been created before, specify another",
                ):
                    await second.start()
                async with w.consumer(group="billing", instance_name="another"):
                    pass
            async with w.consumer(group="billing"):
                pass  # the group is free again

    run_virtual(main())


def test_start_reports_an_unreachable_name_server_and_releases_the_group() -> None:
    async def main() -> None:
        for _ in range(2):
            consumer = PushConsumer("g", "127.0.0.1:19876", runtime=sim_runtime())
            consumer.subscribe(TOPIC)
            with pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:19876.*kourou serve"):
                await consumer.start()
            with pytest.raises(ClosedError):
                await consumer.run_forever()

    run_virtual(main())


def test_misuse_is_refused_with_the_remedy() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.cluster.push_consumer()
            with pytest.raises(UsageError, match="subscribe to a topic"):
                await consumer.start()
            with pytest.raises(InvalidTopicError):
                consumer.subscribe("a b")
            with pytest.raises(FilterSyntaxError):
                consumer.subscribe(TOPIC, "||")
            with pytest.raises(ClosedError, match="not started"):
                await consumer.run_forever()
            with pytest.raises(ClosedError, match="not started"):
                aiter(consumer)
            consumer.subscribe(TOPIC)
            consumer.listen(print)
            with pytest.raises(UsageError, match="has a listener"):
                consumer.listen(print)
            async with consumer:
                with pytest.raises(UsageError, match="before the start"):
                    consumer.listen_in_batches(print)
                with pytest.raises(UsageError, match="has a listener"):
                    aiter(consumer)
            with pytest.raises(ClosedError, match="push consumer is closed"):
                _ = consumer.queues
            with pytest.raises(ClosedError, match="create a new one"):
                await consumer.start()

    run_virtual(main())


def test_run_forever_ends_when_the_consumer_is_closed() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            consumer = cluster.push_consumer()
            consumer.subscribe(TOPIC)
            consumer.listen(print)
            async with consumer:
                running = asyncio.create_task(consumer.run_forever())
                await asyncio.sleep(1)
                assert not running.done()
                await consumer.close()
                await running

    run_virtual(main())

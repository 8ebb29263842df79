"""What a push consumer promises to a listener, against real brokers on a simulated network."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from kourou.client.calls_send import Outgoing
from kourou.client.push_consumer import PushConsumer
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
from kourou.model.queue import MessageQueue
from kourou.model.sysflag import COMPRESSED, COMPRESSION_LZ4
from kourou.model.topic import dlq_topic
from kourou.store.config import StoreConfig
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording
from kourou.testing.runtime import sim_runtime

BODIES = [b"%d" % number for number in range(30)]


def test_every_message_is_delivered_once_and_committed_at_the_end() -> None:
    async def main() -> None:
        async with recording() as w:
            await w.send(*BODIES)
            async with w.consumer():
                await w.until_got(*BODIES)
            assert Counter(w.got) == Counter(BODIES)
            assert await w.committed() == len(BODIES)

            async with w.consumer():
                await asyncio.sleep(10)
            assert len(w.got) == len(BODIES), "what is committed is not delivered again"

    run_virtual(main())


def test_offsets_are_committed_every_five_seconds() -> None:
    async def main() -> None:
        async with recording() as w, w.consumer() as consumer:
            await w.send(*BODIES)
            await w.until_got(*BODIES)
            await asyncio.sleep(5.5)
            consumer.abort()  # nothing is committed on the way out
            assert await w.committed() == len(BODIES)

    run_virtual(main())


def test_messages_sent_after_the_start_are_delivered_at_once() -> None:
    async def main() -> None:
        async with recording() as w:
            where = ConsumeFromWhere.LAST_OFFSET
            async with w.consumer(consume_from_where=where) as consumer:
                assert len([queue for queue in consumer.queues if queue.topic == TOPIC]) == 4
                await w.send(b"now")
                await w.until_got(b"now", timeout_s=0.1)

    run_virtual(main())


def test_a_topic_made_later_is_found_soon() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.consumer()
            consumer.subscribe("later")
            async with consumer, w.cluster.producer() as producer:
                await asyncio.sleep(100)
                await producer.send(Message("later", b"x"))
                await w.until_got(b"x", timeout_s=25)

    run_virtual(main())


def test_a_failed_message_comes_again_after_10_30_and_60_seconds() -> None:
    async def main() -> None:
        times = []

        def fail_three_times(message: MessageExt) -> None:
            times.append((message.reconsume_times, asyncio.get_running_loop().time()))
            if message.reconsume_times < 3:
                raise ValueError("not yet")

        async with recording() as w:
            await w.send(b"pay")
            async with w.consumer(fail_three_times):
                await w.until_got(*[b"pay"] * 4, timeout_s=200)
                await asyncio.sleep(300)
            assert w.got == [b"pay"] * 4
            assert [reconsumed for reconsumed, _ in times] == [0, 1, 2, 3]
            waits = [later[1] - earlier[1] for earlier, later in pairwise(times)]
            assert waits == pytest.approx([10, 30, 60], abs=2.5)
            assert {message.topic for message in w.deliveries} == {TOPIC}
            assert len({message.msg_id for message in w.deliveries}) == 1
            assert await w.committed() == 1

    run_virtual(main())


def test_a_message_that_always_fails_ends_as_a_dead_letter() -> None:
    async def main() -> None:
        def fail(_: MessageExt) -> None:
            raise ValueError("never")

        async with recording() as w:
            await w.send(b"bad")
            async with w.consumer(fail, max_reconsume_times=2):
                await asyncio.sleep(600)
            assert w.got == [b"bad"] * 3
            async with w.cluster.pull_consumer() as reader:
                [queue] = await reader.fetch_subscribe_message_queues(dlq_topic("consumers"))
                [dead] = (await reader.pull(queue, 0)).messages
            assert (dead.body, dead.msg_id) == (b"bad", w.deliveries[0].msg_id)

    run_virtual(main())


def test_a_listener_that_is_cancelled_from_inside_has_failed() -> None:
    async def main() -> None:
        async def cancel_once(message: MessageExt) -> None:
            if message.reconsume_times == 0:
                raise asyncio.CancelledError

        async with recording() as w:
            await w.send(b"x", b"y")
            async with w.consumer(cancel_once, consume_threads=1):
                await w.until_got(b"x", b"y", b"x", b"y")

    run_virtual(main())


def test_what_cannot_be_given_back_is_delivered_again_from_memory() -> None:
    async def main() -> None:
        async with recording() as w:
            address = w.cluster.broker_address()

            def fail_once(message: MessageExt) -> None:
                if message.reconsume_times == 0:
                    w.cluster.network.cut(address)
                    raise ValueError("and the broker is away")

            await w.send(b"x")
            async with w.consumer(fail_once):
                await w.until_got(b"x")
                await w.until_got(b"x", b"x", timeout_s=6)
                assert w.deliveries[0] is w.deliveries[1]
                w.cluster.network.heal(address)
            assert await w.committed() == 1

    run_virtual(main())


def test_a_listener_that_takes_too_long_loses_its_message_to_another_delivery() -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def hang_once(message: MessageExt) -> None:
            if message.reconsume_times == 0:
                await released.wait()

        async with recording() as w:
            await w.send(b"x")
            async with w.consumer(hang_once, consume_timeout_ms=60_000):
                await w.until_got(b"x", b"x", timeout_s=140)
                await asyncio.sleep(6)
                assert await w.committed() == 1
                released.set()
                await asyncio.sleep(300)
                assert w.got == [b"x", b"x"]

    run_virtual(main())


def test_a_stuck_message_holds_back_the_commit_and_is_delivered_after_a_crash() -> None:
    async def main() -> None:
        async def hang_on_ten(message: MessageExt) -> None:
            if message.body == b"10":
                await asyncio.Event().wait()

        async with recording(queues=1) as w:
            await w.send(*BODIES)
            consumer = w.consumer(hang_on_ten)
            await consumer.start()
            await w.until_got(*BODIES)
            await asyncio.sleep(6)
            assert await w.committed() == 10
            consumer.abort()

            w.got.clear()
            async with w.consumer():
                await w.until_got(*BODIES[10:])
            assert Counter(w.got) == Counter(BODIES[10:])

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
                    await w.until_got(*BODIES)
                await w.until(lambda: topic_queues(first) == [0, 1, 2, 3], timeout_s=3)
                await w.send(b"more")
                await w.until_got(b"more")
            assert Counter(w.got) == Counter([*BODIES, b"more"])

    run_virtual(main())


def topic_queues(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == TOPIC]


def test_what_a_crashed_member_had_not_committed_goes_to_the_other() -> None:
    async def main() -> None:
        async def hang(_: MessageExt) -> None:
            await asyncio.Event().wait()

        async with recording() as w:
            doomed = w.consumer(hang, instance_name="doomed")
            await doomed.start()
            await w.send(*BODIES)
            await w.until(lambda: len(w.got) == 20)
            doomed.abort()
            w.got.clear()
            async with w.consumer(instance_name="heir"):
                await w.until_got(*BODIES)
            assert Counter(w.got) == Counter(BODIES)

    run_virtual(main())


def test_messages_of_a_queue_that_moved_away_are_the_new_owners() -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def wait(_: MessageExt) -> None:
            await released.wait()

        async with recording() as w:
            await w.send(*BODIES)
            old = w.consumer(wait, instance_name="old", consume_threads=4)
            new = w.consumer(wait, instance_name="new")
            async with old:
                await w.until(lambda: len(w.got) == 4)
                in_hand = [message for message in w.deliveries if message.queue_id in (0, 1)]
                assert in_hand
                async with new:
                    await w.until(lambda: topic_queues(old) == [2, 3])
                    await w.until(lambda: topic_queues(new) == [0, 1])
                    released.set()
                    await w.until_got(*BODIES, *(message.body for message in in_hand))
            # Nothing else came twice, and what the old one acknowledged late did no harm.
            assert Counter(w.got) == Counter([*BODIES, *(message.body for message in in_hand)])
            assert await w.committed() == len(BODIES)

    run_virtual(main())


def test_a_broker_crash_under_way_loses_nothing() -> None:
    async def main() -> None:
        async with recording() as w, w.consumer(), w.cluster.producer() as producer:

            async def keep_sending() -> None:
                for body in BODIES:
                    await producer.send(Message(TOPIC, body))
                    await asyncio.sleep(0.1)

            sending = asyncio.create_task(keep_sending())
            await asyncio.sleep(1)
            await w.cluster.crash_broker()
            await asyncio.sleep(1)
            await w.cluster.restart_broker()
            await sending
            await w.until_got(*BODIES)
            await asyncio.sleep(6)
            assert await w.committed() >= len(BODIES)

    run_virtual(main())


@pytest.mark.parametrize(
    ("options", "held_max"),
    [
        ({"pull_threshold_count": 40}, 40 + 32),
        ({"pull_threshold_size_bytes": 40 * 100}, 40 + 32),
        ({"consume_max_span": 50}, 50 + 33),
    ],
)
def test_a_queue_is_not_pulled_while_too_much_of_it_is_held(
    options: dict[str, Any], held_max: int
) -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def wait(message: MessageExt) -> None:
            # The first one stays: what is done behind it does not shrink the span.
            if message.queue_offset == 0 or "consume_max_span" not in options:
                await released.wait()

        async with recording(queues=1) as w:
            bodies = [b"%0100d" % number for number in range(200)]
            await w.send(*bodies)
            async with w.consumer(wait, **options) as consumer:
                await asyncio.sleep(2)
                [held] = [one for one in consumer._held.process_queues if one.queue.topic == TOPIC]
                reached = held.span + 1
                assert held_max - 32 <= reached <= held_max
                await asyncio.sleep(10)
                assert held.span + 1 == reached
                released.set()
                await w.until_got(*bodies)
            assert await w.committed() == 200

    run_virtual(main())


def test_the_start_of_a_new_group_is_the_end_the_beginning_or_a_time() -> None:
    async def main() -> None:
        # So little counts as "in memory" that the queue is not young any more.
        store = StoreConfig(
            commitlog_segment_bytes=64 * 1024, consumequeue_file_bytes=2000, resident_bytes=1000
        )
        async with recording(queues=1, store=store) as w:
            await w.send(*[b"old"] * 30)
            await asyncio.sleep(60)
            noon_ms = w.cluster.runtime.clock.now_ms()
            await asyncio.sleep(60)
            await w.send(b"recent")

            got: dict[ConsumeFromWhere, list[bytes]] = {}
            for where in (
                ConsumeFromWhere.FIRST_OFFSET,
                ConsumeFromWhere.TIMESTAMP,
                ConsumeFromWhere.LAST_OFFSET,
            ):
                w.got.clear()
                async with w.consumer(
                    group=where.name, consume_from_where=where, consume_timestamp_ms=noon_ms
                ):
                    await asyncio.sleep(5)
                    await w.send(b"new")
                    await w.until_got(b"new")
                got[where] = list(w.got)

            assert Counter(got[ConsumeFromWhere.FIRST_OFFSET]) == Counter(
                {b"old": 30, b"recent": 1, b"new": 1}
            )
            assert got[ConsumeFromWhere.TIMESTAMP] == [b"recent", b"new", b"new"]
            assert got[ConsumeFromWhere.LAST_OFFSET] == [b"new"]

    run_virtual(main())


def test_a_young_topic_is_consumed_whole_even_from_its_end() -> None:
    async def main() -> None:
        async with recording() as w:
            await w.send(*BODIES)
            async with w.consumer(consume_from_where=ConsumeFromWhere.LAST_OFFSET):
                await w.until_got(*BODIES)

    run_virtual(main())


def test_a_group_that_started_at_the_end_goes_on_there_after_a_crash() -> None:
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
                await w.until_got(b"meanwhile")
            assert w.got == [b"meanwhile"]

    run_virtual(main())


def test_other_tags_are_left_out_even_with_an_equal_hash() -> None:
    async def main() -> None:
        async with recording() as w:
            # Java's hash of both tags is 2112.
            await w.send(b"1", b"2", tags="Aa")
            await w.send(b"no", tags="BB")
            await w.send(b"no", tags="other")
            await w.send(b"3", tags="second")
            async with w.consumer(tags="Aa || second"):
                await w.until_got(b"1", b"2", b"3")
                await asyncio.sleep(6)
                assert sorted(w.got) == [b"1", b"2", b"3"]
                assert await w.committed() == 5, "what is left out is done, too"

    run_virtual(main())


def test_an_offset_that_the_broker_does_not_hold_is_corrected() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            async with w.cluster.pull_consumer("consumers") as reader:
                await reader.pull(MessageQueue(TOPIC, "broker-0", 0), 0)
                await reader.commit(MessageQueue(TOPIC, "broker-0", 0), 10_000)
            async with w.consumer():
                await asyncio.sleep(5)
                await w.send(b"new")
                await w.until_got(b"new")
            assert await w.committed() == 31

    run_virtual(main())


def test_closing_lets_running_listeners_end_and_starts_no_more() -> None:
    async def main() -> None:
        done = []

        async def work(message: MessageExt) -> None:
            await asyncio.sleep(2)
            done.append(message.body)

        async with recording() as w:
            await w.send(*BODIES)
            async with w.consumer(work, consume_threads=3):
                await w.until(lambda: len(w.got) == 3)
            assert sorted(done) == sorted(w.got), "three were under way, and all ended"
            assert len(done) == 3

            first = list(w.got)
            async with w.consumer(consume_threads=3):
                await w.until_got(*BODIES)
            assert len(first) == 3

    run_virtual(main())


def test_a_second_close_waits_for_the_first_and_spoils_nothing() -> None:
    async def main() -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(2)

        async with recording() as w:
            await w.send(b"x")
            consumer = w.consumer(work)
            await consumer.start()
            await w.until_got(b"x")
            await asyncio.gather(*(consumer.close() for _ in range(3)))
            assert await w.committed() == 1
            never_started = w.consumer()
            await never_started.close()
            with pytest.raises(ClosedError):
                await never_started.start()

    run_virtual(main())


def test_closing_gives_up_listeners_that_do_not_end() -> None:
    async def main() -> None:
        async def hang(_: MessageExt) -> None:
            await asyncio.Event().wait()

        async with recording() as w:
            await w.send(b"x")
            loop = asyncio.get_running_loop()
            async with w.consumer(hang, shutdown_timeout_ms=2000):
                await w.until_got(b"x")
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


def test_a_message_that_cannot_be_read_stops_its_queue_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with recording(queues=2) as w, w.cluster.producer() as producer:
            lz4 = Outgoing(TOPIC, ("id",), b"not inflatable", "", 0, COMPRESSED | COMPRESSION_LZ4)
            await producer._deliver(lz4, None, MessageQueue(TOPIC, "broker-0", 0))
            async with w.consumer() as consumer:
                for body in BODIES:
                    queue = MessageQueue(TOPIC, "broker-0", 1)
                    await producer.send(Message(TOPIC, body), queue=queue)
                await w.until_got(*BODIES)
                await asyncio.sleep(300)
                assert len(w.got) == len(BODIES)
                assert topic_queues(consumer) == [0, 1]
        entries = [one.getMessage() for one in caplog.records if "pull.unreadable" in one.msg]
        assert 5 <= len(entries) <= 12
        assert "lz4" in entries[0]

    run_virtual(main())


def test_one_group_twice_in_a_process_is_an_error_that_names_the_group() -> None:
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
                pass  # it is free again

    run_virtual(main())


def test_an_absent_name_server_is_named_at_the_start_and_frees_the_group() -> None:
    async def main() -> None:
        for _ in range(2):
            consumer = PushConsumer("g", "127.0.0.1:19876", runtime=sim_runtime())
            consumer.subscribe(TOPIC)
            with pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:19876.*kourou serve"):
                await consumer.start()
            with pytest.raises(ClosedError):
                await consumer.run_forever()

    run_virtual(main())


def test_misuse_is_refused_with_what_to_do_instead() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.cluster.push_consumer()
            with pytest.raises(UsageError, match="subscribe a topic"):
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
                    consumer.subscribe("U")
                with pytest.raises(UsageError, match="has a listener"):
                    aiter(consumer)
            with pytest.raises(ClosedError, match="push consumer is closed"):
                _ = consumer.queues
            with pytest.raises(ClosedError, match="make a new one"):
                await consumer.start()

    run_virtual(main())


def test_run_forever_ends_when_somebody_closes() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            consumer = cluster.push_consumer()
            consumer.subscribe(TOPIC)
            async with consumer:
                running = asyncio.create_task(consumer.run_forever())
                await asyncio.sleep(1)
                await consumer.close()
                await running

    run_virtual(main())

"""Push consumers in pop mode, with real brokers on a simulated network in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.errors import ConfigError, UsageError
from kourou.model.group import ConsumeFromWhere, MessageModel
from kourou.model.message import MessageExt
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

Body = Callable[[Recording], Coroutine[Any, Any, None]]


def with_brokers(body: Body, *, brokers: int = 1, queues: int = 4, **options: Any) -> None:
    async def main() -> None:
        async with recording(queues=queues, brokers=brokers, **options) as w:
            await body(w)

    run_virtual(main())


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def dead_letters(w: Recording) -> list[MessageExt]:
    """Return the dead letters of the group."""
    found: list[MessageExt] = []
    async with w.cluster.pull_consumer("auditors") as reader:
        for queue in await reader.fetch_subscribe_message_queues("%DLQ%consumers"):
            found += (await reader.pull(queue, 0)).messages
    return found


def test_two_popping_members_consume_each_message_once() -> None:
    async def body(w: Recording) -> None:
        one, two = (w.consumer(mode="pop", instance_name=name) for name in "ab")
        async with one, two:
            assert {queue.queue_id for queue in one.queues if queue.topic == TOPIC} == {-1}
            await w.send(*bodies(200))
            await w.until_received(*bodies(200))
            await asyncio.sleep(180)
            assert len(w.received) == 200
            assert one.health().is_ok
            assert one.health().held_messages == two.health().held_messages == 0

    with_brokers(body, brokers=2)


def test_batches_are_acknowledged_together() -> None:
    async def body(w: Recording) -> None:
        sizes = []
        config = PushConsumerConfig(
            mode="pop",
            consume_batch_size=16,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        await w.send(*bodies(64))
        consumer = w.cluster.push_consumer("consumers", config)
        consumer.subscribe(TOPIC)

        @consumer.listen_in_batches
        async def consume(messages: list[MessageExt]) -> None:
            sizes.append(len(messages))
            await asyncio.sleep(0.01)

        async with consumer:
            await w.until(lambda: sum(sizes) == 64)
            await asyncio.sleep(180)
            assert sum(sizes) == 64
            assert max(sizes) == 16

    with_brokers(body, queues=1)


def test_plain_functions_run_on_threads() -> None:
    async def main() -> None:
        async with recording() as w:
            await w.send(*bodies(40))
            received: list[bytes] = []
            config = PushConsumerConfig(
                mode="pop", consume_from_where=ConsumeFromWhere.FIRST_OFFSET
            )
            consumer = w.cluster.push_consumer("consumers", config)
            consumer.subscribe(TOPIC)
            consumer.listen(lambda message: received.append(message.body))
            async with consumer:
                await w.until(lambda: len(received) == 40)
                await asyncio.sleep(100)
            assert sorted(received) == sorted(bodies(40))

    run_virtual(main())


def test_iteration_acknowledges_the_message_before() -> None:
    async def body(w: Recording) -> None:
        await w.send(b"1", b"2", b"3")
        config = PushConsumerConfig(mode="pop", consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        received: list[tuple[bytes, int]] = []
        consumer = w.cluster.push_consumer("consumers", config)
        consumer.subscribe(TOPIC)
        async with consumer:
            async for message in consumer:
                received.append((message.body, message.reconsume_times))
                if len(received) == 1:
                    await consumer.give_back(message, RetryLater(delay_ms=5_000))
                if len(received) == 4:
                    break
        assert sorted(received) == sorted([(b"1", 0), (b"2", 0), (b"3", 0), (received[0][0], 1)])

    with_brokers(body)


def test_failed_message_is_delivered_after_growing_delays() -> None:
    async def body(w: Recording) -> None:
        times: list[float] = []

        def fail(message: MessageExt) -> None:
            times.append(now_s())
            assert message.topic == TOPIC
            assert message.reconsume_times == len(times) - 1
            if len(times) < 4:
                raise ValueError("not yet")

        async with w.consumer(fail, mode="pop"):
            await w.send(b"x")
            await w.until(lambda: len(times) == 4, 300)
            waits = [after - before for before, after in pairwise(times)]
            assert waits == pytest.approx([10, 30, 60], abs=2.5)
            await asyncio.sleep(300)
            assert len(times) == 4

    with_brokers(body)


def test_message_that_always_fails_becomes_a_dead_letter_with_the_reason() -> None:
    async def body(w: Recording) -> None:
        def fail(_: MessageExt) -> None:
            raise ValueError("no such account")

        async with w.consumer(fail, mode="pop", max_reconsume_times=2) as consumer:
            await w.send(b"x")
            await w.until_received(b"x", b"x", b"x", timeout_s=120)
            await asyncio.sleep(300)
            assert len(w.received) == 3
            assert consumer.health().held_messages == 0
        (dead,) = await dead_letters(w)
        assert dead.body == b"x"
        assert dead.properties["KOUROU_DLQ_REASON"] == "ValueError: no such account"

    with_brokers(body)


def test_instructions_of_a_listener_are_obeyed() -> None:
    async def body(w: Recording) -> None:
        times: dict[bytes, list[float]] = {b"later": [], b"dead": []}

        def consume(message: MessageExt) -> None:
            times[message.body].append(now_s())
            if message.body == b"dead":
                raise DeadLetter("broken")
            if len(times[b"later"]) == 1:
                raise RetryLater(delay_ms=90_000)

        async with w.consumer(consume, mode="pop"):
            await w.send(b"later", b"dead")
            await w.until(lambda: len(times[b"later"]) == 2, 120)
            first, second = times[b"later"]
            assert second - first == pytest.approx(90, abs=2.5)
            assert len(times[b"dead"]) == 1
        assert [one.body for one in await dead_letters(w)] == [b"dead"]

    with_brokers(body)


def test_message_of_a_slow_listener_is_renewed() -> None:
    async def body(w: Recording) -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(200)

        async with w.consumer(work, mode="pop", pop_invisible_ms=10_000) as consumer:
            await w.send(b"x")
            await asyncio.sleep(190)
            assert consumer.health().held_messages == 1
            await asyncio.sleep(100)
            assert w.received == [b"x"]
            assert consumer.health().held_messages == 0

    with_brokers(body)


def test_message_that_waits_for_its_listener_is_renewed() -> None:
    async def body(w: Recording) -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(8)

        options: dict[str, Any] = {"pop_invisible_ms": 10_000, "consume_threads": 1}
        async with w.consumer(work, mode="pop", **options):
            await w.send(*bodies(20))
            await w.until_received(*bodies(20), timeout_s=200)
            await asyncio.sleep(60)
            assert len(w.received) == 20

    with_brokers(body)


def test_overdue_message_is_delivered_again_and_its_late_result_ignored() -> None:
    async def body(w: Recording) -> None:
        async def work(message: MessageExt) -> None:
            if not message.reconsume_times:
                await asyncio.sleep(100)

        async with w.consumer(work, mode="pop", consume_timeout_ms=20_000):
            await w.send(b"x")
            await w.until_received(b"x", b"x")
            await asyncio.sleep(200)
            assert w.received == [b"x", b"x"]

    with_brokers(body)


def test_messages_that_wait_behind_hanging_listeners_go_to_another_member() -> None:
    async def body(w: Recording) -> None:
        done: list[bytes] = []

        async def hang(message: MessageExt) -> None:
            await asyncio.sleep(10_000)

        options: dict[str, Any] = {"mode": "pop", "consume_timeout_ms": 20_000}
        stuck = w.consumer(hang, instance_name="a", consume_threads=1, **options)
        async with stuck:
            await w.send(*bodies(10))
            await w.until(lambda: stuck.health().held_messages == 10)
            helper = w.consumer(lambda one: done.append(one.body), instance_name="b", **options)
            async with helper:
                await w.until(lambda: len(set(done)) == 10, 120)
            stuck.abort()

    with_brokers(body)


def test_messages_in_hand_are_bounded() -> None:
    async def body(w: Recording) -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(1)

        options: dict[str, Any] = {"pop_threshold_count": 40, "consume_threads": 2}
        async with w.consumer(work, mode="pop", **options) as consumer:
            await w.send(*bodies(200))
            for _ in range(50):
                await asyncio.sleep(1)
                assert consumer.health().held_messages <= 40
            assert len(w.received) >= 95

    with_brokers(body)


def test_bytes_in_hand_are_bounded() -> None:
    async def body(w: Recording) -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(1)

        options: dict[str, Any] = {"pull_threshold_size_bytes": 10_000, "consume_threads": 1}
        async with w.consumer(work, mode="pop", pop_batch_size=8, **options) as consumer:
            await w.send(*[bytes([65 + number]) * 2_000 for number in range(30)])
            for _ in range(30):
                await asyncio.sleep(1)
                assert consumer.health().held_bytes < 10_000 + 8 * 2_000
            await w.until(lambda: len(w.received) == 30)

    with_brokers(body)


def test_close_gives_back_what_was_not_begun_and_acknowledges_the_rest() -> None:
    async def body(w: Recording) -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(3)

        first = w.consumer(work, mode="pop", consume_threads=2, instance_name="a")
        async with first:
            await w.send(*bodies(20))
            await w.until(lambda: len(w.received) == 4)
            began_s = now_s()
        assert now_s() - began_s < 5
        closed_s = now_s()
        async with w.consumer(mode="pop", instance_name="b"):
            await w.until(lambda: len(set(w.received)) == 20)
            assert now_s() - closed_s < 10
            await asyncio.sleep(120)
        assert len(w.received) == 20
        assert {one.reconsume_times for one in w.deliveries} == {0}

    with_brokers(body)


def test_close_ends_in_time_with_a_listener_that_hangs() -> None:
    async def body(w: Recording) -> None:
        async def hang(_: MessageExt) -> None:
            await asyncio.sleep(10_000)

        async with w.consumer(hang, mode="pop", shutdown_timeout_ms=2_000):
            await w.send(b"x")
            await w.until_received(b"x")
            began_s = now_s()
        assert now_s() - began_s < 6
        async with w.consumer(mode="pop"):
            await w.until_received(b"x", b"x", timeout_s=10)

    with_brokers(body)


def test_killed_member_delays_its_messages_by_the_invisible_time() -> None:
    async def body(w: Recording) -> None:
        async def hang(_: MessageExt) -> None:
            await asyncio.sleep(10_000)

        member = w.consumer(hang, mode="pop", pop_invisible_ms=20_000, instance_name="a")
        await member.start()
        await w.send(*bodies(5))
        await w.until(lambda: len(w.received) == 5)
        member.abort()
        killed_s = now_s()
        async with w.consumer(mode="pop", instance_name="b"):
            await w.until(lambda: len(w.received) == 10)
            assert 10 < now_s() - killed_s < 23
            assert {one.reconsume_times for one in w.deliveries[5:]} == {1}

    with_brokers(body)


def test_message_that_kills_its_members_becomes_a_dead_letter() -> None:
    async def body(w: Recording) -> None:
        await w.send(b"x")
        for number in range(4):
            delivered = asyncio.Event()

            async def die(_: MessageExt, delivered: asyncio.Event = delivered) -> None:
                delivered.set()
                await asyncio.sleep(10_000)

            options: dict[str, Any] = {"max_reconsume_times": 2, "pop_invisible_ms": 5_000}
            member = w.consumer(die, mode="pop", instance_name=f"m{number}", **options)
            await member.start()
            try:
                async with asyncio.timeout(30):
                    await delivered.wait()
            except TimeoutError:
                assert number == 3
            member.abort()
        assert len(w.received) == 3
        assert [one.body for one in await dead_letters(w)] == [b"x"]

    with_brokers(body)


def test_broker_restart_loses_nothing() -> None:
    async def body(w: Recording) -> None:
        async with w.consumer(mode="pop") as consumer:
            await w.send(*bodies(10))
            await w.until_received(*bodies(10))
            await w.cluster.crash_broker()
            await asyncio.sleep(10)
            assert any("pops fail" in text for text in consumer.health().problems)
            await w.cluster.restart_broker()
            await w.send(b"after")
            await w.until_received(b"after")
            await asyncio.sleep(120)
            assert set(w.received) == {*bodies(10), b"after"}
            assert consumer.health().is_ok

    with_brokers(body)


def test_acknowledgements_survive_an_outage_within_the_invisible_time() -> None:
    async def body(w: Recording) -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(5)

        async with w.consumer(work, mode="pop"):
            await w.send(*bodies(5))
            await w.until(lambda: len(w.received) == 5)
            await w.cluster.stop_broker()
            await asyncio.sleep(20)
            await w.cluster.restart_broker()
            await asyncio.sleep(150)
            assert sorted(w.received) == bodies(5)

    with_brokers(body)


def test_paused_consumer_pops_nothing() -> None:
    async def body(w: Recording) -> None:
        async with w.consumer(mode="pop", pull_suspend_timeout_ms=1_000) as consumer:
            consumer.pause()
            await asyncio.sleep(2)
            await w.send(b"x")
            await asyncio.sleep(30)
            assert w.received == []
            consumer.resume()
            await w.until_received(b"x")

    with_brokers(body)


def test_tags_and_filters_apply() -> None:
    async def body(w: Recording) -> None:
        def even(messages: Any) -> Any:
            return [one for one in messages if int(one.body) % 2 == 0]

        async with w.consumer(mode="pop", tags="a", message_filter=even):
            await w.send(*bodies(10), tags="a")
            await w.send(b"100", tags="b")
            await w.until_received(b"0", b"2", b"4", b"6", b"8")
            await asyncio.sleep(150)
            assert sorted(w.received) == [b"0", b"2", b"4", b"6", b"8"]

    with_brokers(body)


def test_ordered_listeners_get_each_queue_in_order_across_failures() -> None:
    async def body(w: Recording) -> None:
        order: list[int] = []
        failures = Counter[bytes]()
        config = PushConsumerConfig(mode="pop", consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        await w.send(*bodies(80))
        consumer = w.cluster.push_consumer("consumers", config)
        consumer.subscribe(TOPIC)

        @consumer.listen_orderly
        async def consume(message: MessageExt) -> None:
            failures[message.body] += 1
            if message.body in (b"5", b"40") and failures[message.body] < 3:
                raise ValueError("again")
            order.append(int(message.body))

        async with consumer:
            await w.until(lambda: len(order) == 80, 120)
            await asyncio.sleep(120)
        assert order == list(range(80))
        assert failures[b"5"] == failures[b"40"] == 3
        assert max(failures[b"%d" % n] for n in range(80) if n not in (5, 40)) == 1

    with_brokers(body, queues=1)


def test_failed_ordered_message_blocks_its_queue_for_other_members() -> None:
    async def body(w: Recording) -> None:
        seen: list[tuple[str, bytes]] = []
        is_failing = True

        def member(name: str) -> PushConsumer:
            config = PushConsumerConfig(
                mode="pop",
                instance_name=name,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                pop_invisible_ms=10_000,
            )
            consumer = w.cluster.push_consumer("consumers", config)
            consumer.subscribe(TOPIC)

            @consumer.listen_orderly
            async def consume(message: MessageExt) -> None:
                seen.append((name, message.body))
                if message.body == b"0" and is_failing:
                    raise ValueError("not yet")

            return consumer

        await w.send(*bodies(10))
        async with member("a"):
            await w.until(lambda: len(seen) > 2)
            async with member("b"):
                await asyncio.sleep(60)
                assert {name for name, _ in seen} == {"a"}
                assert {one for _, one in seen} == {b"0"}
                is_failing = False
                await w.until(lambda: seen[-1][1] == b"9")
        assert [one for _, one in seen if one != b"0"] == bodies(10)[1:]

    with_brokers(body, queues=1)


def test_ordered_message_beyond_its_limit_is_a_dead_letter_and_the_next_follow() -> None:
    async def body(w: Recording) -> None:
        seen: list[bytes] = []
        config = PushConsumerConfig(
            mode="pop",
            max_reconsume_times=2,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        await w.send(*bodies(3))
        consumer = w.cluster.push_consumer("consumers", config)
        consumer.subscribe(TOPIC)

        @consumer.listen_orderly_in_batches
        async def consume(messages: list[MessageExt]) -> None:
            seen.extend(one.body for one in messages)
            if messages[0].body == b"0":
                raise ValueError("never")

        async with consumer:
            await w.until(lambda: seen == [b"0", b"0", b"0", b"1", b"2"])
        assert [one.body for one in await dead_letters(w)] == [b"0"]

    with_brokers(body, queues=1)


def test_what_cannot_be_popped_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="mode is 'pop' and message_model is BROADCASTING"):
        PushConsumerConfig(mode="pop", message_model=MessageModel.BROADCASTING)
    with pytest.raises(ConfigError, match="mode is 'push': expected one of pull, pop"):
        PushConsumer("g", mode="push")  # type: ignore[arg-type]
    consumer = PushConsumer("g", mode="pop")
    with pytest.raises(UsageError, match="does not work with mode='pop'"):
        consumer.listen_orderly_and_commit(lambda _messages, _context: None)

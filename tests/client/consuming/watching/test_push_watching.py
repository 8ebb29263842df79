"""Hooks, batches, statistics, health and edge cases of a push consumer's delivery."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import cast

import pytest

from kourou.client.calls_send import Outgoing
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.consuming.watching.consume_hooks import ConsumeContext
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.sysflag import COMPRESSED, COMPRESSION_LZ4
from kourou.testing.inspection import sender_of
from kourou.testing.loop import VirtualTimeLoop, run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

BODIES = [b"%d" % number for number in range(20)]


class Hook:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str | None]] = []

    def before(self, context: ConsumeContext) -> None:
        context.values["seen"] = True
        self.calls.append(("before", len(context.messages), None))
        raise ValueError("a hook's failure changes nothing")

    def after(self, context: ConsumeContext) -> None:
        assert context.values["seen"]
        assert context.outcome is not None
        error = None if context.error is None else str(context.error)
        self.calls.append((context.outcome.value, len(context.messages), error))


def batch_consumer(w: Recording, got: list[list[bytes]]) -> PushConsumer:
    config = PushConsumerConfig(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_threads=1, consume_batch_size=8
    )
    consumer = w.cluster.push_consumer("consumers", config)
    consumer.subscribe(TOPIC)

    @consumer.listen_in_batches
    async def listen(messages: list[MessageExt]) -> None:
        assert len({message.queue_id for message in messages}) == 1
        got.append([message.body for message in messages])
        if any(message.body == b"bad" and not message.reconsume_times for message in messages):
            raise ValueError("all of them")

    return consumer


def test_hooks_see_the_outcome_of_each_call() -> None:
    async def main() -> None:
        async def listen(message: MessageExt) -> None:
            if message.body == b"slow":
                await asyncio.sleep(50)
            if message.body == b"bad" and not message.reconsume_times:
                raise ValueError("no")

        async with recording(queues=1) as w:
            consumer = w.consumer(listen, consume_threads=1, consume_timeout_ms=40_000)
            hook = Hook()
            consumer.add_hook(hook)
            async with consumer:
                await w.send(b"good")
                await w.until_received(b"good")
                await w.send(b"bad")
                await w.until_received(b"bad", b"bad")
                await w.send(b"slow")
                await asyncio.sleep(55)
            assert [call[0] for call in hook.calls[::2]] == ["before"] * 4
            assert hook.calls[1::2] == [
                ("SUCCESS", 1, None),
                ("EXCEPTION", 1, "no"),
                ("SUCCESS", 1, None),
                ("TIME_OUT", 1, None),
            ]

    run_virtual(main())


def test_a_batch_listener_gets_the_messages_that_are_ready() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            got: list[list[bytes]] = []
            async with batch_consumer(w, got):
                await w.until(lambda: sum(map(len, got)) == 20)
                assert [len(batch) for batch in got] == [8, 8, 4]
                await w.send(b"late")
                await w.until(lambda: got[-1] == [b"late"])
            assert await w.committed() == 21

    run_virtual(main())


def test_a_failed_batch_is_redelivered_completely() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(b"a", b"bad")
            got: list[list[bytes]] = []
            async with batch_consumer(w, got):
                await w.until(lambda: sorted(itertools.chain(*got[1:])) == [b"a", b"bad"])
            assert got[0] == [b"a", b"bad"]

    run_virtual(main())


def test_statistics_have_rates_times_and_failures() -> None:
    async def main() -> None:
        async def listen(message: MessageExt) -> None:
            await asyncio.sleep(0.1)
            if message.body == b"bad" and not message.reconsume_times:
                raise ValueError("no")

        async with recording(queues=1) as w, w.consumer(listen) as consumer:
            await w.send(*BODIES, b"bad")
            await asyncio.sleep(21)
            stats = consumer.stats()
            topic = stats[TOPIC]
            assert topic.consume_ok_tps == pytest.approx(21 / 20, rel=0.1)
            assert topic.consume_failed_messages == 1
            assert topic.consume_rt_ms == pytest.approx(100, rel=0.01)
            assert topic.pull_tps > 0
            await asyncio.sleep(600)
            calm = consumer.stats()[TOPIC]
            assert calm.consume_ok_tps == 0.0
            assert calm.consume_rt_ms == pytest.approx(100, rel=0.01), "of the last hour"

    run_virtual(main())


def test_health_has_lag_and_held_messages() -> None:
    async def main() -> None:
        async def hang(_: MessageExt) -> None:
            await asyncio.Event().wait()

        async with recording(queues=1) as w:
            await w.send(*BODIES)
            consumer = w.consumer(hang, shutdown_timeout_ms=100)
            assert not consumer.health().is_ok, "not started"
            async with consumer:
                await asyncio.sleep(2)
                health = consumer.health()
                assert (health.is_ok, health.lag_messages, health.held_messages) == (True, 20, 20)
                assert health.held_bytes == sum(map(len, BODIES))
                await w.cluster.crash_broker()
                await asyncio.sleep(40)
                health = consumer.health()
                assert not health.is_ok
                assert any("no broker answers pulls" in problem for problem in health.problems)
                await w.cluster.restart_broker()
                await asyncio.sleep(40)
                assert consumer.health().is_ok
            assert not consumer.health().is_open

    run_virtual(main())


def test_unsubscribing_releases_the_topic_s_queues() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            changes: list[tuple[str, int, int]] = []
            consumer = w.consumer()

            @consumer.on_queues_changed
            def note(topic: str, queues: list[MessageQueue], own: list[MessageQueue]) -> None:
                if topic == TOPIC:
                    changes.append((topic, len(queues), len(own)))

            async with consumer:
                await w.send(b"x")
                await w.until_received(b"x")
                consumer.unsubscribe(TOPIC)
                await w.until(lambda: TOPIC not in {queue.topic for queue in consumer.queues})
                assert await w.committed() == 1
                await w.send(b"y")
                await asyncio.sleep(30)
            assert w.received == [b"x"]
            assert changes == [(TOPIC, 2, 2), (TOPIC, 0, 0)]

    run_virtual(main())


def test_a_message_its_broker_refuses_back_is_sent_to_another() -> None:
    async def main() -> None:
        async with recording(queues=1, brokers=2) as w:
            address = w.cluster.broker_address(0)

            async def fail_once(message: MessageExt) -> None:
                if message.reconsume_times == 0:
                    await asyncio.sleep(1)
                    w.cluster.network.cut(address)
                    raise ValueError("and the broker is away")

            async with w.consumer(fail_once, send_back_timeout_ms=1000) as consumer:
                await w.until(lambda: len(consumer.queues) == 4)  # including retry queues
                async with w.cluster.producer() as producer:
                    await producer.send(
                        Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "broker-0", 0)
                    )
                await w.until_received(b"x")
                await w.until_received(b"x", b"x", timeout_s=60)
                again = w.deliveries[-1]
                assert (again.broker_name, again.topic) == ("broker-1", TOPIC)
                assert (again.reconsume_times, again.msg_id) == (1, w.deliveries[0].msg_id)
                w.cluster.network.heal(address)
                await asyncio.sleep(40)
            assert w.received == [b"x", b"x"]

    run_virtual(main())


def test_a_body_without_its_codec_pauses_its_queue_and_names_the_package(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)

    async def main() -> None:
        async with recording(queues=2) as w, w.cluster.producer() as producer:
            lz4 = Outgoing(TOPIC, ("id",), b"compressed", "", 0, COMPRESSED | COMPRESSION_LZ4)
            await sender_of(producer).send(lz4, None, MessageQueue(TOPIC, "broker-0", 0))
            async with w.consumer() as consumer:
                queue = MessageQueue(TOPIC, "broker-0", 1)
                await producer.send(Message(TOPIC, b"plain"), queue=queue)
                await w.until_received(b"plain")
                await asyncio.sleep(60)
                [problem] = consumer.health().problems
                assert "pip install 'kourou[fast]'" in problem
            assert await w.committed() == 1, "the message waits for a consumer with the codec"

    run_virtual(main())
    assert sum("kourou[fast]" in record.getMessage() for record in caplog.records) <= 4


def test_a_listener_that_blocks_the_loop_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async def block(_: MessageExt) -> None:
            loop = cast(VirtualTimeLoop, asyncio.get_running_loop())
            loop.advance(10)  # as a long computation or a blocking call would

        async with recording(queues=1) as w:
            await w.send(b"0", b"1", b"2")
            async with w.consumer(block, consume_threads=1):
                await w.until_received(b"0", b"1", b"2", timeout_s=120)
                await asyncio.sleep(5)

    run_virtual(main())
    [entry] = [one.getMessage() for one in caplog.records if "event_loop.blocked" in one.msg]
    assert "heartbeats are late" in entry


def test_lag_counts_from_the_committed_offset_before_anything_is_done() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            async with w.consumer():
                await w.until_received(*BODIES)
            await w.send(b"a", b"b", b"c")
            never = asyncio.Event()
            async with w.consumer(lambda _: never.wait(), shutdown_timeout_ms=100) as consumer:
                await w.until(lambda: consumer.health().held_messages == 3)
                queue = MessageQueue(TOPIC, "broker-0", 0)
                assert consumer.health().lag[queue] == 3

    run_virtual(main())


def test_hooks_and_statistics_see_loops_over_the_consumer() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            hook = Hook()
            consumer = w.cluster.push_consumer(
                "consumers", PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
            )
            consumer.subscribe(TOPIC)
            consumer.add_hook(hook)
            async with consumer:
                await w.send(b"0", b"1")
                async for message in consumer:
                    if message.body == b"1":
                        break
                await asyncio.sleep(20)
                assert consumer.stats()[TOPIC].consume_ok_tps > 0
                assert consumer.stats()[TOPIC].consume_failed_messages == 1
            before = ("before", 1, None)
            assert hook.calls == [before, ("SUCCESS", 1, None), before, ("EXCEPTION", 1, None)]

    run_virtual(main())

"""Sends by key, with slow brokers, compression and hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Producer
from kourou.client.sending.queue_choice import queue_of_key
from kourou.client.sending.send_hooks import SendAttempt, SendOutcome
from kourou.client.sending.send_plans import vip_address
from kourou.errors import (
    ClosedError,
    ConnectFailedError,
    InvalidMessageError,
    TransportError,
    UsageError,
)
from kourou.model import properties as names
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.protocol.compression import CompressionType
from kourou.testing.cluster import Cluster
from kourou.testing.inspection import latencies_of
from kourou.testing.loop import run_virtual

Body = Callable[[Cluster, Producer], Coroutine[Any, Any, None]]


def sending(body: Body, *, brokers: int = 1, hooks: Any = (), **options: Any) -> None:
    """Run `body` with a topic T of two queues per broker, and a producer with its route cached."""

    async def main() -> None:
        async with Cluster(seed=9, brokers=brokers) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("T", queues=2)
            config = ProducerConfig(**options)
            producer = Producer(
                "p", cluster.namesrv_addr, config=config, hooks=hooks, runtime=cluster.runtime
            )
            async with producer:
                await producer.fetch_publish_message_queues("T")
                await body(cluster, producer)

    run_virtual(main())


async def stored(cluster: Cluster) -> list[MessageExt]:
    messages: list[MessageExt] = []
    async with cluster.pull_consumer() as reader:
        for queue in await reader.fetch_subscribe_message_queues("T"):
            offset, end = 0, await reader.max_offset(queue)
            while offset < end:
                result = await reader.pull(queue, offset)
                messages += result.messages
                offset = result.next_offset
    return messages


def test_messages_with_one_sharding_key_share_a_queue_in_order() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        queues = await producer.fetch_publish_message_queues("T")
        for number in range(30):
            key = f"order-{number % 3}"
            message = Message("T", b"%d" % number, properties={"who": "me"})
            receipt = await producer.send(message, sharding_key=key)
            assert receipt.queue == queue_of_key(queues, key)
        for one in await stored(cluster):
            key = f"order-{int(one.body) % 3}"
            assert (one.properties[names.SHARDING_KEY], one.properties["who"]) == (key, "me")

        batch = [Message("T", b"x"), Message("T", b"y")]
        receipts = await producer.send_batch(batch, sharding_key="order-1")
        assert {receipt.queue for receipt in receipts} == {queue_of_key(queues, "order-1")}

    sending(body, brokers=2)


def test_selector_is_called_before_each_try() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        selected: list[Message] = []

        def other_broker(queues: Any, message: Message) -> MessageQueue:
            selected.append(message)
            assert queues == tuple(sorted(queues))
            return queues[0] if len(selected) == 1 else queues[-1]  # type: ignore[no-any-return]

        cluster.network.cut(cluster.broker_address(0))
        message = Message("T", b"x")
        receipt = await producer.send(message, queue=other_broker)
        assert receipt.queue == MessageQueue("T", "broker-1", 1)
        assert selected == [message, message]
        cluster.network.heal(cluster.broker_address(0))

    sending(body, brokers=2)


def test_invalid_queue_is_refused_and_nothing_is_sent() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        elsewhere = MessageQueue("U", "broker-0", 0)
        message = Message("T", b"x")
        for where in (elsewhere, lambda *_: elsewhere):
            with pytest.raises(UsageError, match="T cannot be sent to a queue of U"):
                await producer.send(message, queue=where)
        with pytest.raises(UsageError, match="pass one"):
            await producer.send(message, queue=MessageQueue("T", "broker-0", 0), sharding_key="k")
        with pytest.raises(InvalidMessageError, match="__SHARDINGKEY is empty"):
            await producer.send(message, sharding_key="")

        def fail(*_: object) -> MessageQueue:
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await (await producer.submit(message, queue=fail))
        assert await stored(cluster) == []
        assert producer.stats().in_flight == 0

    sending(body)


@pytest.mark.parametrize("kind", list(CompressionType))
def test_each_kind_of_compression_arrives_unchanged(kind: CompressionType) -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        await producer.send(Message("T", b"abc" * 2_000))
        [found] = await stored(cluster)
        assert found.body == b"abc" * 2_000
        assert found.store_size < 600

    sending(body, compress_type=kind)


class RecordingHook:
    """A hook that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, object]] = []

    def before_send(self, attempt: SendAttempt) -> None:
        self.calls.append(("before", attempt.number, attempt.queue.broker_name))

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        assert (outcome.error is None) == (bool(outcome.receipts) or attempt.is_oneway)
        self.calls.append(("after", attempt.number, type(outcome.error).__name__))


class FailingHook:
    """A hook that always fails."""

    def before_send(self, attempt: SendAttempt) -> None:
        raise RuntimeError(attempt.group)

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        raise RuntimeError(attempt.group)


def test_hooks_are_called_for_each_try_and_their_errors_are_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = RecordingHook()

    async def body(cluster: Cluster, producer: Producer) -> None:
        cluster.network.cut(cluster.broker_address())
        task = asyncio.create_task(producer.send(Message("T", b"x")))
        await asyncio.sleep(0.02)
        cluster.network.heal(cluster.broker_address())
        await task
        *failures, before, after = seen.calls
        assert {name for _, _, name in failures} == {"broker-0", "ConnectFailedError"}
        assert before == ("before", len(failures) // 2 + 1, "broker-0")
        assert after == ("after", len(failures) // 2 + 1, "NoneType")
        assert producer.stats().retries_total == len(failures) // 2

        seen.calls.clear()
        await producer.send_oneway(Message("T", b"y"))
        cluster.network.stall(cluster.broker_address())
        task = asyncio.create_task(producer.send(Message("T", b"z")))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait({task})
        ends = [what for _, _, what in seen.calls]
        assert ends == ["broker-0", "NoneType", "broker-0", "CancelledError"]
        cluster.network.heal(cluster.broker_address())

    sending(body, hooks=[FailingHook(), seen])
    assert "send_hook.failed hook=FailingHook method=before_send" in caplog.text


def test_slow_broker_is_avoided_until_its_time_has_passed() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        at_zero = MessageQueue("T", "broker-0", 0)
        cluster.network.stall(cluster.broker_address(0))
        with pytest.raises(TransportError):
            await producer.send(Message("T", b"slow"), queue=at_zero, timeout_ms=600)
        cluster.network.heal(cluster.broker_address(0))

        async def used() -> set[str]:
            sends = [await producer.send(Message("T", b"x")) for _ in range(8)]
            return {receipt.queue.broker_name for receipt in sends}

        assert await used() == {"broker-1"}
        await asyncio.sleep(9)
        assert await used() == {"broker-1"}
        await asyncio.sleep(1)
        assert await used() == {"broker-0", "broker-1"}

    sending(body, brokers=2, latency_fault_tolerance=True)


def test_send_that_was_never_answered_lets_the_next_one_find_another_master() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        old = cluster.broker_address()
        await cluster.stop_broker()
        cluster.move_broker(10_950)
        await cluster.restart_broker()
        cluster.network.stall(old)
        with pytest.raises(TransportError):
            await producer.send(Message("T", b"unanswered"))
        await asyncio.sleep(0.1)
        await producer.send(Message("T", b"answered"))

    sending(body)


def test_detector_finds_a_recovered_broker() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        cluster.network.cut(cluster.broker_address(0))
        queue = MessageQueue("T", "broker-0", 0)
        with pytest.raises(TransportError):
            await producer.send(Message("T", b"x"), queue=queue, timeout_ms=100)
        latencies = latencies_of(producer)
        assert latencies is not None
        _, is_reachable = latencies.preferences()
        await asyncio.sleep(4)
        assert not is_reachable("broker-0")
        cluster.network.heal(cluster.broker_address(0))
        await asyncio.sleep(4)
        assert is_reachable("broker-0")

    sending(body, brokers=2, latency_fault_tolerance=True, latency_detector=True)


def test_vip_channel_sends_to_the_port_two_below() -> None:
    assert vip_address("127.0.0.1:10911") == "127.0.0.1:10909"
    assert vip_address("[::1]:10911") == "[::1]:10909"

    async def body(cluster: Cluster, producer: Producer) -> None:
        host, port = cluster.broker_address()
        cluster.network.cut((host, port - 2))
        with pytest.raises(ConnectFailedError, match="10909"):
            await producer.send(Message("T", b"x"), timeout_ms=100)
        cluster.network.heal((host, port - 2))
        cluster.network.cut((host, port))
        await producer.send(Message("T", b"x"))
        cluster.network.heal((host, port))

    sending(body, vip_channel=True)


def test_close_waits_until_its_timeout_and_fails_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        await producer.send(Message("T", b"x"))
        cluster.network.stall(cluster.broker_address())
        future = await producer.submit(Message("T", b"y"))
        task = asyncio.create_task(producer.send(Message("T", b"z")))
        await asyncio.sleep(0)
        began_s = asyncio.get_running_loop().time()
        await producer.close()
        assert asyncio.get_running_loop().time() - began_s < 1.5
        for failed in (future, task):
            with pytest.raises(TransportError):
                await failed
        with pytest.raises(ClosedError):
            producer.stats()
        cluster.network.heal(cluster.broker_address())

    sending(body, close_timeout_ms=200)
    assert "producer.cut_short group=p messages=2" in caplog.text


def test_cancelled_close_ends_the_wait_and_disconnects() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        await producer.send(Message("T", b"x"))
        cluster.network.stall(cluster.broker_address())
        future = await producer.submit(Message("T", b"y"))
        lingering = asyncio.create_task(producer.send(Message("T", b"z")))
        await asyncio.sleep(0.02)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0.02)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        for failed in (future, lingering):
            with pytest.raises(TransportError):
                await failed
        cluster.network.heal(cluster.broker_address())

    sending(body, linger_ms=5)


def test_health_reports_servers_without_answer_until_they_recover() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        assert producer.health().is_ok
        addresses = [cluster.broker_address(), ("127.0.0.1", 9876)]
        for address in addresses:
            cluster.network.cut(address)
        await asyncio.sleep(40)
        names_down, broker_down = producer.health().problems
        assert "no name server answered" in names_down
        assert broker_down == "broker 127.0.0.1:10911 does not answer heartbeats"
        for address in addresses:
            cluster.network.heal(address)
        await asyncio.sleep(40)
        assert producer.health().is_ok
        await producer.close()
        health = producer.health()
        assert (health.is_open, health.problems) == (False, ("the producer is closed",))

    sending(body)


def test_producer_not_started_is_reported() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            producer = cluster.producer()
            assert producer.health().problems == ("the producer is not started",)
            assert not producer.health().is_ok
            await producer.close()

    run_virtual(main())


def test_stopping_broker_answers_go_away_without_loss_or_duplicates() -> None:
    async def body(cluster: Cluster, producer: Producer) -> None:
        sent: list[bytes] = []

        async def keep_sending(name: int) -> None:
            for number in range(50):
                payload = b"%d-%d" % (name, number)
                await producer.send(Message("T", payload))
                sent.append(payload)

        tasks = [asyncio.create_task(keep_sending(name)) for name in range(8)]
        await asyncio.sleep(0.05)
        await cluster.stop_broker(0)
        await asyncio.gather(*tasks)
        assert len(sent) == 400
        await cluster.restart_broker(0)
        await asyncio.sleep(31)
        assert sorted(one.body for one in await stored(cluster)) == sorted(sent)

    sending(body, brokers=2)

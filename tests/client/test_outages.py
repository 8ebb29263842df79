"""Consumers during outages, restarts and moves of servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from kourou.broker.config import FlushDiskType
from kourou.client.background import BackgroundTasks
from kourou.client.calls_consume import unregister
from kourou.errors import ClosedError, ConnectFailedError
from kourou.model.message import Message, MessageExt
from kourou.testing.cluster import Cluster
from kourou.testing.inspection import instance_of, rebalance_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from tests.client.consuming.receiving import BOTH_KINDS, receiving

BODIES = [b"%d" % number for number in range(30)]


async def members(w: Recording) -> int:
    async with w.cluster.admin() as admin:
        return len((await admin.describe_group("consumers")).members)


@BOTH_KINDS
def test_broker_restarted_at_another_port_is_found(kind: str) -> None:
    async def main() -> None:
        async with recording() as w, receiving(w, kind), w.cluster.producer() as producer:
            await w.send(b"before")
            await w.until_received(b"before")
            await w.cluster.crash_broker()
            w.cluster.move_broker(20_911)
            await w.cluster.restart_broker()

            await producer.send(Message(TOPIC, b"after"))
            await w.until_received(b"after", timeout_s=5)
            await asyncio.sleep(6)
            assert await w.committed() == 2

    run_virtual(main())


@BOTH_KINDS
def test_recreated_topic_is_consumed_from_its_beginning(kind: str) -> None:
    async def main() -> None:
        async with recording() as w, receiving(w, kind):
            await w.send(*BODIES)
            await w.until_received(*BODIES)
            await asyncio.sleep(6)
            async with w.cluster.admin() as admin:
                await admin.delete_topic(TOPIC)
                await asyncio.sleep(60)
                await admin.create_topic(TOPIC, queues=4)
            await w.send(b"new")
            await w.until_received(b"new", timeout_s=25)
            assert Counter(w.received) == Counter([*BODIES, b"new"])

    run_virtual(main())


@BOTH_KINDS
def test_messages_at_offsets_of_lost_messages_are_consumed(kind: str) -> None:
    async def main() -> None:
        rarely = {"flush_disk_type": FlushDiskType.ASYNC_FLUSH, "flush_interval_ms": 60_000}
        options: dict[str, Any] = {"queues": 1, **rarely}
        async with recording(**options) as w, receiving(w, kind):
            await w.send(*BODIES[:20])
            await w.until_received(*BODIES[:20])
            await w.cluster.crash_broker()  # messages that were not synced are lost
            await w.cluster.restart_broker()
            await w.send(*BODIES[20:])
            await w.until_received(*BODIES[20:], timeout_s=60)
            assert Counter(w.received) == Counter(BODIES)

    run_virtual(main())


@BOTH_KINDS
def test_outage_is_logged_once_and_offsets_are_committed_afterwards(
    caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    async def main() -> None:
        async with recording() as w, receiving(w, kind) as consumer:
            await w.send(*BODIES)
            await w.until_received(*BODIES)
            w.cluster.network.cut(w.cluster.broker_address())
            await asyncio.sleep(60)
            reported = [r.message for r in caplog.records if r.levelname == "WARNING"]
            assert Counter(text.split()[0] for text in reported if "registration" not in text) == {
                "pull.failed": len(consumer.queues),
                "rebalance.failed": len({queue.topic for queue in consumer.queues}),
                "heartbeat.failed": 1,
            }
            w.cluster.network.heal(w.cluster.broker_address())
            await asyncio.sleep(10)
            assert await w.committed() == len(BODIES)

    run_virtual(main())


@BOTH_KINDS
def test_one_of_two_name_servers_is_enough(kind: str) -> None:
    async def main() -> None:
        async with Cluster(seed=5, namesrvs=2) as cluster:
            w = Recording(cluster)
            async with cluster.admin() as admin:
                await admin.create_topic(TOPIC, queues=4)
            cluster.network.cut(("127.0.0.1", 9876))
            async with receiving(w, kind):
                await w.send(b"x")
                await w.until_received(b"x")
                await asyncio.sleep(120)
                await w.send(b"y")
                await w.until_received(b"y")
                assert w.received == [b"x", b"y"]

    run_virtual(main())


def test_consumer_with_blocked_listener_stays_a_member() -> None:
    async def main() -> None:
        async def hang(_: MessageExt) -> None:
            await asyncio.Event().wait()

        async with recording() as w, w.consumer(hang, shutdown_timeout_ms=0) as consumer:
            await w.send(*BODIES)
            await asyncio.sleep(600)
            assert await members(w) == 1
            assert len(consumer.queues) == 5

    run_virtual(main())


def test_listener_that_ignores_cancellation_does_not_block_close() -> None:
    async def main() -> None:
        stop = asyncio.Event()

        async def stubborn(_: MessageExt) -> None:
            while not stop.is_set():
                try:
                    await stop.wait()
                except asyncio.CancelledError:
                    continue

        async with recording() as w:
            await w.send(b"x")
            async with asyncio.timeout(10), w.consumer(stubborn, shutdown_timeout_ms=1000):
                await w.until_received(b"x")
            assert await w.committed() == 0
            stop.set()

    run_virtual(main())


def test_close_during_start_releases_everything() -> None:
    async def main() -> None:
        async with recording() as w:
            for step in range(40):
                tasks = len(asyncio.all_tasks())
                consumer = w.consumer()
                starting = asyncio.create_task(consumer.start())
                await asyncio.sleep(step / 4000)
                await consumer.close()
                outcome = (await asyncio.gather(starting, return_exceptions=True))[0]
                assert outcome is None or isinstance(outcome, ClosedError | ConnectFailedError)
                await asyncio.sleep(5)
                assert len(asyncio.all_tasks()) == tasks

    run_virtual(main())


def test_member_keeps_its_queues_after_a_broker_restart() -> None:
    async def main() -> None:
        async with recording() as w:
            first, second = w.consumer(instance_name="1"), w.consumer(instance_name="2")
            async with first, second:
                shared = 4  # one member also has the queue of the retry topic
                await w.until(
                    lambda: (
                        [q.topic for q in first.queues + second.queues].count(TOPIC) == shared
                        and min(len(first.queues), len(second.queues)) == shared // 2
                    ),
                    timeout_s=60,
                )
                # As if the broker had restarted and got a heartbeat of the other member only.
                held = first.queues
                await unregister(
                    instance_of(first).pool,
                    "127.0.0.1:10911",
                    first.client_id,
                    producer_group=None,
                    consumer_group="consumers",
                    timeout_s=1,
                )
                rebalance_of(first).wake()
                for _ in range(1000):
                    await asyncio.sleep(0.0005)
                    assert first.queues == held
                assert await members(w) == 2

    run_virtual(main())


def test_background_task_survives_failures_and_logs_them_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        runs = 0

        async def fail_thrice() -> None:
            nonlocal runs
            runs += 1
            if runs <= 3:
                raise RuntimeError("a bug")

        tasks = BackgroundTasks()
        tasks.start_periodic(fail_thrice, 1000, "look")
        with caplog.at_level("INFO"):
            await asyncio.sleep(6.5)
        await tasks.close()
        assert runs == 6
        assert [r.message for r in caplog.records] == [
            "background.broken name=look",
            "background.recovered name=look",
        ]

    run_virtual(main())

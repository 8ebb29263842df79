"""Tests of the queries of a Spark process, on a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kourou.errors import ConfigError, NoRouteError, TopicNotFoundError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import PERM_WRITE
from kourou.protocol.record.decode import decode_messages
from kourou.spark.cluster import ClusterClient
from kourou.spark.connection import ConnectionOptions
from kourou.spark.planning import QueueBounds, QueueRange
from kourou.spark.positions import EARLIEST, LATEST, Offset, Positions, Time
from kourou.spark.pulls import Puller
from kourou.spark.read_options import TopicSource, parse_read_options
from kourou.spark.stream_offsets import Absence
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

ORDERS = TopicSource(option="topic", topics=("orders",))
PATTERN = TopicSource(option="subscribePattern", pattern="ord.*")
Q0, Q1 = (MessageQueue("orders", "broker-0", number) for number in range(2))


@asynccontextmanager
async def cluster_of(*topics: str, brokers: int = 1) -> AsyncIterator[Cluster]:
    """Run a cluster with topics of two queues on each broker."""
    async with Cluster(brokers=brokers) as cluster:
        async with cluster.admin() as admin:
            for topic in topics:
                await admin.create_topic(topic, queues=2)
        yield cluster


@asynccontextmanager
async def client_of(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    options = ConnectionOptions(name_server=cluster.namesrv_addr)
    async with ClusterClient(options, "spark", 10_000, cluster.runtime) as client:
        yield client


async def send(cluster: Cluster, topic: str, count: int, queue_id: int = 0) -> None:
    async with cluster.producer() as producer:
        for number in range(count):
            queue = MessageQueue(topic, "broker-0", queue_id)
            await producer.send(Message(topic, b"%d" % number), queue=queue)


def test_view_has_the_bounds_of_all_queues() -> None:
    async def main() -> None:
        async with cluster_of("orders", "other") as cluster, client_of(cluster) as client:
            await send(cluster, "orders", 3, queue_id=1)

            view = await client.view(ORDERS)

            assert view.bounds == {Q0: QueueBounds(0, 0), Q1: QueueBounds(0, 3)}
            assert not view.vanished
            assert not view.silent
            assert not view.replicas

    run_virtual(main())


def test_pattern_selects_the_users_topics_that_match_wholly() -> None:
    async def main() -> None:
        async with cluster_of("orders", "orderly", "reorder") as cluster:
            async with client_of(cluster) as client:
                view = await client.view(PATTERN)

            assert {queue.topic for queue in view.bounds} == {"orders", "orderly"}

    run_virtual(main())


def test_assignment_selects_its_queues_only() -> None:
    async def main() -> None:
        async with cluster_of("orders") as cluster, client_of(cluster) as client:
            assignment = {"orders": {"broker-0": (1,)}}
            source = TopicSource(option="assign", topics=("orders",), assignment=assignment)

            assert set((await client.view(source)).bounds) == {Q1}

            source = replace(source, assignment={"orders": {"broker-0": (1, 7)}})
            with pytest.raises(ConfigError, match=r"assign .* do not exist: orders/broker-0/7"):
                await client.view(source)

    run_virtual(main())


def test_read_of_an_absent_topic_is_refused_at_its_start_only() -> None:
    async def main() -> None:
        async with cluster_of() as cluster, client_of(cluster) as client:
            with pytest.raises(NoRouteError, match="orders"):
                await client.view(ORDERS)
            with pytest.raises(ConfigError, match=r"subscribePattern is 'ord\.\*': no topic"):
                await client.view(PATTERN)

            # A topic has no route while its only broker restarts.
            assert not (await client.view(ORDERS, {Q0})).bounds

    run_virtual(main())


def test_broker_that_does_not_answer_is_silent_and_its_queues_have_not_vanished() -> None:
    async def main() -> None:
        async with cluster_of("orders", brokers=2) as cluster, client_of(cluster) as client:
            whole = await client.view(ORDERS)
            assert len(whole.bounds) == 4
            await cluster.kill_broker(1)

            view = await client.view(ORDERS, whole.bounds, timeout_ms=500)

            assert set(view.bounds) == {Q0, Q1}
            assert not view.vanished
            assert set(view.silent) <= {"broker-1"}
            await cluster.restart_broker(1)
            await asyncio.sleep(1)
            assert set((await client.view(ORDERS, whole.bounds)).bounds) == set(whole.bounds)

    run_virtual(main())


def test_queue_that_its_broker_no_longer_has_has_vanished() -> None:
    async def main() -> None:
        async with cluster_of("orders") as cluster, client_of(cluster) as client:
            absent = MessageQueue("orders", "broker-0", 9)

            view = await client.view(ORDERS, {Q0, Q1, absent})

            assert view.vanished == {absent: Absence.QUEUE}
            assert set(view.bounds) == {Q0, Q1}

    run_virtual(main())


def test_deleted_topic_has_vanished_with_all_queues() -> None:
    async def main() -> None:
        async with cluster_of("orders", "other") as cluster, client_of(cluster) as client:
            known = (await client.view(ORDERS)).bounds
            async with cluster.admin() as admin:
                await admin.delete_topic("orders")

            view = await client.view(ORDERS, known)

            assert view.vanished == dict.fromkeys(known, Absence.TOPIC)

    run_virtual(main())


def test_deleted_topic_without_a_route_has_vanished() -> None:
    async def main() -> None:
        async with cluster_of("orders", "other", brokers=2) as cluster:
            async with client_of(cluster) as client:
                known = (await client.view(ORDERS)).bounds
            async with cluster.admin() as admin:
                await admin.delete_topic("orders")
            await cluster.kill_broker(1)

            async with client_of(cluster) as client:
                view = await client.view(ORDERS, known, timeout_ms=2_000)
                with pytest.raises(TopicNotFoundError, match="orders does not exist"):
                    await client.pull(Q0, 0, SubscriptionData("orders"), 32)

            # The other broker restarts perhaps.
            assert view.vanished == {Q0: Absence.TOPIC, Q1: Absence.TOPIC}

    run_virtual(main())


def test_view_and_pulls_distinguish_a_topic_from_a_deleted_one_of_its_name() -> None:
    async def main() -> None:
        async with cluster_of("orders", "other") as cluster, client_of(cluster) as client:
            await send(cluster, "orders", 3)
            before = await client.view(ORDERS)
            async with cluster.admin() as admin:
                await admin.delete_topic("orders")
                await admin.create_topic("orders", queues=2)
            await send(cluster, "orders", 5)
            after = await client.view(ORDERS, before.bounds)

            subscription, topic = SubscriptionData("orders"), ("orders", "broker-0")
            begins = before.topic_begins[topic], after.topic_begins[topic]
            assert begins[0] < begins[1]
            with pytest.raises(TopicNotFoundError, match="deleted and created again"):
                await client.pull(Q0, 0, subscription, 32, topic_begin=begins[0])
            current = await client.pull(Q0, 0, subscription, 32, topic_begin=begins[1])
            assert current.next_offset == 5
            with pytest.raises(TopicNotFoundError, match="deleted and created again"):
                await client.commit_offsets({Q0: 3}, before.topic_begins)

    run_virtual(main())


def test_topic_that_may_not_be_read_is_refused_at_the_start_of_a_read() -> None:
    async def main() -> None:
        async with cluster_of("orders") as cluster, client_of(cluster) as client:
            async with cluster.admin() as admin:
                await admin.update_topic("orders", perm=PERM_WRITE)

            with pytest.raises(
                ConfigError, match="topic: the topic 'orders' has no readable queue"
            ):
                await client.view(ORDERS)

    run_virtual(main())


def test_positions_are_settled_to_offsets() -> None:
    async def main() -> None:
        async with cluster_of("orders") as cluster, client_of(cluster) as client:
            await send(cluster, "orders", 3)
            between_ms = cluster.runtime.clock.now_ms() + 500
            await asyncio.sleep(1)
            await send(cluster, "orders", 2)
            bounds = (await client.view(ORDERS)).bounds

            async def settled(position: object, **options: bool) -> dict[MessageQueue, int]:
                positions = Positions("startingOffsets", position, **options)  # type: ignore[arg-type]
                return await client.settle(positions, bounds)

            assert await settled(EARLIEST) == {Q0: 0, Q1: 0}
            assert await settled(LATEST) == {Q0: 5, Q1: 0}
            assert await settled(Offset(4)) == {Q0: 4, Q1: 4}
            assert await settled(Time(0)) == {Q0: 0, Q1: 0}
            assert await settled(Time(between_ms)) == {Q0: 3, Q1: 0}
            assert await settled(Time(between_ms + 86_400_000)) == {Q0: 5, Q1: 0}
            with pytest.raises(ConfigError, match=r"no message of queue 0 .* or later"):
                await settled(Time(between_ms + 86_400_000), is_latest_without_match=False)

    run_virtual(main())


def test_positions_must_name_exactly_the_queues() -> None:
    async def main() -> None:
        async with cluster_of("orders") as cluster, client_of(cluster) as client:
            bounds = (await client.view(ORDERS)).bounds
            positions = Positions("startingOffsets", None, {Q0: Offset(0)})

            with pytest.raises(ConfigError, match="startingOffsets does not name"):
                await client.settle(positions, bounds)

    run_virtual(main())


def test_samples_have_the_store_time_and_the_mean_size() -> None:
    async def main() -> None:
        async with cluster_of("orders") as cluster, client_of(cluster) as client:
            began_ms = cluster.runtime.clock.now_ms()
            await send(cluster, "orders", 3)

            samples = await client.samples({Q0: 1, Q1: 0})

            assert set(samples) == {Q0}
            assert samples[Q0].store_time_ms >= began_ms
            assert 100 < samples[Q0].record_bytes < 400
            assert await client.offsets_at([Q0, Q1], began_ms) == {Q0: 0, Q1: 0}

    run_virtual(main())


def test_commit_of_a_group_shows_its_progress() -> None:
    async def main() -> None:
        async with cluster_of("orders") as cluster, client_of(cluster) as client:
            await send(cluster, "orders", 3)

            await client.commit_offsets({Q0: 2}, {})

            async with cluster.pull_consumer("spark") as consumer:
                assert await consumer.committed(Q0) == 2

    run_virtual(main())


def test_advance_moves_the_group_forwards_only_unless_it_is_beyond_the_end() -> None:
    async def main() -> None:
        async with cluster_of("orders") as cluster, client_of(cluster) as client:
            await send(cluster, "orders", 3)
            async with cluster.pull_consumer("spark") as consumer:
                seen: list[int | None] = []
                for ends, latest in (
                    ({Q0: 2, Q1: 0}, {Q0: 3}),
                    ({Q0: 1}, {Q0: 3}),
                    ({Q0: 1}, {}),
                    ({Q0: 3}, {}),
                    ({Q0: 1}, {Q0: 2}),  # the queue was made again
                ):
                    await client.advance_offsets(ends, {}, latest)
                    seen.append(await consumer.committed(Q0))

                assert seen == [2, 2, 2, 3, 1]
                assert await consumer.committed(Q1) == 0

    run_virtual(main())


def test_pulls_of_a_task_continue_after_a_restart_of_the_broker() -> None:
    async def main() -> list[bytes]:
        async with cluster_of("orders") as cluster, client_of(cluster) as client:
            await send(cluster, "orders", 100)
            options = parse_read_options(
                {
                    "nameServer": cluster.namesrv_addr,
                    "topic": "orders",
                    "pullBatchSize": "5",
                    "pullMaxInFlight": "3",
                },
                is_stream=False,
            )
            puller = Puller(client, [QueueRange(Q0, 0, 100)], options)
            pulled = await puller.next_portion(20, 1 << 20)
            await cluster.kill_broker()
            restart = asyncio.create_task(cluster.restart_broker())
            while portion := await puller.next_portion(20, 1 << 20):
                pulled += portion
            await restart
            return [message.body for one in pulled for message in decode_messages(one.answer.raw)]

    assert run_virtual(main()) == [b"%d" % number for number in range(100)]


def test_unknown_group_is_refused_with_the_option_and_the_remedy() -> None:
    async def main() -> None:
        async with cluster_of("orders") as cluster, client_of(cluster) as client:
            await send(cluster, "orders", 1)
            async with cluster.admin() as admin:
                [broker] = (await admin.cluster_info()).brokers.values()
                values = {"autoCreateSubscriptionGroup": "false"}
                await admin.update_broker_config(broker.broker_addrs[0], values)

            with pytest.raises(ConfigError, match=r"consumerGroup is 'spark', .*`kourou group"):
                await client.pull(Q0, 0, SubscriptionData("orders"), 1)

    run_virtual(main())

"""Metrics of a broker, and its readiness."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kourou.broker.administration.broker_metrics import read_metrics
from kourou.broker.config import BrokerConfig
from kourou.broker.server import Broker
from kourou.metrics import Distribution, Family, Sample
from kourou.model.message import Message, MessageExt
from kourou.model.topic import TopicConfig
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.remoting.network import format_address
from kourou.testing.cluster import Cluster
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker


def numbers(families: Sequence[Family], name: str, **labels: str) -> list[float]:
    """Return the samples of a family that have these labels."""
    (family,) = [family for family in families if family.name == f"rocketmq_{name}"]
    return [
        sample.value
        for sample in family.samples
        if isinstance(sample, Sample) and labels.items() <= sample.labels.items()
    ]


async def handle(message: MessageExt) -> None:
    """Acknowledge."""


def test_sends_and_pulls_are_counted_in_the_metrics() -> None:
    async def test() -> None:
        async with Cluster() as cluster:
            consumer = cluster.push_consumer("g")
            consumer.subscribe("T")
            consumer.listen(handle)
            async with cluster.producer() as producer:
                for _ in range(3):
                    await producer.send(Message("T", b"x" * 2000))
                async with consumer:
                    await asyncio.sleep(60)
                    read = await cluster.broker().metrics()
        labels = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-0"}
        assert numbers(read, "messages_in_total", topic="T", message_type="normal") == [3]
        assert numbers(read, "messages_out_total", topic="T", consumer_group="g") == [3]
        assert numbers(read, "consumer_lag_messages", topic="T", consumer_group="g") == [0]
        assert numbers(read, "producer_connections", language="python") == [1]
        assert numbers(read, "consumer_connections", consumer_group="g") == [1]
        assert numbers(read, "broker_permission", node_type="broker") == [6]
        assert numbers(read, "topic_number")[0] > 10
        assert numbers(read, "storage_flush_behind_bytes") == [0]
        assert numbers(read, "half_messages") == []
        (sizes,) = [family for family in read if family.name == "rocketmq_message_size"]
        (distribution,) = sizes.samples
        assert isinstance(distribution, Distribution)
        assert distribution.counts == (0, 3, 0, 0, 0, 0, 0)
        assert [distribution.total] == numbers(read, "throughput_in_total", topic="T")
        assert set(labels) <= set(distribution.labels)

    run_virtual(test())


def test_a_broker_is_ready_from_its_start_to_its_stop() -> None:
    async def test() -> None:
        runtime = sim_runtime(0)
        broker = Broker(BrokerConfig(port=0), SimDisk(), runtime, SimFlusher)
        assert broker.unready_reasons() == ["the broker is not started"]
        assert await broker.metrics() == []
        await broker.start()
        assert broker.unready_reasons() == []
        broker.store.writer.set_read_only("a test")
        (trouble,) = broker.unready_reasons()
        assert "read-only: a test" in trouble
        await broker.stop()
        assert broker.unready_reasons() == ["the broker is stopping"]
        assert await broker.metrics() == []

    run_virtual(test())


def test_statistics_are_sampled_while_the_broker_runs() -> None:
    async def test() -> None:
        async with Cluster() as cluster, cluster.producer() as producer:
            await producer.send(Message("T", b"x"))
            await asyncio.sleep(30)
            async with cluster.admin() as admin:
                stats = await admin.topic_stats("T")
                info = await admin.runtime_info(format_address(cluster.broker_address()))
        assert 0.02 < stats.topic_put_tps < 0.06
        assert info["putMessageTimesTotal"] == "1"

    run_virtual(test())


def test_a_broker_is_not_ready_until_it_was_registered_once() -> None:
    async def test() -> None:
        runtime = sim_runtime(0)
        config = BrokerConfig(port=0, namesrv_addr=("127.0.0.1:9876",))
        broker = Broker(config, SimDisk(), runtime, SimFlusher)
        await broker.start()
        assert broker.unready_reasons() == [
            "the broker has not been registered with any name server: 127.0.0.1:9876"
        ]
        namesrv = NameServer(NamesrvConfig(), runtime)
        await namesrv.start()
        await asyncio.sleep(40)
        assert broker.unready_reasons() == []
        await namesrv.stop()
        await asyncio.sleep(40)
        assert broker.unready_reasons() == [], "clients keep their routes"
        await broker.stop()

    run_virtual(test())


def test_lag_is_reported_in_milliseconds() -> None:
    async def test(broker: SimulatedBroker) -> None:
        def latencies(topic: str = "T") -> list[float]:
            names = ("consumer_lag_latency_milliseconds", "consumer_queueing_latency_milliseconds")
            found = [value for name in names for value in numbers(read, name, topic=topic)]
            return [round(value, -2) for value in found]  # a put takes some ms

        await broker.store_messages([broker.draft(), broker.draft(topic="Done")])
        await asyncio.sleep(5)
        await broker.store_messages([broker.draft(), broker.draft(queue_id=1)])
        await asyncio.sleep(2)
        for topic, queue_id, offset in (("T", 0, 0), ("T", 1, 0), ("Done", 0, 1), ("Gone", 0, 0)):
            broker.offsets.commit("g", topic, queue_id, offset)

        read = await read_metrics(broker.components)
        assert latencies() == [7_000, 7_000]
        assert latencies("Done") == [0, 0], "nothing waits"
        assert latencies("Gone") == [0, 0], "a topic without messages"

        broker.offsets.note_pulled("g", "T", 0, 1)
        read = await read_metrics(broker.components)
        assert latencies() == [7_000, 2_000], "the oldest was read, and is not consumed"

        broker.offsets.commit("g", "T", 0, 2)
        broker.offsets.note_pulled("g", "T", 0, 2)
        broker.offsets.note_pulled("g", "T", 1, 1)
        read = await read_metrics(broker.components)
        assert latencies() == [2_000, 0], "all were read"

    run_with_broker(test)


def test_other_tasks_run_while_metrics_of_many_topics_are_read() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for number in range(2_000):
            broker.topics.put(TopicConfig(f"T{number}"))
            broker.offsets.commit("g", f"T{number}", 0, 0)
        turns = 0
        reading = asyncio.create_task(read_metrics(broker.components))
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(numbers(reading.result(), "consumer_lag_messages")) == 2_000
        assert turns > 5

    run_with_broker(test)

"""Topics and groups that change under random faults are right on all replicas in the end."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.controlling.switching_broker import SwitchingBroker
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.group import SubscriptionGroup
from kourou.model.message import Message
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.groups import DeleteSubscriptionGroupRequestHeader, encode_subscription_group
from kourou.protocol.record.read import read_record
from kourou.protocol.topics import CreateTopicRequestHeader, DeleteTopicRequestHeader
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.testing.loop import run_virtual
from tests.broker.controlling.controlled_cluster import HOST, ControlledCluster
from tests.broker.controlling.test_failover_chaos import REPLICAS, Chaos

TOPICS = ("T0", "T1", "T2")
QUEUES = 2


class TableChaos(Chaos):
    """Creates, fills and deletes topics and groups, one change of each after the other."""

    faults = 4

    def __init__(self, cluster: ControlledCluster, seed: int) -> None:
        super().__init__(cluster, seed)
        self.changes = 0
        self.lives = dict.fromkeys(TOPICS, 0)
        self.existing: set[str] = set()
        self.pool = ConnectionPool(cluster.runtime, {}, ConnectionLimits())
        self.sent: dict[str, dict[tuple[int, int], bytes]] = {}  # of the present life

    async def produce(self) -> None:
        try:
            await asyncio.gather(*(self.live(name) for name in TOPICS), self.change_group())
        finally:
            await self.pool.close()

    async def change(self, command: RemotingCommand) -> None:
        """Ask one master after the other until one has made the change."""
        while True:
            index = self.cluster.master()
            if index is not None:
                address = f"{HOST}:{self.cluster.config(index).port}"
                try:
                    answer = await self.pool.request(address, command, 15)
                except KourouError:
                    pass
                else:
                    if answer.code == ResponseCode.SUCCESS:
                        self.changes += 1
                        return
            await asyncio.sleep(0.2)

    async def live(self, name: str) -> None:
        async with self.cluster.producer() as producer:
            while True:
                self.lives[name] += 1
                self.sent[name] = {}
                created = CreateTopicRequestHeader(
                    topic=name,
                    default_topic="TBW102",
                    read_queue_nums=QUEUES,
                    write_queue_nums=QUEUES,
                    perm=6,
                    topic_filter_type="SINGLE_TAG",
                    topic_sys_flag=0,
                    order=False,
                )
                await self.change(request(RequestCode.UPDATE_AND_CREATE_TOPIC, created))
                self.existing.add(name)
                for number in range(self.rng.randrange(12)):
                    await self.send(producer, name, b"%d %d" % (self.lives[name], number))
                    await asyncio.sleep(self.rng.random() / 5)
                if self.is_over:
                    break
                deleted = DeleteTopicRequestHeader(name)
                await self.change(request(RequestCode.DELETE_TOPIC_IN_BROKER, deleted))
                self.existing.discard(name)
                await asyncio.sleep(self.rng.choice((0, 0, 2)) * self.rng.random())

    async def send(self, producer: Producer, name: str, body: bytes) -> None:
        try:
            receipt = await producer.send(Message(name, body))
        except KourouError:
            return
        if receipt.status is SendStatus.SEND_OK:
            place = (receipt.queue.queue_id, receipt.queue_offset)
            assert place not in self.sent[name], "a queue offset was given out again"
            self.sent[name][place] = body

    async def change_group(self) -> None:
        while True:
            body = encode_subscription_group(SubscriptionGroup("G"))
            created = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            await self.change(created)
            self.existing.add("G")
            await asyncio.sleep(self.rng.random())
            if self.is_over:
                break
            header = DeleteSubscriptionGroupRequestHeader("G", clean_offset=True)
            await self.change(request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header))
            self.existing.discard("G")
            await asyncio.sleep(self.rng.random())

    def check(self) -> None:
        """Compare all replicas with what was acknowledged."""
        for broker in self.cluster.brokers:
            assert broker is not None
            tables = broker.components.tables
            assert (tables.groups.get("G") is not None) == ("G" in self.existing)
            for name in TOPICS:
                topic, found = tables.topics.get(name), self.found(broker, name)
                assert (topic is not None) == (name in self.existing), name
                if topic is None:
                    assert found == {}
                    continue
                assert topic == TopicConfig(name, QUEUES, QUEUES)
                assert self.sent[name].items() <= found.items()
                lives = {body.split()[0] for body in found.values()}
                assert lives <= {b"%d" % self.lives[name]}, "messages of a deleted topic are back"
        assert len({str(self.positions(broker)) for broker in self.cluster.brokers}) == 1

    def found(self, broker: SwitchingBroker, name: str) -> dict[tuple[int, int], bytes]:
        """Return the bodies of a topic's messages by queue and queue offset."""
        bodies = {}
        for (topic, queue_id, offset), position in self.positions(broker).items():
            if topic == name:
                record = broker.store.reader.read_record(position)
                assert record is not None
                header = read_record(record, check_crc=True)
                bodies[queue_id, offset] = bytes(header.body(record))
        return bodies

    def positions(self, broker: SwitchingBroker | None) -> dict[tuple[str, int, int], int]:
        """Return the log positions of all messages by topic, queue and queue offset."""
        assert broker is not None, "all replicas run"
        reader = broker.store.reader
        return {
            (name, queue_id, offset): entry.physical_offset
            for name in TOPICS
            for queue_id in reader.queues().get(name, ())
            for offset in range(reader.max_offset(name, queue_id))
            if (entry := reader.entry(name, queue_id, offset)) is not None
        }


def run_chaos(seed: int) -> TableChaos:
    async def main() -> TableChaos:
        async with ControlledCluster(REPLICAS, seed) as cluster:
            for index in range(REPLICAS):
                await cluster.start(index)
            await cluster.until(lambda: len(cluster.in_sync()) == REPLICAS)
            chaos = TableChaos(cluster, seed)
            await chaos.run()
            chaos.check()
            return chaos

    return run_virtual(main())


@pytest.mark.parametrize("seed", range(1))
def test_tables_are_right_on_all_replicas_after_any_faults(seed: int) -> None:
    assert run_chaos(seed).changes > 10

"""A controller replaces a lost master, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import pytest

from kourou.broker.controlling.controllers import Controllers
from kourou.client.administration.admin import AdminClient
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.producer import Producer
from kourou.errors import ConnectionLostError, KourouError, TransportError
from kourou.model.message import Message
from kourou.protocol.topic_table import RegisterBrokerResponseHeader
from kourou.store.log.log_walk import walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.ack_mark import read_ack_mark, save_ack_mark
from kourou.store.state.file_sizes import log_files
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from tests.broker.controlling.controlled_cluster import (
    CONTROLLER,
    NAMESRV,
    TOPIC,
    ControlledCluster,
)

Acknowledged = dict[tuple[int, int], bytes]
"""Body by queue id and queue offset."""


def records(disk: SimDisk) -> Iterator[tuple[str, tuple[int, int], bytes]]:
    """Yield topic, place (queue id and queue offset) and body of each record in the log."""
    for piece in walk_log(disk, log_files(disk, COMMITLOG), 64 * 1024):
        header = piece.header
        if header is not None:
            place = header.queue_id, header.queue_offset
            yield header.topic, place, bytes(header.body(piece.buffer))


def stored(disk: SimDisk) -> Acknowledged:
    """Return the messages in the log of a disk."""
    return {place: body for topic, place, body in records(disk) if topic == TOPIC}


def holders(cluster: ControlledCluster, acknowledged: Acknowledged) -> list[int]:
    """Return the indexes of the disks that have all these messages."""
    return [
        index
        for index, disk in enumerate(cluster.disks)
        if acknowledged.items() <= stored(disk).items()
    ]


async def send(producer: Producer, count: int, acknowledged: Acknowledged) -> None:
    """Send messages one after the other; record those that are acknowledged."""
    for _ in range(count):
        body = f"message {len(acknowledged)}".encode()
        try:
            receipt = await producer.send(Message(TOPIC, body))
        except KourouError:
            continue
        if receipt.status is SendStatus.SEND_OK:
            acknowledged[receipt.queue.queue_id, receipt.queue_offset] = body


def run(
    replicas: int,
    test: Callable[[ControlledCluster], Awaitable[None]],
    *,
    min_in_sync: int = 1,
) -> None:
    """Run a test with replicas that are all in sync."""

    async def main() -> None:
        async with ControlledCluster(replicas, min_in_sync=min_in_sync) as cluster:
            for index in range(replicas):
                await cluster.start(index)
            await cluster.until(lambda: len(cluster.in_sync()) == replicas)
            await cluster.create_topic()
            await asyncio.sleep(2)  # the slaves copy it each second
            await test(cluster)

    run_virtual(main())


def test_replicas_elect_a_master_and_come_in_sync() -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        async with cluster.producer() as producer:
            await send(producer, 5, acknowledged)
        assert len(acknowledged) == 5
        assert holders(cluster, acknowledged) == [0, 1, 2]

    run(3, test)


@pytest.mark.parametrize("foreign_count", [3, 5, 8], ids=["shorter", "equal", "longer"])
def test_a_slave_of_another_cluster_is_refused_and_keeps_its_log(
    foreign_count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Both clusters have the same names, ids and epochs."""
    foreign: Acknowledged = {}
    foreign_disks: list[SimDisk] = []

    async def fill(cluster: ControlledCluster) -> None:
        await asyncio.sleep(1)  # so that the messages have other times
        async with cluster.producer() as producer:
            await send(producer, foreign_count, foreign)
        await asyncio.sleep(1)
        foreign_disks.extend(cluster.disks)

    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        master = cluster.require_master()
        async with cluster.producer() as producer:
            await send(producer, 5, acknowledged)
            await cluster.kill(1 - master)
            cluster.disks[1 - master] = foreign_disks[1 - master]
            await cluster.start(1 - master)
            await asyncio.sleep(10)
            await send(producer, 5, acknowledged)

        assert len(acknowledged) == 10
        assert cluster.in_sync() == {master + 1}
        assert stored(foreign_disks[1 - master]) == foreign
        assert "hey belong to different brokers" in caplog.text

    run(2, fill)
    run(2, test)


def test_changed_options_survive_changes_of_the_role() -> None:
    async def test(cluster: ControlledCluster) -> None:
        async def options() -> set[str]:
            ids = (await admin.cluster_info()).brokers["broker-a"].broker_addrs.values()
            return {(await admin.broker_config(one))["maxMessageSize"] for one in ids}

        async with AdminClient(NAMESRV, runtime=cluster.runtime) as admin:
            for address in (await admin.cluster_info()).brokers["broker-a"].broker_addrs.values():
                await admin.update_broker_config(address, {"maxMessageSize": "12345"})
            for broker_id in (2, 1):
                await admin.elect_master(
                    CONTROLLER, cluster="", broker_name="broker-a", broker_id=broker_id
                )
                await cluster.until(lambda: cluster.master() == broker_id - 1)  # noqa: B023
                await cluster.until(lambda: len(cluster.in_sync()) == 2)
                await asyncio.sleep(2)
                assert await options() == {"12345"}

    run(2, test)


def test_a_killed_master_is_replaced_within_seconds() -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        old = cluster.require_master()
        async with cluster.producer() as producer:
            await send(producer, 10, acknowledged)
            await cluster.kill(old)
            began_s = asyncio.get_running_loop().time()
            await cluster.until(lambda: cluster.master() not in (old, None))
            await send(producer, 10, acknowledged)
            assert asyncio.get_running_loop().time() - began_s < 10

            await cluster.start(old)
            await cluster.until(lambda: len(cluster.in_sync()) == 3)
            await send(producer, 10, acknowledged)
        assert len(acknowledged) >= 20
        await asyncio.sleep(1)
        assert holders(cluster, acknowledged) == [0, 1, 2]

    run(3, test)


def test_slave_joins_soon_although_its_new_master_was_slower_than_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = iter(range(3))
    ask_master = Controllers.ask_master

    async def refuse_at_first(self: Controllers, address: str) -> RegisterBrokerResponseHeader:
        if next(refusals, None) is not None:
            raise ConnectionLostError("closed by the peer")
        return await ask_master(self, address)

    async def test(cluster: ControlledCluster) -> None:
        old = cluster.require_master()
        monkeypatch.setattr(Controllers, "ask_master", refuse_at_first)
        await cluster.kill(old)
        await cluster.until(lambda: cluster.master() not in (old, None))
        await cluster.until(lambda: len(cluster.in_sync()) == 2, 0.8)
        assert next(refusals, None) is None

    run(3, test)


def test_broker_that_changes_its_role_proposes_no_set() -> None:
    async def test(cluster: ControlledCluster) -> None:
        old = cluster.require_master()
        broker = cluster.brokers[old]
        assert broker is not None
        changing = asyncio.create_task(broker._change_role(broker._role, 0.0))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert broker._role is None
        with pytest.raises(TransportError, match="changing its role"):
            await broker.propose(frozenset({1}))
        await asyncio.gather(changing, return_exceptions=True)

    run(2, test)


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_each_master_in_turn_may_be_lost(end: str) -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        async with cluster.producer() as producer:
            for _ in range(4):
                await send(producer, 5, acknowledged)
                old = cluster.require_master()
                await cluster.kill(old)
                if end == "crash":
                    cluster.disks[old].crash()
                await cluster.until(lambda old=old: cluster.master() not in (old, None))  # type: ignore[misc]
                await send(producer, 5, acknowledged)
                await cluster.start(old)
                await cluster.until(lambda: len(cluster.in_sync()) == 3)
        await asyncio.sleep(1)
        assert len(acknowledged) >= 20
        assert holders(cluster, acknowledged) == [0, 1, 2]

    run(3, test)


def test_a_master_without_its_controller_fences_itself_and_goes_on_when_that_is_back() -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        async with cluster.producer() as producer:
            await cluster.stop_controller()
            await asyncio.sleep(3)
            before = len(acknowledged)
            await send(producer, 1, acknowledged)
            assert len(acknowledged) == before

            await cluster.start_controller()
            await asyncio.sleep(10)
            await send(producer, 3, acknowledged)
            assert len(acknowledged) == before + 3

    run(2, test)


def full(cluster: ControlledCluster, index: int) -> None:
    cluster.disks[index].free = 0


def failing(cluster: ControlledCluster, index: int) -> None:
    cluster.disks[index].fail_after(0, OSError(errno.EIO, "broken"), {"sync"})


@pytest.mark.parametrize("fail", [full, failing])
def test_master_that_cannot_store_is_replaced(
    fail: Callable[[ControlledCluster, int], None],
) -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        old = cluster.require_master()
        async with cluster.producer() as producer:
            await send(producer, 10, acknowledged)
            fail(cluster, old)
            sending = asyncio.create_task(send(producer, 10, acknowledged))
            await cluster.until(lambda: cluster.master() not in (old, None), timeout_s=15)
            await sending
            await send(producer, 10, acknowledged)
            assert len(acknowledged) >= 20

            cluster.disks[old].clear_faults()
            cluster.disks[old].free = 1 << 40
            await cluster.until(lambda: len(cluster.in_sync()) == 3, timeout_s=60)
        await asyncio.sleep(1)
        assert holders(cluster, acknowledged) == [0, 1, 2]

    run(3, test)


def test_only_replica_stays_master_on_a_full_disk_and_stores_again_later() -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        cluster.disks[0].free = 0
        await asyncio.sleep(10)
        broker = cluster.brokers[0]
        assert broker is not None
        keeper = broker.components.keeper
        assert keeper is not None
        assert (cluster.master(), keeper.fence_reason) == (0, ""), "offsets can be committed"
        cluster.disks[0].free = 1 << 40
        async with cluster.producer() as producer:
            await send(producer, 5, acknowledged)
        assert len(acknowledged) == 5

    run(1, test)


async def elect_unclean(cluster: ControlledCluster, broker_id: int) -> None:
    async with AdminClient(NAMESRV, runtime=cluster.runtime) as admin:
        await admin.elect_master(
            CONTROLLER, cluster="", broker_name="broker-a", broker_id=broker_id, unclean=True
        )


def test_unclean_election_makes_a_replica_master_that_lags() -> None:
    async def test(cluster: ControlledCluster) -> None:
        kept: Acknowledged = {}
        lost: Acknowledged = {}
        async with cluster.producer() as producer:
            await send(producer, 5, kept)
            await cluster.kill(1)
            await cluster.until(lambda: len(cluster.in_sync()) == 1)
            await send(producer, 5, lost)
            await cluster.kill(0)
            await cluster.start(1)
            await asyncio.sleep(10)
            before = cluster.master()
            await elect_unclean(cluster, 2)
            await cluster.until(lambda: cluster.master() == 1)
            await send(producer, 5, kept)
            await cluster.start(0)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)
        assert before is None, "it was not in sync"
        assert cluster.master() == 1
        logs = [stored(disk) for disk in cluster.disks]
        assert logs[0] == logs[1]
        assert set(kept.values()) <= set(logs[0].values())
        assert not set(lost.items()) & set(logs[0].items()), "the end was truncated"

    run(2, test)


def test_shortened_replica_serves_only_after_an_unclean_election() -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        await cluster.kill(1)
        await cluster.until(lambda: len(cluster.in_sync()) == 1)
        await cluster.kill(0)
        mark = read_ack_mark(cluster.disks[0])
        assert mark is not None
        lacking = msgspec.structs.replace(mark, loss="its end is lost")
        save_ack_mark(cluster.disks[0], lacking)
        await cluster.start(0)
        await asyncio.sleep(20)
        before = cluster.master()
        await elect_unclean(cluster, 1)
        async with cluster.producer() as producer:
            await send(producer, 1, acknowledged)
        assert before is None
        assert cluster.master() == 0
        assert len(acknowledged) == 1
        left = read_ack_mark(cluster.disks[0])
        assert left is not None
        assert left.loss == ""

    run(2, test)


def test_replica_whose_whole_log_was_not_acknowledged_joins_again() -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        assert cluster.master() == 0
        await cluster.kill(1)
        async with cluster.producer() as producer:
            sending = asyncio.create_task(send(producer, 1, acknowledged))
            await asyncio.sleep(0.5)
            await cluster.kill(0)
            await cluster.start(1)
            await sending
            await cluster.start(0)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)
            await cluster.create_topic()
            await send(producer, 5, acknowledged)
        assert len(acknowledged) >= 5
        assert cluster.master() == 1
        logs = [stored(disk) for disk in cluster.disks]
        assert logs[0] == logs[1]
        assert acknowledged.items() <= logs[0].items()

    run(2, test)

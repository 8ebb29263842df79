"""A slave serves reads and offset commits while its master is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.replication.acting_master import ActingMaster
from kourou.broker.replication.replication_config import BrokerRole, ReplicationConfig
from kourou.errors import ConfigError, KourouError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.routes import NotifyMinBrokerIdChangeRequestHeader
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.broker.replication.test_slave import ask, caught_up, pull, send, until

MASTER, FIRST, SECOND = 0, 1, 2
ACTING = ReplicationConfig(broker_role=BrokerRole.ASYNC_MASTER, enable_slave_acting_master=True)
NAMESRV = {"support_acting_master": True}
QUEUE = MessageQueue("T", "broker-0", 0)


def run(test: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    settings: dict[str, Any] = {
        "slaves": 2, "replication": ACTING, "namesrv_options": NAMESRV,
    }  # fmt: skip

    async def main() -> None:
        async with Cluster(**(settings | options)) as cluster:
            await test(cluster)

    run_virtual(main())


async def copied(cluster: Cluster) -> None:
    """Return when the slaves have all messages and tables."""
    await caught_up(cluster)
    await asyncio.sleep(11)


def is_acting(cluster: Cluster, index: int) -> bool:
    acting = cluster.broker(index).components.acting
    assert acting is not None
    return acting.master.is_acting


async def acts(cluster: Cluster, index: int, timeout_s: float = 15) -> None:
    await until(lambda: is_acting(cluster, index), timeout_s)


def test_the_slave_with_the_smallest_id_acts_until_the_master_is_back() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await copied(cluster)
        await cluster.kill_broker(MASTER)
        await acts(cluster, FIRST, 3)
        assert not is_acting(cluster, SECOND)
        await cluster.kill_broker(FIRST)
        await acts(cluster, SECOND, 3)
        await cluster.restart_broker(FIRST)
        await acts(cluster, FIRST, 3)
        await until(lambda: not is_acting(cluster, SECOND), 3)
        await cluster.restart_broker(MASTER)
        await until(lambda: not is_acting(cluster, FIRST), 3)
        await send(cluster, 3)
        await caught_up(cluster)

    run(test)


def test_clients_read_and_commit_at_the_acting_master_but_do_not_send() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await copied(cluster)
        await cluster.kill_broker(MASTER)
        await acts(cluster, FIRST)
        async with cluster.pull_consumer() as reader, cluster.producer() as producer:
            assert (await reader.pull(QUEUE, 0, timeout_ms=5_000)).messages
            await reader.commit_offset(QUEUE, 2)
            with pytest.raises(KourouError):
                await producer.send(Message("T", b"x"), timeout_ms=3_000)
        offsets = cluster.broker(FIRST).components.tables.offsets
        assert offsets.query("readers", "T", 0) == 2

    run(test)


def test_a_slave_that_may_act_refuses_reads_while_its_master_lives_and_sends_with_14() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await copied(cluster)
        assert (await pull(cluster, 0)).code == 2
        sent_back = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert (await ask(cluster, sent_back)).code == 14

    run(test)


def test_held_pulls_are_answered_when_the_slave_ends_to_act() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await copied(cluster)
        await cluster.kill_broker(MASTER)
        await acts(cluster, FIRST)
        end = cluster.broker(FIRST).store.reader.max_offset("T", 0)
        held = asyncio.create_task(pull(cluster, end, suspend_ms=60_000))
        await asyncio.sleep(1)
        assert not held.done()
        await cluster.restart_broker(MASTER)
        async with asyncio.timeout(3):
            assert (await held).code in (2, 19)

    run(test)


def test_what_was_committed_at_the_acting_master_is_not_overwritten_while_it_acts() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        async with cluster.pull_consumer() as reader:
            await reader.commit_offset(QUEUE, 1)
        await copied(cluster)
        await cluster.kill_broker(MASTER)
        await acts(cluster, FIRST)
        async with cluster.pull_consumer() as reader:
            await reader.commit_offset(QUEUE, 3)
        await asyncio.sleep(25)
        assert cluster.broker(FIRST).components.tables.offsets.query("readers", "T", 0) == 3

    run(test)


def test_heartbeats_keep_the_brokers_registered(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster) -> None:
        await asyncio.sleep(70)
        members = await cluster.broker(FIRST).components.members.ask()
        assert members is not None
        assert sorted(members) == [0, 1, 2]

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "broker.expired" not in caplog.text


def test_a_master_that_only_lost_its_name_servers_is_not_acted_for() -> None:
    class Slave:
        is_connected = True

    async def main() -> None:
        steps: list[str] = []

        async def begin() -> None:
            steps.append("begin")

        async def end() -> None:
            steps.append("end")

        slave = Slave()
        acting = ActingMaster(1, slave, begin, end)  # type: ignore[arg-type]
        await acting.update({1: "a", 2: "b"})
        assert steps == []
        slave.is_connected = False
        await acting.update({2: "b"})  # the slave itself is not registered
        assert steps == []
        for _ in range(2):
            await acting.update({1: "a", 2: "b"})
        assert steps == ["begin"]
        slave.is_connected = True
        for _ in range(2):
            await acting.update({1: "a", 2: "b"})
        assert steps == ["begin", "end"]

    run_virtual(main())


def test_a_notice_of_another_smallest_id_has_the_name_servers_asked_at_once() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 3)
        await copied(cluster)
        watch = cluster.broker(FIRST).components.watch
        assert watch is not None
        header = NotifyMinBrokerIdChangeRequestHeader(min_broker_id=1)
        command = request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)
        await cluster.kill_broker(MASTER)
        await asyncio.sleep(0.05)
        assert not is_acting(cluster, FIRST)
        assert (await ask(cluster, command)).code == 0
        await acts(cluster, FIRST, 0.2)

    run(test)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"broker_heartbeat_interval_ms": 0}, "broker_heartbeat_interval_ms is 0"),
        ({"broker_not_active_timeout_ms": 1_500}, "must be at least twice"),
    ],
)
def test_impossible_heartbeats_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ReplicationConfig(**options)


def test_a_controller_elects_instead() -> None:
    controller = ControllerModeConfig(enable_controller_mode=True, controller_addr=("127.0.0.1:1",))
    with pytest.raises(ConfigError, match="enable_slave_acting_master is set, but"):
        BrokerConfig(replication=ACTING, controller=controller)

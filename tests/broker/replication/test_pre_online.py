"""A master that returns takes back what its slaves have changed while one acted for it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.components import Components
from kourou.model.message import Message
from kourou.protocol.brokers import ExchangeHAInfoRequestHeader
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.testing.cluster import Cluster
from tests.broker.replication.test_acting_master import (
    ACTING,
    FIRST,
    MASTER,
    QUEUE,
    SECOND,
    acts,
    copied,
    is_acting,
)
from tests.broker.replication.test_acting_master import run as run_acting
from tests.broker.replication.test_slave import ask, send, slave_state, until

PRE_ONLINE = dataclasses.replace(ACTING, total_replicas=3)


def run(test: Callable[[Cluster], Awaitable[None]], **rules: Any) -> None:
    run_acting(test, replication=dataclasses.replace(PRE_ONLINE, **rules))


def offset(cluster: Cluster, index: int) -> int | None:
    return cluster.broker(index).components.tables.offsets.query("readers", "T", 0)


async def commit(cluster: Cluster, queue_offset: int) -> None:
    async with cluster.pull_consumer() as reader:
        await reader.commit_offset(QUEUE, queue_offset)


@pytest.mark.parametrize("end", ["kill_broker", "stop_broker"])
@pytest.mark.parametrize(("skips", "expected"), [(False, 3), (True, 1)])
def test_offsets_committed_at_the_acting_master_are_those_of_the_master_that_returns(
    end: str, skips: bool, expected: int
) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await commit(cluster, 1)
        await copied(cluster)
        await getattr(cluster, end)(MASTER)
        await acts(cluster, FIRST)
        await commit(cluster, 3)
        await cluster.restart_broker(MASTER)
        assert offset(cluster, MASTER) == expected
        await until(lambda: slave_state(cluster.broker(FIRST)).is_connected, 5)
        assert skips or not is_acting(cluster, FIRST)
        await asyncio.sleep(12)
        assert offset(cluster, FIRST) == expected

    run(test, skip_pre_online=skips)


def test_an_offset_that_the_slave_lacks_is_kept() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await commit(cluster, 1)
        await copied(cluster)
        await commit(cluster, 2)
        await asyncio.sleep(6)  # the master saves its offsets, and the slave does not copy them
        await cluster.kill_broker(MASTER)
        await acts(cluster, FIRST)
        assert offset(cluster, FIRST) == 1
        await cluster.restart_broker(MASTER)
        assert offset(cluster, MASTER) == 2

    run(test)


def test_no_offset_beyond_the_end_of_a_queue_is_taken() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await copied(cluster)
        await cluster.kill_broker(MASTER)
        await acts(cluster, FIRST)
        cluster.broker(FIRST).components.tables.offsets.commit("readers", "T", 0, 99)
        await cluster.restart_broker(MASTER)
        assert offset(cluster, MASTER) == 3

    run(test)


def test_the_slave_with_the_larger_offsets_counts() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await copied(cluster)
        await cluster.kill_broker(MASTER)
        for index, queue_offset in ((FIRST, 2), (SECOND, 3)):
            tables = cluster.broker(index).components.tables
            tables.offsets.commit("readers", "T", 0, queue_offset)
            cluster.broker(index).components.delay.advance_to({index: queue_offset})
        await cluster.restart_broker(MASTER)
        assert offset(cluster, MASTER) == 3

    run(test)


def levels(components: Components) -> dict[int, int]:
    return {level: at for level, at in components.delay.offsets.items() if at}


def test_the_progress_of_delay_levels_is_taken_back() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.producer() as producer:
            for _ in range(3):
                await producer.send(Message("T", b"x", delay_level=5))
        await copied(cluster)
        assert levels(cluster.broker(FIRST).components) == {}
        await cluster.kill_broker(MASTER)
        await acts(cluster, FIRST)
        cluster.broker(FIRST).components.delay.advance_to({5: 2})
        await cluster.restart_broker(MASTER)
        assert levels(cluster.broker(MASTER).components) == {5: 2}
        await asyncio.sleep(61)
        assert levels(cluster.broker(MASTER).components) == {5: 3}
        await copied(cluster)
        assert levels(cluster.broker(FIRST).components) == {5: 3}
        reader = cluster.broker(MASTER).store.reader
        assert sum(reader.max_offset("T", queue_id) for queue_id in range(8)) == 1

    run(test)


def test_a_slave_that_is_named_the_returning_master_ends_to_act_for_some_seconds() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await copied(cluster)
        await cluster.kill_broker(MASTER)
        await acts(cluster, FIRST)
        header = ExchangeHAInfoRequestHeader("127.0.0.1:10912", 77, "127.0.0.1:10911")
        command = request(RequestCode.EXCHANGE_BROKER_HA_INFO, header)
        assert (await ask(cluster, command)).code == 0
        services = cluster.broker(FIRST).components.acting
        assert services is not None
        acting = services.master
        assert (acting.is_acting, acting.serves_reads) == (False, True)
        assert cluster.broker(FIRST).store.writer.master_flushed_offset == 77
        await asyncio.sleep(10)
        assert not acting.is_acting
        await acts(cluster, FIRST, 10)  # the master did not start after all

    run(test, sync_master_flush_offset_when_startup=True)


def test_a_dead_slave_delays_the_master_until_name_servers_have_removed_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await copied(cluster)
        await cluster.kill_broker(MASTER)
        await acts(cluster, FIRST)
        address = cluster.broker_address(FIRST)
        await cluster.broker(FIRST)._running.ports.stop()  # type: ignore[union-attr]
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        restart = asyncio.create_task(cluster.restart_broker(MASTER))
        await asyncio.sleep(5)
        assert not restart.done()
        await cluster.kill_broker(FIRST)
        await restart
        assert loop.time() - began_s < 20
        assert f"no connection to {address[0]}:{address[1]}" in caplog.text
        await cluster.restart_broker(FIRST)

    with caplog.at_level(logging.WARNING):
        run(test)


def test_a_master_without_name_servers_starts_after_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.kill_broker(MASTER)
        await cluster._namesrvs[0].stop()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await cluster.restart_broker(MASTER)
        assert 60 <= loop.time() - began_s < 70
        assert "pre_online.given_up reason=no name server answers" in caplog.text

    with caplog.at_level(logging.WARNING):
        run(test)

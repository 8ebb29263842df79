"""Scheduled messages that have to be rolled while a slave acts for its master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from kourou.broker.timer.timer_config import TimerConfig
from kourou.model import properties as names
from kourou.store.timer.layouts import encode_check
from kourou.store.timer.wheel_files import TIMER_CHECK, read_check
from kourou.testing.clock import EPOCH_MS
from kourou.testing.cluster import Cluster
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.delays.delay_rig import messages
from tests.broker.replication.test_acting_master import acts
from tests.broker.replication.test_acting_master import run as run_acting
from tests.broker.replication.test_escape_bridge import (
    ESCAPING,
    MASTER,
    OTHER,
    SLAVE,
    bodies,
    delivered,
    due_in,
    send_to_master,
)
from tests.broker.replication.test_slave import until
from tests.broker.timer.timer_rig import send_at

ROLL_S = 60


def run(test: Callable[[Cluster], Awaitable[None]]) -> None:
    async def prepared(cluster: Cluster) -> None:
        async with cluster.admin() as admin:
            await admin.create_topic("T")
        await test(cluster)

    timer = TimerConfig(timer_roll_window_slot=ROLL_S)
    run_acting(prepared, brokers=2, slaves=1, replication=ESCAPING, timer=timer)


def test_message_that_had_to_be_rolled_is_delivered_if_it_is_due_meanwhile() -> None:
    async def test(cluster: Cluster) -> None:
        await send_to_master(cluster, due_in(100, b"x"))
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await asyncio.sleep(ROLL_S - 15)
        assert bodies(cluster, OTHER) == []
        await until(lambda: bodies(cluster, OTHER) == [b"x"], 60)
        await asyncio.sleep(2)  # progress is counted in seconds
        await cluster.restart_broker(MASTER)
        await asyncio.sleep(ROLL_S)
        assert bodies(cluster, MASTER) == []

    run(test)


def test_message_is_rolled_by_the_master_that_returns_and_delivered_once() -> None:
    async def test(cluster: Cluster) -> None:
        await send_to_master(cluster, due_in(170, b"x"))
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await asyncio.sleep(ROLL_S)
        await cluster.restart_broker(MASTER)
        await asyncio.sleep(30)
        assert bodies(cluster, OTHER) == []
        await until(lambda: bodies(cluster, MASTER) == [b"x"], 100)
        [message] = delivered(cluster, MASTER)
        assert int(message.properties[names.TIMER_ROLL_TIMES]) >= 1
        await asyncio.sleep(60)
        assert (bodies(cluster, MASTER), bodies(cluster, OTHER)) == ([b"x"], [])

    run(test)


def test_slave_that_acts_again_delivers_a_message_once_that_was_rolled_meanwhile() -> None:
    async def test(cluster: Cluster) -> None:
        await send_to_master(cluster, due_in(210, b"x"))
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await asyncio.sleep(ROLL_S)
        await cluster.restart_broker(MASTER)
        await asyncio.sleep(45)  # it is rolled, and copied
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await until(lambda: bodies(cluster, OTHER) == [b"x"], 140)
        await asyncio.sleep(20)
        assert bodies(cluster, OTHER) == [b"x"]

    run(test)


def test_timer_files_of_a_slave_that_acted_are_rebuilt_by_a_master(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        await send_to_master(cluster, due_in(150, b"x"))
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await asyncio.sleep(5)
        marks.append(read_check(cluster.broker(SLAVE).components.context.disk).exact_from_ms)

    async def send(broker: SimulatedBroker) -> None:
        await send_at(broker, b"x", broker.clock.now_ms() + 5_000)

    async def receive(broker: SimulatedBroker) -> None:
        await asyncio.sleep(6)
        assert [one.body for one in messages(broker)] == [b"x"]

    marks: list[int] = []
    run(test)
    disk = run_with_broker(send, is_delivering=True)
    check = read_check(disk)._replace(exact_from_ms=marks[0], read_at_ms=EPOCH_MS + 60_000)
    disk.write(TIMER_CHECK, 0, [encode_check(check)])
    with caplog.at_level(logging.WARNING):
        run_with_broker(receive, disk, is_delivering=True)
    assert "a slave that acted for its master has left messages to that" in caplog.text

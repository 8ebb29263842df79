"""A Java broker and Kourou replicate to each other by the classic protocol, as master and as slave.

Each is killed in turn, and a record of Kourou's log is damaged meanwhile, which it repairs from the
Java broker. Logs and queue entries are equal at the end, and the slave has the topics.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kourou.client.send_receipt import SendStatus
from kourou.errors import MalformedMessageError
from kourou.protocol.record.read import read_checked
from kourou.testing.process import Serving, run_command
from tests.interop.peer import JavaServer, free_broker_port, start_java
from tests.replica_stores import log_of, pulled, queues_of, send, wait_equal

COUNT = 100
OK = SendStatus.SEND_OK
SOON = "registerNameServerPeriod=10000\n"
"""Each broker learns of the other at its next registration."""
BODY_OFFSET = 88
"""Of the body in a record with IPv4 hosts."""


def check_equal(java: Path, kourou: Path) -> None:
    """Assert that both stores have the same log and queues, and are whole."""
    assert log_of(kourou) == log_of(java)
    assert queues_of(kourou) == queues_of(java) != {}
    for store in (java, kourou):
        assert run_command("store", "check", str(store)).code == 0


def damage(store: Path) -> None:
    """Change a byte of the body of a record in the middle of the log."""
    log = log_of(store)
    position = 0
    while position < len(log) // 2:
        position += read_checked(log, position).total_size
    (first,) = (store / "commitlog").iterdir()
    with first.open("r+b") as stream:
        stream.seek(position + BODY_OFFSET)
        stream.write(bytes([log[position + BODY_OFFSET] ^ 1]))
    with pytest.raises(MalformedMessageError):
        read_checked(log_of(store), position)


def exchange(
    java: JavaServer, start: Callable[[], Serving], stores: tuple[Path, Path], *, slave: str
) -> None:
    """Send while both run, after a kill of each, and with damage; pull all from the slave."""
    namesrv, rng = java.namesrv_addr, Random(5)

    async def until_copied() -> int:
        count = 1
        while await send(namesrv, rng, 1) != [OK]:
            count += 1
        return count

    async def send_all() -> int:
        count = await until_copied()
        assert await send(namesrv, rng, COUNT) == [OK] * COUNT
        await wait_equal(*stores)
        return count + COUNT

    serving = start()
    try:
        count = asyncio.run(send_all())
        serving.stop(signal.SIGKILL)
        serving = start()
        count += asyncio.run(send_all())
        assert serving.stop().code == 0
        damage(stores[1])
        serving = start()
        assert asyncio.run(pulled(serving.broker)) == count
        asyncio.run(wait_equal(*stores))
        java.kill()
        java.start_broker()
        count += asyncio.run(send_all())
        assert asyncio.run(pulled(java.broker_addr if slave == "java" else serving.broker)) == count
    finally:
        outcome = serving.stop()
        java.stop()
    assert outcome.code == 0


def test_kourou_copies_the_log_of_a_java_master(jars: str, tmp_path: Path) -> None:
    store = tmp_path / "kourou"
    java = start_java(jars, tmp_path / "java", options=f"brokerRole=ASYNC_MASTER\n{SOON}")
    environ = {
        "KOUROU_BROKER_BROKER_ROLE": "SLAVE",
        "KOUROU_BROKER_BROKER_ID": "1",
        "KOUROU_BROKER_SLAVE_READ_ENABLE": "true",
    }
    port = free_broker_port()

    def start() -> Serving:
        return Serving.start(store, "--namesrv", java.namesrv_addr, port=port, environ=environ)

    stores = tmp_path / "java" / "store", store
    exchange(java, start, stores, slave="kourou")
    check_equal(*stores)


def test_a_java_slave_copies_the_log_of_kourou(jars: str, tmp_path: Path) -> None:
    store = tmp_path / "kourou"
    java = start_java(
        jars,
        tmp_path / "java",
        options=f"brokerRole=SLAVE\nbrokerId=1\nslaveReadEnable=true\n{SOON}",
    )
    environ = {
        "KOUROU_BROKER_BROKER_ROLE": "SYNC_MASTER",
        "KOUROU_BROKER_IN_SYNC_REPLICAS": "2",
        "KOUROU_BROKER_REGISTER_INTERVAL_MS": "10000",
    }
    port = free_broker_port()

    def start() -> Serving:
        return Serving.start(store, "--namesrv", java.namesrv_addr, port=port, environ=environ)

    stores = tmp_path / "java" / "store", store
    exchange(java, start, stores, slave="java")
    check_equal(*stores)

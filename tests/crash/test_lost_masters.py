"""Brokers in processes of their own: a lost master is replaced, and nothing is lost.

With failsafe a master serves on while its controller is stopped.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Final

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.producer import Producer
from kourou.disk import OsDisk
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.store.log.log_walk import walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.file_sizes import find_sizes, log_files
from kourou.testing.process import Serving, run_command
from tests.held_ports import held_ports

REPLICAS: Final = 3
TOPIC: Final = "T"
CYCLES: Final = int(os.environ.get("KOUROU_CRASH_CYCLES", "1"))
LOSSES: Final = ("killed", "stopped", "controller") if CYCLES > 1 else ("killed",)
"""A short run leaves out what virtual time shows too; `make soak` does not."""
OUTAGE_S: Final = 8.0
"""Time without a controller: a master without failsafe is fenced after 2 s."""
WAIT_S: Final = 60
"""Limit of each wait; a new master serves some seconds after the loss of the old one."""

pytestmark = pytest.mark.slow


class ReplicaProcesses:
    """A name server, a controller and the replicas of one broker."""

    def __init__(self, directory: Path, ports: list[int], *, has_failsafe: bool) -> None:
        self._has_failsafe = has_failsafe
        self.stores = [directory / f"store-{index}" for index in range(REPLICAS)]
        self._ports = ports
        self._namesrv = Serving.start_namesrv(directory / "namesrv")
        self.namesrv = self._namesrv.namesrv
        self.controller = Serving.start_controller("--file", str(directory / "controller"))
        self.brokers = [self.start(index) for index in range(REPLICAS)]

    def start(self, index: int) -> Serving:
        port, ha_port = self._ports[2 * index : 2 * index + 2]
        environ = {
            "KOUROU_BROKER_ENABLE_CONTROLLER_MODE": "true",
            "KOUROU_BROKER_CONTROLLER_ADDR": self.controller.controller,
            "KOUROU_BROKER_CONTROLLER_FAILSAFE": str(self._has_failsafe),
            "KOUROU_BROKER_HA_LISTEN_PORT": str(ha_port),
        }
        return Serving.start(
            self.stores[index], "--namesrv", self.namesrv, port=port, environ=environ
        )

    async def master(self) -> int:
        """Return the index of the broker that name servers have as master; wait for one."""
        async with AdminClient(self.namesrv) as admin, asyncio.timeout(WAIT_S):
            while True:
                table = (await admin.cluster_info()).brokers
                addresses = [data.broker_addrs.get(0) for data in table.values()]
                for index, broker in enumerate(self.brokers):
                    if broker.broker in addresses:
                        return index
                await asyncio.sleep(0.1)

    def stop(self) -> list[int]:
        processes = [*self.brokers, self.controller, self._namesrv]
        return [process.stop().code for process in processes]


class Sends:
    """Sends messages until told to stop, and keeps those that were acknowledged."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.acknowledged: set[bytes] = set()
        self.last_s = 0.0
        self.is_over = False

    async def run(self) -> None:
        config = ProducerConfig(send_timeout_ms=2_000)
        async with Producer("producers", self._namesrv, config=config) as producer:
            number = 0
            while not self.is_over:
                number += 1
                try:
                    receipt = await producer.send(Message(TOPIC, b"message %d" % number))
                except KourouError:
                    continue
                if receipt.status is SendStatus.SEND_OK:
                    self.acknowledged.add(b"message %d" % number)
                    self.last_s = time.perf_counter()

    async def until_acknowledged(self, since_s: float) -> float:
        """Return the seconds from a time to the first message acknowledged since then."""
        async with asyncio.timeout(WAIT_S):
            while self.last_s <= since_s:  # noqa: ASYNC110 - each send may be the one
                await asyncio.sleep(0.01)
        return self.last_s - since_s


def stored(store: Path) -> set[bytes]:
    disk = OsDisk(store)
    try:
        sizes = find_sizes(disk)
        return {
            bytes(piece.header.body(piece.buffer))
            for piece in walk_log(disk, log_files(disk, COMMITLOG), sizes.segment_bytes)
            if piece.header is not None and piece.header.topic == TOPIC
        }
    finally:
        disk.close()


async def stop_controller(running: ReplicaProcesses, sends: Sends) -> None:
    """Stop the controller for a while; the master must serve on."""
    master = await running.master()
    running.controller.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(OUTAGE_S)
    try:
        assert await sends.until_acknowledged(time.perf_counter()) < 1
    finally:
        running.controller.process.send_signal(signal.SIGCONT)
    assert await running.master() == master


async def lose_masters(running: ReplicaProcesses, loss: str) -> set[bytes]:
    """Lose one master after the other under load; return the acknowledged messages."""
    await running.master()
    async with AdminClient(running.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=4)
    await asyncio.sleep(2)  # slaves copy topics each second
    sends = Sends(running.namesrv)
    sending = asyncio.create_task(sends.run())
    await sends.until_acknowledged(0)
    for _ in range(CYCLES):
        await asyncio.sleep(2)
        if loss == "controller":
            await stop_controller(running, sends)
            continue
        index = await running.master()
        master = running.brokers[index]
        if loss == "killed":
            await asyncio.to_thread(master.stop, signal.SIGKILL)
        else:
            master.process.send_signal(signal.SIGSTOP)
        await sends.until_acknowledged(time.perf_counter() + 1)
        if loss == "killed":
            running.brokers[index] = await asyncio.to_thread(running.start, index)
        else:
            master.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(2)
    sends.is_over = True
    await sending
    await asyncio.sleep(3)  # the slaves receive the rest
    return sends.acknowledged


@pytest.mark.parametrize("loss", LOSSES)
def test_acknowledged_messages_survive_the_loss_of_masters(tmp_path: Path, loss: str) -> None:
    with held_ports(2 * REPLICAS) as ports:
        has_failsafe = loss == "controller"
        running = ReplicaProcesses(tmp_path, list(ports), has_failsafe=has_failsafe)
        try:
            acknowledged = asyncio.run(lose_masters(running, loss))
        finally:
            codes = running.stop()
    assert codes == [0] * (REPLICAS + 2)
    assert len(acknowledged) > 100
    for store in running.stores:
        assert acknowledged <= stored(store)
        assert run_command("store", "check", str(store)).code == 0

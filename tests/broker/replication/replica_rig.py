"""Replicas of one broker in virtual time, with a controller that a test commands.

A change of the role stops or kills a broker and starts another one on the same disk, as the part
of a broker that talks to the controller does. A slave whose log must be truncated is, by itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from kourou.broker.config import BrokerConfig
from kourou.broker.replication.controlled_role import ControlledRole, InSyncSet, MasterClaim
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.server import Broker
from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.producer import Producer
from kourou.errors import ConnectionLostError, RemoteError
from kourou.model.message import Message
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.store.config import StoreConfig
from kourou.store.tools.check import check_store
from kourou.store.tools.closed_store import recover_and_close
from kourou.store.tools.truncate import truncate_replica
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.network import MemoryNetwork
from kourou.testing.runtime import sim_runtime
from tests.broker.replication.ha_slave import log_bytes

HOST, NAMESRV_PORT, BROKER_PORT = "127.0.0.1", 9876, 10911
KIB = 1024


async def until(is_true: Callable[[], bool], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_true():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)


class Controller:
    """Decides at once; answers can be lost.

    Attributes:
        stored: the in-sync set.
        lost_answers: how many proposals to store and not answer.
        lost_requests: how many proposals to lose.
        proposals: all sets that were proposed.
    """

    def __init__(self) -> None:
        self.stored = InSyncSet(frozenset(), 0)
        self.master_id = 0
        self.epoch = 0
        self.lost_answers = 0
        self.lost_requests = 0
        self.proposals: list[frozenset[int]] = []
        self.offers: list[tuple[frozenset[int], int]] = []

    def elect(self, broker_id: int) -> None:
        self.master_id = broker_id
        self.epoch += 1
        self.stored = InSyncSet(frozenset({broker_id}), self.stored.epoch + 1)


class Port:
    """The way of one broker to the controller."""

    def __init__(self, rig: ReplicaRig, broker_id: int, epoch: int) -> None:
        self._rig = rig
        self._id = broker_id
        self._epoch = epoch

    def ask_role(self) -> None:
        """Do nothing: the rig gives the roles."""

    def offer_role(self, silent: frozenset[int], needed: int) -> None:
        self._rig.controller.offers.append((silent, needed))

    async def confirm_master(self, claim: MasterClaim) -> bool:
        raise AssertionError(claim)

    async def propose(self, members: frozenset[int]) -> InSyncSet:
        controller, broker = self._rig.controller, self._rig.brokers.get(self._id)
        if broker is None:
            raise ConnectionLostError("the broker is stopping")
        set_epoch = broker.in_sync().epoch
        controller.proposals.append(members)
        await asyncio.sleep(0.005)
        if controller.lost_requests:
            controller.lost_requests -= 1
            raise ConnectionLostError("the request was lost")
        if (controller.master_id, controller.epoch) != (self._id, self._epoch):
            raise RemoteError(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, "another epoch")
        if controller.stored.epoch != set_epoch:
            raise RemoteError(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, "another set")
        controller.stored = InSyncSet(members, set_epoch + 1)
        if controller.lost_answers:
            controller.lost_answers -= 1
            raise ConnectionLostError("the answer was lost")
        return controller.stored


class Killed(Exception):  # noqa: N818 - not an error of the code
    """A truncation ends with its process, or with the power."""

    def __init__(self, *, has_lost_power: bool) -> None:
        super().__init__()
        self.has_lost_power = has_lost_power


class ReplicaRig:
    """A name server, and replicas with the broker ids 1, 2, ... Leaving the block checks them."""

    def __init__(self, replicas: int = 3, *, seed: int = 0, **options: Any) -> None:
        self.network = MemoryNetwork(seed)
        self.runtime: Runtime = sim_runtime(seed, self.network)
        self.controller = Controller()
        self.disks = {number: SimDisk(seed + number) for number in range(1, replicas + 1)}
        self.brokers: dict[int, Broker] = {}
        self.flushers: dict[int, SimFlusher] = {}
        self.truncations: list[tuple[int, int]] = []
        self.on_truncation: Callable[[str, str], None] | None = None  # at each disk operation
        self._seed = seed
        self._starts = 0
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._namesrv = NameServer(NamesrvConfig(listen=HOST, port=NAMESRV_PORT), self.runtime)
        replication = ReplicationConfig(ha_listen_port=0, **options.pop("replication", {}))
        store = StoreConfig(
            commitlog_segment_bytes=64 * KIB,
            consumequeue_file_bytes=20 * 100,
            batch_queue_file_bytes=46 * 100,
        )
        self._config = BrokerConfig(
            broker_name="b",
            namesrv_addr=(self.namesrv_addr,),
            replication=replication,
            max_message_size_bytes=16 * KIB,
            pending_connection_bytes_max=1024 * KIB,
            pending_bytes_max=4096 * KIB,
            store=store,
            **options,
        )

    @property
    def namesrv_addr(self) -> str:
        return f"{HOST}:{NAMESRV_PORT}"

    @property
    def master(self) -> Broker:
        return self.brokers[self.controller.master_id]

    def ha_address(self, broker_id: int) -> tuple[str, int]:
        return HOST, BROKER_PORT + 10 * broker_id + 1

    async def __aenter__(self) -> Self:
        await self._namesrv.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for broker_id in list(self.brokers):
            await self.stop(broker_id)
        await self._namesrv.stop()
        if error is None:
            for broker_id, disk in self.disks.items():
                now_ms = self.runtime.clock.now_ms()
                recover_and_close(disk, now_ms, pid=os.getpid())  # it may have been killed
                findings = check_store(disk).findings
                assert not findings, f"seed {self._seed}, replica {broker_id}: {findings}"

    async def begin(self, master: int = 1) -> None:
        """Elect a first master, and start all replicas; return when all are in sync."""
        await self.elect(master)
        await self.in_sync(*self.disks)

    async def elect(self, broker_id: int, *, deposed: int | None = None) -> None:
        """Elect a master, and start all replicas with their new roles, killing those that run.

        Except `deposed`, which goes on with its old role.
        """
        for other in list(self.brokers):
            if other != deposed:
                await self.kill(other)
        self.controller.elect(broker_id)
        for other in sorted(self.disks, key=lambda number: number != broker_id):
            if other != deposed:
                await self.start(other)

    async def start(self, broker_id: int) -> Broker:
        """Start a replica with its current role."""
        controller = self.controller
        is_master = broker_id == controller.master_id
        host, port = self.ha_address(controller.master_id)
        role = ControlledRole(
            broker_id=broker_id,
            master_id=controller.master_id,
            master_epoch=controller.epoch,
            master_ha_address="" if is_master else f"{host}:{port}",
            in_sync=controller.stored,
        )
        self._starts += 1
        seed = self._seed + 1000 * self._starts

        def build_flusher(loop: asyncio.AbstractEventLoop) -> SimFlusher:
            self.flushers[broker_id] = SimFlusher(loop, seed, (0.5, 5.0))
            return self.flushers[broker_id]

        config = dataclasses.replace(self._config, port=BROKER_PORT + 10 * broker_id)
        port_to_controller = Port(self, broker_id, controller.epoch)
        broker = Broker(
            config,
            self.disks[broker_id],
            self.runtime,
            build_flusher,
            role=role,
            controller=port_to_controller,
        )
        self.brokers[broker_id] = broker
        await broker.start()
        self._watches[broker_id] = asyncio.create_task(self._watch(broker_id, broker))
        return broker

    async def stop(self, broker_id: int) -> None:
        self._watches.pop(broker_id).cancel()
        await self.brokers.pop(broker_id).stop()

    async def kill(self, broker_id: int) -> None:
        self._watches.pop(broker_id).cancel()
        self.brokers.pop(broker_id).abandon()
        await asyncio.sleep(0)

    async def crash(self, broker_id: int) -> None:
        await self.kill(broker_id)
        self.disks[broker_id].crash()

    async def _watch(self, broker_id: int, broker: Broker) -> None:
        position = await broker.truncation_needed()
        self.truncations.append((broker_id, position))
        await broker.stop()
        disk = self.disks[broker_id]
        disk.on_operation, self.on_truncation = self.on_truncation, None
        try:
            truncate_replica(disk, position, self.runtime.clock.now_ms(), pid=os.getpid())
        except Killed as killed:
            disk.on_operation = None
            disk.release_locks()
            if killed.has_lost_power:
                disk.crash()
        disk.on_operation = None
        await self.start(broker_id)

    async def in_sync(self, *broker_ids: int) -> None:
        """Return when the in-sync set has these members, and no doubt is left."""
        await until(lambda: self.controller.stored.members == set(broker_ids))
        await until(lambda: self.master.in_sync() == self.controller.stored)

    async def caught_up(self, *broker_ids: int) -> None:
        """Return when these replicas have all that the master has, and show it."""
        end = self.master.store.reader.written_position

        def is_equal() -> bool:
            return all(
                broker_id in self.brokers
                and self.brokers[broker_id].store.reader.visible_position == end
                and self.brokers[broker_id].store.reader.written_position == end
                for broker_id in broker_ids or self.disks
            )

        await until(is_equal)

    def producer(self, timeout_ms: int = 3_000) -> Producer:
        config = ProducerConfig(send_timeout_ms=timeout_ms)
        return Producer("producers", self.namesrv_addr, config=config, runtime=self.runtime)

    async def ask(self, broker_id: int, command: RemotingCommand) -> RemotingCommand:
        """Send a request to a replica, and return the answer."""
        host, port = self.brokers[broker_id].address
        pool = ConnectionPool(self.runtime, {}, ConnectionLimits())
        try:
            return await pool.request(f"{host}:{port}", command, 30)
        finally:
            await pool.close()

    def end(self, broker_id: int) -> int:
        return self.brokers[broker_id].store.reader.written_position

    def log(self, broker_id: int) -> bytes:
        return log_bytes(self.brokers[broker_id], 0, self.end(broker_id))

    def offsets(self, broker_id: int) -> dict[tuple[str, int], int]:
        """Return the largest offset of each queue."""
        reader = self.brokers[broker_id].store.reader
        return {
            (topic, queue_id): reader.max_offset(topic, queue_id)
            for topic, queue_ids in reader.queues().items()
            for queue_id in queue_ids
        }


async def send(producer: Producer, body: bytes = b"hello", **options: Any) -> SendReceipt:
    return await producer.send(Message("T", body, **options))

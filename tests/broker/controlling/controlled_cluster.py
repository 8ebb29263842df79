"""Replicas of one broker, a controller and a name server on one simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from kourou.broker.config import BrokerConfig
from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.controlling.switching_broker import SwitchingBroker
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Producer
from kourou.controller.config import ControllerConfig
from kourou.controller.file_store import FileStore
from kourou.controller.server import Controller
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.remoting.runtime import Runtime
from kourou.store.config import StoreConfig
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.network import MemoryNetwork
from kourou.testing.runtime import sim_runtime

HOST: Final = "127.0.0.1"
NAMESRV: Final = f"{HOST}:9876"
CONTROLLER: Final = f"{HOST}:19876"
TOPIC: Final = "T"


class ControlledCluster:
    """Leaving its `with` block stops all."""

    def __init__(
        self,
        replicas: int = 3,
        seed: int = 0,
        *,
        min_in_sync: int = 1,
        failsafe: frozenset[int] = frozenset(),
    ) -> None:
        """Start nothing yet; `failsafe`: indexes of the replicas with failsafe."""
        self._min_in_sync = min_in_sync
        self._failsafe = failsafe
        self.network = MemoryNetwork(seed)
        self.runtime: Runtime = sim_runtime(seed, self.network)
        self.seed = seed
        self.disks = [SimDisk(seed + index) for index in range(replicas)]
        self.brokers: list[SwitchingBroker | None] = [None] * replicas
        self._controller_disk = SimDisk(seed + 100)
        self.controller: Controller | None = None
        self._namesrv = NameServer(NamesrvConfig(listen=HOST, port=9876), self.runtime)
        self._starts = 0

    def config(self, index: int) -> BrokerConfig:
        """Return the options of one replica."""
        return BrokerConfig(
            broker_name="broker-a",
            port=10911 + 10 * index,
            namesrv_addr=(NAMESRV,),
            controller=ControllerModeConfig(
                enable_controller_mode=True,
                controller_addr=(CONTROLLER,),
                controller_failsafe=index in self._failsafe,
            ),
            replication=ReplicationConfig(min_in_sync_replicas=self._min_in_sync),
            max_message_size_bytes=16 * 1024,
            pending_connection_bytes_max=1024 * 1024,
            pending_bytes_max=4096 * 1024,
            store=StoreConfig(
                commitlog_segment_bytes=64 * 1024,
                consumequeue_file_bytes=20 * 100,
                batch_queue_file_bytes=46 * 100,
            ),
        )

    async def start(self, index: int) -> SwitchingBroker:
        """Start one replica on its disk."""
        assert self.brokers[index] is None, "it is down"
        self._starts += 1
        seed = self.seed + 1_000 * self._starts

        def build_flusher(loop: asyncio.AbstractEventLoop) -> SimFlusher:
            return SimFlusher(loop, seed, (0.5, 5.0))

        broker = SwitchingBroker(self.config(index), self.disks[index], self.runtime, build_flusher)
        self.brokers[index] = broker
        await broker.start()
        return broker

    def cut_slaves(self, index: int) -> None:
        """Let no bytes of the log, and no reports, pass between a master and its slaves."""
        self.network.stall((HOST, 10911 + 10 * index + 1))

    def heal_slaves(self, index: int) -> None:
        """Undo `cut_slaves`."""
        self.network.heal((HOST, 10911 + 10 * index + 1))

    async def kill(self, index: int) -> None:
        """End one replica like kill -9."""
        broker, self.brokers[index] = self.brokers[index], None
        assert broker is not None, "it runs"
        broker.abandon()
        await asyncio.sleep(0)

    async def start_controller(self) -> None:
        config = ControllerConfig(listen=HOST, port=19876)
        store = FileStore(self._controller_disk, self.runtime.offload, config.lease_ms_max)
        store.open()
        self.controller = Controller(config, self.runtime, store)
        await self.controller.start()

    async def stop_controller(self) -> None:
        assert self.controller is not None, "it runs"
        controller, self.controller = self.controller, None
        await controller.stop()

    def master(self) -> int | None:
        """Return the index of the replica that is master; None if there is none."""
        masters = [
            index
            for index, broker in enumerate(self.brokers)
            if broker is not None and broker.role is not None and broker.role.is_master
        ]
        return max(masters, key=self._epoch, default=None)

    def require_master(self) -> int:
        """Return the index of the replica that is master, which the test relies on."""
        master = self.master()
        assert master is not None, "no replica is master"
        return master

    def master_broker(self) -> SwitchingBroker:
        """Return the replica that is master, which the test relies on."""
        broker = self.brokers[self.require_master()]
        assert broker is not None, "a master runs"
        return broker

    def _epoch(self, index: int) -> int:
        broker = self.brokers[index]
        return 0 if broker is None or broker.role is None else broker.role.master_epoch

    def in_sync(self) -> frozenset[int]:
        """Return the in-sync set, as the master has it."""
        index = self.master()
        broker = None if index is None else self.brokers[index]
        return frozenset() if broker is None else broker.in_sync().members

    async def until(self, is_reached: Callable[[], bool], timeout_s: float = 30) -> None:
        """Wait in virtual time until a state is reached."""
        async with asyncio.timeout(timeout_s):
            while not is_reached():  # noqa: ASYNC110 - many things may bring it about
                await asyncio.sleep(0.05)

    def producer(self) -> Producer:
        config = ProducerConfig(send_timeout_ms=20_000)
        return Producer("producers", NAMESRV, config=config, runtime=self.runtime)

    async def create_topic(self) -> None:
        async with AdminClient(NAMESRV, runtime=self.runtime) as admin:
            await admin.create_topic(TOPIC, queues=1)

    async def __aenter__(self) -> Self:
        await self._namesrv.start()
        await self.start_controller()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for broker in self.brokers:
            if broker is not None:
                await broker.stop()
        if self.controller is not None:
            await self.controller.stop()
        await self._namesrv.stop()

"""A cluster in one virtual-time loop: name servers, brokers on simulated disks, clients.

    async def main():
        async with Cluster(seed=7) as cluster:
            async with cluster.producer("orders") as producer:
                await producer.send(Message("T", b"hello"))
            await cluster.crash_broker()
            await cluster.restart_broker()

    run_virtual(main())

The seed alone determines the run: the durations of syncs and packets, and the disk's contents after
a crash. Leaving the block stops every broker and checks its store.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from kourou.broker.config import BrokerConfig
from kourou.broker.replication.replication_config import BrokerRole, ReplicationConfig
from kourou.broker.server import Broker
from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import (
    PullConsumerConfig,
    PushConsumerConfig,
    SimpleConsumerConfig,
)
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.consuming.simple_consumer import SimpleConsumer
from kourou.client.sending.producer import Producer
from kourou.client.sending.transaction import TransactionCheck
from kourou.client.sending.transaction_producer import TransactionProducer
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.remoting.network import Address
from kourou.remoting.runtime import Runtime
from kourou.store.config import StoreConfig
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.network import MemoryNetwork
from kourou.testing.runtime import sim_runtime

_HOST: Final = "127.0.0.1"
_NAMESRV_PORT: Final = 9876
_BROKER_PORT: Final = 10911
_KIB: Final = 1024

_SMALL: Final[dict[str, Any]] = {
    "max_message_size_bytes": 16 * _KIB,
    "pending_connection_bytes_max": 1024 * _KIB,
    "pending_bytes_max": 4096 * _KIB,
    "store": StoreConfig(
        commitlog_segment_bytes=64 * _KIB,
        consumequeue_file_bytes=20 * 100,
        batch_queue_file_bytes=46 * 100,
    ),
}
"""Default broker options: small files, so that tests reach the ends of files."""


class Cluster:
    """Name servers and brokers on one simulated network. Leaving its `with` block stops them.

    Attributes:
        runtime: shared by all members, and for clients that a test creates itself.
        network: the network, with its faults.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        brokers: int = 1,
        slaves: int = 0,
        namesrvs: int = 1,
        namesrv_options: Mapping[str, Any] | None = None,
        sync_ms: tuple[float, float] = (0.5, 5.0),
        **options: Any,  # noqa: ANN401 - any option of BrokerConfig
    ) -> None:
        """Describe the cluster; nothing runs yet.

        Args:
            seed: of all random choices.
            brokers: number of brokers, named broker-0 and so on.
            slaves: number of slaves of each broker. Those of broker-0 have the indexes `brokers`,
                2 * `brokers` and so on.
            namesrvs: number of name servers; every broker registers with each.
            namesrv_options: options of all name servers.
            sync_ms: the shortest and the longest sync of a commit log.
            options: options of all brokers.
        """
        self._sync_ms = sync_ms
        self.network = MemoryNetwork(seed)
        self.runtime: Runtime = sim_runtime(seed, self.network)
        self._seed = seed
        self._namesrv_addresses: list[Address] = [
            (_HOST, _NAMESRV_PORT + index) for index in range(namesrvs)
        ]
        self._namesrvs: list[NameServer] = []
        self._namesrv_options = namesrv_options or {}
        self._brokers = brokers
        if slaves:
            options = {
                "replication": ReplicationConfig(broker_role=BrokerRole.ASYNC_MASTER)
            } | options
        self._members = [
            _Member(self._config(index, options), SimDisk(seed + index))
            for index in range(brokers * (1 + slaves))
        ]

    @property
    def namesrv_addr(self) -> str:
        """The name servers' addresses, in the form that clients accept."""
        return ";".join(f"{host}:{port}" for host, port in self._namesrv_addresses)

    def broker(self, index: int = 0) -> Broker:
        """Return a running broker."""
        broker = self._members[index].broker
        assert broker is not None, f"broker-{index} is down"
        return broker

    def broker_address(self, index: int = 0) -> Address:
        """Return the listen address of a broker, which stays the same after a restart."""
        config = self._members[index].config
        return config.listen, config.port

    def move_broker(self, port: int, index: int = 0) -> None:
        """Have a broker that is down listen on another port from its next start on."""
        member = self._members[index]
        assert member.broker is None, f"broker-{index} is running"
        member.config = dataclasses.replace(member.config, port=port)

    def disk(self, index: int = 0) -> SimDisk:
        """Return a broker's disk."""
        return self._members[index].disk

    def flusher(self, index: int = 0) -> SimFlusher:
        """Return the flusher of a running broker."""
        flusher = self._members[index].flusher
        assert flusher is not None, f"broker-{index} is down"
        return flusher

    async def crash_broker(self, index: int = 0) -> None:
        """Cut a broker's power: it ends at once, and its disk loses unsynced data."""
        await self.kill_broker(index)
        self._members[index].disk.crash()

    async def kill_broker(self, index: int = 0) -> None:
        """End a broker like kill -9: written data stays."""
        self.broker(index).abandon()
        self._members[index].broker = None
        await asyncio.sleep(0)  # its tasks see that they are cancelled

    async def stop_broker(self, index: int = 0) -> None:
        """Stop a broker cleanly."""
        await self.broker(index).stop()
        self._members[index].broker = None

    async def restart_broker(self, index: int = 0) -> None:
        """Start a broker again on its disk, with another seed for the durations of syncs."""
        await self._start(self._members[index])

    def producer(self, group: str = "producers", config: ProducerConfig | None = None) -> Producer:
        """Return a producer, not started."""
        return Producer(group, self.namesrv_addr, config=config, runtime=self.runtime)

    def transaction_producer(
        self,
        check: TransactionCheck,
        group: str = "producers",
        config: ProducerConfig | None = None,
    ) -> TransactionProducer:
        """Return a transaction producer, not started; plain functions run on the loop."""
        return TransactionProducer(
            group,
            self.namesrv_addr,
            check=check,
            config=config,
            runtime=self.runtime,
            run_blocking=self.runtime.offload,
        )

    def push_consumer(
        self,
        group: str = "consumers",
        config: PushConsumerConfig | None = None,
        disk: SimDisk | None = None,
    ) -> PushConsumer:
        """Return a push consumer, not started; listeners run on the loop.

        Args:
            group: the consumer group.
            config: None for the defaults.
            disk: stores the offsets of a broadcasting consumer; None for a new one.
        """
        return PushConsumer(
            group,
            self.namesrv_addr,
            config=config,
            runtime=self.runtime,
            run_blocking=self.runtime.offload,
            disk=SimDisk(self._seed) if disk is None else disk,
        )

    def pull_consumer(
        self, group: str = "readers", config: PullConsumerConfig | None = None
    ) -> PullConsumer:
        """Return a pull consumer, not started."""
        return PullConsumer(group, self.namesrv_addr, config=config, runtime=self.runtime)

    def simple_consumer(
        self, group: str = "poppers", config: SimpleConsumerConfig | None = None
    ) -> SimpleConsumer:
        """Return a simple consumer, not started."""
        return SimpleConsumer(group, self.namesrv_addr, config=config, runtime=self.runtime)

    def admin(self) -> AdminClient:
        """Return an admin client, not started."""
        return AdminClient(self.namesrv_addr, runtime=self.runtime)

    async def __aenter__(self) -> Self:
        for host, port in self._namesrv_addresses:
            config = NamesrvConfig(listen=host, port=port, **self._namesrv_options)
            namesrv = NameServer(config, self.runtime)
            await namesrv.start()
            self._namesrvs.append(namesrv)
        for member in self._members:
            await self._start(member)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for member in self._members:
            broker = member.broker
            if broker is None and error is None:
                broker = await self._start(member)  # recovers the store, for the check below
            if broker is not None:
                await broker.stop()
        for namesrv in self._namesrvs:
            await namesrv.stop()
        if error is None:
            for member in self._members:
                findings = check_store(member.disk).findings
                assert not findings, f"seed {self._seed}, {member.config.broker_name}: {findings}"

    def _config(self, index: int, options: dict[str, Any]) -> BrokerConfig:
        broker_id, number = divmod(index, self._brokers)
        if broker_id:
            role = dataclasses.replace(options["replication"], broker_role=BrokerRole.SLAVE)
            options = options | {"replication": role}
        fixed = {
            "broker_name": f"broker-{number}",
            "broker_id": broker_id,
            "port": _BROKER_PORT + 10 * index,
            "namesrv_addr": tuple(f"{host}:{port}" for host, port in self._namesrv_addresses),
        }
        return BrokerConfig(**(_SMALL | options | fixed))

    async def _start(self, member: _Member) -> Broker:
        """Start a broker on the member's disk."""
        assert member.broker is None, f"{member.config.broker_name} is already running"
        member.starts += 1

        def build_flusher(loop: asyncio.AbstractEventLoop) -> SimFlusher:
            member.flusher = SimFlusher(loop, self._seed + 1000 * member.starts, self._sync_ms)
            return member.flusher

        broker = Broker(member.config, member.disk, self.runtime, build_flusher)
        await broker.start()
        member.broker = broker
        return broker


class _Member:
    """One broker, with the state that outlives its runs."""

    def __init__(self, config: BrokerConfig, disk: SimDisk) -> None:
        self.config = config
        self.disk = disk
        self.broker: Broker | None = None
        self.flusher: SimFlusher | None = None
        self.starts = 0

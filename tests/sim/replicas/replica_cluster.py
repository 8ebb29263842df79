"""Three replicas, three controllers and etcd as processes of a simulation."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from typing import Any, Final

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.controlling.switching_broker import SwitchingBroker
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.timer.timer_config import TimerConfig
from kourou.controller.broker_set import BrokerSet, decode_broker_set
from kourou.controller.config import ControllerConfig
from kourou.controller.etcd_gateway import Json
from kourou.controller.etcd_store import EtcdStore
from kourou.controller.server import Controller, lease_clock_ms
from kourou.errors import EtcdError, KourouError
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.remoting.runtime import Runtime
from kourou.store.config import StoreConfig
from kourou.store.paths import EPOCHS
from kourou.testing.disk import SimDisk
from kourou.testing.etcd import SimulatedEtcd
from kourou.testing.flusher import SimFlusher
from kourou.testing.runtime import sim_runtime
from tests.sim.replicas.host_network import LATENCY_S, HostNetwork, name_of
from tests.sim.replicas.process_loop import SimProcess, current_process, outside

HOST: Final = "127.0.0.1"
NAMESRV: Final = f"{HOST}:9876"
NAME: Final = "broker-a"
REPLICAS: Final = 3
CONTROLLERS: Final = 3
SEGMENT_BYTES: Final = 64 * 1024
_ETCD: Final = "etcd"
_PREFIX: Final = "/sim"
_ETCD_TIMEOUT_S: Final = 1.0
_TTL_S: Final = 2
DRIFT: Final = 0.002
"""Largest difference of a clock's rate from 1."""
EPOCH_FILES: Final = (EPOCHS, f"{EPOCHS}.bak")


class Machine:
    """One process with its disk and clocks, which outlive it.

    Attributes:
        process: the current one.
        runtime: network and clocks.
        disk: of a broker.
    """

    def __init__(self, name: str, seed: int, network: HostNetwork) -> None:
        rng = random.Random(f"{seed}-{name}")
        self.name = name
        self.rate = 1 + rng.uniform(-DRIFT, DRIFT)
        self.disk = SimDisk(rng.randrange(1 << 30))
        self.process = SimProcess(name, self.rate)
        self.process.kill()
        self.boots = 0
        self.runtime: Runtime = dataclasses.replace(
            sim_runtime(rng.randrange(1 << 30), network), boot_id=lambda: f"boot-{self.boots}"
        )

    @property
    def is_up(self) -> bool:
        return not self.process.is_dead


class EtcdLink:
    """The calls of one controller to etcd."""

    def __init__(
        self,
        etcd: SimulatedEtcd,
        network: HostNetwork,
        process: SimProcess,
        on_served: Callable[[], None],
    ) -> None:
        self._etcd = etcd
        self._network = network
        self._process = process
        self._on_served = on_served
        self._rng = random.Random(0)

    async def call(self, method: str, body: Json) -> Json:
        """Call etcd, unless a direction to it is cut: then it may have been served."""
        caller = current_process()
        await asyncio.sleep(self._rng.uniform(*LATENCY_S))
        if not self._network.is_open(caller, self._process):
            await self._time_out()
        answer = await outside(self._etcd.call, method, body)
        outside(self._on_served)
        await asyncio.sleep(self._rng.uniform(*LATENCY_S))
        if not self._network.is_open(self._process, caller):
            await self._time_out()
        return answer

    async def _time_out(self) -> None:
        await asyncio.sleep(_ETCD_TIMEOUT_S)
        raise EtcdError(f"{name_of(self._process)} did not answer")


class ReplicaCluster:
    """All processes. Name server and clients belong to the simulation itself.

    Attributes:
        brokers: the running ones by index.
        machines: of all processes by name.
        flushers: of the running brokers, by name.
        is_async: whether brokers acknowledge before they sync.
        min_in_sync: the least size of the set with which they acknowledge.
        has_failsafe: whether members confirm a master that no controller confirms.
        may_lack: whether a broker may have lost what it had acknowledged, by a power cut or a
            restored store.
        had_older_etcd: whether an older state of etcd was restored at any time.
        on_served: called when etcd has served a call, before its answer leaves.
    """

    def __init__(
        self,
        seed: int,
        *,
        is_async: bool = False,
        min_in_sync: int = 1,
        has_failsafe: bool = False,
    ) -> None:
        self.network = HostNetwork(seed)
        self.client_runtime = sim_runtime(seed, self.network)
        self.is_async = is_async
        self.min_in_sync = min_in_sync
        self.has_failsafe = has_failsafe
        self.on_served: Callable[[], None] = lambda: None
        self._seed = seed
        names = [
            *(f"broker-{index}" for index in range(REPLICAS)),
            *(f"controller-{index}" for index in range(CONTROLLERS)),
            _ETCD,
        ]
        self.machines = {name: Machine(name, seed, self.network) for name in names}
        self.etcd = SimulatedEtcd(asyncio.get_running_loop().time)
        self.brokers: list[SwitchingBroker | None] = [None] * REPLICAS
        self.flushers: dict[str, SimFlusher] = {}
        self.controllers: list[Controller | None] = [None] * CONTROLLERS
        self._namesrv = NameServer(NamesrvConfig(listen=HOST, port=9876), self.client_runtime)
        self._starts = 0
        self.may_lack = False
        self.had_older_etcd = False
        self._newest_etcd: Any = None  # the state before a backup was restored

    async def start(self) -> None:
        """Start all processes."""
        await self._namesrv.start()
        self.start_process(_ETCD)
        for name in self.machines:
            if name != _ETCD:
                self.start_process(name)

    def start_process(self, name: str) -> None:
        """Start a process that is down."""
        machine = self.machines[name]
        assert not machine.is_up, "it is down"
        machine.process = SimProcess(name, machine.rate)
        self._starts += 1
        kind, _, number = name.partition("-")
        if kind == "broker":
            machine.disk.release_locks()
            machine.process.create_task(self._run_broker(int(number), machine))
        elif kind == "controller":
            machine.process.create_task(self._run_controller(int(number), machine))

    async def _run_broker(self, index: int, machine: Machine) -> None:
        seed = self._seed + 1_000 * self._starts

        def build_flusher(loop: asyncio.AbstractEventLoop) -> SimFlusher:
            flusher = self.flushers[machine.name] = SimFlusher(loop, seed, (0.5, 5.0))
            return flusher

        broker = SwitchingBroker(self.config(index), machine.disk, machine.runtime, build_flusher)
        self.brokers[index] = broker
        try:
            await broker.start()
        except (KourouError, OSError):
            # An operator starts it again, as `kourou cluster` does.
            outside(asyncio.get_running_loop().call_later, 1.0, self._start_again, machine)

    def _start_again(self, machine: Machine) -> None:
        if machine.is_up:
            self.kill(machine.name)
            self.start_process(machine.name)

    async def _run_controller(self, index: int, machine: Machine) -> None:
        config = ControllerConfig(listen=HOST, port=19876 + index)
        etcd = self.machines[_ETCD].process
        link = EtcdLink(self.etcd, self.network, etcd, self._on_served)
        store = EtcdStore(
            link, _PREFIX, ttl_s=_TTL_S, lease_ms=config.lease_ms_max, now_ms=lease_clock_ms
        )
        controller = Controller(config, machine.runtime, store)
        self.controllers[index] = controller
        await controller.start()

    def _on_served(self) -> None:
        self.on_served()

    def config(self, index: int) -> BrokerConfig:
        """Return the options of one replica."""
        return BrokerConfig(
            broker_name=NAME,
            port=self.port(index),
            namesrv_addr=(NAMESRV,),
            flush_disk_type=FlushDiskType.ASYNC_FLUSH
            if self.is_async
            else FlushDiskType.SYNC_FLUSH,
            controller=ControllerModeConfig(
                enable_controller_mode=True,
                controller_addr=tuple(f"{HOST}:{19876 + one}" for one in range(CONTROLLERS)),
                controller_failsafe=self.has_failsafe,
            ),
            replication=ReplicationConfig(
                slave_read_enable=True, min_in_sync_replicas=self.min_in_sync
            ),
            timer=TimerConfig(timer_roll_window_slot=4),
            max_message_size_bytes=16 * 1024,
            pending_connection_bytes_max=1024 * 1024,
            pending_bytes_max=4096 * 1024,
            store=StoreConfig(
                commitlog_segment_bytes=SEGMENT_BYTES,
                consumequeue_file_bytes=20 * 100,
                batch_queue_file_bytes=46 * 100,
            ),
        )

    @staticmethod
    def port(index: int) -> int:
        return 10911 + 10 * index

    def kill(self, name: str) -> None:
        """End a process like kill -9."""
        machine = self.machines[name]
        machine.process.kill()
        self.network.end(machine.process)
        kind, _, number = name.partition("-")
        if kind == "broker":
            self.brokers[int(number)] = None
        elif kind == "controller":
            self.controllers[int(number)] = None

    def cut_power(self, name: str) -> None:
        """End a process, and lose a part of what its disk has not synced."""
        self.kill(name)
        self.may_lack |= self.is_async
        self.machines[name].disk.crash()
        self.machines[name].boots += 1

    def resume(self, name: str, *, timers_first: bool) -> None:
        """Let a stopped process continue."""
        process = self.machines[name].process
        if timers_first:
            process.resume()
            self.network.deliver()
        else:
            process.is_stopped = False
            self.network.deliver()
            process.resume()

    def master(self) -> int | None:
        """Return the index of the replica that is master of the newest epoch."""
        found: dict[int, int] = {}
        for index, broker in enumerate(self.brokers):
            role = None if broker is None else broker.role
            if role is not None and role.is_master:
                found[index] = role.master_epoch
        return max(found, key=found.__getitem__, default=None)

    def waiting_timers(self, index: int) -> int:
        """Return the number of scheduled messages that wait at a replica."""
        broker = self.brokers[index]
        return 0 if broker is None else broker.components.timers.waiting

    def stored_set(self) -> BrokerSet:
        """Return the broker set as etcd has it."""
        found = self.etcd.stored(f"{_PREFIX}/sets/{NAME}")
        assert found is not None, "the brokers are registered"
        return decode_broker_set(found)

    def stall(self, name: str) -> None:
        """Let syncs of a broker's log not end."""
        self.flushers[name].stall()

    def leading(self, besides: int | None = None) -> int | None:
        """Return the index of the controller that leads, which is not `besides`."""
        for index, controller in enumerate(self.controllers):
            if index == besides:
                continue
            if controller is not None and self.machines[f"controller-{index}"].is_up:
                process = self.machines[f"controller-{index}"].process
                if not process.is_stopped and process.call(lambda c=controller: c._elections.leads):  # type: ignore[misc]
                    return index
        return None

    def restore_etcd(self, backup: Any) -> None:
        """Restore an older state of etcd."""
        self.had_older_etcd = True
        if self._newest_etcd is None:
            self._newest_etcd = self.etcd.backup()
        self.etcd.restore(backup)

    @property
    def has_older_etcd(self) -> bool:
        """Whether an older state of etcd was restored, and not repaired."""
        return self._newest_etcd is not None

    def repair_etcd(self) -> bool:
        """Restore the newest state of etcd, and restart the controllers; no effect if it is."""
        if self._newest_etcd is None:
            return False
        self.etcd.restore(self._newest_etcd)
        self._newest_etcd = None
        for name in [one for one in self.machines if one.startswith("controller")]:
            if self.machines[name].is_up:
                self.kill(name)
            self.start_process(name)
        return True

    def serves(self, name: str) -> bool:
        """Return whether a broker is a master that accepts sends."""
        broker = self.brokers[int(name.partition("-")[2])]
        if broker is None or broker._broker is None or broker.role is None:
            return False
        keeper = broker._broker._keeper
        return keeper is not None and not keeper.fence_reason

    def serving(self) -> list[str]:
        """Return the masters that accept sends now, with their epochs; not stopped processes."""
        found = []
        for index, broker in enumerate(self.brokers):
            name = f"broker-{index}"
            process = self.machines[name].process
            if broker is None or process.is_stopped or not self.serves(name):
                continue
            if process.call(lambda one=broker: one._confirmation._lease.is_held):  # type: ignore[misc]
                assert broker.role is not None, "it serves"
                found.append(f"{name} in epoch {broker.role.master_epoch}")
        return found

    def in_failsafe(self, name: str) -> bool:
        """Return whether members confirm a master."""
        broker = self.brokers[int(name.partition("-")[2])]
        return broker is not None and broker._confirmation._is_failsafe

    def refusals(self) -> list[str]:
        """Return why controllers refuse the stored state."""
        stored = self.stored_set().refusal
        running = [one for one in self.controllers if one is not None]
        found = [text for one in running for text in one._elections.refusals]
        return found if stored is None else [stored.reason, *found]

    def waits_for_operator(self) -> bool:
        """Return whether only replicas that a power cut has shortened have all messages."""
        index = self.leading()
        controller = None if index is None else self.controllers[index]
        if controller is None:
            return False
        members = controller._elections._sets[NAME].broker_set.sync_state_set
        shortened = {
            broker._me.broker_id
            for broker in self.brokers
            if broker is not None
            and broker._broker is not None
            and broker._replica.acknowledged.loss
        }
        return set(members) <= shortened

    def in_sync(self) -> frozenset[int]:
        """Return the in-sync set, as the master has it."""
        index = self.master()
        broker = None if index is None else self.brokers[index]
        if broker is None or broker.role is None:
            return frozenset()
        try:
            return broker.in_sync().members
        except KourouError:
            return frozenset()

    async def until(self, is_reached: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a state is reached.

        Raises:
            TimeoutError: it is not.
        """
        async with asyncio.timeout(timeout_s):
            while not is_reached():  # noqa: ASYNC110 - many things may bring it about
                await asyncio.sleep(0.05)

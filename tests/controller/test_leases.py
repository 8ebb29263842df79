"""Leases of masters under faults: three controllers, a simulated etcd, three replicas.

Messages are delayed and lost, controllers are cut off from etcd and from replicas, and etcd is down
for a time. Whenever a replica is confirmed as master, no replica still holds the lease of an older
epoch. Each rule that ensures this is also switched off, and the faults then find two masters.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from kourou.controller.broker_set import BrokerSet
from kourou.controller.config import ControllerConfig, LiveConfig
from kourou.controller.elections import Elections
from kourou.controller.etcd_gateway import Json
from kourou.controller.etcd_store import EtcdStore
from kourou.controller.replica_sets import Decision, Write
from kourou.controller.state_store import Member
from kourou.errors import EtcdError, NotLeadingError, WriteInDoubtError
from kourou.protocol.controller.headers import ElectMasterRequestHeader
from kourou.protocol.topic_table import BrokerHeartbeatResponseHeader
from kourou.remoting.steady_time import steady_ms
from kourou.testing.etcd import SimulatedEtcd
from kourou.testing.loop import run_virtual
from tests.controller_sets import CLUSTER, NAME, broker_set, heartbeat_header

LEASE_MS: Final = 2_000
TIMEOUT_MS: Final = 3_000
BEAT_S: Final = 0.5
SCAN_S: Final = 0.5
REPLICAS: Final = (1, 2, 3)
DURATION_S: Final = 60.0


class TwoMastersError(AssertionError):
    """A replica was confirmed as master while another one held an older lease."""


class Faults:
    """Faults drawn from a seed, in phases of some seconds."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cut: set[object] = set()  # controllers without etcd, (replica, controller) pairs
        self.is_etcd_slow = False

    async def change(self, etcd: SimulatedEtcd, current: Callable[[], tuple[int, int]]) -> None:
        """Begin another phase every few seconds; `current` are the master and its controller."""
        links: list[object] = [0, 1, 2, *((r, c) for r in REPLICAS for c in range(3))]
        while True:
            await asyncio.sleep(self.rng.uniform(0.5, 9))
            etcd.is_down = self.rng.random() < 0.05
            self.is_etcd_slow = self.rng.random() < 0.2
            share = self.rng.choice((0.0, 0.0, 0.0, 0.1, 0.4))
            self.cut = {link for link in links if self.rng.random() < share}
            master, leading = current()
            if self.rng.random() < 0.7:  # one replica is alone, mostly the master
                lonely = self.rng.choice((master, master, *REPLICAS))
                self.cut |= {(lonely, number) for number in range(3)}
            elif self.rng.random() < 0.7:  # the master is left with a controller without etcd
                self.cut = {leading, *((master, number) for number in range(3))}
                self.cut.discard((master, leading))

    async def delay(self) -> None:
        await asyncio.sleep(self.rng.choice((0.001, 0.01, 0.2)))


class CutEtcd:
    """The simulated etcd behind the link of one controller."""

    def __init__(self, etcd: SimulatedEtcd, faults: Faults, number: int) -> None:
        self._etcd = etcd
        self._faults = faults
        self._number = number

    async def call(self, method: str, body: Json) -> Json:
        faults = self._faults
        await faults.delay()
        if self._number in faults.cut and faults.rng.random() < 0.7:
            raise EtcdError("cut off before the request")
        answer = await self._etcd.call(method, body)
        await asyncio.sleep(faults.rng.uniform(0, 1.5) if faults.is_etcd_slow else 0)
        if self._number in faults.cut:
            raise EtcdError("cut off before the answer")
        return answer


class Replica:
    """A replica with a lease: it sends heartbeats and asks for elections."""

    def __init__(self, broker_id: int, cluster: Cluster) -> None:
        self.broker_id = broker_id
        self._cluster = cluster
        self.epoch = 0
        self.ends_ms = 0
        self._seen_epoch = 1

    async def run(self) -> None:
        while True:
            for number in range(3):
                self._cluster.start(self._beat(number))
            await asyncio.sleep(BEAT_S)

    async def _beat(self, number: int) -> None:
        faults, link = self._cluster.faults, (self.broker_id, number)
        sent_at_ms = steady_ms()
        await faults.delay()
        if link in faults.cut and faults.rng.random() < 0.7:
            return
        elections = self._cluster.controllers[number]
        header = heartbeat_header(self.broker_id, epoch=self._seen_epoch, timeout_ms=TIMEOUT_MS)
        try:
            answer = elections.heartbeat(header, is_oneway=False)
        except NotLeadingError:
            return
        await faults.delay()
        if link in faults.cut:
            return
        if isinstance(answer.header, BrokerHeartbeatResponseHeader):
            self._learn(answer.header, sent_at_ms)
        elif answer.code == 2004 and faults.rng.random() < 0.2:
            await self._ask(elections)

    def _learn(self, answer: BrokerHeartbeatResponseHeader, sent_at_ms: int) -> None:
        epoch = answer.master_epoch or 0
        self._seen_epoch = max(self._seen_epoch, epoch)
        if answer.master_broker_id != self.broker_id or epoch < self._seen_epoch:
            return
        self.epoch, self.ends_ms = epoch, max(self.ends_ms, sent_at_ms + LEASE_MS)
        self._cluster.check(self)

    async def _ask(self, elections: Elections) -> None:
        try:
            await elections.elect(ElectMasterRequestHeader(CLUSTER, NAME, self.broker_id))
        except (NotLeadingError, WriteInDoubtError):
            return


class Cluster:
    """Controllers and replicas in one virtual-time loop."""

    def __init__(self, seed: int, elections: type[Elections], store: type[EtcdStore]) -> None:
        self.faults = Faults(seed)
        self.etcd = SimulatedEtcd(asyncio.get_running_loop().time)
        self._stores = [
            store(
                CutEtcd(self.etcd, self.faults, number),
                "/k", ttl_s=2, lease_ms=TIMEOUT_MS, now_ms=steady_ms,
            )
            for number in range(3)
        ]  # fmt: skip
        config = LiveConfig(ControllerConfig())
        self.controllers = [
            elections(one, config, steady_ms, lambda *_: None) for one in self._stores
        ]
        self._replicas = [Replica(broker_id, self) for broker_id in REPLICAS]
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: TwoMastersError | None = None
        self.confirmed: set[int] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _current(self) -> tuple[int, int]:
        """Return the replica that was confirmed last, and the leading controller."""
        master = max(self._replicas, key=lambda one: (one.epoch, one.ends_ms)).broker_id
        leading = [number for number, one in enumerate(self.controllers) if one.leads]
        return master, (leading or [0])[0]

    def check(self, confirmed: Replica) -> None:
        """Verify that no other replica holds an older lease."""
        self.confirmed.add(confirmed.epoch)
        for other in self._replicas:
            if other.epoch < confirmed.epoch and other.ends_ms > steady_ms():
                text = f"epochs {other.epoch} and {confirmed.epoch} at {steady_ms()} ms"
                self._failure = TwoMastersError(text)

    async def run(self) -> None:
        await self._create()
        self.start(self.faults.change(self.etcd, self._current))
        for number, controller in enumerate(self.controllers):
            self.start(controller.run(Member(f"n{number}", f"h:{number}")))
            self.start(self._scan(controller))
        for replica in self._replicas:
            self.start(replica.run())
        ends_s = asyncio.get_running_loop().time() + DURATION_S
        loop = asyncio.get_running_loop()
        while loop.time() < ends_s and self._failure is None:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.faults.cut, self.etcd.is_down = set(), False
        for store in self._stores:
            await store.close()
        if self._failure is not None:
            raise self._failure

    async def _create(self) -> None:
        """Store a set in which all replicas are in sync, and stay so."""
        store = EtcdStore(self.etcd, "/k", ttl_s=2, lease_ms=TIMEOUT_MS, now_ms=steady_ms)
        await store.campaign(Member("first", "h:9"))
        await store.write(NAME, broker_set(*REPLICAS, in_sync=REPLICAS), 0)
        await store.close()

    async def _scan(self, controller: Elections) -> None:
        while True:
            await asyncio.sleep(SCAN_S)
            await controller.scan()
            await self._rejoin(controller)

    async def _rejoin(self, controller: Elections) -> None:
        """Return all replicas to the set in sync, so that elections go on."""

        def decide(current: BrokerSet | None, *_: object) -> Decision:
            assert current is not None
            if current.sync_state_set == REPLICAS:
                return Decision()
            return Decision(write=Write(_with_all_in_sync(current)))

        try:
            await controller.decide(NAME, None, decide)
        except (NotLeadingError, WriteInDoubtError):
            return


def _with_all_in_sync(current: BrokerSet) -> BrokerSet:
    return BrokerSet(
        current.cluster_name,
        current.broker_name,
        current.replicas,
        current.next_broker_id,
        current.master_broker_id,
        current.master_epoch,
        REPLICAS,
        current.sync_state_set_epoch + 1,
    )


def simulate(
    seed: int, elections: type[Elections] = Elections, store: type[EtcdStore] = EtcdStore
) -> set[int]:
    """Run a cluster; return the epochs of which a master was confirmed."""
    confirmed: set[int] = set()

    async def run() -> None:
        cluster = Cluster(seed, elections, store)
        try:
            await cluster.run()
        finally:
            confirmed.update(cluster.confirmed)

    run_virtual(run())
    return confirmed


def test_no_master_is_confirmed_while_an_older_lease_lasts() -> None:
    confirmed = [len(simulate(seed)) for seed in range(25)]

    assert sum(confirmed) > 50, "masters are elected, besides the first of each cluster"


class Impatient(Elections):
    """Elects as soon as a master is silent, also in a new term."""

    def _is_lease_over(self, broker_set: BrokerSet) -> bool:
        return True


class Confirming(Elections):
    """Confirms masters while an election is being stored."""

    @property
    def _electing(self) -> set[str]:
        return set()

    @_electing.setter
    def _electing(self, names: set[str]) -> None:
        pass


class Overstaying(EtcdStore):
    """Leads until it hears that its etcd lease has ended."""

    def leads(self) -> bool:
        return bool(self._leader_revision)


@pytest.mark.parametrize(
    ("elections", "store"),
    [(Impatient, EtcdStore), (Confirming, EtcdStore), (Elections, Overstaying)],
    ids=["impatient", "confirming", "overstaying"],
)
def test_each_rule_is_needed(elections: type[Elections], store: type[EtcdStore]) -> None:
    def run_seeds() -> None:
        for seed in range(1000):
            simulate(seed, elections, store)

    with pytest.raises(TwoMastersError):
        run_seeds()

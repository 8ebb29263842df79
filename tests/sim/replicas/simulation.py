"""One simulation of replicas under faults from a seed."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, NamedTuple

from kourou.client.administration.admin import AdminClient
from kourou.testing.clock import LoopClock
from tests.sim.replicas.drills import CONTROLLER_NAMES, DRILLS, Stage, both_ways
from tests.sim.replicas.histories import QUEUES, TOPIC, History
from tests.sim.replicas.host_network import CLIENT, Direction
from tests.sim.replicas.process_loop import run_processes
from tests.sim.replicas.replica_cluster import (
    EPOCH_FILES,
    NAMESRV,
    REPLICAS,
    ReplicaCluster,
)
from tests.sim.replicas.rules import Rule
from tests.sim.replicas.timed_sends import DELAYS_MS, TIMED_TOPIC, TimedSends

log = logging.getLogger("kourou.simulation")

FAULTS: Final = (4, 14)
_FIRST_SENDS: Final = 10
_SEEDS_MAX: Final = 60
"""More than draw the same drill among 1,000 seeds."""
_REFUSED_S: Final = 8.0
"""Time in which controllers notice that a backup of their state was restored."""
_FAILSAFE_SHARE: Final = 0.4
"""Share of the seeds with failsafe."""
_LOOK_S: Final = 0.02
_HEAL_S: Final = 120.0
"""Limit of the wait until all replicas are in sync again."""


class Result(NamedTuple):
    """The end of a simulation.

    Attributes:
        failures: contradictions between the history and the logs.
        acknowledged: number of acknowledged messages.
        faults: what was done, for people.
        is_stuck: the replicas did not come in sync again.
        overlaps: masters that have accepted sends at once. No acknowledged send depends on that;
            what else they do, such as deliveries, would be done twice.
    """

    failures: list[str]
    acknowledged: int
    faults: list[str]
    is_stuck: bool
    overlaps: list[str]


class Faults:
    """Makes faults, which may overlap, until `undo`."""

    def __init__(self, cluster: ReplicaCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._began_s = asyncio.get_running_loop().time()
        self._epochs: dict[str, dict[str, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_disks: set[str] = set()
        self._has_restored_etcd = False
        self.done: list[str] = []

    async def run(self) -> None:
        """Make random faults."""
        rng = self._rng
        kinds: list[Callable[[], None]] = [
            self._kill, self._kill, self._kill, self._cut_power, self._stop, self._stop,
            self._partition, self._partition, self._partition, self._slow_links, self._jump,
            self._fail_disk, self._old_epochs, self._restore_etcd,
        ]  # fmt: skip
        if self._cluster.has_failsafe:
            kinds += [self._lose_controllers] * 3
        for _ in range(rng.randint(*FAULTS)):
            await asyncio.sleep(rng.choice((0.05, 0.5, 3, 6)) * rng.random())
            rng.choice(kinds)()
        await asyncio.sleep(rng.random() * 4)

    async def undo(self) -> None:
        """Undo all faults."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._cluster.network.heal()
        for name, machine in self._cluster.machines.items():
            machine.disk.clear_faults()
            machine.disk.on_operation = None
            if name in self._failed_disks and machine.is_up:
                self._cluster.kill(name)  # its store is read-only until it starts again
            if machine.process.is_stopped:
                self._cluster.resume(name, timers_first=True)
            if not machine.is_up:
                self._cluster.start_process(name)
        for flusher in self._cluster.flushers.values():
            flusher.release()

    @property
    def failed_disks(self) -> set[int]:
        """The indexes of brokers whose disks were made to fail."""
        return {int(name[-1]) for name in self._failed_disks}

    def note(self, text: str) -> None:
        """Note what is done, for people."""
        time_s = asyncio.get_running_loop().time() - self._began_s
        self.done.append(f"{time_s:.2f} {text}")
        log.info("FAULT %s", text)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        async def act() -> None:
            await asyncio.sleep(delay_s)
            action()

        task = asyncio.create_task(act())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _length_s(self) -> float:
        return self._rng.choice((0.3, 3, 8, 12)) * self._rng.random()

    def _victim(self) -> str:
        """Return a process, more often a broker, and of these the master."""
        rng, cluster = self._rng, self._cluster
        master, leading = cluster.master(), cluster.leading()
        choices = [f"broker-{index}" for index in range(REPLICAS)]
        choices += [] if master is None else [f"broker-{master}"] * 3
        choices += [] if leading is None else [f"controller-{leading}"]
        return rng.choice([*choices, "controller-0", "etcd"])

    def _broker(self) -> str:
        while not (name := self._victim()).startswith("broker"):
            pass
        return name

    # Kinds

    def _kill(self) -> None:
        name = self._victim()
        if name != "etcd" and self._cluster.machines[name].is_up:
            self._end(name, self._cluster.kill, "kill")

    def _cut_power(self) -> None:
        name = self._broker()
        if self._cluster.machines[name].is_up:
            self._end(name, self._cluster.cut_power, "cut power")

    def _end(self, name: str, end: Callable[[str], None], kind: str) -> None:
        length_s = self._length_s()
        self.note(f"{kind} {name} for {length_s:.2f}")
        end(name)
        self._later(length_s, lambda: self._start(name))

    def _start(self, name: str) -> None:
        if not self._cluster.machines[name].is_up:
            self.note(f"start {name}")
            self._cluster.start_process(name)

    def _stop(self) -> None:
        name, length_s = self._victim(), self._length_s()
        process, timers_first = self._cluster.machines[name].process, self._rng.random() < 0.5
        if process.is_dead or process.is_stopped:
            return
        self.note(f"stop {name} for {length_s:.2f}, timers first {timers_first}")
        process.stop()

        def resume() -> None:
            if self._cluster.machines[name].process is process and process.is_stopped:
                self.note(f"resume {name}")
                self._cluster.resume(name, timers_first=timers_first)

        self._later(length_s, resume)

    def _directions(self) -> list[Direction]:
        rng = self._rng
        names = [*self._cluster.machines, *([CLIENT] if rng.random() < 0.3 else [])]
        kind = rng.random()
        if kind < 0.1:  # of the replicas only: controllers and clients hear the master
            side = {self._broker()}
            names = [name for name in self._cluster.machines if name.startswith("broker")]
        elif kind < 0.5:
            side = {self._victim()}
        else:
            side = set(rng.sample(names, rng.randrange(1, len(names))))
        pairs = [(here, there) for here in side for there in names if there not in side]
        pairs.sort()
        if rng.random() < 0.3:
            pairs = rng.sample(pairs, rng.randint(1, len(pairs)))
        ways = rng.randrange(3)
        back = [(there, here) for here, there in pairs]
        return pairs + back if ways == 0 else pairs if ways == 1 else back

    def _partition(self) -> None:
        directions, length_s = self._directions(), self._length_s()
        resets = self._rng.random() < 0.5
        self.note(f"cut {directions} for {length_s:.2f}, resets {resets}")
        self._cluster.network.cut(directions)
        self._later(length_s, lambda: self._cluster.network.heal(resets=resets))

    def _lose_controllers(self) -> None:
        """Cut the controllers off from etcd, or from some or all brokers."""
        brokers = [f"broker-{index}" for index in range(REPLICAS)]
        if self._rng.random() < 0.5:
            some = self._rng.sample(brokers, self._rng.choice((1, 2, 3, 3, 3)))
        else:
            some = ["etcd"]
        directions = both_ways(some, CONTROLLER_NAMES)
        length_s, resets = self._rng.uniform(1, 12), self._rng.random() < 0.5
        self.note(f"cut {some} from controllers for {length_s:.2f}, resets {resets}")
        self._cluster.network.cut(directions)
        self._later(length_s, lambda: self._cluster.network.heal(resets=resets))

    def _slow_links(self) -> None:
        directions = self._directions()
        self.note(f"slow {directions}")
        self._cluster.network.slow(directions, (0.05, 0.4))

    def _jump(self) -> None:
        name, by_ms = self._victim(), self._rng.randint(-60_000, 60_000)
        self.note(f"clock of {name} by {by_ms} ms")
        clock = self._cluster.machines[name].runtime.clock
        assert isinstance(clock, LoopClock)
        clock.step(by_ms)

    def _fail_disk(self) -> None:
        name = self._broker()
        count = self._rng.randrange(1, 60)
        self.note(f"disk of {name} fails after {count}")
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        self._cluster.machines[name].disk.fail_after(count, error)
        self._failed_disks.add(name)

    def _old_epochs(self) -> None:
        """Remember the epoch file of a broker, or kill it and restore the remembered one."""
        name = self._broker()
        disk = self._cluster.machines[name].disk
        if name not in self._epochs:
            self._epochs[name] = {
                file: disk.read(file, 0, disk.size(file))
                for file in EPOCH_FILES
                if disk.exists(file)
            }
            return
        if not self._cluster.machines[name].is_up:
            return
        old = self._epochs.pop(name)

        def end(_: str) -> None:
            self._cluster.kill(name)
            disk.clear_faults()  # they are the broker's
            for file, data in old.items():
                disk.truncate(file, 0)
                disk.write(file, 0, [data])
                disk.sync(file)  # a power cut that loses it is that of another file

        self._end(name, end, "restore epochs of")

    def _restore_etcd(self) -> None:
        """Restore etcd from a backup for a while; once in a simulation."""
        if self._has_restored_etcd:
            return
        self._has_restored_etcd = True
        backup, before = self._cluster.etcd.backup(), self._cluster.stored_set()
        age_s, length_s = self._rng.random() * 5, self._rng.random() * 4
        self.note(f"back up etcd, restore in {age_s:.2f} for {length_s:.2f}")

        def restore() -> None:
            now = self._cluster.stored_set()
            # Only the master, which may be down, knows that a member has left.
            has_left = not set(before.sync_state_set) <= set(now.sync_state_set)
            if has_left and before.master_epoch == now.master_epoch:
                return
            self._cluster.restore_etcd(backup)
            self.note("etcd restored")
            self._later(length_s, self.repair_etcd)

        self._later(age_s, restore)

    def repair_etcd(self) -> None:
        """Repair etcd if the controllers refuse its state.

        Otherwise nothing was decided since the backup, and it is the newest state.
        """
        if self._cluster.refusals() and self._cluster.repair_etcd():
            self.note("newest etcd restored, controllers restarted")


async def create_topic(cluster: ReplicaCluster, name: str = TOPIC) -> None:
    """Create a topic, and wait until all replicas have it."""
    async with AdminClient(NAMESRV, runtime=cluster.client_runtime) as admin:
        await admin.create_topic(name, queues=QUEUES)
    await asyncio.sleep(2.5)  # the slaves copy it each second


def drawn_drill(seed: int) -> str:
    """Return the drill that a seed draws; empty if it draws none."""
    return _draw(random.Random(seed))[0]


def _draw(rng: random.Random) -> tuple[str, bool]:
    """Draw a drill, or none, and whether random faults follow."""
    has_drill, has_faults = rng.choice(((True, False), (True, False), (True, True), (False, True)))
    name = rng.choice(list(DRILLS))
    return (name if has_drill else ""), has_faults


def simulate(seed: int, *rules: Rule, drill: str = "") -> Result:
    """Run one simulation.

    Args:
        seed: of everything.
        rules: are switched off.
        drill: the sequence of faults; empty: drawn from the seed, as random ones are.
    """
    rng = random.Random(seed)
    name, has_faults = _draw(rng)
    if drill:
        name, has_faults = drill, False

    async def main() -> Result:
        is_async, min_in_sync = rng.random() < 0.4, rng.choice((1, 1, 2))
        if name:
            needed = DRILLS[name]
            is_async = is_async if needed.is_async is None else needed.is_async
            min_in_sync = needed.min_in_sync or min_in_sync
        has_failsafe = random.Random(f"failsafe-{seed}").random() < _FAILSAFE_SHARE
        cluster = ReplicaCluster(
            seed,
            is_async=is_async,
            min_in_sync=min_in_sync,
            has_failsafe=has_failsafe or (bool(name) and DRILLS[name].has_failsafe),
        )
        # Records of one size let logs of different masters look alike.
        history = History(body_bytes=rng.choice(((1, 1_500), (400, 400))))
        await cluster.start()
        await cluster.until(lambda: len(cluster.in_sync()) == REPLICAS, 60)
        await create_topic(cluster)
        timed = TimedSends()
        clients = [
            *(history.send(cluster, queue, seed + queue) for queue in range(QUEUES)),
            *(history.read_all(cluster, index) for index in range(REPLICAS)),
            _watch_masters(cluster, history),
        ]
        if has_faults and not rules:
            await create_topic(cluster, TIMED_TOPIC)
            clients.append(timed.send(cluster, seed))
        running = [asyncio.create_task(one) for one in clients]
        faults = Faults(cluster, rng)
        if name:
            faults.note(f"drill {name!r}, async {is_async}, min in sync {min_in_sync}")
            await cluster.until(lambda: len(history.acknowledged) > _FIRST_SENDS, 60)
            await DRILLS[name].run(Stage(cluster, rng, faults.note))
        if has_faults:
            await faults.run()
        await faults.undo()
        return await _end(cluster, (history, timed), faults, running)

    with ExitStack() as stack:
        for rule in rules:
            stack.enter_context(rule.off())
        return run_processes(main())


def is_lack_found(drill: str, *rules: Rule) -> bool:
    """Return whether a simulation of a drill fails while the rules are off."""
    may_stick = any(rule.is_stuck for rule in rules)
    seeds = range(max(rule.first_seed for rule in rules), _SEEDS_MAX)
    results = (simulate(seed, *rules, drill=drill) for seed in seeds)
    return any(one.failures or one.overlaps or (may_stick and one.is_stuck) for one in results)


async def _watch_masters(cluster: ReplicaCluster, history: History) -> None:
    """Check that one master serves at a time."""
    while not history.is_over:
        serving = cluster.serving()
        if len(serving) > 1 and not cluster.had_older_etcd:
            history.overlaps.append(f"masters serve at once: {serving}")
        await asyncio.sleep(_LOOK_S)


async def _end(
    cluster: ReplicaCluster,
    clients: tuple[History, TimedSends],
    faults: Faults,
    running: list[asyncio.Task[None]],
) -> Result:
    """Wait until all replicas are in sync again, end, and check the history."""
    history, timed = clients
    if cluster.has_older_etcd:
        await asyncio.sleep(_REFUSED_S)
        faults.repair_etcd()
    is_stuck = False
    try:
        # One that was replaced may still have its last set in mind.
        await cluster.until(
            lambda: len(cluster.in_sync()) == REPLICAS and bool(cluster.serving()), _HEAL_S
        )
    except TimeoutError:
        # After an older state of etcd was used, none may have all epochs that brokers know.
        is_refused = cluster.had_older_etcd and bool(cluster.refusals())
        is_stuck = not (cluster.waits_for_operator() or is_refused)
        history.is_over = timed.is_over = True
        await asyncio.gather(*running)
        return _result(history, faults, is_stuck=is_stuck)
    await asyncio.sleep(3)
    history.is_over = timed.is_over = True
    await asyncio.gather(*running)
    await asyncio.sleep(4 + max(DELAYS_MS) / 1000 if timed.acknowledged else 4)
    master = cluster.master()
    waiting = 0 if master is None else cluster.waiting_timers(master)
    # The master first: it sends what its timers append until then.
    for index in sorted(range(REPLICAS), key=lambda index: index != master):
        broker = cluster.brokers[index]
        assert broker is not None, "all are up"
        await cluster.machines[f"broker-{index}"].process.create_task(broker.stop())
    history.check(cluster, faults.failed_disks)
    if master is not None and timed.acknowledged:
        history.failures += timed.failures(cluster.machines[f"broker-{master}"].disk, waiting)
    return _result(history, faults, is_stuck=is_stuck)


def _result(history: History, faults: Faults, *, is_stuck: bool) -> Result:
    count = len(history.acknowledged)
    return Result(history.failures, count, faults.done, is_stuck, history.overlaps)

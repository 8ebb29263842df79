"""Drills: sequences of faults that lose messages as soon as one rule of replication is missing.

Random faults reach such sequences rarely. A seed that draws a drill varies its times and victims.
All but the named processes and directions work meanwhile; the simulation then undoes everything.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from kourou.store.paths import ACK_MARK, EPOCHS
from kourou.store.recovery.cut import CUT_MARK
from kourou.testing.disk import SimDisk
from tests.sim.replicas.host_network import Direction
from tests.sim.replicas.replica_cluster import (
    CONTROLLERS,
    EPOCH_FILES,
    REPLICAS,
    ReplicaCluster,
)

CONTROLLER_NAMES: Final = tuple(f"controller-{index}" for index in range(CONTROLLERS))
_ELECTION_S: Final = 9.0
"""Longer than any election takes whose candidates are alive."""


def both_ways(here: Iterable[str], there: Iterable[str]) -> list[Direction]:
    """Return both directions between all of one side and all of the other."""
    ways = [(one, other) for one in here for other in there]
    return ways + [(other, one) for one, other in ways]


def one_way(here: Iterable[str], there: Iterable[str]) -> list[Direction]:
    """Return the directions from all of one side to all of the other."""
    return [(one, other) for one in here for other in there]


class Stage:
    """The cluster of one drill; its master and two slaves when the drill began, by name."""

    def __init__(
        self, cluster: ReplicaCluster, rng: random.Random, note: Callable[[str], None]
    ) -> None:
        """Begin; `note`: is called with what is done."""
        self.cluster = cluster
        self.rng = rng
        self._note = note
        master = cluster.master()
        assert master is not None, "the cluster is in sync"
        self.master = f"broker-{master}"
        slaves = [f"broker-{index}" for index in range(REPLICAS) if index != master]
        rng.shuffle(slaves)
        self.one, self.other = slaves

    def note(self, text: str) -> None:
        """Note what is done."""
        self._note(text)

    async def pause(self, least_s: float, most_s: float) -> None:
        """Wait for a random time."""
        await asyncio.sleep(self.rng.uniform(least_s, most_s))

    async def until(self, is_reached: Callable[[], bool], limit_s: float = _ELECTION_S) -> bool:
        """Wait until something is reached, at most for a time; return whether it is."""
        ends_at_s = asyncio.get_running_loop().time() + limit_s
        while not is_reached():
            if asyncio.get_running_loop().time() > ends_at_s:
                return False
            await asyncio.sleep(0.002)
        return True

    async def until_master(self, *names: str) -> str:
        """Wait until one of these is the master of the newest epoch; return it, or nothing."""

        def found() -> str:
            master = self.cluster.master()
            name = "" if master is None else f"broker-{master}"
            return name if name in names else ""

        await self.until(lambda: bool(found()))
        return found()

    async def until_alone(self) -> None:
        """Kill the slaves, and wait until the master is alone in its set."""
        self.kill(self.one, self.other)
        await self.until_set(self.master)

    async def until_set(self, *names: str) -> None:
        """Wait until the set that etcd has is this one."""
        await self.until(lambda: self.stored_set() == set(names))

    async def when_stored(self, name: str, act: Callable[[], object]) -> None:
        """Act when etcd has stored a set with a broker, before its answer leaves."""
        done = asyncio.Event()

        def look() -> None:
            if not done.is_set() and name in self.stored_set():
                done.set()
                act()

        self.cluster.on_served = look
        await self.until(done.is_set)
        self.cluster.on_served = lambda: None

    def stored_set(self) -> set[str]:
        """Return the names of the members of the set that etcd has."""
        found = self.cluster.stored_set()
        ports = {f":{self.cluster.port(index)}": f"broker-{index}" for index in range(REPLICAS)}
        by_id = {
            one.broker_id: name
            for one in found.replicas
            for port, name in ports.items()
            if one.address.endswith(port)
        }
        return {by_id[broker_id] for broker_id in found.sync_state_set}

    def leading(self, besides: str = "") -> str:
        """Return the name of the controller that leads; empty if there is none."""
        index = self.cluster.leading(int(besides[-1]) if besides else None)
        return "" if index is None else f"controller-{index}"

    # Faults

    def cut(self, directions: Iterable[Direction]) -> None:
        """Hold all bytes in these directions."""
        ways = list(directions)
        self.note(f"cut {ways}")
        self.cluster.network.cut(ways)

    def restore(self, directions: Iterable[Direction]) -> None:
        """Deliver in these directions again."""
        ways = list(directions)
        self.note(f"restore {ways}")
        self.cluster.network.restore(ways)

    def kill(self, *names: str) -> None:
        """Kill processes that run."""
        for name in names:
            if self.cluster.machines[name].is_up:
                self.note(f"kill {name}")
                self.cluster.kill(name)

    def cut_power(self, name: str) -> None:
        """Cut the power of a running process."""
        if self.cluster.machines[name].is_up:
            self.note(f"cut power of {name}")
            self.cluster.cut_power(name)

    def start(self, *names: str) -> None:
        """Start processes that are down."""
        for name in names:
            if not self.cluster.machines[name].is_up:
                self.note(f"start {name}")
                self.cluster.start_process(name)

    def stall(self, name: str) -> None:
        """Let syncs of a broker not end."""
        self.note(f"stall {name}")
        self.cluster.stall(name)

    def disk(self, name: str) -> SimDisk:
        """Return the disk of a broker."""
        return self.cluster.machines[name].disk

    def reset_controllers(self) -> None:
        """Kill and start the leading controller, so that another one reads the state."""
        leading = self.leading()
        if leading:
            self.kill(leading)
            self.start(leading)


# Elections of replicas that lack something


async def replica_behind(stage: Stage) -> None:
    """A slave that is cut off from the master for less than it takes to leave the set."""
    stage.cut(both_ways([stage.master], [stage.other]))
    await stage.pause(0.2, 1.6)
    stage.kill(stage.master, stage.one)
    await stage.until_master(stage.other)
    await stage.pause(0, 0.5)


async def all_replicas_behind(stage: Stage) -> None:
    """Both slaves are cut off; the master may serve what they lack."""
    stage.cut(both_ways([stage.master], [stage.one, stage.other]))
    await stage.pause(0.2, 1.6)
    stage.kill(stage.master)
    await stage.until_master(stage.one, stage.other)
    await stage.pause(0, 0.5)


async def some_replica_behind(stage: Stage) -> None:
    """The slave with more of the log is elected: it has records that are not confirmed."""
    stage.cut(both_ways([stage.master], [stage.other]))
    await stage.pause(0.7, 1.6)
    stage.kill(stage.master)
    await stage.until_master(stage.one, stage.other)
    await stage.pause(0.5, 1.5)


async def replica_out_of_sync(stage: Stage) -> None:
    """Only a slave is alive that has left the set."""
    stage.cut(both_ways([stage.master], [stage.other]))
    await stage.until_set(stage.master, stage.one)
    await stage.pause(0.5, 1.5)
    stage.kill(stage.master, stage.one)
    await stage.until_master(stage.other)
    await stage.pause(0, 0.5)


async def restarted_slave(stage: Stage) -> None:
    """A slave with records that the next master lacks starts, and cannot learn of that master."""
    stage.cut(both_ways([stage.master], [stage.other]))
    await stage.pause(0.4, 1.4)
    stage.kill(stage.master, stage.one)
    stage.cut(both_ways([stage.one], CONTROLLER_NAMES))
    stage.start(stage.one)
    await stage.until_master(stage.other)
    await stage.pause(0.2, 1)


# Sets whose change is not answered


async def shrink_unanswered(stage: Stage) -> None:
    """The master wants to remove its slaves, cannot reach the controllers, and dies."""
    stage.cut(both_ways([stage.master], [stage.one, stage.other]))
    await stage.pause(1.5, 1.95)
    stage.cut(one_way([stage.master], CONTROLLER_NAMES))
    await stage.pause(1.2, 1.9)
    stage.kill(stage.master)
    await stage.until_master(stage.one, stage.other)
    await stage.pause(0, 0.5)


async def _joined(stage: Stage, lose: Callable[[], None]) -> None:
    """Let a slave join the set of a master that does not learn of it, and fail over to it.

    Args:
        stage: the stage, whose slave `one` is down or behind.
        lose: prevents the answer; called when etcd has stored the set.
    """
    stage.start(stage.one)

    def act() -> None:
        lose()
        stage.cut(both_ways([stage.master], [stage.one]))

    await stage.when_stored(stage.one, act)
    await stage.pause(0.8, 1.6)


async def _fail_over(stage: Stage, *killed: str) -> None:
    """Kill the master, so that the slave that has joined is elected."""
    stage.kill(stage.master, *killed)
    await stage.until_master(stage.one)
    await stage.pause(0, 0.5)


async def join_unanswered(stage: Stage) -> None:
    """A slave joins; the answer is lost on the way, and the master then loses the slave."""
    await stage.until_alone()
    await _joined(stage, lambda: stage.cut(one_way(CONTROLLER_NAMES, [stage.master])))
    await _fail_over(stage)


async def join_and_controller_killed(stage: Stage) -> None:
    """A slave joins; the controller is killed before it answers."""
    await stage.until_alone()
    leading = stage.leading()
    await _joined(stage, lambda: stage.kill(leading))
    await _fail_over(stage)


async def join_in_doubt(stage: Stage) -> None:
    """A slave joins; the controller does not learn that etcd has stored it."""
    await stage.until_alone()
    stage.note("the next answer of etcd is lost")
    stage.cluster.etcd.lose_answer(is_served=True)
    await _joined(stage, lambda: None)
    await _fail_over(stage)


async def two_joins(stage: Stage) -> None:
    """One slave joins without an answer; the master then asks for the other one."""
    stage.cut(both_ways([stage.master], [stage.other]))
    stage.kill(stage.one)
    await stage.until_set(stage.master)
    leading = stage.leading()

    def lose() -> None:
        stage.kill(leading)
        stage.restore(both_ways([stage.master], [stage.other]))

    await _joined(stage, lose)
    await _fail_over(stage, stage.other)


async def join_behind(stage: Stage) -> None:
    """A slave joins over a slow link, and the master dies as soon as etcd has stored that."""
    await stage.until_alone()
    stage.note(f"slow link from {stage.master} to {stage.one}")
    stage.cluster.network.slow(one_way([stage.master], [stage.one]), (0.1, 0.4))
    stage.start(stage.one)
    await stage.when_stored(stage.one, lambda: None)
    await _fail_over(stage)


async def deposed_controller(stage: Stage) -> None:
    """A slave joins at a new leading controller; the master asks the former one about it."""
    await stage.until_alone()
    await stage.pause(0.3, 0.6)
    former = stage.leading()
    others = [name for name in CONTROLLER_NAMES if name != former]
    stage.cut(both_ways([former], [*others, "etcd", stage.one]))
    await stage.until(lambda: bool(stage.leading(besides=former)))
    # Not earlier, or the former one has a decision in doubt about the master.
    stage.cut(both_ways([former], [stage.master]))

    def lose() -> None:
        stage.cut(one_way(others, [stage.master]))
        stage.restore(both_ways([stage.master], [former]))

    await _joined(stage, lose)
    await stage.pause(3, 5)
    await _fail_over(stage)


async def new_controller(stage: Stage) -> None:
    """The leading controller loses etcd; the next one does not hear the master, which it served."""
    former = stage.leading()
    others = [name for name in CONTROLLER_NAMES if name != former]
    stage.cut(both_ways([stage.master], others))
    await stage.pause(0, 0.5)
    stage.cut(both_ways([former], ["etcd"]))
    await stage.until(lambda: bool(stage.leading(besides=former)))
    await stage.pause(2, 4)


async def former_master(stage: Stage) -> None:
    """A master and its controller are cut off; later the new masters restart on their side."""
    former, slaves = stage.leading(), [stage.one, stage.other]
    others = [name for name in CONTROLLER_NAMES if name != former]
    stage.cut(both_ways([former, stage.master], [*others, "etcd", *slaves]))
    await stage.until_master(*slaves)
    await stage.pause(3, 4.5)
    stage.kill(*slaves)
    stage.cut(both_ways(slaves, others))
    stage.restore(both_ways([former, stage.master], slaves))
    stage.start(*slaves)
    await stage.pause(4, 7)


async def small_set(stage: Stage) -> None:
    """Both slaves leave the set while sends wait for them."""
    stage.cut(both_ways([stage.master], [stage.one, stage.other]))
    await stage.pause(3, 5)


# Disks


async def unsynced_slave(stage: Stage) -> None:
    """The power of a slave is cut whose disk was slow; it is the only candidate then."""
    stage.stall(stage.one)
    await stage.pause(0.4, 1.4)
    stage.cut_power(stage.one)
    stage.kill(stage.master, stage.other)
    stage.start(stage.one)
    await stage.until_master(stage.one)
    await stage.pause(0, 0.5)


async def unsynced_master(stage: Stage) -> None:
    """The power of the master is cut whose disk was slow; it starts again at once.

    Its slaves see it only when it may have other records at the positions that it has lost.
    """
    stage.stall(stage.master)
    await stage.pause(0.4, 1.4)
    stage.cut_power(stage.master)
    ways = both_ways([stage.master], [stage.one, stage.other])
    stage.cut(ways)
    stage.start(stage.master)
    await stage.pause(0.5, 2.5)
    stage.restore(ways)
    await stage.pause(1, 3)


async def diverged_end(stage: Stage) -> None:
    """A master returns with records that nobody else has."""
    await _diverge(stage)
    await stage.pause(0.5, 2)
    stage.start(stage.master)
    await stage.pause(1, 3)


async def _diverge(stage: Stage) -> str:
    """Kill the master when only it has some records, and return the next master."""
    stage.cut(both_ways([stage.master], [stage.one, stage.other]))
    await stage.pause(0.5, 1.8)
    stage.kill(stage.master)
    new = await stage.until_master(stage.one, stage.other)
    # Not earlier: what the master has sent would arrive.
    stage.restore(both_ways([stage.master], [stage.one, stage.other]))
    return new


async def power_cut_after_truncation(stage: Stage) -> None:
    """The power of a former master is cut when it has noted the epoch of what replaces its end."""
    await _diverge(stage)
    await stage.pause(0.1, 0.5)
    disk = stage.disk(stage.master)
    has_cut, due = False, asyncio.Event()

    def watch(operation: str, name: str) -> None:
        nonlocal has_cut
        has_cut |= (operation, name) == ("unlink", CUT_MARK)
        if has_cut and operation == "rename" and name.startswith(EPOCHS):
            stage.cluster.stall(stage.master)
            due.set()

    disk.on_operation = watch
    stage.start(stage.master)
    await stage.until(due.is_set, 6)
    await stage.pause(0.01, 0.3)
    disk.on_operation = None
    stage.cut_power(stage.master)
    stage.start(stage.master)
    await stage.pause(1, 3)


def _read_all(disk: SimDisk, under: str = "") -> dict[str, bytes]:
    """Return the files of a disk by name."""
    found: dict[str, bytes] = {}
    for base in disk.list(under):
        name = f"{under}/{base}" if under else base
        try:
            found[name] = disk.read(name, 0, disk.size(name))
        except IsADirectoryError:
            found |= _read_all(disk, name)
    return found


def _restore_all(disk: SimDisk, files: dict[str, bytes], kept: Iterable[str] = ()) -> None:
    """Replace all files by earlier ones, but for the kept ones."""
    for name in _read_all(disk).keys() - files.keys() - set(kept):
        disk.unlink(name)
    for name in files.keys() - set(kept):
        disk.truncate(name, 0)
        disk.write(name, 0, [files[name]])
        disk.sync(name)
        disk.sync_directory(name.rpartition("/")[0])


async def lost_epochs(stage: Stage) -> None:
    """A new master loses the entry of its epoch before a former one compares its end with it."""
    files = {
        slave: {name: stage.disk(slave).read(name, 0, 10_000) for name in EPOCH_FILES}
        for slave in (stage.one, stage.other)
    }
    new = await _diverge(stage)
    if not new:
        return
    await stage.pause(0.2, 2.5)
    stage.kill(new)
    stage.note(f"restore epochs of {new}")
    _restore_files(stage.disk(new), files[new])
    await _return_before_master(stage, new)


async def power_cut_of_a_new_master(stage: Stage) -> None:
    """The power of a new master is cut, which then returns before a former one does."""
    new = await _diverge(stage)
    if not new:
        return
    await stage.pause(0.2, 2.5)
    stage.cut_power(new)
    await _return_before_master(stage, new)


async def _return_before_master(stage: Stage, new: str) -> None:
    """Start a new master that is down, and later the former one; others may be down meanwhile."""
    if stage.rng.random() < 0.5:
        stage.kill(stage.one, stage.other)
    stage.start(new)
    await stage.pause(4, 7)
    stage.start(stage.master)
    await stage.pause(1, 3)


def _restore_files(disk: SimDisk, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        disk.truncate(name, 0)
        disk.write(name, 0, [data])
        disk.sync(name)


async def older_log(stage: Stage) -> None:
    """The log of a slave is replaced by an older copy; it is the only candidate then."""
    files = _read_all(stage.disk(stage.one))
    await stage.pause(1.5, 3)
    stage.kill(stage.one)
    stage.note(f"restore all but the mark of {stage.one}")
    stage.cluster.may_lack = True
    _restore_all(stage.disk(stage.one), files, {ACK_MARK})
    stage.kill(stage.master, stage.other)
    stage.start(stage.one)
    await stage.until_master(stage.one)
    await stage.pause(0, 0.5)


async def older_store(stage: Stage) -> None:
    """The store of a slave is replaced by a copy from an older epoch."""
    files = _read_all(stage.disk(stage.one))
    stage.kill(stage.master)
    await stage.until_master(stage.one, stage.other)
    await stage.until_set(stage.one, stage.other)
    await stage.pause(0.5, 2)
    stage.kill(stage.one)
    stage.note(f"restore the store of {stage.one}")
    stage.cluster.may_lack = True
    _restore_all(stage.disk(stage.one), files)
    stage.kill(stage.other)
    stage.start(stage.one)
    await stage.until_master(stage.one)
    await stage.pause(0, 0.5)


async def damaged_transfer(stage: Stage) -> None:
    """Bits flip in what a slave receives."""
    index = int(stage.master[-1])
    for _ in range(3):
        stage.note("damage")
        port = stage.cluster.port(index) + 1
        stage.cluster.network.damage((stage.master, stage.one), port, 1)
        await stage.pause(0.3, 0.8)


# The state of the controllers


async def _restore_before_election(stage: Stage) -> None:
    """Kill the master, and restore etcd from a backup that lacks the election after it."""
    backup = stage.cluster.etcd.backup()
    stage.kill(stage.master)
    await stage.until_master(stage.one, stage.other)
    await stage.pause(0.5, 2)
    stage.note("etcd restored")
    stage.cluster.restore_etcd(backup)
    stage.reset_controllers()


async def older_etcd(stage: Stage) -> None:
    """Etcd is restored from a backup that lacks an election."""
    await _restore_before_election(stage)
    stage.start(stage.master)
    await stage.pause(5, 8)


async def older_etcd_alone(stage: Stage) -> None:
    """Likewise, and then no replica that knows of the election reaches a leading controller."""
    await _restore_before_election(stage)
    await stage.until(lambda: bool(stage.cluster.refusals()))
    await stage.pause(1, 2)
    stage.cut(both_ways([stage.one, stage.other], CONTROLLER_NAMES))
    stage.kill(*(name for name in CONTROLLER_NAMES if name == stage.leading()))
    stage.start(stage.master)
    await stage.pause(8, 12)


async def older_set(stage: Stage) -> None:
    """Etcd is restored from a backup that lacks a join, and repaired later."""
    await stage.until_alone()
    backup = stage.cluster.etcd.backup()
    stage.start(stage.one)
    await stage.until(lambda: len(stage.cluster.in_sync()) == 2)
    stage.note("etcd restored")
    stage.cluster.restore_etcd(backup)
    stage.reset_controllers()
    await stage.until(lambda: bool(stage.leading()))
    stage.cut(both_ways([stage.master], [stage.one]))
    await stage.pause(1.5, 3)
    stage.note("etcd repaired")
    stage.cluster.repair_etcd()
    stage.kill(stage.master)
    await stage.until_master(stage.one)
    await stage.pause(0, 0.5)


# Masters that no controller confirms


async def _lose_controllers(stage: Stage, least_s: float = 3, most_s: float = 5) -> None:
    """Let no broker reach the only controller, until it takes the master for dead.

    With others, it would resign, and the next one would wait a lease before it elects.
    """
    stage.kill(*(name for name in CONTROLLER_NAMES if name != stage.leading()))
    await stage.pause(2.5, 3)  # until etcd has removed their keys
    stage.cut(both_ways([stage.master, stage.one, stage.other], CONTROLLER_NAMES))
    await stage.pause(least_s, most_s)


async def member_elected(stage: Stage) -> None:
    """A slave reaches the controllers again, just after it has confirmed the master."""
    await _lose_controllers(stage)
    stage.restore(both_ways([stage.one], CONTROLLER_NAMES))
    await stage.until_master(stage.one)
    await stage.pause(0.5, 2)


async def restarted_member_elected(stage: Stage) -> None:
    """A slave restarts just after it has confirmed the master, and reaches the controllers."""
    await _lose_controllers(stage)
    stage.kill(stage.one)
    stage.restore(both_ways([stage.one], CONTROLLER_NAMES))
    stage.start(stage.one)
    await stage.until_master(stage.one)
    await stage.pause(0.5, 2)


async def missing_member(stage: Stage) -> None:
    """The master and one slave lose the other slave and the controllers, which elect that."""
    here = [stage.master, stage.one]
    stage.cut(both_ways(here, [stage.other, *CONTROLLER_NAMES]))
    await stage.until_master(stage.other)
    await stage.pause(0.5, 2)


async def former_master_without_controllers(stage: Stage) -> None:
    """A former master reaches its slaves again when no broker reaches a controller."""
    slaves = [stage.one, stage.other]
    stage.cut(both_ways([stage.master], [*slaves, *CONTROLLER_NAMES]))
    await stage.until_master(*slaves)
    await stage.until_set(*slaves)
    await stage.pause(0.5, 2)
    stage.cut(both_ways(slaves, CONTROLLER_NAMES))
    stage.restore(both_ways([stage.master], slaves))
    await stage.pause(3, 6)


async def join_and_silence(stage: Stage) -> None:
    """A slave joins without an answer, and the master reaches neither it nor the controllers."""
    await stage.until_alone()
    await _joined(stage, lambda: stage.cut(both_ways([stage.master], CONTROLLER_NAMES)))
    await stage.until_master(stage.one)
    await stage.pause(0.5, 2)


class Drill(NamedTuple):
    """One drill.

    Attributes:
        run: does it.
        is_async: the flush mode that it needs; None: any.
        min_in_sync: the least size of the set that it needs; None: any.
        has_failsafe: whether it needs failsafe.
    """

    run: Callable[[Stage], Awaitable[None]]
    is_async: bool | None = None
    min_in_sync: int | None = None
    has_failsafe: bool = False


DRILLS: Final = {
    "replica behind": Drill(replica_behind),
    "all replicas behind": Drill(all_replicas_behind),
    "some replica behind": Drill(some_replica_behind),
    "replica out of sync": Drill(replica_out_of_sync),
    "restarted slave": Drill(restarted_slave),
    "shrink unanswered": Drill(shrink_unanswered, min_in_sync=1),
    "join unanswered": Drill(join_unanswered, min_in_sync=1),
    "join and controller killed": Drill(join_and_controller_killed, min_in_sync=1),
    "join in doubt": Drill(join_in_doubt, min_in_sync=1),
    "two joins": Drill(two_joins, min_in_sync=1),
    "join behind": Drill(join_behind, min_in_sync=1),
    "deposed controller": Drill(deposed_controller, min_in_sync=1),
    "new controller": Drill(new_controller),
    "former master": Drill(former_master),
    "small set": Drill(small_set, min_in_sync=2),
    "unsynced slave": Drill(unsynced_slave),
    "unsynced master": Drill(unsynced_master),
    "diverged end": Drill(diverged_end),
    "power cut after truncation": Drill(power_cut_after_truncation),
    "lost epochs": Drill(lost_epochs),
    "power cut of a new master": Drill(power_cut_of_a_new_master),
    "older log": Drill(older_log),
    "older store": Drill(older_store),
    "damaged transfer": Drill(damaged_transfer),
    "older etcd": Drill(older_etcd),
    "older etcd, none knows": Drill(older_etcd_alone),
    "older set": Drill(older_set, min_in_sync=1),
    "member elected": Drill(member_elected, has_failsafe=True),
    "restarted member elected": Drill(restarted_member_elected, has_failsafe=True),
    "missing member": Drill(missing_member, has_failsafe=True),
    "former master without controllers": Drill(
        former_master_without_controllers, has_failsafe=True
    ),
    "join and silence": Drill(join_and_silence, min_in_sync=1, has_failsafe=True),
}

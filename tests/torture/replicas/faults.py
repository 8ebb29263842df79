"""Faults of single processes of a set of replicas, drawn from a seed."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.torture.replicas.links import Direction
from tests.torture.replicas.processes import ReplicaSet

KILL: Final = "kill -9"
PAUSE: Final = "SIGSTOP"
PARTITION: Final = "partition"
ONE_WAY: Final = "partition, one way"
KINDS: Final = (KILL, PAUSE, PARTITION, ONE_WAY)
MASTER, SLAVE, CONTROLLER, ETCD = "master", "slave", "controller", "etcd"
VICTIMS: Final = (MASTER, MASTER, MASTER, SLAVE, SLAVE, CONTROLLER, ETCD)
_AWAY_S: Final = (0.0, 0.3, 1.0, 3.0, 8.0)
"""How long a killed process is down."""
_LENGTHS_S: Final = ((1, 5), (1, 5), (5, 20), (20, 60))
"""Ranges of the length of other faults."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: one of `KINDS`.
        victim: the part of the process; see `VICTIMS`.
        length_s: how long it lasts.
        is_outward: with `ONE_WAY`, what the victim sends is lost; else what others send to it.
        is_total: with partitions, whether all others are cut off, or only some of them.
        is_reset: whether connections are reset when a partition is healed.
    """

    kind: str
    victim: str
    length_s: float
    is_outward: bool
    is_total: bool
    is_reset: bool

    @classmethod
    def draw(cls, dice: Random, longest_s: float, *, victims: tuple[str, ...] = VICTIMS) -> Fault:
        """Return a random fault."""
        kind = dice.choice(KINDS)
        length_s = dice.choice(_AWAY_S)
        if kind != KILL:
            length_s = min(longest_s, dice.uniform(*dice.choice(_LENGTHS_S)))
        return cls(
            kind,
            dice.choice(victims),
            length_s,
            is_outward=dice.random() < 0.5,
            is_total=dice.random() < 0.5,
            is_reset=dice.random() < 0.5,
        )

    @property
    def group(self) -> str:
        """The kind and the victim."""
        return f"{self.kind} of {self.victim}"

    def __str__(self) -> str:
        parts = [f"{self.group}, {self.length_s:.1f} s"]
        if self.kind == ONE_WAY:
            parts.append("outward" if self.is_outward else "inward")
        if self.kind in (PARTITION, ONE_WAY):
            parts += ["total" if self.is_total else "partial", "reset" if self.is_reset else "held"]
        return ", ".join(parts)


async def victim_of(
    fault: Fault, replicas: ReplicaSet, dice: Random, patience_s: float
) -> str | None:
    """Return the name of the process; None if there is none, even after `patience_s`.

    After a fault of etcd no controller leads for a while.
    """
    if fault.victim == ETCD:
        return "etcd" if "etcd" in replicas.processes else None
    with suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            while True:
                leading, master = await replicas.leading(), await replicas.master()
                if leading is not None and master is not None:
                    break
                await asyncio.sleep(0.1)
            if fault.victim == CONTROLLER:
                return leading
            if fault.victim == MASTER:
                return master
            return dice.choice([name for name in replicas.brokers if name != master])
    return None


def directions(fault: Fault, victim: str, replicas: ReplicaSet, dice: Random) -> list[Direction]:
    """Return the directions that a partition cuts."""
    others = sorted(set(replicas.processes) - {victim})
    if not fault.is_total:
        others = dice.sample(others, dice.randrange(1, len(others)))
    outward = [(victim, other) for other in others]
    inward = [(other, victim) for other in others]
    if fault.kind == PARTITION:
        return outward + inward
    return outward if fault.is_outward else inward


async def make(fault: Fault, victim: str, replicas: ReplicaSet, dice: Random) -> None:
    """Make the fault, wait for its length, and undo it."""
    process = replicas.processes[victim]
    if fault.kind == KILL:
        await asyncio.to_thread(process.end, signal.SIGKILL)
        await asyncio.sleep(fault.length_s)
        process.start()
    elif fault.kind == PAUSE:
        process.send(signal.SIGSTOP)
        await asyncio.sleep(fault.length_s)
        process.send(signal.SIGCONT)
    else:
        replicas.links.cut(directions(fault, victim, replicas, dice))
        await asyncio.sleep(fault.length_s)
        replicas.links.heal(reset=fault.is_reset)

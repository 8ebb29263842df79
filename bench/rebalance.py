"""Measures the cost of rebalance passes in a group of many members.

    python -m bench.rebalance [--members N] [--queues N] [--rounds N]

Each member runs the computations of its rebalance pass for one topic: it decodes the broker's
consumer list, sorts it, computes its queues and compares them with its assigned ones. Figures are
the CPU time of all members together, for one pass of each:

    first       no queues are assigned and nothing is cached
    unchanged   the pass that runs every 20 s
    joined      one more member than in the pass before
    members     the same as `unchanged`, without decoding the consumer list

Members of one process share the cache of the consistent hash, as consumers of one program do. In
`alone`, each member has its own, as members on separate machines have; each machine then pays the
total divided by the number of members. There only every 50th member is measured.

All times are CPU times of this process, and the smallest of the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from kourou.broker.consuming.assignment_handlers import assign
from kourou.client.consuming.membership.rebalance import java_order, plan_changes
from kourou.model.allocation import (
    Allocate,
    MachineRooms,
    NearbyMachineRooms,
    allocate_averagely,
    allocate_by_circle,
    strategy_name,
)
from kourou.model.consistent_hash import ConsistentHash
from kourou.model.queue import MessageQueue
from kourou.protocol.clients import decode_consumer_list, encode_consumer_list
from kourou.protocol.queue_assignment import SetMessageRequestMode

BROKERS: Final = 10
ROOMS: Final = 5
_ALONE_STEP: Final = 50


class Strategy(NamedTuple):
    """A strategy to measure.

    Attributes:
        build: creates it, once for all members or for each member.
        is_alone: whether each member has its own; then only some members are measured.
    """

    name: str
    build: Callable[[], Allocate]
    is_alone: bool = False


def queue_room(queue: MessageQueue) -> str:
    """Return the machine room of a queue."""
    return queue.broker_name.partition("@")[0]


def consumer_room(consumer_id: str) -> str:
    """Return the machine room of a member."""
    return f"room{int(consumer_id.rpartition('@')[2]) % ROOMS}"


STRATEGIES: Final = (
    Strategy("AVG", lambda: allocate_averagely),
    Strategy("AVG_BY_CIRCLE", lambda: allocate_by_circle),
    Strategy("CONSISTENT_HASH", ConsistentHash),
    Strategy("CONSISTENT_HASH, alone", ConsistentHash, is_alone=True),
    Strategy("MACHINE_ROOM", lambda: MachineRooms([f"room{room}" for room in range(ROOMS)])),
    Strategy("MACHINE_ROOM_NEARBY-AVG", lambda: NearbyMachineRooms(queue_room, consumer_room)),
)


class Group:
    """The members of a group, and their assigned queues.

    Args:
        ids: ids of the members, in any order.
        queues: queues of the topic, sorted.
        strategy: the allocation strategy.
    """

    def __init__(
        self, ids: Sequence[str], queues: Sequence[MessageQueue], strategy: Strategy
    ) -> None:
        self._queues = queues
        self._strategy = strategy
        shared = strategy.build()
        self._allocate = {one: self._strategy_for(shared) for one in ids}
        self._assigned: dict[str, frozenset[MessageQueue]] = dict.fromkeys(ids, frozenset())

    def _strategy_for(self, shared: Allocate) -> Allocate:
        return self._strategy.build() if self._strategy.is_alone else shared

    def join(self, member: str) -> None:
        """Add a member."""
        self._allocate[member] = self._strategy_for(next(iter(self._allocate.values())))
        self._assigned[member] = frozenset()

    def rebalance(self, *, decodes_list: bool = True) -> float:
        """Run a pass of each member; return the CPU time in seconds.

        Args:
            decodes_list: whether each member decodes the broker's consumer list.
        """
        body = encode_consumer_list(list(self._assigned))
        ids = java_order(decode_consumer_list(body))
        step = _ALONE_STEP if self._strategy.is_alone else 1
        began_s = time.process_time()
        for member, assigned in list(self._assigned.items())[::step]:
            consumers = java_order(decode_consumer_list(body)) if decodes_list else ids
            changes = plan_changes(
                assigned, self._queues, consumers, member, self._allocate[member]
            )
            if not changes.is_empty:
                self._assigned[member] = assigned.difference(changes.released).union(changes.added)
        took_s = time.process_time() - began_s
        owned = sorted(queue for assigned in self._assigned.values() for queue in assigned)
        assert step > 1 or owned == list(self._queues), "every queue has one owner"
        return took_s * step


def assign_all(ids: Sequence[str], queues: Sequence[MessageQueue]) -> float:
    """Return the CPU seconds that a broker needs to assign queues to each member once."""
    mode = SetMessageRequestMode("Orders", "billing")
    ids = sorted(ids)
    began_s = time.process_time()
    for member in ids:
        assign(queues, sorted(ids), member, allocate_averagely, mode)
    return time.process_time() - began_s


def measure(members: int, queue_count: int, strategy: Strategy) -> tuple[float, ...]:
    """Return the CPU seconds of each kind of pass."""
    queues = tuple(
        sorted(
            MessageQueue("Orders", f"room{at % ROOMS}@broker-{at % BROKERS}", at // BROKERS)
            for at in range(queue_count)
        )
    )
    ids = [f"10.0.{number // 256}.{number % 256}@{number}" for number in range(members)]
    group = Group(ids, queues, strategy)
    first_s, unchanged_s = group.rebalance(), group.rebalance()
    group.join(f"10.1.0.1@{members}")
    joined_s = group.rebalance()
    return first_s, unchanged_s, joined_s, group.rebalance(decodes_list=False)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    table = Table(title=f"{args.members:,} members, {args.queues:,} queues: CPU of all, in ms")
    for name in ("strategy", "first", "unchanged", "joined", "members"):
        table.add_column(name, justify="left" if name == "strategy" else "right")
    for strategy in STRATEGIES:
        rounds = [measure(args.members, args.queues, strategy) for _ in range(args.rounds)]
        best = [min(times) * 1000 for times in zip(*rounds, strict=True)]
        table.add_row(strategy.name, *(f"{one:,.0f}" for one in best))
    Console(width=100).print(table)
    queues = [MessageQueue("Orders", "broker-0", number) for number in range(args.queues)]
    ids = [f"10.0.0.1@{number}" for number in range(args.members)]
    broker_s = min(assign_all(ids, queues) for _ in range(args.rounds))
    print(f"Assignment by a broker, {strategy_name(allocate_averagely)}: {broker_s * 1000:,.0f}")


if __name__ == "__main__":
    main()

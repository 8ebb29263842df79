"""Judges the deliveries of a group that pops in order, from all messages of its topic. Pure.

An ordered pop has no checkpoint: a message that is not acknowledged in time is popped again from
its own queue, with all later messages of its pop, acknowledged or not, as in Java. So a message is
settled when it and all earlier messages of one pop are acknowledged. The rules:

- A pop returns consecutive messages of a queue. All messages before them were acknowledged, or a
  member had begun to acknowledge them.
- A message that was settled before a pop was requested is not in that pop.
- While a message is invisible and not acknowledged, its queue is not popped.
- If the first message of a pop is popped again, it has a higher retry count. A pop whose answer was
  lost also began with it, but may have been shorter: the broker then forgets the later counts.

The last two rules compare a pop with the one before it, so they need the order of the pops, which
the broker's clock gives only if it is right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Final

from kourou.protocol.popping.topic_names import NOT_RETRY
from tests.torture.chaos.pop_ledger import BrokerHistory, Delivery

_NEVER: Final = inf


@dataclass
class OrderedFindings:
    """Results of judging the deliveries of one group.

    Attributes:
        disorder: messages left out, or popped before an earlier one was acknowledged.
        again: settled, and popped again.
        early: popped while a message of the pop before was invisible.
        counts: popped again with a retry count that had not grown.
        behind: number of acknowledged messages that were popped again behind an earlier one.
    """

    disorder: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    behind: int = 0


@dataclass(slots=True)
class _Pop:
    """The messages that one pop returned from one queue, in the order in which they came."""

    deliveries: list[Delivery]

    @property
    def asked_ms(self) -> int:
        return self.deliveries[0].popped.asked_ms

    @property
    def came_ms(self) -> int:
        return self.deliveries[0].popped.came_ms

    @property
    def popped_ms(self) -> int:
        return self.deliveries[0].popped.popped_ms

    @property
    def offsets(self) -> list[int]:
        return [delivery.popped.offset for delivery in self.deliveries]

    def __str__(self) -> str:
        first = self.deliveries[0].popped
        return (
            f"queue {first.queue_id} {first.offset}+{len(self.deliveries)} asked at "
            f"{first.asked_ms}, came at {first.came_ms}, popped at {first.popped_ms}"
        )


def judge_ordered(deliveries: Iterable[Delivery], history: BrokerHistory) -> OrderedFindings:
    """Judge all deliveries of a group to which each message of its topic is delivered."""
    findings = OrderedFindings()
    by_pop: defaultdict[int, defaultdict[tuple[int, int], list[Delivery]]]
    by_pop = defaultdict(lambda: defaultdict(list))
    for delivery in deliveries:
        popped = delivery.popped
        if popped.kind != NOT_RETRY:
            findings.disorder.append(f"popped from another topic: {popped}")
            continue
        by_pop[popped.queue_id][popped.popped_ms, popped.asked_ms].append(delivery)
    for of_queue in by_pop.values():
        pops = [
            _Pop(sorted(some, key=lambda delivery: delivery.popped.number))
            for some in of_queue.values()
        ]
        _judge_queue(pops, history, findings)
    return findings


def _judge_queue(pops: list[_Pop], history: BrokerHistory, findings: OrderedFindings) -> None:
    every = [delivery for pop in pops for delivery in pop.deliveries]
    begun = _running_max(_earliest_begun(every))
    acked = defaultdict[int, float](lambda: _NEVER)
    settled = defaultdict[int, float](lambda: _NEVER)
    for pop in pops:
        latest_ms = -inf
        for delivery in pop.deliveries:
            offset, acked_ms = delivery.popped.offset, _acked_ms(delivery, history)
            latest_ms = max(latest_ms, acked_ms)
            acked[offset] = min(acked[offset], acked_ms)
            settled[offset] = min(settled[offset], latest_ms)
    for pop in pops:
        _judge_pop(pop, begun, settled, findings)
        findings.behind += sum(
            acked[offset] < pop.asked_ms <= settled[offset] for offset in pop.offsets
        )
    if history.is_clock_right:
        pops.sort(key=lambda pop: pop.popped_ms)
        for before, pop in pairwise(pops):
            _judge_following(before, pop, history, findings)


def _judge_pop(
    pop: _Pop, begun: Sequence[float], settled: Mapping[int, float], findings: OrderedFindings
) -> None:
    first, offsets = pop.offsets[0], pop.offsets
    if offsets != list(range(first, first + len(offsets))):
        findings.disorder.append(f"not consecutive: {offsets} of {pop}")
    if first and begun[first - 1] > pop.came_ms:
        wanting = next(offset for offset in range(first) if begun[offset] > pop.came_ms)
        findings.disorder.append(f"popped before {wanting} was acknowledged: {pop}")
    again = [offset for offset in offsets if pop.asked_ms > settled[offset]]
    if again:
        findings.again.append(f"{again} were settled at {settled[again[0]]}: {pop}")


def _judge_following(
    before: _Pop, pop: _Pop, history: BrokerHistory, findings: OrderedFindings
) -> None:
    """Compare a pop with the one before it."""
    first = pop.deliveries[0].popped
    for delivery in before.deliveries:
        end, popped = delivery.end(history), delivery.popped
        is_acked = any(s.begun.is_ack and s.begun.at_ms <= pop.came_ms for s in delivery.steps)
        if not is_acked and not end.is_unclear and pop.popped_ms < end.visible_at_ms:
            findings.early.append(f"{popped} {end}, then {pop}")
        is_first = popped.offset == first.offset
        if is_first and first.reconsume_times <= popped.reconsume_times:
            findings.counts.append(f"{popped}, then {first.reconsume_times} in {pop}")


def _earliest_begun(deliveries: Iterable[Delivery]) -> dict[int, float]:
    """Return by offset when a member first began to acknowledge the message."""
    found: dict[int, float] = {}
    for delivery in deliveries:
        offset = delivery.popped.offset
        found.setdefault(offset, _NEVER)
        for step in delivery.steps:
            if step.begun.is_ack:
                found[offset] = min(found[offset], step.begun.at_ms)
    return found


def _acked_ms(delivery: Delivery, history: BrokerHistory) -> float:
    """Return when an acknowledgement in time was answered; `_NEVER` without one."""
    end = delivery.end(history)
    if end.is_late or end.is_unclear:
        return _NEVER
    times = (s.answered.at_ms for s in delivery.steps if s.begun.is_ack and s.answered)
    return min(times, default=_NEVER)


def _running_max(times: Mapping[int, float]) -> list[float]:
    """Return for each offset, up to the last one, the latest time of it and all earlier ones."""
    highest, found = -inf, []
    for offset in range(max(times) + 1):
        highest = max(highest, times.get(offset, _NEVER))
        found.append(highest)
    return found

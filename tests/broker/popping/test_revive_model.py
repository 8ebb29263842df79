"""Revive windows and a model: a timer that lags, a queue, and a broker that crashes.

Acknowledged messages are not revived, all others are, and the committed offset passes nothing that
is needed after a crash.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.in_flight import DueCopies, InFlight
from kourou.broker.popping.revive_window import HeldCheckpoint, ReviveWindow

LEAD_MS = 1_000


@dataclass(frozen=True)
class Record:
    """A revive record: a checkpoint's messages, or the acknowledged ones."""

    key: CheckpointKey
    offsets: tuple[int, ...]
    invisible_ms: int
    deliver_ms: int
    is_ack: bool
    re_puts: int = 0
    is_direct: bool = False

    def checkpoint(self) -> PopCheckpoint:
        return PopCheckpoint(self.key, self.offsets, self.invisible_ms, re_puts=self.re_puts)


@dataclass
class Popped:
    """A pop, as the client knows it."""

    key: CheckpointKey
    offsets: tuple[int, ...]
    invisible_ms: int
    acked: set[int] = field(default_factory=set)

    @property
    def revive_ms(self) -> int:
        return self.key.pop_time_ms + self.invisible_ms


class Machine(RuleBasedStateMachine):
    checkpoints_max = 10_000

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = self.level_ms = 1_000_000
        self.wheel: list[tuple[int, int, Record]] = []
        self.queue: list[Record] = []
        self.pops: list[Popped] = []
        self.next_offset = 0
        self.acked_in_time: set[int] = set()
        self.acked: set[int] = set()
        self.revived: dict[int, int] = {}
        self.under_way: list[HeldCheckpoint] = []
        self.committed = -1
        self.crashes = 0
        self.window = self.opened()

    def opened(self) -> ReviveWindow:
        return ReviveWindow(self.committed, lambda _: True, checkpoints_max=self.checkpoints_max)

    def put(self, record: Record) -> None:
        if record.deliver_ms <= self.now_ms:
            self.queue.append(replace(record, is_direct=True))
        else:
            entry = (record.deliver_ms, len(self.wheel) + len(self.queue), record)
            bisect.insort(self.wheel, entry, key=lambda one: one[:2])

    @rule(
        diffs=st.sets(st.integers(0, 2), min_size=1),
        invisible_ms=st.sampled_from((1, 1_500, 4_000)),
    )
    def pop(self, diffs: set[int], invisible_ms: int) -> None:
        start = self.next_offset
        self.next_offset += 3
        key = CheckpointKey("T", "g", 0, start, self.now_ms, "b")
        offsets = tuple(start + diff for diff in sorted(diffs))
        self.pops.append(Popped(key, offsets, invisible_ms))
        deliver_ms = self.now_ms + invisible_ms - LEAD_MS
        record = Record(key, offsets, invisible_ms, deliver_ms, is_ack=False)
        self.before_pop(record)
        self.put(record)

    @precondition(lambda self: self.pops)
    @rule(data=st.data())
    def ack(self, data: Any) -> None:
        pop = data.draw(st.sampled_from(self.pops[-3:]))
        offsets = tuple(data.draw(st.sets(st.sampled_from(pop.offsets), min_size=1)))
        if not self.is_ack_needed(pop.key, offsets):
            return
        self.acked.update(offsets)
        if self.now_ms < pop.revive_ms:
            self.acked_in_time.update(offsets)
        self.put(Record(pop.key, offsets, 0, pop.revive_ms, is_ack=True))
        self.after_ack(pop.key, offsets)

    @rule(ms=st.sampled_from((1, 600, 2_500, 12_000)))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(share=st.sampled_from((1, 4, 4)))
    def run_timer(self, share: int) -> None:
        self.level_ms += (self.now_ms - self.level_ms) * share // 4
        while self.wheel and self.wheel[0][0] <= self.level_ms:
            record = self.wheel.pop(0)[2]
            if self.needs_copy(record):
                self.queue.append(record)

    @rule(count=st.sampled_from((1, 3, 20)))
    def read(self, count: int) -> None:
        for _ in range(count):
            at = self.window.next_offset
            if at == len(self.queue) or self.window.is_full:
                return
            record = self.queue[at]
            due_ms, is_direct = record.deliver_ms, record.is_direct
            if record.is_ack:
                self.window.read_ack(at, record.key, record.offsets, due_ms, is_direct=is_direct)
            else:
                self.window.read_checkpoint(at, record.checkpoint(), due_ms, is_direct=is_direct)

    @rule(limit=st.integers(1, 5))
    def find_due(self, limit: int) -> None:
        is_at_end = self.window.next_offset == len(self.queue)
        found = self.window.due(self.level_ms, limit, is_at_end=is_at_end)
        for held in found:
            assert held.checkpoint.revive_at_ms <= self.level_ms
            self.check(held, is_at_end=is_at_end)
        self.under_way += found

    def check(self, held: HeldCheckpoint, *, is_at_end: bool) -> None:
        unacked = set(held.checkpoint.unacked())
        assert not unacked & self.acked_in_time
        if is_at_end and not self.crashes and not held.checkpoint.re_puts:
            assert not unacked & self.acked

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def revive(self, data: Any) -> None:
        """Store each message or a checkpoint for it."""
        held = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        later = []
        for offset in held.checkpoint.unacked():
            if data.draw(st.integers(0, 3)):
                self.revived[offset] = self.revived.get(offset, 0) + 1
                continue
            again = held.checkpoint.re_put(offset, self.now_ms)
            deliver_ms = again.revive_at_ms - LEAD_MS
            record = Record(
                again.key, again.offsets, again.invisible_ms, deliver_ms, False, again.re_puts
            )
            self.put(record)
            later.append(again)
        self.settle(held, later)

    @precondition(lambda self: self.under_way)
    @rule()
    def defer(self) -> None:
        self.window.defer(self.under_way.pop(), self.now_ms + 10)

    @rule()
    def save(self) -> None:
        committable = self.window.committable_offset
        assert committable >= self.committed
        self.committed = committable

    @rule()
    def crash(self) -> None:
        self.crashes += 1
        self.under_way.clear()
        self.window = self.opened()
        self.after_crash()

    @invariant()
    def commit_is_behind_what_is_read(self) -> None:
        assert self.window.committable_offset < self.window.next_offset

    def teardown(self) -> None:
        for _ in range(200):
            self.now_ms += 1_000_000
            self.run_timer(4)
            while self.window.next_offset < len(self.queue):
                self.read(100)
                self.settle_all(is_at_end=False)
            self.settle_all(is_at_end=True)
            if not self.wheel and self.window.committable_offset == len(self.queue) - 1:
                break
        popped = {offset for pop in self.pops for offset in pop.offsets}
        assert popped <= self.acked | self.revived.keys()
        assert not self.revived.keys() & self.acked_in_time
        assert self.window.committable_offset == len(self.queue) - 1
        assert self.window.checkpoint_count == self.window.early_ack_count == 0
        if not self.crashes:
            assert all(count == 1 for count in self.revived.values())

    def settle_all(self, *, is_at_end: bool) -> None:
        found = self.window.due(self.level_ms, 1_000, is_at_end=is_at_end)
        for held in found:
            self.check(held, is_at_end=is_at_end)
        for held in self.under_way + found:
            for offset in held.checkpoint.unacked():
                self.revived[offset] = self.revived.get(offset, 0) + 1
            self.settle(held, [])
        self.under_way.clear()

    def settle(self, held: HeldCheckpoint, later: list[PopCheckpoint]) -> None:
        self.window.settle(held)

    def before_pop(self, record: Record) -> None:
        """Do nothing: a broker without a table of messages in flight."""

    def is_ack_needed(self, key: CheckpointKey, offsets: tuple[int, ...]) -> bool:
        return True

    def after_ack(self, key: CheckpointKey, offsets: tuple[int, ...]) -> None:
        """Do nothing."""

    def needs_copy(self, record: Record) -> bool:
        return True

    def after_crash(self) -> None:
        """Do nothing."""


class SkippedCopies(Machine):
    """A broker that knows what is in flight, and skips copies that are not needed."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlight("b")
        self.copies = DueCopies(self.in_flight)
        self.copies.is_complete = True

    def before_pop(self, record: Record) -> None:
        self.in_flight.add(record.checkpoint())

    def is_ack_needed(self, key: CheckpointKey, offsets: tuple[int, ...]) -> bool:
        return all(self.in_flight.is_in_flight(key, offset) for offset in offsets)

    def after_ack(self, key: CheckpointKey, offsets: tuple[int, ...]) -> None:
        assert self.in_flight.ack_all(key, offsets) == list(offsets)

    def needs_copy(self, record: Record) -> bool:
        if record.is_ack:
            return self.copies.needs_ack(record.key, record.deliver_ms)
        return self.copies.needs_checkpoint(record.key, record.deliver_ms + LEAD_MS)

    def settle(self, held: HeldCheckpoint, later: list[PopCheckpoint]) -> None:
        super().settle(held, later)
        self.in_flight.revive(held.checkpoint.key, held.checkpoint.offsets, later)

    def after_crash(self) -> None:
        """Load what is in flight from the records that are not handled."""
        self.in_flight = InFlight("b")
        self.copies = DueCopies(self.in_flight)
        records = self.queue[self.committed + 1 :] + [record for _, _, record in self.wheel]
        for record in records:
            if not record.is_ack:
                self.in_flight.add(record.checkpoint())
        for record in records:
            if record.is_ack:
                self.in_flight.ack_all(record.key, record.offsets)
        self.copies.is_complete = True


class FullWindow(Machine):
    """A window of few records never loses a message, but an ack may come too late."""

    checkpoints_max = 4

    def check(self, held: HeldCheckpoint, *, is_at_end: bool) -> None:
        self.acked_in_time.difference_update(held.checkpoint.unacked())


TestAnyOrder = Machine.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestSkippedCopies = SkippedCopies.TestCase
TestSkippedCopies.settings = TestAnyOrder.settings
TestFullWindow = FullWindow.TestCase
TestFullWindow.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)

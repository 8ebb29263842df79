"""Model test of members that join, leave and crash at random: no queue ever has two owners.

A pass does what `RebalanceLoop` and `HeldQueues` do: `plan_changes` returns the queues to release
and start, released queues are drained for a moment, and started queues have had their handover
delay (`HandoverDelays`) or are locked. Members run a pass soon after each change, at different
times; ordered members may also run it late.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kourou.broker.consuming.queue_locks import EXPIRY_MS, QueueLocks
from kourou.client.consuming.membership.rebalance import HandoverDelays, java_order, plan_changes
from kourou.client.consuming.strategies import STRATEGIES
from kourou.model.queue import MessageQueue

GROUP = "g"
REST_S = 2.0
DRAIN_S = 0.5
NOTICE_MAX_S = 1.0
"""Longest time from a change to a member's pass."""
STEP_S = 0.25
STEPS = st.sampled_from([0, 3, 6, 10, 24])
"""Time after a change; the next change may come before or after passes and handover delays."""


@dataclass
class _Member:
    """The queues of one member, and the time of its next pass."""

    passes_at_s: float
    held: set[MessageQueue] = field(default_factory=set)
    draining: dict[MessageQueue, float] = field(default_factory=dict)
    """Queues being released, and the time at which their last calls end."""
    rests: HandoverDelays = field(default_factory=lambda: HandoverDelays(REST_S))
    is_first_done: bool = False


class _GroupMachine(RuleBasedStateMachine):
    """The members of one group, one topic, and the broker's clock."""

    is_ordered = False
    notice_max_s = NOTICE_MAX_S

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.members: dict[str, _Member] = {}
        self.queues: list[MessageQueue] = []
        self.locks = QueueLocks()
        self.unclean_until_s = 0.0

    @initialize(
        strategy=st.sampled_from(sorted(STRATEGIES)),
        count=st.integers(2, 8),
        seed=st.integers(0, 2**32),
    )
    def begin(self, strategy: str, count: int, seed: int) -> None:
        self.dice = Random(seed)
        self.allocate = STRATEGIES[strategy]
        self.queues = [MessageQueue("T", "a", queue_id) for queue_id in range(count)]

    @precondition(lambda self: len(self.members) < 7)
    @rule(name=st.sampled_from("abcdefgh"), steps=STEPS)
    def join(self, name: str, steps: int) -> None:
        if name not in self.members:
            self.members[name] = _Member(self.now_s)
            self.notify(steps)

    @precondition(lambda self: len(self.members) > 1)
    @rule(which=st.integers(0, 6), is_crash=st.booleans(), steps=STEPS)
    def leave(self, which: int, steps: int, *, is_crash: bool) -> None:
        name = sorted(self.members)[which % len(self.members)]
        member = self.members.pop(name)
        if is_crash:
            self.unclean_until_s = self.now_s + EXPIRY_MS / 1000
        else:  # it waits for its listeners and releases all queues before it leaves
            self.locks.unlock(GROUP, name, [*member.held, *member.draining])
        self.notify(steps)

    @rule(count=st.integers(1, 8), steps=STEPS)
    def change_topic(self, count: int, steps: int) -> None:
        self.queues = [MessageQueue("T", "a", queue_id) for queue_id in range(count)]
        self.notify(steps)

    def teardown(self) -> None:
        """Run until nothing changes any more."""
        if not self.members:
            return
        quiet_s = max(20.0, self.unclean_until_s - self.now_s + 5)
        until_s = self.now_s + quiet_s
        while self.now_s < until_s:
            self.step()
        owned = Counter(queue for one in self.members.values() for queue in one.held)
        assert owned == Counter(self.queues), "each queue has one owner"
        ids = java_order(self.members)
        for name, member in self.members.items():
            assert plan_changes(member.held, self.queues, ids, name, self.allocate).is_empty

    def notify(self, steps: int) -> None:
        """Schedule a pass of each member soon, and advance the time."""
        for member in self.members.values():
            soon_s = self.now_s + self.dice.uniform(0, self.notice_max_s)
            member.passes_at_s = min(soon_s, max(member.passes_at_s, self.now_s))
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        self.now_s += STEP_S
        for name, member in self.members.items():
            ended = [queue for queue, at_s in member.draining.items() if at_s <= self.now_s]
            for queue in ended:
                del member.draining[queue]
            self.locks.unlock(GROUP, name, ended)
            if self.is_ordered:  # as each member does every 20 s
                mine = [*member.held, *member.draining]
                assert len(self.locks.lock(GROUP, name, mine, self.now_ms)) == len(mine)
            if member.passes_at_s <= self.now_s:
                member.passes_at_s = self.now_s + 1
                self.look(name, member)
        self.nobody_has_what_another_has()

    def look(self, name: str, member: _Member) -> None:
        ids = java_order(self.members)
        changes = plan_changes(member.held, self.queues, ids, name, self.allocate)
        for queue in changes.released:
            member.held.remove(queue)
            member.draining[queue] = self.now_s + DRAIN_S
        member.rests.note_assigned("T", changes.added)
        free = [queue for queue in changes.added if queue not in member.draining]
        if self.is_ordered:
            free = self.locks.lock(GROUP, name, free, self.now_ms)
        elif changes.is_shared or member.is_first_done:
            free = [queue for queue in free if not member.rests.remaining_s(queue, self.now_s)]
        member.is_first_done = True
        member.held.update(free)

    @property
    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    @invariant()
    def nobody_has_what_another_has(self) -> None:
        owned = Counter(
            queue for one in self.members.values() for queue in (*one.held, *one.draining)
        )
        assert not owned or max(owned.values()) == 1, owned


class Concurrent(_GroupMachine):
    """Members with a handover delay before they start a queue."""


class Ordered(_GroupMachine):
    """Members that lock queues before they start them, and may notice changes late."""

    is_ordered = True
    notice_max_s = 15.0


TestConcurrent = Concurrent.TestCase
TestConcurrent.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestOrdered = Ordered.TestCase
TestOrdered.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

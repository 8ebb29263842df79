"""A member's change between pulling and popping a topic, for any order of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kourou.client.consuming.membership.mode_changes import (
    NONE,
    ModeChanges,
    left_over,
    mode_changes,
    next_step,
)
from kourou.client.consuming.membership.rebalance import queue_changes
from kourou.model.queue import MessageQueue

QUEUES = [MessageQueue("T", "b", number) for number in range(4)]
ALL = MessageQueue("T", "b", -1)


class ModeMachine(RuleBasedStateMachine):
    """Passes of one member; releases of queues end at any later time."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted_pulled: set[MessageQueue] = set()
        self.wanted_popped: set[MessageQueue] = set()
        self.pulled: set[MessageQueue] = set()
        self.leaving_pulled: set[MessageQueue] = set()
        self.popped: set[MessageQueue] = set()
        self.polls = 0  # of released queues, not answered yet

    @rule(queues=st.sets(st.sampled_from(QUEUES)))
    def assign_pulls(self, queues: set[MessageQueue]) -> None:
        self.wanted_pulled, self.wanted_popped = queues, set()

    @rule(queues=st.sets(st.sampled_from([ALL, *QUEUES]), min_size=1))
    def assign_pops(self, queues: set[MessageQueue]) -> None:
        self.wanted_pulled, self.wanted_popped = set(), queues

    @rule(answered=st.booleans(), has_lock=st.booleans())
    def run_pass(self, answered: bool, has_lock: bool) -> None:
        changes = mode_changes(
            self.pulled,
            self.popped,
            NONE if self.wanted_popped else queue_changes(self.pulled, self.wanted_pulled),
            self.wanted_popped,
        )
        left = self.apply(changes, answered=answered, has_lock=has_lock)
        self.apply(left, answered=answered, has_lock=has_lock)

    def apply(self, changes: ModeChanges, *, answered: bool, has_lock: bool) -> ModeChanges:
        uses_pulls = bool(self.pulled or self.leaving_pulled)
        uses_pops = bool(self.popped or self.polls)
        step = next_step(changes, uses_pulls=uses_pulls, uses_pops=uses_pops)
        assert not (step.pulled.added and uses_pops)
        assert not (step.popped.added and uses_pulls)
        for queue in step.pulled.released:
            self.pulled.remove(queue)
            if has_lock:
                self.leaving_pulled.add(queue)
        self.pulled |= set(step.pulled.added) - self.leaving_pulled
        self.popped -= set(step.popped.released)
        self.polls += 0 if answered else len(step.popped.released)
        self.popped |= set(step.popped.added)
        return left_over(changes, step)

    @rule()
    def end_listener_calls(self) -> None:
        self.leaving_pulled.clear()

    @rule()
    def answer_pops(self) -> None:
        self.polls = 0

    @invariant()
    def modes_are_never_used_together(self) -> None:
        assert not (self.pulled or self.leaving_pulled) or not self.popped
        assert not self.popped or not self.pulled

    @invariant()
    def two_passes_reach_the_assignment_once_nothing_is_left(self) -> None:
        saved = (set(self.pulled), set(self.leaving_pulled), set(self.popped), self.polls)
        self.end_listener_calls()
        self.answer_pops()
        for _ in range(2):
            self.run_pass(answered=True, has_lock=False)
        assert (self.pulled, self.popped) == (self.wanted_pulled, self.wanted_popped)
        self.pulled, self.leaving_pulled, self.popped, self.polls = saved


TestModes = ModeMachine.TestCase
TestModes.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_pulls_are_released_before_pops_start() -> None:
    changes = mode_changes(QUEUES, (), NONE, [ALL])
    step = next_step(changes, uses_pulls=True, uses_pops=False)
    assert step.pulled.released == tuple(QUEUES)
    assert not step.popped.added
    left = left_over(changes, step)
    assert next_step(left, uses_pulls=False, uses_pops=False).popped.added == (ALL,)


def test_pulls_start_after_the_last_pop_is_answered() -> None:
    changes = mode_changes((), [ALL], queue_changes((), QUEUES), ())
    step = next_step(changes, uses_pulls=False, uses_pops=True)
    assert (step.popped.released, step.pulled.added) == ((ALL,), ())
    left = left_over(changes, step)
    assert not next_step(left, uses_pulls=False, uses_pops=True).pulled.added
    assert next_step(left, uses_pulls=False, uses_pops=False).pulled.added == tuple(QUEUES)

"""Only returned and acknowledged messages are committable, in any order of calls."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kourou.client.consuming.polling.polled_queue import PolledQueue
from kourou.model.queue import MessageQueue
from tests.client.consuming.messages import message_at


class PolledQueueMachine(RuleBasedStateMachine):
    """`PolledQueue` against a model of lists: held and returned messages, and the next pull."""

    def __init__(self) -> None:
        super().__init__()
        self.polled = PolledQueue(MessageQueue("T", "b", 0))
        self.polled.begin(0)
        self.held: list[int] = []
        self.given: list[int] = []
        self.next = 0
        self.is_fresh = True

    @rule(wanted=st.lists(st.booleans(), max_size=5))
    def pull(self, wanted: list[bool]) -> None:
        offsets = [self.next + index for index, is_wanted in enumerate(wanted) if is_wanted]
        self.next += len(wanted)
        self.polled.put([message_at(offset) for offset in offsets], self.next)
        self.held += offsets

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        taken = [one.queue_offset for one in self.polled.take(limit)]
        assert taken == self.held[:limit]
        self.given += taken
        self.held = self.held[limit:]

    @rule()
    def acknowledge(self) -> None:
        self.polled.acknowledge()
        self.given = []

    @precondition(lambda self: self.next > 0)
    @rule(back=st.integers(0, 5))
    def seek(self, back: int) -> None:
        self.next = max(0, self.next - back)
        self.polled.move(self.next)
        self.held, self.given, self.is_fresh = [], [], False

    @invariant()
    def nothing_unacknowledged_is_committed(self) -> None:
        polled = self.polled
        expected = min([*self.given, *self.held, self.next])
        assert polled.done_offset == expected
        assert polled.position == min([*self.held, self.next])
        assert len(polled) == len(self.held)
        assert polled.span == (self.held[-1] - self.held[0] if self.held else 0)
        is_where_it_began = self.is_fresh and expected == 0
        assert polled.committable == (None if is_where_it_began else expected)


TestPolledQueue = PolledQueueMachine.TestCase
TestPolledQueue.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)


def test_held_bytes_are_counted() -> None:
    polled = PolledQueue(MessageQueue("T", "b", 0))
    polled.begin(0)
    assert (polled.position, polled.size_bytes) == (0, 0)
    polled.put([message_at(0, 3), message_at(1, 1)], 2)
    assert polled.size_bytes == 4
    polled.take(1)
    assert polled.size_bytes == 1
    polled.move(0)
    assert polled.size_bytes == 0

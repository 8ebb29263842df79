"""The committable offset never exceeds an unfinished message, in any order of acknowledgement."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.model.message import MessageExt
from tests.client.consuming.messages import QUEUE, message_at


class ProcessQueueMachine(RuleBasedStateMachine):
    """A process queue against a set of offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(QUEUE)
        self.held: dict[int, MessageExt] = {}
        self.next_offset = 0
        self.pulled_until: int | None = None

    @rule(gaps=st.lists(st.integers(1, 5), max_size=6), size=st.integers(0, 9))
    def pull(self, gaps: list[int], size: int) -> None:
        messages = []
        for gap in gaps:
            messages.append(message_at(self.next_offset, size))
            self.next_offset += gap
        assert self.queue.put(messages) == messages
        self.held |= {message.queue_offset: message for message in messages}
        if messages:
            self.pulled_until = messages[-1].queue_offset + 1

    @rule(count=st.integers(0, 5))
    def pull_what_nobody_wants(self, count: int) -> None:
        self.next_offset += count
        self.pulled_until = self.next_offset
        self.queue.advance(self.next_offset)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        committable = self.queue.remove(self.held.pop(offset))
        assert committable is not None
        assert committable == (min(self.held) if self.held else self.pulled_until)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def pull_again_what_is_held(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        assert self.queue.put([message_at(offset)]) == []

    @rule(offset=st.integers(0, 200))
    def finish_what_is_not_held(self, offset: int) -> None:
        # Equal to a held message but another object: one of another owner, or one already done.
        assert self.queue.remove(message_at(offset)) is None

    @invariant()
    def sums_are_those_of_what_is_held(self) -> None:
        assert len(self.queue) == len(self.held)
        assert self.queue.size_bytes == sum(len(one.body) for one in self.held.values())
        assert self.queue.span >= (max(self.held) - min(self.held) if self.held else 0)

    @invariant()
    def nothing_held_lies_below_the_commit(self) -> None:
        expected = min(self.held) if self.held else self.pulled_until
        assert self.queue.committable() == expected


ProcessQueueMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
test_the_commit_follows_the_lowest_message_held = ProcessQueueMachine.TestCase


def test_an_unfinished_message_blocks_the_committable_offset() -> None:
    queue = ProcessQueue(QUEUE)
    messages = [message_at(offset) for offset in range(5, 9)]
    queue.put(messages)

    assert [queue.remove(message) for message in reversed(messages)] == [5, 5, 5, 9]


def test_a_dropped_queue_holds_nothing_and_commits_nothing() -> None:
    queue = ProcessQueue(QUEUE)
    message = message_at(3)
    queue.put([message])
    queue.start(message, 100)
    queue.drop()

    assert queue.is_dropped
    assert not queue.holds(message)
    assert queue.remove(message) is None
    assert (len(queue), queue.size_bytes, queue.span) == (0, 0, 0)
    assert queue.overdue(16) == queue.overdue(16) == []


def test_nothing_is_committable_before_the_first_message() -> None:
    assert ProcessQueue(QUEUE).committable() is None


def test_messages_are_overdue_from_the_lowest_on_without_a_gap() -> None:
    queue = ProcessQueue(QUEUE)
    messages = [message_at(offset) for offset in range(5)]
    queue.put(messages)
    for number in (0, 1, 3):
        queue.start(messages[number], 10)
    assert queue.overdue(16) == [], "their deliveries started in this period"
    queue.start(messages[2], 10)

    assert queue.overdue(1) == messages[:1]
    assert queue.overdue(16) == messages[:4], "message 4 was not started"

    queue.postpone(messages[1])
    assert queue.overdue(16) == messages[:1]
    queue.start(messages[1], 10)
    assert queue.overdue(16) == messages[:1], "its period starts over"


def test_messages_pulled_again_below_held_ones_are_committed_in_order() -> None:
    queue = ProcessQueue(QUEUE)
    late, early = message_at(7), message_at(3)
    queue.put([late])
    assert queue.put([early, message_at(7)]) == [early]
    assert (queue.lowest, queue.highest, queue.span) == (3, 7, 4)

    assert queue.remove(late) == 3
    assert queue.remove(early) == 8


def test_messages_handled_one_by_one_leave_no_offsets_behind() -> None:
    queue = ProcessQueue(QUEUE)
    for offset in range(100):
        message = message_at(offset)
        queue.put([message])
        assert queue.remove(message) == offset + 1
    assert queue.ordered_count == 0


def test_remove_all_equals_repeated_remove() -> None:
    at_once, one_by_one = ProcessQueue(QUEUE), ProcessQueue(QUEUE)
    messages = [message_at(offset, size=offset) for offset in (3, 4, 7, 8, 9)]
    stranger = message_at(4)
    for ended in ([3, 4], [9, 7], [], [8]):
        for queue in (at_once, one_by_one):
            if not len(queue) and queue.committable() is None:
                queue.put(messages)
            assert all(queue.start(message, 5) for message in messages if queue.holds(message))
        those = [message for message in messages if message.queue_offset in ended]
        offsets = [one_by_one.remove(message) for message in (stranger, *those)]
        assert at_once.remove_all([stranger, *those]) == offsets[-1]
        assert at_once.size_bytes == one_by_one.size_bytes
        assert at_once.started == one_by_one.started
        assert not any(at_once.start(message, 6) for message in those)
    assert at_once.committable() == 10
    assert at_once.size_bytes == at_once.ordered_count == 0


class DrainMachine(RuleBasedStateMachine):
    """A draining queue: started messages may finish, and the commit never passes dropped ones."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(QUEUE)
        messages = [message_at(offset) for offset in range(8)]
        self.queue.put(messages)
        self.waiting = {message.queue_offset: message for message in messages}
        self.running: dict[int, MessageExt] = {}
        self.is_draining = False
        self.idle_calls = 0

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.queue.start(self.waiting[offset], 1) is not self.is_draining
        if not self.is_draining:
            self.running[offset] = self.waiting.pop(offset)

    @precondition(lambda self: self.running)
    @rule()
    def drain(self) -> None:
        if not self.is_draining:
            self.is_draining = True
            assert self.queue.drain(self.note_idle)
            assert self.queue.put([message_at(9)]) == []

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_done=st.booleans())
    def end(self, data: st.DataObject, *, is_done: bool) -> None:
        message = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        if is_done:
            assert self.queue.remove(message) == self.first_not_done
        else:
            self.queue.postpone(message)
            self.waiting[message.queue_offset] = message

    @rule()  # always enabled: after the last message the machine still needs a step
    def look(self) -> None:
        assert all(one.queue_offset in self.running for one in self.queue.overdue(8))

    @property
    def first_not_done(self) -> int:
        return min([*self.waiting, *self.running], default=8)

    def note_idle(self) -> None:
        self.idle_calls += 1

    @invariant()
    def idle_is_told_once_when_nothing_runs(self) -> None:
        if self.is_draining:
            assert len(self.queue) == len(self.running)
            assert self.queue.size_bytes == len(self.running)
            assert self.idle_calls == (not self.running)

    @invariant()
    def nothing_that_is_not_done_lies_below_the_commit(self) -> None:
        assert self.queue.committable() == self.first_not_done


def test_messages_dropped_by_drain_are_not_committed_after_the_last_listener() -> None:
    queue = ProcessQueue(QUEUE)
    messages = [message_at(offset) for offset in range(5)]
    queue.put(messages)
    ended: list[int] = []
    queue.start(messages[0], 1)
    queue.start(messages[3], 1)

    assert queue.drain(lambda: ended.append(1))
    assert queue.remove(messages[3]) == 0
    assert queue.remove(messages[0]) == 1, "the messages at 1, 2 and 4 belong to another member now"
    assert ended == [1]
    assert ProcessQueue(QUEUE).drain(ended.clear) is False


TestDrain = DrainMachine.TestCase
TestDrain.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

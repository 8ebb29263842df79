"""A queue's messages stay in order and none is skipped, whatever the listener does."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kourou.client.consuming.listening.consume_order import QueueOrder
from kourou.client.consuming.membership.queue_locks import BROKER_EXPIRY_S, LockGrants
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from tests.client.consuming.messages import QUEUE, message_at


class OrderMachine(RuleBasedStateMachine):
    """`QueueOrder` against a model of lists: waiting, taken and finished messages."""

    def __init__(self) -> None:
        super().__init__()
        self.process_queue = ProcessQueue(QUEUE)
        self.order = QueueOrder(self.process_queue)
        self.next_offset = 0
        self.waiting: list[int] = []
        self.taken: list[int] = []
        self.finished: list[int] = []
        self.committed = 0

    @rule(gaps=st.lists(st.integers(1, 3), max_size=5))
    def pull(self, gaps: list[int]) -> None:
        messages = []
        for gap in gaps:
            messages.append(message_at(self.next_offset))
            self.waiting.append(self.next_offset)
            self.next_offset += gap
        self.order.put(self.process_queue.put(messages))
        self.process_queue.advance(self.next_offset)

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        expected = [] if self.taken else self.waiting[:limit]
        assert [one.queue_offset for one in self.order.take(limit)] == expected
        if not self.taken:
            self.taken, self.waiting = expected, self.waiting[limit:]

    @rule()
    def finish(self) -> None:
        self.order.finish()
        self.finished += self.taken
        self.taken = []

    @rule(count=st.integers(0, 4))
    def finish_first(self, count: int) -> None:
        self.order.finish(count)
        self.finished += self.taken[:count]
        self.taken = self.taken[count:]

    @rule(count=st.integers(0, 4))
    def put_back_after(self, count: int) -> None:
        self.order.put_back_after(count)
        self.waiting = self.taken[count:] + self.waiting
        self.taken = self.taken[:count]

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        failed = data.draw(
            st.lists(st.sampled_from(self.taken), unique=True) if self.taken else st.just([])
        )
        self.order.put_back([one for one in self.order.taken if one.queue_offset in failed])
        first = self.taken.index(min(failed)) if failed else len(self.taken)
        self.finished += self.taken[:first]
        self.waiting = self.taken[first:] + self.waiting
        self.taken = []

    @rule()
    def fail_all(self) -> None:
        self.order.put_back()
        self.waiting = self.taken + self.waiting
        self.taken = []

    @rule()
    def roll_back(self) -> None:
        self.order.roll_back()
        self.waiting = self.finished + self.taken + self.waiting
        self.finished, self.taken = [], []

    @rule()
    def commit(self) -> None:
        held = [*self.taken, *self.waiting]
        offset = self.order.commit()
        if self.finished:
            assert offset == (held[0] if held else self.next_offset)
            assert offset is not None
            assert offset >= self.committed
            self.committed = offset
        else:
            assert offset is None
        self.finished = []

    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        if not self.taken:
            return
        offset = data.draw(st.sampled_from(self.taken))
        (message,) = [one for one in self.order.taken if one.queue_offset == offset]
        self.process_queue.remove(message)
        self.order.remove(message)
        self.taken.remove(offset)

    @invariant()
    def nothing_is_lost_or_out_of_order(self) -> None:
        assert [one.queue_offset for one in self.order.taken] == self.taken
        assert [one.queue_offset for one in self.order.finished] == self.finished
        assert self.order.is_waiting == bool(self.waiting)
        out = [*self.finished, *self.taken, *self.waiting]
        assert out == sorted(out)
        assert len(self.process_queue) == len(out)


TestOrder = OrderMachine.TestCase
TestOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_dropped_queue_delivers_and_commits_nothing() -> None:
    process_queue = ProcessQueue(QUEUE)
    order = QueueOrder(process_queue)
    order.put(process_queue.put([message_at(0), message_at(1)]))
    order.take(1)
    process_queue.drop()
    order.finish()
    assert order.commit() is None
    assert not order.is_waiting
    assert order.take(1) == []


def test_messages_pulled_again_are_inserted_in_order() -> None:
    process_queue = ProcessQueue(QUEUE)
    order = QueueOrder(process_queue)
    order.put(process_queue.put([message_at(5), message_at(6)]))
    order.put(process_queue.put([message_at(3), message_at(4)]))
    assert [one.queue_offset for one in order.take(4)] == [3, 4, 5, 6]


MOSTLY = st.sampled_from([True, True, True, True, False])


class LockTermsMachine(RuleBasedStateMachine):
    """`LockGrants` of a member against a model broker whose locks expire after a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.terms = LockGrants(30.0)
        self.now_s = 0.0
        self.owner: tuple[str, float] | None = None  # the broker's lock
        self.other_had_it = False  # since the last response

    @rule(seconds=st.sampled_from([0.5, 19.0, 29.0, 31.0, 45.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(
        there_s=st.floats(0, 1),
        back_s=st.floats(0, 1),
        arrives=MOSTLY,
        is_answered=MOSTLY,
    )
    def ask(self, there_s: float, back_s: float, *, arrives: bool, is_answered: bool) -> None:
        asked_s, was_held = self.now_s, self.terms.requested_at_s(QUEUE) is not None
        self.now_s += there_s
        if not arrives:
            return
        is_granted = self.is_free("me")
        if is_granted:
            self.owner = ("me", self.now_s)
        self.now_s += back_s
        if not is_answered:
            return
        if not is_granted:
            self.terms.drop(QUEUE)
        elif self.terms.grant(QUEUE, asked_s, self.now_s):
            assert not (was_held and self.other_had_it)
        self.other_had_it = False

    @rule()
    def other_asks(self) -> None:
        if self.is_free("other"):
            self.owner = ("other", self.now_s)
            self.other_had_it = True

    @rule()
    def other_is_done(self) -> None:
        if self.owner is not None and self.owner[0] == "other":
            self.owner = None

    def is_free(self, client_id: str) -> bool:
        if self.owner is None or self.owner[0] == client_id:
            return True
        return self.now_s - self.owner[1] > BROKER_EXPIRY_S

    @invariant()
    def two_never_believe_in_one_lock(self) -> None:
        if self.terms.is_held(QUEUE, self.now_s):
            assert self.owner is not None
            assert self.owner[0] == "me"


TestLockTerms = LockTermsMachine.TestCase
TestLockTerms.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)

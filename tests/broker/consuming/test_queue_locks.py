"""Queue locks: one holder in a group at a time, until it unlocks or the lock expires."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kourou.broker.consuming.queue_locks import EXPIRY_MS, QueueLocks
from kourou.model.queue import MessageQueue

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))


def test_a_queue_is_granted_to_the_first_client() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "c1", [A, B], 0) == [A, B]
    assert locks.lock("g", "c2", [A, B], 1) == []
    assert locks.holder("g", A, 1) == "c1"


def test_groups_do_not_see_each_others_locks() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "c1", [A], 0) == [A]
    assert locks.lock("h", "c2", [A], 0) == [A]


def test_only_the_holder_unlocks() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [A], 0)
    assert locks.unlock("g", "c2", [A, B]) == []
    assert locks.unlock("absent", "c1", [A]) == []
    assert locks.holder("g", A, 0) == "c1"
    assert locks.unlock("g", "c1", [A, B]) == [A]
    assert locks.lock("g", "c2", [A], 0) == [A]


def test_a_lock_lasts_a_minute_after_its_last_request() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [A], 0)
    locks.lock("g", "c1", [A], 20_000)
    assert locks.lock("g", "c2", [A], 20_000 + EXPIRY_MS) == []
    assert locks.lock("g", "c2", [A], 20_001 + EXPIRY_MS) == [A]
    assert locks.lock("g", "c1", [A], 20_002 + EXPIRY_MS) == []


def test_a_group_consumes_in_order_as_long_as_a_lock_lasts() -> None:
    locks = QueueLocks()
    assert not locks.is_any_held("g", 0)
    locks.lock("g", "c1", [A], 0)
    assert locks.is_any_held("g", EXPIRY_MS)
    assert not locks.is_any_held("g", EXPIRY_MS + 1)
    assert not locks.is_any_held("h", 0)


def test_expired_locks_are_removed() -> None:
    locks = QueueLocks()
    locks.lock("g", "c1", [A], 0)
    locks.lock("g", "c1", [B], 1)
    assert locks.expire(EXPIRY_MS + 1) == 1
    assert len(locks) == 1
    assert locks.expire(EXPIRY_MS + 2) == 1
    assert len(locks) == 0
    assert locks.expire(EXPIRY_MS + 2) == 0


def test_the_number_of_locks_is_limited() -> None:
    locks = QueueLocks(locks_max=1)
    assert locks.lock("g", "c1", [A, B], 0) == [A]
    assert locks.lock("h", "c1", [A], 0) == []
    assert locks.lock("g", "c1", [A], 1) == [A]
    assert locks.lock("g", "c2", [A], EXPIRY_MS + 2) == [A]
    locks.unlock("g", "c2", [A])
    assert locks.lock("h", "c1", [A], 0) == [A]


GROUPS = st.sampled_from(["g", "h"])
CLIENTS = st.sampled_from(["c1", "c2", "c3"])
QUEUES = st.lists(
    st.builds(MessageQueue, st.just("T"), st.sampled_from("ab"), st.integers(0, 2)),
    unique=True,
    max_size=4,
)


class LocksMachine(RuleBasedStateMachine):
    """Compares the locks with a model of all grants."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = QueueLocks(expiry_ms=100)
        self.now_ms = 0
        self.held: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    def is_free(self, group: str, client: str, queue: MessageQueue) -> bool:
        held = self.held.get((group, queue))
        return held is None or held[0] == client or self.now_ms - held[1] > 100

    @rule(group=GROUPS, client=CLIENTS, queues=QUEUES)
    def lock(self, group: str, client: str, queues: list[MessageQueue]) -> None:
        free = [queue for queue in queues if self.is_free(group, client, queue)]
        assert self.locks.lock(group, client, queues, self.now_ms) == free
        for queue in free:
            self.held[group, queue] = client, self.now_ms

    @rule(group=GROUPS, client=CLIENTS, queues=QUEUES)
    def unlock(self, group: str, client: str, queues: list[MessageQueue]) -> None:
        self.locks.unlock(group, client, queues)
        for queue in queues:
            if self.held.get((group, queue), ("", 0))[0] == client:
                del self.held[group, queue]

    @rule(ms=st.integers(1, 120))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def expire(self) -> None:
        self.locks.expire(self.now_ms)

    @invariant()
    def each_queue_is_held_by_its_last_client(self) -> None:
        living = {key: held for key, held in self.held.items() if self.now_ms - held[1] <= 100}
        for (group, queue), (client, _) in self.held.items():
            expected = client if (group, queue) in living else None
            assert self.locks.holder(group, queue, self.now_ms) == expected
        for group in ("g", "h"):
            is_any = any(key[0] == group for key in living)
            assert self.locks.is_any_held(group, self.now_ms) == is_any
        assert len(living) <= len(self.locks) <= len(self.held)


TestLocks = LocksMachine.TestCase
TestLocks.settings = settings(max_examples=60, stateful_step_count=30)

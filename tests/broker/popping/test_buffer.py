"""The merge buffer keeps checkpoints in memory; the offset passes none that could be lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kourou.broker.popping.buffer import Commit, MergeBuffer, PoppedQueue, ToStore
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.pop_config import PopConfig

Q = PoppedQueue("T", "g", 0)
ON = PopConfig(enable_pop_buffer_merge=True)
NOW_MS = 100_000


def checkpoint(
    start: int = 5,
    count: int = 2,
    *,
    queue: PoppedQueue = Q,
    at_ms: int = NOW_MS,
    invisible_ms: int = 60_000,
) -> PopCheckpoint:
    key = CheckpointKey(*queue, start, at_ms, "b")
    return PopCheckpoint(key, tuple(range(start, start + count)), invisible_ms)


def buffered(*checkpoints: PopCheckpoint, config: PopConfig = ON) -> MergeBuffer:
    """Return a buffer that has accepted these checkpoints."""
    buffer = MergeBuffer(lambda: config)
    for each in checkpoints:
        assert buffer.add(each, each.offsets[-1] + 1, 3, each.key.pop_time_ms)
    return buffer


def test_acknowledged_checkpoint_is_never_stored_and_its_offset_is_committed() -> None:
    first = checkpoint()
    buffer = buffered(first)
    assert buffer.latest_offset(Q) == 7
    assert buffer.ack(first.key, [5], NOW_MS + 10)
    assert buffer.scan(NOW_MS + 10, 100) == ([], [])
    assert buffer.ack(first.key, [6], NOW_MS + 20)
    assert buffer.scan(NOW_MS + 20, 100) == ([], [Commit(Q, 7)])
    assert buffer.is_empty
    assert buffer.latest_offset(Q) is None
    assert buffer.scan(NOW_MS + 90_000, 100) == ([], [])


@pytest.mark.parametrize(
    ("invisible_ms", "due_ms"),
    [(60_000, 10_000), (9_000, 6_000)],  # after 10 s, or 3 s before the end
)
def test_unacknowledged_checkpoint_is_stored_when_due_with_its_acks(
    invisible_ms: int, due_ms: int
) -> None:
    first = checkpoint(invisible_ms=invisible_ms)
    buffer = buffered(first)
    assert buffer.next_due_ms == NOW_MS + due_ms
    assert buffer.ack(first.key, [6], NOW_MS + 100)
    assert buffer.scan(NOW_MS + due_ms - 1, 100).store == []
    assert buffer.scan(NOW_MS + due_ms, 100) == ([ToStore(first, 3)], [])
    assert first.unacked() == [5]
    assert not buffer.ack(first.key, [5], NOW_MS + due_ms)
    assert buffer.scan(NOW_MS + due_ms, 100).commits == []
    buffer.stored(first.key)
    assert buffer.scan(NOW_MS + due_ms, 100) == ([], [Commit(Q, 7)])
    assert buffer.is_empty


def test_checkpoint_that_could_not_be_stored_is_due_again_a_second_later() -> None:
    first = checkpoint()
    buffer = buffered(first)
    due_ms = NOW_MS + 10_000
    assert len(buffer.scan(due_ms, 100).store) == 1
    buffer.store_failed(first.key, due_ms)
    assert buffer.scan(due_ms + 999, 100) == ([], [])
    assert buffer.scan(due_ms + 1_000, 100).store == [ToStore(first, 3)]


def test_offset_passes_checkpoints_in_order() -> None:
    first, second, third = checkpoint(5), checkpoint(7), checkpoint(9)
    buffer = buffered(first, second)
    assert buffer.add_storing(third, 11)
    buffer.stored(third.key)
    buffer.ack(second.key, [7, 8], NOW_MS + 1)
    assert buffer.scan(NOW_MS + 1, 100).commits == []
    buffer.ack(first.key, [5, 6], NOW_MS + 2)
    assert buffer.scan(NOW_MS + 2, 100).commits == [Commit(Q, 11)]


def test_offset_follows_reads_without_messages_after_the_checkpoints_before() -> None:
    first = checkpoint(5)
    buffer = buffered(first)
    buffer.add_skipped(Q, 40)
    assert buffer.latest_offset(Q) == 40
    assert buffer.take_commits() == []
    buffer.ack(first.key, [5, 6], NOW_MS)
    assert buffer.take_commits() == [Commit(Q, 40)]
    buffer.add_skipped(Q, 50)
    assert buffer.take_commits() == [Commit(Q, 50)]


def test_checkpoint_that_is_being_stored_holds_the_offset_until_it_is() -> None:
    first = checkpoint()
    buffer = MergeBuffer(lambda: ON)
    assert buffer.add_storing(first, 7)
    assert not buffer.ack(first.key, [5], NOW_MS)
    assert buffer.scan(NOW_MS + 90_000, 100) == ([], [])
    assert buffer.latest_offset(Q) == 7
    buffer.stored(first.key)
    assert buffer.take_commits() == [Commit(Q, 7)]


def test_dropped_checkpoint_leaves_the_offset_before_its_messages() -> None:
    first, second = checkpoint(5), checkpoint(7)
    buffer = buffered(first)
    assert buffer.add_storing(second, 9)
    buffer.dropped(second.key)
    assert buffer.latest_offset(Q) == 7
    buffer.ack(first.key, [5, 6], NOW_MS)
    assert buffer.take_commits() == [Commit(Q, 7)]
    assert buffer.add_storing(second, 9)
    buffer.dropped(second.key)
    assert buffer.is_empty


@pytest.mark.parametrize(
    ("config", "invisible_ms", "later_ms"),
    [
        (PopConfig(), 60_000, 0),  # off
        (ON, 4_499, 0),  # becomes visible again too soon
        (ON, 5_000, 501),
        (PopConfig(enable_pop_buffer_merge=True, pop_ck_max_buffer_size=1), 60_000, 0),
        (PopConfig(enable_pop_buffer_merge=True, pop_ck_offset_max_queue_size=1), 60_000, 0),
    ],
)
def test_checkpoint_is_not_accepted(config: PopConfig, invisible_ms: int, later_ms: int) -> None:
    buffer = MergeBuffer(lambda: config)
    if config.enable_pop_buffer_merge:
        assert buffer.add(checkpoint(0), 2, 0, NOW_MS)
    new = checkpoint(invisible_ms=invisible_ms)
    assert not buffer.add(new, 7, 0, NOW_MS + later_ms)
    assert buffer.add_storing(new, 7)


@pytest.mark.parametrize("later_ms", [8_501, 55_501])
def test_ack_shortly_before_the_checkpoint_is_due_is_not_accepted(later_ms: int) -> None:
    first = checkpoint()
    buffer = buffered(first)
    assert buffer.ack(first.key, [5], NOW_MS + 8_500)
    assert not buffer.ack(first.key, [6], NOW_MS + later_ms)


def test_ack_before_the_messages_become_visible_is_not_accepted() -> None:
    first = checkpoint(invisible_ms=6_000)
    buffer = buffered(first)
    assert buffer.ack(first.key, [5], NOW_MS + 1_500)
    assert not buffer.ack(first.key, [6], NOW_MS + 1_501)


def test_ack_of_an_unknown_checkpoint_is_not_accepted() -> None:
    assert not buffered().ack(checkpoint().key, [5], NOW_MS)


def test_ack_of_an_offset_outside_the_checkpoint_is_accepted_without_effect() -> None:
    first = checkpoint()
    buffer = buffered(first)
    assert buffer.ack(first.key, [4, 7], NOW_MS)
    assert first.unacked() == [5, 6]


def test_keys_that_java_confuses_are_distinct() -> None:
    buffer = buffered(
        checkpoint(11, queue=PoppedQueue("T", "g", 1)),
        checkpoint(1, queue=PoppedQueue("T", "g", 11)),
    )
    assert len(buffer) == 2


def test_second_checkpoint_of_one_key_is_refused() -> None:
    buffer = buffered(checkpoint())
    assert not buffer.add(checkpoint(), 7, 0, NOW_MS)
    assert not buffer.add_storing(checkpoint(), 7)


def test_late_storing_ends_service_until_the_buffer_is_empty() -> None:
    first, second = checkpoint(5), checkpoint(7)
    buffer = buffered(first, second)
    buffer.note_lag(2_000)
    assert buffer.ack(first.key, [5], NOW_MS + 1)
    buffer.note_lag(2_001)
    assert not buffer.ack(first.key, [6], NOW_MS + 1)
    assert not buffer.add(checkpoint(9), 11, 0, NOW_MS + 1)
    assert [each.checkpoint for each in buffer.scan(NOW_MS + 1, 100).store] == [first, second]
    buffer.stored(first.key)
    buffer.stored(second.key)
    assert buffer.scan(NOW_MS + 2, 100).commits == [Commit(Q, 9)]
    assert buffer.is_serving
    assert buffer.add(checkpoint(9), 11, 0, NOW_MS + 1)


def test_number_of_checkpoints_to_store_at_once_is_limited() -> None:
    first, second, third = checkpoint(5), checkpoint(7), checkpoint(9)
    buffer = buffered(first, second, third)
    due_ms = NOW_MS + 10_000
    assert [each.checkpoint for each in buffer.scan(due_ms, 2).store] == [first, second]
    assert buffer.next_due_ms == due_ms
    buffer.stop()
    assert buffer.next_due_ms is not None
    assert buffer.next_due_ms < 0
    assert [each.checkpoint for each in buffer.scan(due_ms, 2).store] == [third]


def test_stop_stores_everything_and_accepts_nothing_more() -> None:
    first = checkpoint()
    buffer = buffered(first)
    buffer.stop()
    assert buffer.scan(NOW_MS + 1, 100).store == [ToStore(first, 3)]
    buffer.stored(first.key)
    assert buffer.scan(NOW_MS + 1, 100).commits == [Commit(Q, 7)]
    assert buffer.is_empty
    assert not buffer.is_serving
    assert not buffer.add(checkpoint(9), 11, 0, NOW_MS + 1)


def test_clock_that_is_set_back_makes_all_checkpoints_due() -> None:
    first = checkpoint()
    buffer = buffered(first)
    assert buffer.scan(NOW_MS, 100).store == []
    assert buffer.scan(NOW_MS - 1_000, 100).store == []
    assert buffer.scan(NOW_MS - 3_600_000, 100).store == [ToStore(first, 3)]


def test_reset_keeps_checkpoints_and_commits_nothing_for_them() -> None:
    first = checkpoint()
    buffer = buffered(first)
    buffer.clear_queue(Q)
    assert buffer.latest_offset(Q) is None
    assert buffer.ack(first.key, [5], NOW_MS)
    assert buffer.scan(NOW_MS + 10_000, 100) == ([ToStore(first, 3)], [])
    buffer.stored(first.key)
    assert buffer.scan(NOW_MS + 10_000, 100) == ([], [])
    assert buffer.is_empty


@pytest.mark.parametrize("is_topic", [True, False])
def test_deletion_of_a_topic_or_group_forgets_its_checkpoints(*, is_topic: bool) -> None:
    other = PoppedQueue("U", "h", 0)
    buffer = buffered(checkpoint(), checkpoint(queue=other))
    if is_topic:
        buffer.remove_topic("T")
    else:
        buffer.remove_group("g")
    assert [each.checkpoint.key.topic for each in buffer.scan(NOW_MS + 10_000, 100).store] == ["U"]
    assert buffer.latest_offset(Q) is None
    assert buffer.latest_offset(other) == 7


class BufferMachine(RuleBasedStateMachine):
    """Compares the buffer with a model that looks at every checkpoint each time, as Java does."""

    def __init__(self) -> None:
        super().__init__()
        self.config = ON
        self.buffer = MergeBuffer(lambda: self.config)
        self.now_ms = NOW_MS
        self.pops: list[tuple[PopCheckpoint, set[int], bool]] = []  # with accepted acks, buffered
        self.stored: set[CheckpointKey] = set()
        self.storing: list[PopCheckpoint] = []
        self.failed_at: dict[CheckpointKey, int] = {}
        self.next_offset = {Q: 0, PoppedQueue("T", "g", 1): 0}
        self.committed = dict(self.next_offset)
        self.is_stopped = False

    queues = st.sampled_from([Q, PoppedQueue("T", "g", 1)])

    def due_ms(self, each: PopCheckpoint) -> int:
        failed_ms = self.failed_at.get(each.key)
        if failed_ms is not None:
            return failed_ms + 1_000
        return min(each.revive_at_ms - 3_000, each.key.pop_time_ms + 10_000)

    @rule(queue=queues, count=st.integers(1, 3), invisible_s=st.integers(1, 20))
    def pop(self, queue: PoppedQueue, count: int, invisible_s: int) -> None:
        self.now_ms += 1
        start = self.buffer.latest_offset(queue)
        start = self.committed[queue] if start is None else max(start, self.committed[queue])
        assert start == self.next_offset[queue]
        new = checkpoint(
            start, count, queue=queue, at_ms=self.now_ms, invisible_ms=invisible_s * 1_000
        )
        is_accepted = self.buffer.add(new, start + count, 0, self.now_ms)
        is_off = self.is_stopped or not self.config.enable_pop_buffer_merge
        assert is_accepted == (not is_off and invisible_s * 1_000 >= 4_500)
        if not is_accepted:
            assert self.buffer.add_storing(new, start + count)
            self.storing.append(new)
        self.next_offset[queue] = start + count
        self.pops.append((new, set(), is_accepted))

    @rule(queue=queues, count=st.integers(1, 3))
    def skip(self, queue: PoppedQueue, count: int) -> None:
        self.next_offset[queue] += count
        self.buffer.add_skipped(queue, self.next_offset[queue])

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        if not self.pops:
            return
        each, acked, is_buffered = data.draw(st.sampled_from(self.pops[-4:]))
        offset = data.draw(st.sampled_from(each.offsets))
        is_open = (
            is_buffered
            and not self.is_stopped
            and self.config.enable_pop_buffer_merge
            and each not in self.storing
            and each.key not in self.stored
            and len(acked) < len(each.offsets)
            and each.revive_at_ms - self.now_ms >= 4_500
            and self.now_ms - each.key.pop_time_ms <= 8_500
        )
        assert self.buffer.ack(each.key, [offset], self.now_ms) == is_open
        if is_open:
            acked.add(offset)

    @rule()
    def scan(self) -> None:
        due = [
            each
            for each, acked, is_buffered in self.pops
            if is_buffered
            and each not in self.storing
            and each.key not in self.stored
            and len(acked) < len(each.offsets)
            and (self.is_stopped or self.due_ms(each) <= self.now_ms)
        ]
        scan = self.buffer.scan(self.now_ms, 100)
        keys = [each.checkpoint.key for each in scan.store]
        assert sorted(keys) == sorted(each.key for each in due)
        self.storing += due
        for queue, offset in scan.commits:
            assert offset > self.committed[queue]
            self.committed[queue] = offset

    @rule(data=st.data(), is_stored=st.booleans())
    def finish(self, data: st.DataObject, *, is_stored: bool) -> None:
        if not self.storing:
            return
        each = data.draw(st.sampled_from(self.storing))
        is_buffered = next(flag for one, _, flag in self.pops if one is each)
        if not is_stored and not is_buffered:
            return  # the pop would not be answered: see `dropped`
        self.storing.remove(each)
        if is_stored:
            acked = next(acks for one, acks, _ in self.pops if one is each)
            assert set(each.unacked()) == set(each.offsets) - acked
            self.stored.add(each.key)
            self.buffer.stored(each.key)
        else:
            self.failed_at[each.key] = self.now_ms
            self.buffer.store_failed(each.key, self.now_ms)

    @rule(ms=st.integers(1, 6_000))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(is_on=st.booleans())
    def switch(self, *, is_on: bool) -> None:
        self.config = PopConfig(enable_pop_buffer_merge=is_on)

    @rule()
    def stop(self) -> None:
        if len(self.pops) > 8:
            self.is_stopped = True
            self.buffer.stop()

    @invariant()
    def offset_passes_only_what_is_acknowledged_or_stored(self) -> None:
        for each, acked, _ in self.pops:
            if self.committed[PoppedQueue(*each.key[:3])] > each.offsets[0]:
                assert each.key in self.stored or len(acked) == len(each.offsets)

    def teardown(self) -> None:
        """Check that a stop leaves nothing in memory."""
        self.buffer.stop()
        for each in self.storing:
            self.buffer.stored(each.key)
        for _ in range(2):
            scan = self.buffer.scan(self.now_ms, 100)
            self.committed.update({commit.queue: commit.offset for commit in scan.commits})
            for each, _ in scan.store:
                self.buffer.stored(each.key)
        assert self.buffer.is_empty
        assert self.committed == self.next_offset


TestBuffer = BufferMachine.TestCase
TestBuffer.settings = settings(max_examples=60, stateful_step_count=40)

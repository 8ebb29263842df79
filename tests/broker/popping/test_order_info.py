"""Order infos block a queue after an ordered pop, count redeliveries, and advance the offset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kourou.broker.popping.order_info import (
    IDLE_MS_MAX,
    OrderAck,
    OrderBlock,
    OrderedPop,
    OrderedQueue,
    OrderInfos,
)
from kourou.protocol.popping.order_file import decode_order_info_table, encode_order_info_parts
from tests.golden_exchanges import exchanges, recorded

Q = OrderedQueue("T", "g", 0)
VECTORS = Path(__file__).parents[2] / "golden" / "vectors" / "order_pops.json"
OTHER = OrderedQueue("T", "g", 1)
NOTHING = OrderAck()


def popped(
    offsets: Sequence[int],
    at_ms: int = 1_000,
    *,
    invisible_ms: int = 500,
    attempt_id: str | None = None,
) -> OrderInfos:
    """Return the infos after one pop of `Q`."""
    infos = OrderInfos()
    infos.add_pop(Q, OrderedPop(offsets, at_ms, invisible_ms, attempt_id), at_ms)
    return infos


def test_queue_is_blocked_until_the_invisible_time_ends() -> None:
    infos = popped([5, 7])
    assert infos.block(OTHER, 1_000) is None
    assert infos.block(Q, 1_499) == OrderBlock(5, 1_500, 1_500)
    assert infos.block(Q, 1_500) is None


def test_block_names_the_offset_and_the_time_in_words() -> None:
    infos = popped([5, 7], 1_700_000_000_000)
    infos.change(Q, 7, 1_700_000_000_000, 1_700_000_060_000)
    assert str(infos.block(Q, 1_700_000_000_001)) == (
        "offset 5 is not acknowledged, and invisible until 2023-11-14 22:13:20 UTC; "
        "later offsets until 2023-11-14 22:14:20 UTC"
    )
    infos.change(Q, 7, 1_700_000_000_000, 2**62)
    assert str(infos.block(Q, 1_700_000_001_000)) == (
        f"offset 7 is not acknowledged, and invisible until {2**62} ms"
    )


def test_queue_is_free_once_all_messages_are_acknowledged() -> None:
    infos = popped([5, 7])
    assert infos.ack(Q, 7, 1_000, 5, 1_100) == NOTHING  # 5 is still to be acknowledged
    assert infos.block(Q, 1_100) == OrderBlock(5, 1_500, 1_500)
    assert infos.ack(Q, 5, 1_000, 5, 1_100) == OrderAck(8, is_free=True)
    assert infos.block(Q, 1_100) is None


def test_ack_in_order_commits_the_next_offset() -> None:
    infos = popped([5, 7])
    assert infos.ack(Q, 5, 1_000, 5, 1_100) == OrderAck(7)
    assert infos.ack(Q, 5, 1_000, 7, 1_100) == NOTHING  # again, or late
    assert infos.ack(Q, 7, 1_000, 7, 1_100) == OrderAck(8, is_free=True)


def test_ack_of_an_unpopped_offset_is_illegal() -> None:
    infos = popped([5, 7])
    assert infos.ack(Q, 6, 1_000, 5, 1_100).is_illegal
    assert infos.ack(Q, 8, 1_000, 5, 1_100).is_illegal


def test_ack_of_an_earlier_pop_has_no_effect() -> None:
    infos = popped([5, 7])
    infos.add_pop(Q, OrderedPop([5, 7], 2_000, 500), 2_000)
    assert infos.ack(Q, 5, 1_000, 5, 2_001) == NOTHING
    assert infos.block(Q, 2_001) == OrderBlock(5, 2_500, 2_500)


def test_ack_never_sets_the_committed_offset_back() -> None:
    infos = popped([5, 6, 7])
    assert infos.ack(Q, 7, 1_000, 6, 1_100) == NOTHING  # the offset was set to 6 meanwhile
    assert infos.ack(Q, 5, 1_000, 6, 1_100) == NOTHING
    assert infos.ack(Q, 6, 1_000, 6, 1_100).commit_offset is None
    assert infos.block(Q, 1_100) == OrderBlock(5, 1_500, 1_500)


def test_ack_without_an_info_moves_the_committed_offset_by_one_at_most() -> None:
    infos = OrderInfos()
    assert infos.ack(Q, 5, 1_000, 5, 1_100) == OrderAck(6, is_free=True)
    assert infos.ack(Q, 7, 1_000, 5, 1_100) == NOTHING
    assert infos.ack(Q, 4, 1_000, 5, 1_100) == NOTHING
    assert infos.ack(Q, 0, 1_000, None, 1_100) == NOTHING


@pytest.mark.parametrize("how", ["queue", "topic", "group"])
def test_acks_of_pops_before_a_reset_have_no_effect(how: str) -> None:
    infos = popped([5, 7])
    if how == "queue":
        infos.clear(Q, 1_100)
    elif how == "topic":
        infos.remove_topic("T", 1_100)
    else:
        infos.remove_group("g", 1_100)
    assert infos.block(Q, 1_100) is None
    assert infos.ack(Q, 5, 1_000, 5, 1_100) == NOTHING
    assert not infos.change(Q, 5, 1_000, 9_000)
    infos.add_pop(Q, OrderedPop([5], 1_200, 500), 1_200)
    assert infos.ack(Q, 5, 1_000, 5, 1_300) == NOTHING
    assert infos.ack(Q, 5, 1_200, 5, 1_300) == OrderAck(6, is_free=True)


def test_removal_of_a_topic_or_group_leaves_the_others() -> None:
    infos = popped([5])
    infos.remove_topic("U", 1_100)
    infos.remove_group("h", 1_100)
    assert infos.block(Q, 1_100) is not None


def test_same_attempt_gets_the_messages_again_without_counting_them() -> None:
    infos = popped([5, 7], attempt_id="a")
    assert infos.block(Q, 1_100, attempt_id="b") is not None
    assert infos.block(Q, 1_100) is not None
    assert infos.block(Q, 1_100, attempt_id="a") is None
    assert infos.add_pop(Q, OrderedPop([5, 7], 1_200, 500, "a"), 1_200) == ({}, 0)
    assert infos.ack(Q, 5, 1_000, 5, 1_300) == NOTHING
    assert infos.ack(Q, 5, 1_200, 5, 1_300) == OrderAck(7)


def test_pops_without_an_attempt_id_are_never_the_same_attempt() -> None:
    infos = popped([5])
    assert infos.block(Q, 1_100, attempt_id=None) is not None


def test_messages_popped_again_are_counted() -> None:
    infos = popped([5, 7], attempt_id="a")
    assert infos.add_pop(Q, OrderedPop([7, 8], 2_000, 500, "b"), 2_000) == ({7: 1}, 0)
    assert infos.add_pop(Q, OrderedPop([7, 8], 3_000, 500, "c"), 3_000) == ({7: 2, 8: 1}, 1)
    assert infos.add_pop(Q, OrderedPop([7, 8], 3_100, 500, "c"), 3_100) == ({7: 2, 8: 1}, 1)
    assert infos.add_pop(Q, OrderedPop([9], 4_000, 500, "d"), 4_000) == ({}, 0)


def test_changed_time_replaces_the_pops() -> None:
    infos = popped([5, 7])
    assert infos.change(Q, 5, 1_000, 9_000)
    assert infos.block(Q, 1_600) == OrderBlock(5, 9_000, 9_000)
    assert infos.change(Q, 5, 1_000, 1_200)
    assert infos.block(Q, 1_300) == OrderBlock(7, 1_500, 1_500)


def test_change_of_an_acknowledged_or_foreign_message_has_no_effect() -> None:
    infos = popped([5, 7])
    infos.ack(Q, 7, 1_000, 5, 1_100)
    infos.take_changed()
    assert not infos.change(Q, 7, 1_000, 9_000)
    assert not infos.change(Q, 6, 1_000, 9_000)
    assert not infos.change(Q, 5, 999, 9_000)
    assert not infos.change(OTHER, 5, 1_000, 9_000)
    assert not infos.has_changes


def test_info_without_an_invisible_time_takes_that_of_the_pop() -> None:
    # files of early brokers have none
    infos = popped([5], invisible_ms=0)
    assert infos.free_at_ms(Q) == 1_000
    assert infos.block(Q, 1_100, invisible_ms=700) == OrderBlock(5, 1_700, 1_700)
    assert infos.block(Q, 1_100) == OrderBlock(5, 1_700, 1_700)


def test_ends_of_blocks_are_reported_once_and_in_time() -> None:
    infos = popped([5, 7])
    infos.add_pop(OTHER, OrderedPop([0], 1_000, 900), 1_000)
    assert infos.next_end_ms == 1_500
    assert infos.take_ended(1_499) == []
    assert infos.change(Q, 7, 1_000, 2_000)
    assert infos.take_ended(1_500) == []  # offset 7 is still invisible
    assert infos.take_ended(1_900) == [OTHER]
    assert infos.take_ended(2_000) == [Q]
    assert infos.take_ended(9_999) == []
    assert infos.next_end_ms is None


def test_block_that_is_shortened_ends_at_the_new_time() -> None:
    infos = popped([5])
    infos.change(Q, 5, 1_000, 1_100)
    assert infos.take_ended(1_100) == [Q]
    assert infos.take_ended(1_500) == []


def test_acknowledged_messages_end_no_block_later() -> None:
    infos = popped([5])
    infos.ack(Q, 5, 1_000, 5, 1_100)
    assert infos.free_at_ms(Q) is None
    assert infos.take_ended(9_999) == []


def test_ends_of_many_pops_of_one_queue_are_bounded() -> None:
    infos = OrderInfos()
    for at_ms in range(0, 20_000, 2):
        infos.add_pop(Q, OrderedPop([at_ms], at_ms, 100_000_000), at_ms)
        infos.change(Q, at_ms, at_ms, 90_000_000 - at_ms)
    assert len(infos._ends) <= 1_100


def test_bits_are_a_signed_number_of_64_bits() -> None:
    # Java's pops have 32 messages at most, its files could have more
    infos = popped(range(70))
    result = NOTHING
    for offset in range(63, -1, -1):
        result = infos.ack(Q, offset, 1_000, 0, 1_001)
        info = infos.find(Q)
        assert info is not None
        assert info.commit_bits == -(1 << offset)
    assert result == OrderAck(64, is_free=True)
    assert infos.ack(Q, 64, 1_000, 64, 1_001).is_illegal


def test_unused_infos_expire() -> None:
    infos = popped([5])
    infos.add_pop(OTHER, OrderedPop([5], 1_000, 500), 9_000)
    counts = {"T": 2}

    def expire(now_ms: int, *, has_group: bool = True) -> int:
        return infos.expire(now_ms, counts.get, lambda _: has_group)

    assert expire(1_000 + IDLE_MS_MAX) == 0
    assert expire(1_001 + IDLE_MS_MAX) == 1
    assert [queue for queue, _ in infos.items()] == [OTHER]
    counts["T"] = 1
    assert expire(9_000) == 1
    infos.add_pop(Q, OrderedPop([5], 9_000, 500), 9_000)
    assert expire(9_001, has_group=False) == 1
    infos.add_pop(Q, OrderedPop([5], 9_000, 500), 9_000)
    del counts["T"]
    assert expire(9_001) == 1
    assert len(infos) == 0
    assert set(infos.cleared()) == {Q, OTHER}
    assert expire(9_002 + IDLE_MS_MAX) == 0
    assert not infos.cleared()


def test_info_beyond_the_end_of_the_queue_is_cleared_at_a_start() -> None:
    infos = popped([5, 7])
    infos.add_pop(OTHER, OrderedPop([5, 6], 1_000, 500), 1_000)
    assert infos.clamp(lambda _, __: 7, 2_000) == 1
    assert infos.ack(Q, 5, 1_000, 5, 2_000) == NOTHING
    assert infos.find(OTHER) is not None


def test_blocks_of_a_group_are_listed() -> None:
    infos = popped([5])
    infos.add_pop(OTHER, OrderedPop([1], 1_000, 400), 1_000)
    infos.add_pop(OrderedQueue("T", "h", 0), OrderedPop([1], 1_000, 400), 1_000)
    assert infos.blocks_of("g", 1_450) == [(Q, OrderBlock(5, 1_500, 1_500))]
    assert len(infos.blocks_of("g", 1_399)) == 2


def fields(name: str, side: str = "request") -> dict[str, str]:
    exchange = exchanges()[name]
    found = {"request": exchange.request, "response": exchange.response}[side]
    assert found is not None
    return dict(found.header["extFields"])


def pop_recorded(infos: OrderInfos, name: str) -> None:
    """Repeat a recorded pop that found messages, and compare the counts of its answer."""
    request, answer = fields(name), fields(name, "response")
    queue = OrderedQueue(request["topic"], request["consumerGroup"], 0)
    now_ms = int(answer["popTime"])
    attempt = request["attemptId"]
    assert infos.block(queue, now_ms, attempt_id=attempt) is None
    offsets = [int(text) for text in answer["msgOffsetInfo"].split()[2].split(",")]
    pop = OrderedPop(offsets, now_ms, int(request["invisibleTime"]), attempt)
    counts = infos.add_pop(queue, pop, now_ms)
    texts = [f"0 qo0%{offset} {count}" for offset, count in counts.by_offset.items()]
    assert answer["orderCountInfo"] == ";".join([*texts, f"0 0 {counts.least}"])


def ack_recorded(infos: OrderInfos, name: str, committed: int) -> OrderAck:
    request = fields(name)
    assert recorded(name, "response").code == 0
    queue = OrderedQueue(request["topic"], request["consumerGroup"], int(request["queueId"]))
    pop_time_ms = int(request["extraInfo"].split()[1])
    return infos.ack(queue, int(request["offset"]), pop_time_ms, committed, pop_time_ms + 1)


def test_answers_recorded_from_java_are_repeated() -> None:
    infos = OrderInfos()
    queue = OrderedQueue("GoldenPopOrder", "golden_pop_order", 0)
    pop_recorded(infos, "200050_POP_MESSAGE_pop-order-first")
    first_ack = ack_recorded(
        infos, "200051_ACK_MESSAGE_pop-order-ack-before-same-attempt", committed=0
    )
    assert first_ack == OrderAck(1)
    pop_recorded(infos, "200050_POP_MESSAGE_pop-order-same-attempt")
    earlier = "200051_ACK_MESSAGE_pop-order-ack-handle-of-earlier-attempt"
    assert ack_recorded(infos, earlier, committed=1) == NOTHING
    blocked = fields("200050_POP_MESSAGE_pop-order-blocked_rc210", "response")
    reason = infos.block(queue, int(blocked["popTime"]), attempt_id="attempt-2")
    assert reason is not None
    assert reason.queue_offset == 1

    assert ack_recorded(infos, "200051_ACK_MESSAGE_pop-order-ack-first", 1) == OrderAck(2)
    assert ack_recorded(infos, "200051_ACK_MESSAGE_pop-order-ack-second", 2) == OrderAck(3)
    stale = "200051_ACK_MESSAGE_pop-order-ack-stale"
    assert ack_recorded(infos, stale, 3) == NOTHING
    change = fields("200053_CHANGE_MESSAGE_INVISIBLETIME_pop-order-change-invisible", "response")
    pop_time_ms = int(change["popTime"])
    visible_at_ms = pop_time_ms + int(change["invisibleTime"])
    assert infos.change(queue, 3, pop_time_ms, visible_at_ms)
    assert infos.take_ended(visible_at_ms) == [queue]
    pop_recorded(infos, "200050_POP_MESSAGE_pop-order-redelivered-count")


def repeat_call(infos: OrderInfos, call: str, now_ms: int) -> str | None:
    """Repeat a recorded call of Java's class; return the result in its form; None without one."""
    kind, queue_id, *arguments = call.split(" ")
    queue = OrderedQueue("T", "g", int(queue_id))
    attempt = None if arguments[:1] == ["-"] else "".join(arguments[:1])
    if kind == "U":
        pop_time_ms, invisible_ms = map(int, arguments[1:3])
        offsets = [int(text) for text in arguments[3].split(",")]
        pop = OrderedPop(offsets, pop_time_ms, invisible_ms, attempt)
        counts = infos.add_pop(queue, pop, now_ms)
        texts = [f"0 qo{queue_id}%{offset} {count}" for offset, count in counts.by_offset.items()]
        return "U " + ";".join([*texts, f"0 {queue_id} {counts.least}"])
    if kind == "B":
        reason = infos.block(queue, now_ms, attempt_id=attempt, invisible_ms=int(arguments[1]))
        return "B false" if reason is None else "B true"
    if kind == "C":
        offset, pop_time_ms = map(int, arguments)
        result = infos.ack(queue, offset, pop_time_ms, None, now_ms)
        if result.is_illegal:
            return "C -1"
        return "C -2" if result.commit_offset is None else f"C {result.commit_offset}"
    if kind == "V":
        offset, pop_time_ms, visible_at_ms = map(int, arguments)
        infos.change(queue, offset, pop_time_ms, visible_at_ms)
    else:
        infos.clear(queue, now_ms)
    return None


def test_calls_of_javas_class_have_the_same_results() -> None:
    recorded_calls = json.loads(VECTORS.read_text())
    now_ms = recorded_calls["now_ms"]
    infos = OrderInfos()
    results = [repeat_call(infos, call, now_ms) for call in recorded_calls["calls"]]
    assert [result for result in results if result is not None] == recorded_calls["results"]

    table = decode_order_info_table(recorded_calls["table"].encode())
    for queue_id, expected in table.table["T@g"].items():
        info = infos.find(OrderedQueue("T", "g", queue_id))
        assert info is not None
        at_ms = expected.last_consume_timestamp
        times = expected.next_visible_times  # Java's also have those of acknowledged messages
        assert replace(info, last_consume_timestamp=at_ms, next_visible_times=times) == expected
    assert len(infos) == len(table.table["T@g"])
    text = b"".join(encode_order_info_parts(1, table.table.items()))
    assert text == recorded_calls["table"].encode()


class OrderMachine(RuleBasedStateMachine):
    """Compares the infos with a model that keeps one entry a message, in two queues.

    Messages are popped from the committed offset on, as by the broker. The model also checks what a
    consumer relies on: order, and no loss.
    """

    def __init__(self) -> None:
        super().__init__()
        self.infos = OrderInfos()
        self.now_ms = 1_000
        self.committed = {Q: 0, OTHER: 0}
        self.popped: dict[OrderedQueue, dict[int, int]] = {Q: {}, OTHER: {}}  # offset -> visible at
        self.acked: dict[OrderedQueue, set[int]] = {Q: set(), OTHER: set()}
        self.times: dict[OrderedQueue, list[tuple[int, list[int]]]] = {Q: [], OTHER: []}
        self.counts: dict[OrderedQueue, dict[int, int]] = {Q: {}, OTHER: {}}
        self.attempt: dict[OrderedQueue, str | None] = {Q: None, OTHER: None}
        self.is_cleared = {Q: False, OTHER: False}

    queues = st.sampled_from([Q, OTHER])

    def invisible(self, queue: OrderedQueue) -> list[int]:
        return [
            offset
            for offset, visible_at_ms in self.popped[queue].items()
            if offset not in self.acked[queue] and visible_at_ms > self.now_ms
        ]

    @rule(
        queue=queues,
        gaps=st.lists(st.integers(1, 3), min_size=1, max_size=4),
        invisible_ms=st.integers(1, 50),
        attempt=st.sampled_from([None, "a", "b"]),
    )
    def pop(
        self, queue: OrderedQueue, gaps: list[int], invisible_ms: int, attempt: str | None
    ) -> None:
        self.now_ms += 1  # the broker makes pop times of a queue differ
        reason = self.infos.block(queue, self.now_ms, attempt_id=attempt)
        is_same = attempt is not None and self.attempt[queue] == attempt
        assert (reason is None) == (is_same or not self.invisible(queue))
        if reason is not None:
            assert reason.queue_offset == min(self.invisible(queue))
            assert reason.visible_at_ms == self.popped[queue][reason.queue_offset]
            return
        start = self.committed[queue]
        offsets = [start + sum(gaps[: n + 1]) - 1 for n in range(len(gaps))]
        pop = OrderedPop(offsets, self.now_ms, invisible_ms, attempt)
        counts = self.infos.add_pop(queue, pop, self.now_ms)
        if not is_same:
            self.counts[queue] = {
                offset: self.counts[queue].get(offset, 0) + 1
                for offset in offsets
                if offset in self.popped[queue]
            }
        assert counts.by_offset == self.counts[queue]
        if not is_same:
            assert counts.least == min(self.counts[queue].get(offset, 0) for offset in offsets)
        self.popped[queue] = dict.fromkeys(offsets, self.now_ms + invisible_ms)
        self.acked[queue] = set()
        self.attempt[queue] = attempt
        self.is_cleared[queue] = False
        self.times[queue].append((self.now_ms, offsets))

    @rule(queue=queues, data=st.data())
    def ack(self, queue: OrderedQueue, data: st.DataObject) -> None:
        if not self.times[queue]:
            return
        pop_time_ms, offsets = data.draw(st.sampled_from(self.times[queue][-3:]))
        offset = data.draw(st.sampled_from(offsets))
        result = self.infos.ack(queue, offset, pop_time_ms, self.committed[queue], self.now_ms)
        is_last = pop_time_ms == self.times[queue][-1][0] and not self.is_cleared[queue]
        assert not result.is_illegal
        if not is_last or offset < self.committed[queue]:
            assert result == NOTHING
            return
        self.acked[queue].add(offset)
        if result.commit_offset is not None:
            assert result.commit_offset > self.committed[queue]
            passed = [each for each in self.popped[queue] if each < result.commit_offset]
            assert set(passed) <= self.acked[queue]
            self.committed[queue] = result.commit_offset
        if not set(self.popped[queue]) - self.acked[queue]:
            assert self.committed[queue] == max(self.popped[queue]) + 1
            assert result.is_free

    @rule(queue=queues, ms=st.integers(0, 60), data=st.data())
    def change(self, queue: OrderedQueue, ms: int, data: st.DataObject) -> None:
        if not self.times[queue]:
            return
        pop_time_ms, offsets = data.draw(st.sampled_from(self.times[queue][-2:]))
        offset = data.draw(st.sampled_from(offsets))
        is_changed = self.infos.change(queue, offset, pop_time_ms, self.now_ms + ms)
        is_last = pop_time_ms == self.times[queue][-1][0] and not self.is_cleared[queue]
        assert is_changed == (is_last and offset not in self.acked[queue])
        if is_changed:
            self.popped[queue][offset] = self.now_ms + ms

    @rule(queue=queues, back=st.integers(0, 5))
    def reset(self, queue: OrderedQueue, back: int) -> None:
        self.infos.clear(queue, self.now_ms)
        self.committed[queue] = max(0, self.committed[queue] - back)
        self.popped[queue], self.acked[queue], self.counts[queue] = {}, set(), {}
        self.attempt[queue], self.is_cleared[queue] = None, True

    @rule(ms=st.integers(1, 60))
    def wait(self, ms: int) -> None:
        blocked = {queue for queue in (Q, OTHER) if self.infos.block(queue, self.now_ms)}
        self.now_ms += ms
        freed = {queue for queue in blocked if not self.infos.block(queue, self.now_ms)}
        ended = self.infos.take_ended(self.now_ms)
        assert freed <= set(ended)
        assert len(ended) == len(set(ended))

    @rule()
    def reload(self) -> None:
        fresh = OrderInfos()
        for queue, info in self.infos.items():
            fresh.restore(queue, info)
        for queue, at_ms in self.infos.cleared().items():
            fresh.restore_cleared(queue, at_ms)
        self.infos = fresh

    @invariant()
    def queue_is_blocked_while_a_message_is_invisible(self) -> None:
        for queue in (Q, OTHER):
            reason = self.infos.block(queue, self.now_ms)
            assert bool(reason) == bool(self.invisible(queue))
            if reason is not None:
                assert reason.free_at_ms == max(
                    self.popped[queue][offset] for offset in self.invisible(queue)
                )
                assert self.infos.next_end_ms is not None
                assert self.infos.next_end_ms <= reason.free_at_ms


TestOrder = OrderMachine.TestCase
TestOrder.settings = settings(max_examples=60, stateful_step_count=40)

"""Tests of the batches of a stream: what each trigger reads, and which losses it finds."""

from __future__ import annotations

import pytest

from kourou.errors import TransportError
from kourou.model.queue import MessageQueue
from kourou.spark.limits import TriggerLimits
from kourou.spark.planning import QueueBounds
from kourou.spark.stream_offsets import StreamOffset
from kourou.spark.stream_planning import (
    BatchPlan,
    Loss,
    LossKind,
    TriggerState,
    View,
    plan_batch,
)

Q0 = MessageQueue("flights", "broker-a", 0)
Q1 = MessageQueue("flights", "broker-a", 1)
B0 = MessageQueue("flights", "broker-b", 0)
INITIAL = StreamOffset.initial("latest")
NO_LIMITS = TriggerLimits()


def view(**bounds: tuple[int, int]) -> View:
    """Return a view of the queues q0=(0, 9), q1=..., b0=..., all brokers up."""
    queues = {"q0": Q0, "q1": Q1, "b0": B0}
    return View({queues[name]: QueueBounds(*found) for name, found in bounds.items()})


def plan(
    start: StreamOffset, seen: View, starting: dict[MessageQueue, int] | None = None
) -> BatchPlan:
    return plan_batch(start, seen, NO_LIMITS, 0, TriggerState(), starting=starting)


def test_batch_0_logs_start_and_end_of_every_queue() -> None:
    planned = plan(INITIAL, view(q0=(3, 9), q1=(0, 5)), {Q0: 4, Q1: 0})

    assert planned == BatchPlan(StreamOffset({Q0: 9, Q1: 5}, {Q0: 4, Q1: 0}), ())


def test_batch_0_is_logged_even_if_it_is_empty() -> None:
    """Otherwise `latest` would be a later offset in the next trigger."""
    planned = plan(INITIAL, view(q0=(0, 9)), {Q0: 9})

    assert planned.end == StreamOffset({Q0: 9}, {Q0: 9})


def test_batch_0_without_any_queue_is_logged() -> None:
    assert plan(INITIAL, View({})).end == StreamOffset()


def test_batch_0_needs_an_answer_of_every_broker() -> None:
    seen = View({Q0: QueueBounds(0, 9)}, silent={"broker-b": "timeout after 3000 ms"})

    with pytest.raises(TransportError, match=r"broker 'broker-b' does not answer \(timeout after"):
        plan(INITIAL, seen, {Q0: 9})


def test_later_batches_read_what_is_new() -> None:
    start = StreamOffset({Q0: 4, Q1: 5}, {Q0: 0, Q1: 0})

    assert plan(start, view(q0=(0, 9), q1=(0, 5))).end == StreamOffset({Q0: 9, Q1: 5})


def test_nothing_new_returns_the_same_offset() -> None:
    """Spark compares: any other offset would run an empty batch at each trigger."""
    start = StreamOffset({Q0: 9}, {Q0: 4})

    assert plan(start, view(q0=(0, 9))).end is start


def test_a_new_queue_starts_at_its_first_offset() -> None:
    start = StreamOffset({Q0: 9})

    assert plan(start, view(q0=(0, 9), b0=(2, 6))).end == StreamOffset({Q0: 9, B0: 6}, {B0: 2})


def test_a_new_empty_queue_is_logged() -> None:
    """Messages that expire in it before the next trigger are a loss then."""
    start = StreamOffset({Q0: 9})

    end = plan(start, view(q0=(0, 9), b0=(0, 0))).end
    planned = plan(end, view(q0=(0, 9), b0=(3, 5)))

    assert [str(loss.kind) for loss in planned.losses] == ["LossKind.EXPIRED"]


def test_a_broker_that_is_away_keeps_its_offsets() -> None:
    start = StreamOffset({Q0: 4, B0: 7})

    while_away = plan(start, view(q0=(0, 9)))
    silent = plan(start, View({Q0: QueueBounds(0, 9)}, silent={"broker-b": "refused"}))
    back = plan(while_away.end, view(q0=(0, 9), b0=(0, 8)))

    assert while_away == silent == BatchPlan(StreamOffset({Q0: 9, B0: 7}), ())
    assert back == BatchPlan(StreamOffset({Q0: 9, B0: 8}), ())


def test_expired_messages_are_a_loss_and_the_batch_begins_after_them() -> None:
    planned = plan(StreamOffset({Q0: 4}), view(q0=(6, 9)))

    assert planned.end == StreamOffset({Q0: 9}, {Q0: 6})
    [loss] = planned.losses
    assert loss == Loss(Q0, 4, LossKind.EXPIRED, QueueBounds(6, 9))
    assert loss.count == 2
    assert str(loss).startswith("queue 0 of 'flights' on 'broker-a': 2 messages from offset 4 on")
    assert "holds offsets 6 to 9 (exclusive)" in str(loss)
    assert "failOnDataLoss to false to continue at offset 6" in str(loss)


def test_an_offset_beyond_the_end_is_a_loss_and_the_queue_is_read_from_its_first() -> None:
    planned = plan(StreamOffset({Q0: 40}), view(q0=(0, 9)))

    assert planned.end == StreamOffset({Q0: 9}, {Q0: 0})
    [loss] = planned.losses
    assert loss == Loss(Q0, 40, LossKind.BEYOND_END, QueueBounds(0, 9))
    assert loss.count is None
    assert "next offset to read is 40" in str(loss)
    assert "failOnDataLoss to false to continue at offset 0" in str(loss)


def test_a_replica_that_lags_is_no_loss() -> None:
    seen = View({Q0: QueueBounds(0, 9)}, replicas=frozenset({"broker-a"}))
    start = StreamOffset({Q0: 12})

    assert plan(start, seen) == BatchPlan(start, ())


def test_a_vanished_queue_is_one_loss_and_is_new_if_it_is_made_again() -> None:
    seen = View({Q0: QueueBounds(0, 9)}, vanished=frozenset({Q1}))

    planned = plan(StreamOffset({Q0: 9, Q1: 5}), seen)
    again = plan(planned.end, seen)
    back = plan(again.end, view(q0=(0, 9), q1=(0, 7)))

    assert planned.losses == (Loss(Q1, 5, LossKind.VANISHED),)
    assert "queue 1 of 'flights' on 'broker-a' does not exist any more" in str(planned.losses[0])
    assert again == BatchPlan(planned.end, ())
    assert back == BatchPlan(StreamOffset({Q0: 9, Q1: 7}, {Q1: 0}), ())


def test_a_start_that_the_queue_does_not_hold_is_a_loss() -> None:
    planned = plan(INITIAL, view(q0=(6, 9)), {Q0: 2})

    assert planned.end == StreamOffset({Q0: 9}, {Q0: 6})
    assert planned.losses == (Loss(Q0, 2, LossKind.EXPIRED, QueueBounds(6, 9)),)


def test_a_minimum_holds_messages_back_until_the_delay_is_over() -> None:
    limits = TriggerLimits(min_offsets=5, max_delay_ms=1_000)
    state = TriggerState(last_batch_ms=100)
    start = StreamOffset({Q0: 4})

    few = plan_batch(start, view(q0=(0, 8)), limits, 1_099, state)
    enough = plan_batch(start, view(q0=(0, 9)), limits, 1_099, TriggerState(100))
    late = plan_batch(start, view(q0=(0, 8)), limits, 1_100, state)

    assert few.end is start
    assert enough.end == StreamOffset({Q0: 9})
    assert late.end == StreamOffset({Q0: 8})
    assert state.last_batch_ms == 1_100


def test_the_first_batch_of_a_run_does_not_wait_for_a_minimum() -> None:
    limits = TriggerLimits(min_offsets=5)

    planned = plan_batch(StreamOffset({Q0: 4}), view(q0=(0, 6)), limits, 0, TriggerState())

    assert planned.end == StreamOffset({Q0: 6})


def test_new_queues_are_logged_while_their_messages_wait() -> None:
    limits = TriggerLimits(min_offsets=50)

    planned = plan_batch(
        StreamOffset({Q0: 4}), view(q0=(0, 8), b0=(2, 6)), limits, 1, TriggerState(0)
    )

    assert planned.end == StreamOffset({Q0: 4, B0: 2}, {B0: 2})


def test_a_maximum_cuts_the_batch() -> None:
    limits = TriggerLimits(max_offsets=10)

    planned = plan_batch(INITIAL, view(q0=(0, 90), q1=(0, 10)), limits, 0, TriggerState())

    assert planned.end == StreamOffset({Q0: 9, Q1: 1}, {Q0: 0, Q1: 0})


def test_available_now_ends_at_what_was_there_at_its_start() -> None:
    target = view(q0=(0, 5), q1=(0, 5))

    capped = view(q0=(0, 9), q1=(7, 9), b0=(0, 3)).capped(target)

    assert capped.bounds == {Q0: QueueBounds(0, 5), Q1: QueueBounds(7, 7)}


def test_available_now_reports_a_truncated_log() -> None:
    capped = view(q0=(0, 3)).capped(view(q0=(0, 5)))

    assert plan(StreamOffset({Q0: 4}), capped).losses == (
        Loss(Q0, 4, LossKind.BEYOND_END, QueueBounds(0, 3)),
    )

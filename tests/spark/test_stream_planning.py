"""Tests of the batches of a stream: what each trigger reads, and which losses it finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kourou.errors import TransportError
from kourou.model.queue import MessageQueue
from kourou.spark.limits import TriggerLimits
from kourou.spark.planning import QueueBounds
from kourou.spark.stream_offsets import Absence, StreamOffset
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


def test_renamed_broker_has_new_queues_and_the_positions_of_its_former_name_are_kept() -> None:
    start = StreamOffset({Q0: 9})

    renamed = plan(start, view(b0=(2, 12)))
    again = plan(renamed.end, view(b0=(2, 13)))

    assert renamed == BatchPlan(StreamOffset({Q0: 9, B0: 12}, {B0: 2}), ())
    assert again == BatchPlan(StreamOffset({Q0: 9, B0: 13}), ())


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


def test_vanished_queue_is_one_loss_and_keeps_its_offset() -> None:
    seen = View({Q0: QueueBounds(0, 9)}, vanished={Q1: Absence.QUEUE})
    start = StreamOffset({Q0: 9, Q1: 5})

    planned = plan(start, seen)
    again = plan(planned.end, seen)
    unseen = plan(planned.end, view(q0=(0, 9)))

    assert planned.losses == (Loss(Q1, 5, LossKind.VANISHED),)
    assert "queue 1 of 'flights' on 'broker-a' does not exist any more" in str(planned.losses[0])
    assert planned.end == StreamOffset({Q0: 9, Q1: 5}, gone={Q1: Absence.QUEUE})
    assert again == unseen == BatchPlan(planned.end, ())


def test_queue_of_a_topic_that_has_more_queues_again_is_read_on() -> None:
    gone = StreamOffset({Q0: 9, Q1: 5}, gone={Q1: Absence.QUEUE})

    back = plan(gone, view(q0=(0, 9), q1=(0, 7)))

    assert back == BatchPlan(StreamOffset({Q0: 9, Q1: 7}), (), {Q1: 5})


@pytest.mark.parametrize("held", [(6, 9), (0, 4)], ids=["expired", "truncated"])
def test_returned_queue_without_its_offset_is_read_from_its_first(held: tuple[int, int]) -> None:
    """The loss was reported when the queue vanished."""
    gone = StreamOffset({Q1: 5}, gone={Q1: Absence.QUEUE})

    back = plan(gone, view(q1=held))

    assert back == BatchPlan(StreamOffset({Q1: held[1]}, {Q1: held[0]}), (), {Q1: held[0]})


def test_queue_of_a_deleted_topic_that_is_created_again_is_read_from_its_first() -> None:
    gone = plan(StreamOffset({Q1: 5}), View({}, vanished={Q1: Absence.TOPIC}))

    back = plan(gone.end, view(q1=(0, 7)))

    assert back == BatchPlan(StreamOffset({Q1: 7}, {Q1: 0}), (), {Q1: 0})


def test_queue_that_returns_in_another_topic_of_its_name_is_read_from_its_first() -> None:
    topic = ("flights", "broker-a")
    gone = StreamOffset({Q0: 9, Q1: 5}, topic_begins={topic: 0}, gone={Q1: Absence.QUEUE})

    recreated = plan(gone, View({Q0: QueueBounds(0, 20)}, topic_begins={topic: 700}))
    back = plan(recreated.end, replace(view(q0=(0, 20), q1=(0, 7)), topic_begins={topic: 700}))

    assert [loss.kind for loss in recreated.losses] == [LossKind.RECREATED]
    assert (back.losses, back.returned) == ((), {Q1: 0})


def test_queue_that_vanished_with_its_topic_and_returns_in_another_is_read_from_its_first() -> None:
    topic = ("flights", "broker-a")
    start = StreamOffset({Q0: 4, Q1: 5}, topic_begins={topic: 0})
    other = View({Q0: QueueBounds(0, 6)}, {Q1: Absence.QUEUE}, topic_begins={topic: 700})

    gone = plan(start, other)
    back = plan(gone.end, replace(view(q0=(0, 6), q1=(0, 7)), topic_begins={topic: 700}))

    assert [loss.kind for loss in gone.losses] == [LossKind.VANISHED, LossKind.RECREATED]
    assert (back.losses, back.returned) == ((), {Q1: 0})


def test_topic_created_again_that_outgrew_the_offset_is_a_loss_once() -> None:
    topic = ("flights", "broker-a")
    start = StreamOffset({Q0: 4}, topic_begins={topic: 700})

    planned = plan(start, replace(view(q0=(0, 9)), topic_begins={topic: 9000}))
    again = plan(planned.end, replace(view(q0=(0, 9)), topic_begins={topic: 9000}))

    assert planned.losses == (Loss(Q0, 4, LossKind.RECREATED, QueueBounds(0, 9)),)
    assert "deleted and created again, the next offset to read was 4" in str(planned.losses[0])
    assert "failOnDataLoss to false to continue at offset 0" in str(planned.losses[0])
    assert planned.end == StreamOffset({Q0: 9}, {Q0: 0}, topic_begins={topic: 9000})
    assert again == BatchPlan(planned.end, ())


def test_checkpoint_without_topic_begins_learns_them_without_a_loss() -> None:
    topic = ("flights", "broker-a")

    planned = plan(StreamOffset({Q0: 9}), replace(view(q0=(0, 9)), topic_begins={topic: 700}))

    assert planned == BatchPlan(StreamOffset({Q0: 9}, topic_begins={topic: 700}), ())


def test_topic_of_a_broker_that_no_longer_identifies_topics_is_no_loss() -> None:
    start = StreamOffset({Q0: 4}, topic_begins={("flights", "broker-a"): 700})

    assert plan(start, view(q0=(0, 9))).losses == ()


def test_deselected_queue_keeps_its_offset_and_is_read_on_when_it_is_selected_again() -> None:
    start = StreamOffset({Q0: 9, B0: 4})

    planned = plan_batch(start, view(q0=(0, 9)), NO_LIMITS, 0, TriggerState(), deselected={B0})
    back = plan(planned.end, view(q0=(0, 9), b0=(0, 6)))

    assert planned.end == StreamOffset({Q0: 9, B0: 4}, gone={B0: Absence.OPTION})
    assert back == BatchPlan(StreamOffset({Q0: 9, B0: 6}), (), {B0: 4})


def test_deselected_queue_of_a_topic_made_again_is_read_from_its_first() -> None:
    topic = ("flights", "broker-a")
    start = StreamOffset({Q0: 9, Q1: 4}, topic_begins={topic: 0})
    again = replace(view(q0=(0, 9)), topic_begins={topic: 700})

    planned = plan_batch(start, again, NO_LIMITS, 0, TriggerState(), deselected={Q1})
    back = plan(planned.end, replace(view(q0=(0, 9), q1=(0, 6)), topic_begins={topic: 700}))

    assert back.returned == {Q1: 0}


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

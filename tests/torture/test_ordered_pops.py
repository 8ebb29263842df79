"""Judgement of messages that are popped in order."""

from __future__ import annotations

from msgspec import structs

from tests.torture.chaos.ordered_pops import OrderedFindings, judge_ordered
from tests.torture.chaos.pop_ledger import (
    Answered,
    Begun,
    BrokerHistory,
    Delivery,
    Popped,
    Step,
)

INVISIBLE_MS = 1_000


def pop(at_ms: int, *offsets: int, times: int = 0, kind: str = "0") -> list[Delivery]:
    """Return the messages of a pop."""
    end_ms = at_ms + INVISIBLE_MS
    return [
        Delivery(Popped(number, "a-1", kind, 0, offset, times, at_ms, at_ms, at_ms, end_ms))
        for number, offset in enumerate(offsets)
    ]


def ack(delivery: Delivery, at_ms: int) -> None:
    delivery.steps.append(Step(Begun(0, True, at_ms - 1), Answered(0, at_ms, 0)))


def change(delivery: Delivery, at_ms: int, visible_at_ms: int) -> None:
    delivery.steps.append(Step(Begun(0, False, at_ms - 1), Answered(0, at_ms, visible_at_ms)))


def judged(*pops: list[Delivery], is_clock_right: bool = True) -> OrderedFindings:
    history = BrokerHistory(lambda *_: 0, [], is_clock_right)
    return judge_ordered([delivery for one in pops for delivery in one], history)


def test_messages_may_be_popped_in_order_as_each_is_acknowledged() -> None:
    first, second = pop(0, 0, 1), pop(500, 2)
    for delivery in first:
        ack(delivery, 400)

    assert judged(first, second) == OrderedFindings()


def test_message_must_not_be_popped_before_an_earlier_one_is_acknowledged() -> None:
    first, second = pop(0, 0, 1), pop(1_500, 2)
    ack(first[1], 400)

    assert len(judged(first, second, is_clock_right=False).disorder) == 1


def test_message_must_not_be_left_out() -> None:
    assert len(judged(pop(0, 0, 2)).disorder) == 1
    assert len(judged(pop(0, 1)).disorder) == 1


def test_messages_of_a_pop_must_be_in_order() -> None:
    disorder = judged(pop(0, 0, 2, 1)).disorder

    assert [text.partition(":")[0] for text in disorder] == ["not consecutive"]


def test_message_must_not_be_popped_from_a_retry_topic() -> None:
    assert len(judged(pop(0, 0, kind="1")).disorder) == 1


def test_settled_message_must_not_be_popped_again() -> None:
    first, again = pop(0, 0, 1), pop(1_500, 0, 1, times=1)
    ack(first[0], 400)

    findings = judged(first, again)

    assert (len(findings.again), findings.behind) == (1, 0)
    assert "[0] were settled" in findings.again[0]


def test_acknowledged_message_may_be_popped_again_behind_an_earlier_one() -> None:
    first, again = pop(0, 0, 1), pop(1_500, 0, 1, times=1)
    ack(first[1], 400)

    findings = judged(first, again)

    assert (findings, findings.behind) == (OrderedFindings(behind=1), 1)


def test_acknowledgement_behind_a_shorter_pop_settles_nothing() -> None:
    first, shorter, again = pop(0, 0, 1), pop(1_500, 0, times=1), pop(1_700, 1)
    ack(first[1], 400)
    ack(shorter[0], 1_600)

    assert judged(first, shorter, again) == OrderedFindings(behind=1)


def test_acknowledgement_that_came_too_late_settles_nothing() -> None:
    first, again = pop(0, 0), pop(1_500, 0, times=1)
    ack(first[0], 1_001)

    assert judged(first, again).again == []


def test_queue_must_not_be_popped_while_a_message_is_invisible() -> None:
    first, again = pop(0, 0), pop(999, 0, times=1)

    assert len(judged(first, again).early) == 1
    assert judged(first, again, is_clock_right=False).early == []

    change(first[0], 300, 900)
    assert judged(first, again).early == []


def test_retry_count_of_the_first_message_must_grow() -> None:
    assert len(judged(pop(0, 0, 1, times=1), pop(1_000, 0, times=1)).counts) == 1


def test_retry_counts_behind_a_pop_without_an_answer_may_be_lost() -> None:
    first, again = pop(0, 0, 1, times=1), [*pop(3_000, 0, times=3), *pop(3_000, 1)]
    again[1].popped = structs.replace(again[1].popped, number=1)

    assert judged(first, again) == OrderedFindings()

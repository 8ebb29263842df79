"""Judgement of popped messages that are delivered again."""

from __future__ import annotations

from collections.abc import Callable

from tests.torture.chaos.pop_ledger import (
    Answered,
    Begun,
    BrokerHistory,
    PopEvent,
    PopFindings,
    PopLedger,
    Popped,
    decode_event,
    encode_event,
)

INVISIBLE_MS = 1_000


def popped(
    number: int, popped_ms: int, *, retry: int | None = None, reconsume_times: int = 0
) -> Popped:
    """Return the pop of a stored message, or of its copy at an offset of the retry topic."""
    kind, offset = ("0", 7) if retry is None else ("1", retry)
    end_ms = popped_ms + INVISIBLE_MS
    return Popped(
        number, "a-1", kind, 0, offset, reconsume_times, popped_ms, popped_ms, popped_ms, end_ms
    )


def ack(number: int, at_ms: int) -> list[PopEvent]:
    return [Begun(number, True, at_ms - 1), Answered(number, at_ms, 0)]


def judged(
    *events: PopEvent,
    kills: list[tuple[int, int]] | None = None,
    ahead_ms: Callable[[int, int], int] | None = None,
) -> PopFindings:
    ledger = PopLedger()
    for event in events:
        ledger.note("member", decode_event(encode_event(event)))
    is_clock_right = ahead_ms is None
    history = BrokerHistory(ahead_ms or (lambda *_: 0), kills or [], is_clock_right)
    return ledger.judge(history, lambda _: True)


def test_message_that_was_not_acknowledged_may_be_popped_again() -> None:
    again = popped(1, 1_000, retry=3, reconsume_times=1)

    assert judged(popped(0, 0), again, *ack(1, 1_500)) == PopFindings()


def test_message_that_was_acknowledged_in_time_must_not_be_popped_again() -> None:
    again = popped(1, 1_000, retry=3, reconsume_times=1)

    findings = judged(popped(0, 0), *ack(0, 1_000), again)

    assert len(findings.again) == 1
    assert (findings.late, findings.unavoidable) == (0, 0)


def test_acknowledgement_after_the_invisible_time_comes_too_late() -> None:
    again = popped(1, 1_000, retry=3, reconsume_times=1)

    findings = judged(popped(0, 0), again, *ack(0, 1_001))

    assert (findings.again, findings.late) == ([], 1)


def test_acknowledgement_comes_too_late_while_the_clock_of_the_broker_is_ahead() -> None:
    again = popped(1, 1_000, retry=3, reconsume_times=1)

    findings = judged(popped(0, 0), *ack(0, 500), again, ahead_ms=lambda *_: 3_600_000)

    assert (findings.again, findings.late) == ([], 1)


def test_record_must_not_be_popped_twice() -> None:
    findings = judged(popped(0, 0), popped(1, 1_500))

    assert [text.partition(":")[0] for text in findings.again] == ["popped twice"]


def test_message_must_not_be_popped_again_while_it_is_invisible() -> None:
    again = popped(1, 999, retry=3, reconsume_times=1)

    assert len(judged(popped(0, 0), again).early) == 1
    assert judged(popped(0, 0), again, ahead_ms=lambda *_: 0).early == []


def test_changed_invisible_time_counts_from_its_answer() -> None:
    change: list[PopEvent] = [Begun(0, False, 500), Answered(0, 510, 2_500)]

    again = popped(1, 2_499, retry=3, reconsume_times=1)
    assert len(judged(popped(0, 0), *change, again).early) == 1

    again = popped(1, 2_500, retry=3, reconsume_times=1)
    findings = judged(popped(0, 0), *change, *ack(0, 2_400), again)
    assert (findings.early, len(findings.again)) == ([], 1)


def test_retry_count_must_grow() -> None:
    first, again = popped(0, 0, retry=3, reconsume_times=2), popped(1, 1_000, retry=4)

    assert len(judged(first, again).counts) == 1


def test_change_without_an_answer_makes_another_delivery_unavoidable() -> None:
    again = popped(1, 1_000, retry=3, reconsume_times=1)

    findings = judged(popped(0, 0), Begun(0, False, 500), *ack(0, 600), again)

    assert (findings.again, findings.unavoidable) == ([], 1)


def test_change_during_a_kill_makes_another_delivery_unavoidable() -> None:
    change: list[PopEvent] = [Begun(0, False, 500), Answered(0, 900, 1_900)]
    again = popped(1, 1_900, retry=3, reconsume_times=1)

    killed = judged(popped(0, 0), *change, *ack(0, 950), again, kills=[(890, 895)])
    earlier = judged(popped(0, 0), *change, *ack(0, 950), again, kills=[(400, 499)])

    assert (killed.again, killed.unavoidable) == ([], 1)
    assert (len(earlier.again), earlier.unavoidable) == (1, 0)


def test_change_of_a_silent_broker_makes_another_delivery_unavoidable() -> None:
    again = popped(1, 2_600, retry=3, reconsume_times=1)

    slow: list[PopEvent] = [Begun(0, False, 0), Answered(0, 1_000, 3_000)]
    findings = judged(popped(0, 0), *slow, *ack(0, 1_010), again)
    assert (findings.again, findings.early, findings.unavoidable) == ([], [], 1)

    fast: list[PopEvent] = [Begun(0, False, 1), Answered(0, 1_000, 3_000)]
    findings = judged(popped(0, 0), *fast, *ack(0, 1_010), again)
    assert len(findings.again) == 1


def test_message_is_done_when_a_member_begins_to_acknowledge_it() -> None:
    ledger = PopLedger()

    ledger.note("a", popped(0, 0))
    ledger.note("b", popped(0, 1_000, retry=1))
    assert ledger.ack_begun == set()

    assert ledger.note("b", Begun(0, True, 1_100)) == "a-1"
    assert (ledger.ack_begun, ledger.acked) == ({"a-1"}, set())

    ledger.note("b", Answered(0, 1_200, 0))
    assert ledger.acked == {"a-1"}

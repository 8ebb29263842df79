"""Messages in the hands of clients stay invisible, and never return once acknowledged."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.proxy.renewals import ClientGroup, Renewal, RenewalPolicy, Renewals

ALICE = ClientGroup("alice", "g")
BOB = ClientGroup("bob", "g")
POLICY = RenewalPolicy(handles_max=100)
POPPED_MS = 1_000_000
MINUTE_MS = 60_000


def receipt(
    offset: int = 7, pop_time_ms: int = POPPED_MS, invisible_ms: int = 60_000
) -> ReceiptHandle:
    return ReceiptHandle(0, pop_time_ms, invisible_ms, 2, "0", "broker-a", 3, offset, 4_000)


def started(policy: RenewalPolicy = POLICY) -> Renewals:
    return Renewals(policy, lambda _, reconsume_times: 10_000 * (1 + reconsume_times))


def add(renewals: Renewals, offset: int = 7, client: ClientGroup = ALICE) -> bool:
    return renewals.add(client, "T", f"id{offset}", receipt(offset))


def renew(renewals: Renewals, renewal: Renewal, now_ms: int) -> ReceiptHandle:
    """End a renewal as the broker does, with a new receipt."""
    renewed = renewal.message.receipt._replace(
        pop_time_ms=now_ms, invisible_ms=renewal.invisible_ms
    )
    renewals.renewed(renewal, renewed)
    return renewed


def test_message_is_renewed_ten_seconds_before_it_becomes_visible() -> None:
    renewals = started()
    add(renewals)

    assert renewals.due(POPPED_MS + 49_999, 10) == []
    (renewal,) = renewals.due(POPPED_MS + 50_000, 10)

    assert renewal.message.receipt == receipt()
    assert renewal.invisible_ms == MINUTE_MS
    assert not renewal.is_last
    assert renewals.due(POPPED_MS + 59_000, 10) == []  # in progress


def test_each_renewal_lasts_longer() -> None:
    renewals = started()
    add(renewals)
    now_ms, asked = POPPED_MS, []
    while now_ms < POPPED_MS + 2_000_000:
        now_ms += 5_000
        for renewal in renewals.due(now_ms, 10):
            asked.append(renewal.invisible_ms // MINUTE_MS)
            renew(renewals, renewal, now_ms)

    assert asked == [1, 3, 5, 10, 30]


def test_message_held_for_three_hours_is_changed_once_more_and_dropped() -> None:
    renewals = started(RenewalPolicy(steps_ms=(60_000,)))
    renewals.add(ALICE, "T", "id", receipt(), reconsume_times=2)
    now_ms, last = POPPED_MS, None
    while last is None:
        now_ms += 5_000
        for renewal in renewals.due(now_ms, 10):
            renew(renewals, renewal, now_ms)
            last = renewal if renewal.is_last else None

    assert now_ms - POPPED_MS >= 10_800_000
    assert last.invisible_ms == 30_000
    assert len(renewals) == 0
    assert renewals.due(now_ms + 10**9, 10) == []


def test_message_of_a_deleted_group_is_dropped_after_three_hours() -> None:
    renewals = Renewals(RenewalPolicy(held_ms_max=1), lambda *_: None)
    add(renewals)

    assert renewals.due(POPPED_MS + 50_000, 10) == []
    assert len(renewals) == 0


def test_first_handle_of_the_client_finds_the_renewed_one() -> None:
    renewals = started()
    add(renewals)
    (renewal,) = renewals.due(POPPED_MS + 50_000, 10)
    renewed = renew(renewals, renewal, POPPED_MS + 50_000)

    held = renewals.take(ALICE, "id7", receipt())

    assert held is not None
    assert held.receipt == renewed != receipt()
    assert renewals.take(ALICE, "id7", receipt()) is None


@pytest.mark.parametrize(
    ("client", "message_id", "offset"), [(BOB, "id7", 7), (ALICE, "other", 7), (ALICE, "id7", 8)]
)
def test_other_messages_are_not_found(client: ClientGroup, message_id: str, offset: int) -> None:
    renewals = started()
    add(renewals)

    assert renewals.take(client, message_id, receipt(offset)) is None
    assert len(renewals) == 1


def test_message_whose_acknowledgement_failed_is_found_until_it_is_visible() -> None:
    renewals = started(RenewalPolicy(handles_max=1))
    add(renewals)
    (renewal,) = renewals.due(POPPED_MS + 50_000, 10)
    renewed = renew(renewals, renewal, POPPED_MS + 50_000)
    for _ in range(2):
        held = renewals.take(ALICE, "id7", receipt())
        assert held is not None
        assert held.receipt == renewed
        renewals.put_back(held)
        renewals.put_back(held)
        assert len(renewals) == renewals.count(ALICE) == 1
    assert renewals.due(renewed.revive_at_ms, 10) == []
    assert len(renewals) == 1
    assert renewals.due(renewed.revive_at_ms + 2_000, 10) == []
    assert len(renewals) == 0


def test_message_whose_acknowledgement_failed_is_not_released() -> None:
    renewals = started()
    add(renewals)
    held = renewals.take(ALICE, "id7", receipt())
    assert held is not None
    renewals.put_back(held)
    assert renewals.release(ALICE) == []
    assert len(renewals) == 0


def test_acknowledged_message_is_not_renewed() -> None:
    renewals = started()
    add(renewals)

    renewals.take(ALICE, "id7", receipt())

    assert renewals.due(POPPED_MS + 10**9, 10) == []
    assert renewals.clients() == []


def test_acknowledgement_during_a_renewal_gets_its_receipt() -> None:
    renewals = started()
    add(renewals)
    (renewal,) = renewals.due(POPPED_MS + 50_000, 10)

    held = renewals.take(ALICE, "id7", receipt())

    assert held is renewal.message
    assert (held.is_renewing, held.is_taken) == (True, True)
    renewed = renew(renewals, renewal, POPPED_MS + 51_000)
    assert (held.is_renewing, held.receipt) == (False, renewed)
    assert renewals.due(POPPED_MS + 10**9, 10) == []
    assert len(renewals) == 0


def test_failure_during_an_acknowledgement_keeps_the_receipt() -> None:
    renewals = started()
    add(renewals)
    (renewal,) = renewals.due(POPPED_MS + 50_000, 10)
    held = renewals.take(ALICE, "id7", receipt())

    renewals.failed(renewal, POPPED_MS + 51_000, can_retry=True)

    assert held is not None
    assert held.receipt == receipt()
    assert renewals.due(POPPED_MS + 10**9, 10) == []


def test_failed_renewals_are_repeated_three_times() -> None:
    renewals = started(RenewalPolicy(ahead_ms=50_000, retry_ms=5_000))
    add(renewals)
    now_ms, attempts = POPPED_MS, []
    for _ in range(12):
        for renewal in renewals.due(now_ms, 10):
            attempts.append(now_ms - POPPED_MS)
            renewals.failed(renewal, now_ms, can_retry=True)
        now_ms += 2_500

    assert attempts == [10_000, 15_000, 20_000]
    assert len(renewals) == 0


def test_success_ends_the_count_of_failures() -> None:
    renewals = started(RenewalPolicy(retries_max=2))
    add(renewals)
    (renewal,) = renewals.due(POPPED_MS + 50_000, 10)
    renewals.failed(renewal, POPPED_MS + 50_000, can_retry=True)
    (renewal,) = renewals.due(POPPED_MS + 55_000, 10)
    renew(renewals, renewal, POPPED_MS + 55_000)
    (renewal,) = renewals.due(POPPED_MS + 105_000, 10)

    renewals.failed(renewal, POPPED_MS + 105_000, can_retry=True)

    assert len(renewals) == 1


def test_invalid_handle_is_dropped_at_once() -> None:
    renewals = started()
    add(renewals)
    (renewal,) = renewals.due(POPPED_MS + 50_000, 10)

    renewals.failed(renewal, POPPED_MS + 50_000, can_retry=False)

    assert len(renewals) == 0


def test_visible_message_is_dropped() -> None:
    renewals = started()
    add(renewals)

    assert renewals.due(POPPED_MS + 60_000, 10) == []
    assert len(renewals) == 0


def test_messages_of_a_departed_client_become_visible_soon() -> None:
    renewals = started()
    for offset in (1, 2):
        add(renewals, offset)
    add(renewals, 3, BOB)

    released = renewals.release(ALICE)

    assert [(one.message.message_id, one.invisible_ms) for one in released] == [
        ("id1", 1_000),
        ("id2", 1_000),
    ]
    assert (renewals.count(ALICE), renewals.count(BOB), len(renewals)) == (0, 1, 1)
    assert renewals.release(ALICE) == []
    assert [one.message.client for one in renewals.release_all()] == [BOB]
    assert len(renewals) == 0


def test_released_message_in_renewal_gets_the_final_receipt() -> None:
    renewals = started()
    add(renewals)
    (renewal,) = renewals.due(POPPED_MS + 50_000, 10)

    (released,) = renewals.release(ALICE)

    assert released.message.is_renewing
    renewed = renew(renewals, renewal, POPPED_MS + 51_000)
    assert released.message.receipt == renewed
    renew(renewals, released, POPPED_MS + 52_000)
    assert renewals.due(POPPED_MS + 10**9, 10) == []


def test_redelivered_message_replaces_the_earlier_delivery() -> None:
    renewals = started(RenewalPolicy(handles_max=1))
    add(renewals)
    again = receipt(pop_time_ms=POPPED_MS + 90_000)

    assert renewals.add(ALICE, "T", "id7", again)

    assert len(renewals) == 1
    assert renewals.due(POPPED_MS + 60_000, 10) == []
    held = renewals.take(ALICE, "id7", receipt())
    assert held is not None
    assert held.receipt == again


def test_number_of_handles_is_limited() -> None:
    renewals = started(RenewalPolicy(handles_max=2))

    assert [add(renewals, offset) for offset in (1, 2, 3)] == [True, True, False]
    renewals.take(ALICE, "id1", receipt(1))
    assert add(renewals, 3)


def test_due_renewals_are_limited_and_not_lost() -> None:
    renewals = started()
    for offset in range(5):
        add(renewals, offset)

    parts = [renewals.due(POPPED_MS + 55_000, 2) for _ in range(4)]

    assert [len(part) for part in parts] == [2, 2, 1, 0]
    assert len({one.message.message_id for part in parts for one in part}) == 5


@given(st.integers(0, 2**32))
def test_acknowledged_messages_never_return(seed: int) -> None:
    rng = random.Random(seed)
    renewals = started(RenewalPolicy(handles_max=6, steps_ms=(20_000, 40_000), held_ms_max=200_000))
    now_ms = POPPED_MS
    held: set[int] = set()
    taken: set[int] = set()
    running: list[Renewal] = []
    for offset in range(60):
        now_ms += rng.choice((0, 500, 5_000, 20_000))
        if renewals.add(ALICE, "T", f"id{offset}", receipt(offset, now_ms, 20_000)):
            held.add(offset)
        for renewal in renewals.due(now_ms, 3):
            assert renewal.message.receipt.offset not in taken
            assert renewal.message.receipt.revive_at_ms > now_ms
            running.append(renewal)
        while running and rng.random() < 0.6:
            renewal = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.3:
                renewals.failed(renewal, now_ms, can_retry=rng.random() < 0.5)
            else:
                renew(renewals, renewal, now_ms)
        if held and rng.random() < 0.5:
            chosen = rng.choice(sorted(held))
            if renewals.take(ALICE, f"id{chosen}", receipt(chosen)) is not None:
                taken.add(chosen)
            held.discard(chosen)
        assert len(renewals) == renewals.count(ALICE) <= 6
    for renewal in running:
        renew(renewals, renewal, now_ms)
    assert not {one.message.receipt.offset for one in renewals.release_all()} & taken
    assert len(renewals) == 0
    assert renewals.due(now_ms + 10**9, 100) == []

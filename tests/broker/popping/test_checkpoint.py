"""Checkpoints: which messages they hold, which are acknowledged, and what is stored of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from kourou.broker.popping.checkpoint import (
    RE_PUT_AFTER_S,
    CheckpointKey,
    PopCheckpoint,
    PopTimes,
    checkpoint_of,
    key_of_ack,
    start_text,
)
from kourou.protocol.popping.revive_records import (
    AckRecord,
    CheckpointRecord,
    decode_checkpoint,
    encode_checkpoint,
)
from tests.protocol.popping.vectors import VECTORS

OWN = "broker-a"
POP_MS = 1_700_000_000_000
KEY = CheckpointKey("T", "g", 3, 100, POP_MS, OWN)
RECORD = CheckpointRecord("T", "g", 3, 100, (0, 1, 3), 3, POP_MS, 60_000, OWN)


def checkpoint() -> PopCheckpoint:
    return PopCheckpoint(KEY, (100, 101, 103), 60_000)


def test_record_and_checkpoint_are_the_same() -> None:
    assert checkpoint_of(RECORD, OWN) == checkpoint()
    assert checkpoint().record() == RECORD
    assert checkpoint().revive_at_ms == POP_MS + 60_000


def test_offsets_have_the_places_of_java() -> None:
    [vector] = [case for case in VECTORS["records"] if "index_of_ack_103" in case]
    offsets = checkpoint().offsets

    assert offsets.index(103) == vector["index_of_ack_103"]
    assert offsets[2] == vector["ack_offset_by_index_2"]
    assert (102 in offsets) is (vector["index_of_ack_102"] != -1)


def test_acknowledged_messages_are_told_apart() -> None:
    held = checkpoint()

    assert held.ack(103)
    assert not held.ack(103)
    assert held.unacked() == [100, 101]
    assert not held.is_acknowledged
    held.ack_all((100, 101))
    assert held.unacked() == []
    assert held.is_acknowledged


@pytest.mark.parametrize("offset", [99, 102, 104, 0, -1, 2**32 + 100])
def test_ack_of_another_offset_changes_nothing(offset: int) -> None:
    held = checkpoint()

    assert not held.ack(offset)
    held.ack_all((offset,))
    assert held.unacked() == [100, 101, 103]


def test_checkpoint_without_differences_has_consecutive_offsets() -> None:
    for diffs in (None, ()):
        held = checkpoint_of(changed(RECORD, diffs=diffs), OWN)
        assert held.unacked() == [100, 101, 102]


def test_messages_without_count_or_difference_do_not_exist() -> None:
    assert checkpoint_of(changed(RECORD, count=2), OWN).offsets == (100, 101)
    assert checkpoint_of(changed(RECORD, count=100), OWN).offsets == (100, 101, 103)
    for diffs in (None, (0, 1)):
        empty = checkpoint_of(changed(RECORD, count=-1, diffs=diffs), OWN)
        assert empty.offsets == ()
        assert empty.is_acknowledged


def test_stored_bits_are_acknowledged_messages() -> None:
    assert checkpoint_of(changed(RECORD, bits=0b101), OWN).unacked() == [101]
    whole = checkpoint_of(changed(RECORD, bits=-1), OWN)
    assert whole.is_acknowledged
    assert whole.record().bits == 0b111


def test_bits_of_a_repeated_offset_are_ignored() -> None:
    held = checkpoint_of(changed(RECORD, diffs=(0, 0, 1), bits=0b011), OWN)

    assert held.unacked() == [100, 101]


def test_messages_above_the_32nd_have_bits_of_their_own() -> None:
    held = checkpoint_of(changed(RECORD, diffs=None, count=127), OWN)
    held.ack(100 + 32)

    assert not held.bits & 1
    assert 100 in held.unacked()
    assert 132 not in held.unacked()


def test_32_acknowledged_messages_are_stored_as_a_negative_number() -> None:
    held = PopCheckpoint(KEY, tuple(range(100, 132)), 60_000)
    held.ack_all(held.offsets)

    assert held.record().bits == -1
    body = encode_checkpoint(held.record())
    assert checkpoint_of(decode_checkpoint(body), OWN) == held


@pytest.mark.parametrize("name", [None, "", "  "])
def test_blank_broker_name_is_the_own_one(name: str | None) -> None:
    assert checkpoint_of(changed(RECORD, broker_name=name), OWN).key == KEY
    assert key_of_ack(AckRecord("T", "g", 3, 100, POP_MS, name, 101), OWN) == KEY
    other = AckRecord("T", "g", 3, 100, POP_MS, "broker-b", 101)
    assert key_of_ack(other, OWN).broker_name == "broker-b"


def test_messages_stored_after_the_pop_are_not_covered() -> None:
    assert checkpoint().covers(2**62)
    known = replace(checkpoint(), log_end=5_000)
    assert known.covers(4_999)
    assert not known.covers(5_000)


def test_message_that_cannot_be_revived_is_tried_again_later_and_later() -> None:
    now_ms = POP_MS + 10_000_000
    held = replace(checkpoint(), is_suspended=True, log_end=7)
    for attempt, delay_s in enumerate((*RE_PUT_AFTER_S, RE_PUT_AFTER_S[-1]), 1):
        held = held.re_put(101, now_ms)
        assert held.revive_at_ms == now_ms + delay_s * 1000
        assert held.record().re_puts == str(attempt)
        now_ms = held.revive_at_ms

    assert held.key == KEY._replace(start_offset=101)
    assert held.unacked() == [101]
    assert held.is_suspended
    assert held.log_end == 7


def test_re_put_before_its_time_keeps_the_time() -> None:
    held = checkpoint().re_put(103, POP_MS + 1)

    assert held.revive_at_ms == checkpoint().revive_at_ms


OFFSETS = st.lists(st.integers(100, 160), max_size=40)


@given(OFFSETS, OFFSETS, OFFSETS)
def test_bits_agree_with_sets(messages: list[int], acks: list[int], more: list[int]) -> None:
    held = PopCheckpoint(KEY, tuple(sorted(set(messages))), 1)
    model = set(messages)
    for offset in acks:
        assert held.ack(offset) is (offset in model)
        model.discard(offset)
    held.ack_all(more)
    model -= set(more)

    assert held.unacked() == sorted(model)
    assert held.is_acknowledged is not bool(model)


def test_two_pops_of_one_millisecond_have_different_keys_for_java() -> None:
    times = PopTimes()

    assert times.take([start_text("T", "g", 1, 11)], POP_MS) == POP_MS
    assert times.take([start_text("T", "g", 2, 11)], POP_MS) == POP_MS
    assert times.take([start_text("T", "g", 11, 1)], POP_MS) == POP_MS + 1
    assert times.take([start_text("T", "g", 1, 11)], POP_MS) == POP_MS + 2
    assert times.take([start_text("T", "g", 1, 11)], POP_MS + 1) == POP_MS + 3
    assert times.take([start_text("T", "g", 1, 11)], POP_MS + 4) == POP_MS + 4


def test_times_of_the_past_are_forgotten() -> None:
    times = PopTimes()
    for now_ms in range(POP_MS, POP_MS + 1_000):
        for offset in range(3):
            assert times.take([start_text("T", "g", 0, offset)], now_ms) == now_ms

    assert len(times._starts_by_time) == 16

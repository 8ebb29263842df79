"""Records of acknowledged checkpoints are marked in the timer if all of them are known."""

from __future__ import annotations

import pytest

from kourou.broker.popping.checkpoint import CheckpointKey
from kourou.broker.popping.due_marks import DueMarks
from kourou.broker.popping.in_flight import DueCopies, InFlight
from kourou.broker.timer.needless import NeedlessRecords

POP_MS = 1_700_000_000_000
REVIVE_AT_MS = POP_MS + 60_000
KEY = CheckpointKey("T", "g", 0, 100, POP_MS, "b")


class Rig:
    """A checkpoint of three messages, which is stored at position 10."""

    def __init__(self, *, is_complete: bool = True, positions_max: int = 100) -> None:
        self.in_flight = InFlight("b")
        copies = DueCopies(self.in_flight)
        copies.is_complete = is_complete
        self.needless = NeedlessRecords(positions_max)
        self.marks = DueMarks(self.in_flight, copies, self.needless)
        self.in_flight.add_consecutive(KEY, 3, 60_000)
        self.marks.checkpoint_stored(KEY, 10)

    def ack(self, bits: int, position: int) -> None:
        settled = self.in_flight.ack_bits(KEY, bits)
        self.marks.ack_stored(KEY, REVIVE_AT_MS, position, settled)

    def marked(self) -> list[int]:
        return sorted(one for some in self.needless.by_second.values() for one in some)


def test_checkpoint_and_all_its_acks_are_marked_with_the_last_one() -> None:
    rig = Rig()
    rig.ack(0b1, 20)
    rig.ack(0b10, 30)
    assert rig.marked() == []
    rig.ack(0b100, 40)
    second = REVIVE_AT_MS // 1000
    assert rig.needless.by_second == {second - 2: {10}, second - 1: {20, 30, 40}}
    assert len(rig.needless) == 4


def test_nothing_is_marked_after_the_checkpoint_got_a_copy() -> None:
    rig = Rig()
    rig.ack(0b1, 20)
    rig.marks.forget(KEY)
    rig.ack(0b10, 30)
    rig.ack(0b100, 40)
    assert rig.marked() == []


def test_nothing_is_marked_before_all_checkpoints_are_known() -> None:
    rig = Rig(is_complete=False)
    rig.ack(0b111, 20)
    assert rig.marked() == []


def test_acks_that_were_forgotten_are_not_marked() -> None:
    rig = Rig()
    rig.ack(0b1, 20)
    rig.marks.forget_acks()
    rig.ack(0b110, 30)
    assert rig.marked() == [10, 30]


@pytest.mark.parametrize("positions_max", [0, 1])
def test_marks_are_limited(positions_max: int) -> None:
    rig = Rig(positions_max=positions_max)
    rig.ack(0b111, 20)
    assert len(rig.marked()) == len(rig.needless) == positions_max


def test_marks_of_past_seconds_are_dropped() -> None:
    rig = Rig()
    rig.ack(0b111, 20)
    rig.needless.drop_before(REVIVE_AT_MS // 1000 - 1)
    assert rig.marked() == [20]
    assert len(rig.needless) == 1
    rig.needless.drop_before(REVIVE_AT_MS // 1000)
    assert rig.marked() == []
    assert len(rig.needless) == 0

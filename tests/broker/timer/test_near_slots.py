"""Reading slots of the timer log whose chains are damaged."""

from __future__ import annotations

from kourou.broker.timer.near_slots import load_slot, unpack_entry, waiting_positions
from kourou.protocol.hashing import java_string_hash
from kourou.store.timer.layouts import TimerSlot, TimerUnit
from kourou.store.timer.timer_log import TimerLog
from kourou.testing.disk import SimDisk

SECOND = 1_700_000_000


def test_messages_that_wait_behind_a_damaged_unit_are_found() -> None:
    disk = SimDisk()
    timer_log = TimerLog(disk, 52 * 10)
    last = -1
    for number in range(6):
        topic = java_string_hash("U" if number == 5 else "T")
        unit = TimerUnit(last, 1, SECOND * 1000, 0, number, 100, topic, SECOND * 1000 + number)
        last = timer_log.append(unit)
    timer_log.write()
    disk.write(timer_log.segments.name(0), 2 * 52, [b"\xff" * 52])

    slot = TimerSlot(SECOND, 0, last, 6)
    assert waiting_positions(timer_log, [slot], ["T"]) == [0, 1, 3, 4]
    loaded = load_slot(timer_log, SECOND, last, lambda _: None)
    assert [unpack_entry(one).physical_offset for one in loaded.heap] == [0, 1, 3, 4, 5]

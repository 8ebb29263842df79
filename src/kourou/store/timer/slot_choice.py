"""Computes due times of scheduled messages and their slots in the wheel. Pure.

Source: HookUtils.transformTimerMessage, TimerMessageStore.doEnqueue, apache/rocketmq 5.5.0. Java
delivers a message when its second is over; Kourou stores the exact time beside the second.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kourou.store.timer.layouts import PRECISION_MS, SLOTS

BLANK_SLOTS: Final = 60
"""Slots of the wheel that stay empty between the last used one and the first."""
ROLL_WINDOW_SLOTS: Final = 2 * 86_400
ROLL_WINDOW_SLOTS_MAX: Final = SLOTS // 2 - BLANK_SLOTS
_HOUR_MS: Final = 3_600_000


class SlotChoice(NamedTuple):
    """The slot of a message.

    Attributes:
        second: of the slot.
        is_roll: the message is to be stored in the timer topic again, at `roll_at_ms`.
    """

    second: int
    is_roll: bool
    roll_at_ms: int = 0


def out_ms(due_at_ms: int) -> int:
    """Return the second before a time, in milliseconds: RocketMQ's TIMER_OUT_MS.

    A whole second maps to the second before it: a slot holds messages that are due from one
    millisecond after the start of its second up to and including the next second.
    """
    return (due_at_ms - 1) // PRECISION_MS * PRECISION_MS


def exact_due_ms(slot_at_ms: int, due_at_ms: int) -> int:
    """Return the time at which a message is due.

    Args:
        slot_at_ms: the value of `out_ms` for the message.
        due_at_ms: its exact time. If this is not within the slot, the slot's end is returned.
    """
    end = slot_at_ms + PRECISION_MS
    return due_at_ms if slot_at_ms < due_at_ms <= end else end


def roll_window_ms(window_slots: int, reserved_hours: int) -> int:
    """Return the longest time that a message may wait for one slot: less than its record is kept.

    Args:
        window_slots: the configured window, in slots.
        reserved_hours: the retention time of records.
    """
    retention_ms = reserved_hours * _HOUR_MS
    return max(2 * PRECISION_MS, min(window_slots * PRECISION_MS, retention_ms * 2 // 3))


def choose_slot(out_at_ms: int, stored_at_ms: int, read_at_ms: int, window_ms: int) -> SlotChoice:
    """Return the slot for a message.

    Apart from `read_at_ms`, it follows from the record, so that replicas choose the same slot.

    Args:
        out_at_ms: the message's `out_ms`; a past one gets the current slot.
        stored_at_ms: the store time of its record.
        read_at_ms: the current slot; all before it are done.
        window_ms: a message that waits this long, or longer, is rolled (stored again on the way),
            so that its record is always younger than the retention time.
    """
    stored_at_ms -= stored_at_ms % PRECISION_MS
    wait_ms = out_at_ms - stored_at_ms
    slot_at_ms, is_roll = out_at_ms, wait_ms >= window_ms
    if is_roll:
        # Less than a third of the window would remain: two half windows cost the same.
        is_short = wait_ms - window_ms < window_ms // 3
        slot_at_ms = stored_at_ms + (window_ms // 2 if is_short else window_ms)
        slot_at_ms -= slot_at_ms % PRECISION_MS
    second = max(slot_at_ms, read_at_ms) // PRECISION_MS
    last = read_at_ms // PRECISION_MS + SLOTS - BLANK_SLOTS
    if second > last:  # reading lags by days: the slot is still used by another second
        return SlotChoice(last, is_roll=True, roll_at_ms=last * PRECISION_MS)
    # If the clock was set back, the slot is later than the message's time.
    return SlotChoice(second, is_roll, slot_at_ms if is_roll else 0)

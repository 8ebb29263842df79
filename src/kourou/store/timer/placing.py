"""When a timer message is due, and in which slot of the wheel it waits. Pure.

Source: HookUtils.transformTimerMessage, TimerMessageStore.doEnqueue, apache/rocketmq 5.5.0. There a
message is delivered when its second is over. Here the exact time is kept beside the second.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kourou.store.timer.layouts import PRECISION_MS, SLOTS

BLANK_SLOTS: Final = 60
"""Slots of the wheel that stay empty between the last one that is used and the first."""
ROLL_WINDOW_SLOTS: Final = 2 * 86_400
ROLL_WINDOW_SLOTS_MAX: Final = SLOTS // 2 - BLANK_SLOTS
_HOUR_MS: Final = 3_600_000


class SlotChoice(NamedTuple):
    """Where a message waits.

    Attributes:
        second: of the slot.
        is_roll: it is put into the timer topic again, `roll_at_ms`.
    """

    second: int
    is_roll: bool
    roll_at_ms: int = 0


def out_ms(due_at_ms: int) -> int:
    """Return the second before a time, which is what RocketMQ stores of it, in milliseconds.

    That of a whole second is the one before: a slot holds what is due from one millisecond behind
    its second to the end of it.
    """
    return (due_at_ms - 1) // PRECISION_MS * PRECISION_MS


def exact_due_ms(slot_at_ms: int, due_at_ms: int) -> int:
    """Return when a message is due of which the second `out_ms` and perhaps the time is known.

    Args:
        slot_at_ms: the second, in milliseconds.
        due_at_ms: the time that is told beside it; if it is another second's, the second counts.
    """
    end = slot_at_ms + PRECISION_MS
    return due_at_ms if slot_at_ms < due_at_ms <= end else end


def roll_window_ms(window_slots: int, reserved_hours: int) -> int:
    """Return how long a message may wait in one place: less than its record is kept.

    Args:
        window_slots: how long is asked for, in slots.
        reserved_hours: how long records are kept.
    """
    kept_ms = reserved_hours * _HOUR_MS
    return max(2 * PRECISION_MS, min(window_slots * PRECISION_MS, kept_ms * 2 // 3))


def choose_slot(out_at_ms: int, now_ms: int, read_at_ms: int, window_ms: int) -> SlotChoice:
    """Return the slot for a message.

    Args:
        out_at_ms: the second of its time; what is past gets the slot that is read now.
        now_ms: the time.
        read_at_ms: the slot that is read now; those before are done.
        window_ms: who waits for so long, or longer, is rolled: stored again on the way, so that it
            is always younger than what expires.
    """
    written_at_ms = now_ms // PRECISION_MS * PRECISION_MS
    wait_ms = out_at_ms - written_at_ms
    slot_at_ms, is_roll = out_at_ms, wait_ms >= window_ms
    if is_roll:
        # Less than a third of the window would be left: that is as good as two halves.
        is_short = wait_ms - window_ms < window_ms // 3
        slot_at_ms = written_at_ms + (window_ms // 2 if is_short else window_ms)
        slot_at_ms -= slot_at_ms % PRECISION_MS
    second = max(slot_at_ms, read_at_ms) // PRECISION_MS
    last = read_at_ms // PRECISION_MS + SLOTS - BLANK_SLOTS
    if second > last:  # reading is days behind: the slot is taken by another second yet
        return SlotChoice(last, is_roll=True, roll_at_ms=last * PRECISION_MS)
    # Of a clock that was set back, the slot is later than the time.
    return SlotChoice(second, is_roll, slot_at_ms if is_roll else 0)

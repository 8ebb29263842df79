"""The slots of the wheel whose messages are due soon, in memory: a heap of numbers each.

A message is one whole number, that orders by when it is due and then as they came; a million of one
second take 60 MB. Pure, but for `load_slot`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kourou.errors import CorruptRecordError
from kourou.store.timer.layouts import TimerUnit
from kourou.store.timer.timer_log import TimerLog

log = logging.getLogger(__name__)

NEAR_SLOTS: Final = 3
"""How many slots may be in memory: the one that is read, and the next."""

_OFFSET_SHIFT: Final = 33
_DUE_SHIFT: Final = 97
_SIZE_MASK: Final = 2**32 - 1
_OFFSET_MASK: Final = 2**64 - 1


class DueEntry(NamedTuple):
    """One message of a slot."""

    due_at_ms: int
    physical_offset: int
    size: int
    is_roll: bool

    def pack(self) -> int:
        """Return the number that it is in the heap."""
        return (
            self.due_at_ms << _DUE_SHIFT
            | self.physical_offset << _OFFSET_SHIFT
            | self.size << 1
            | self.is_roll
        )


def unpack_entry(number: int) -> DueEntry:
    """Return the message that a number of the heap is."""
    return DueEntry(
        number >> _DUE_SHIFT,
        number >> _OFFSET_SHIFT & _OFFSET_MASK,
        number >> 1 & _SIZE_MASK,
        bool(number & 1),
    )


def due_of(number: int) -> int:
    """Return when the message of a number is due, in epoch milliseconds."""
    return number >> _DUE_SHIFT


def unit_due_ms(unit: TimerUnit) -> int:
    """Return when the message of a unit is due: at the end of its second if Java wrote it."""
    if unit.is_roll:  # where the clock was set back, it may be before its slot
        return min(unit.due_at_ms or unit.second * 1000, unit.second * 1000)
    return unit.due_at_ms or (unit.second + 1) * 1000


@dataclass(slots=True, eq=False)
class NearSlot:
    """A slot in memory.

    Attributes:
        heap: what is to be delivered.
        outstanding: messages that are being delivered.
        is_loading: the timer log is being read; what came since is in the heap already.
        first_put: where in the commit log what was delivered of it may begin; None if nothing was.
    """

    second: int
    heap: list[int] = field(default_factory=list)
    outstanding: int = 0
    is_loading: bool = False
    first_put: int | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing of it is left for now."""
        return not self.heap and not self.outstanding and not self.is_loading


class LoadedUnits(NamedTuple):
    """What the timer log has of a slot: a heap, and the records of those that take others back."""

    heap: list[int]
    deletes: list[bytes]


def load_slot(
    timer_log: TimerLog, second: int, last: int, read_record: Callable[[int], bytes | None]
) -> LoadedUnits:
    """Read a slot; may wait for the device, on any thread.

    Raises:
        OSError: the timer log, or the commit log, cannot be read.
    """
    heap: list[int] = []
    deletes: list[int] = []
    try:
        for _, unit in timer_log.chain(last):
            _sort_in(unit, heap, deletes)
    except CorruptRecordError as error:
        log.error(  # noqa: TRY400 - the place says it all
            "timer_slot.damaged second=%d reason=%s remedy=%s",
            second, error, "`kourou store rebuild` finds what is missing",
        )  # fmt: skip
        heap, deletes = [], []
        for position, unit in timer_log.units_of(second):
            if position <= last:
                _sort_in(unit, heap, deletes)
    heap.sort()
    records = (read_record(offset) for offset in deletes)
    return LoadedUnits(heap, [record for record in records if record is not None])


def _sort_in(unit: TimerUnit, heap: list[int], deletes: list[int]) -> None:
    if unit.is_delete:
        deletes.append(unit.physical_offset)
    else:
        due_at_ms = unit_due_ms(unit)
        heap.append(DueEntry(due_at_ms, unit.physical_offset, unit.size, unit.is_roll).pack())

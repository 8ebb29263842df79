"""Slots of the timer wheel that are due soon, in memory: a heap of integers each.

A message is encoded as one integer that sorts by due time and then by arrival; a million messages
of one second take 60 MB. Pure, except for `load_slot`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kourou.errors import CorruptRecordError
from kourou.protocol.hashing import java_string_hash
from kourou.store.timer.layouts import TimerSlot, TimerUnit
from kourou.store.timer.timer_log import TimerLog

log = logging.getLogger(__name__)

NEAR_SLOTS: Final = 3
"""Limit on slots in memory: the one that is being delivered, and the next."""

_NO_HASH: Final = 0
"""The topic's hash in units of messages that were moved to another slot."""
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
        """Encode the message as an integer for the heap."""
        return pack_entry(*self)


def pack_entry(due_at_ms: int, physical_offset: int, size: int, is_roll: bool) -> int:  # noqa: FBT001 - as in `DueEntry`
    """Encode a message as an integer for the heap."""
    return due_at_ms << _DUE_SHIFT | physical_offset << _OFFSET_SHIFT | size << 1 | is_roll


def unpack_entry(number: int) -> DueEntry:
    """Decode a message from an integer of the heap."""
    return DueEntry(
        number >> _DUE_SHIFT,
        number >> _OFFSET_SHIFT & _OFFSET_MASK,
        number >> 1 & _SIZE_MASK,
        bool(number & 1),
    )


def due_of(number: int) -> int:
    """Return the due time of an encoded message, in epoch milliseconds."""
    return number >> _DUE_SHIFT


def position_of(number: int) -> int:
    """Return the log position of an encoded message's record."""
    return number >> _OFFSET_SHIFT & _OFFSET_MASK


def is_roll(number: int) -> bool:
    """Return whether an encoded message is to be stored in the timer topic again."""
    return bool(number & 1)


def unit_due_ms(unit: TimerUnit) -> int:
    """Return the due time of a unit's message; for Java's units, the end of the slot's second."""
    if unit.is_roll:  # may be before its slot if the clock was set back
        return min(unit.due_at_ms or unit.second * 1000, unit.second * 1000)
    return unit.due_at_ms or (unit.second + 1) * 1000


@dataclass(slots=True, eq=False)
class NearSlot:
    """A slot in memory.

    Attributes:
        heap: messages to deliver.
        outstanding: number of messages being delivered.
        is_loading: the timer log is being read; messages that arrived since are in the heap.
        first_put: lower bound of the log positions of the slot's deliveries; None without any.
    """

    second: int
    heap: list[int] = field(default_factory=list)
    outstanding: int = 0
    is_loading: bool = False
    first_put: int | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to deliver at present."""
        return not self.heap and not self.outstanding and not self.is_loading


class LoadedUnits(NamedTuple):
    """A slot's units in the timer log: a heap of messages, and the records of recalls."""

    heap: list[int]
    deletes: list[bytes]


def load_slot(
    timer_log: TimerLog, second: int, last: int, read_record: Callable[[int], bytes | None]
) -> LoadedUnits:
    """Read a slot; may block on the device, safe in any thread.

    Raises:
        OSError: the timer log or the commit log cannot be read.
    """
    heap: list[int] = []
    deletes: list[int] = []
    try:
        for _, unit in timer_log.chain(last):
            _add_unit(unit, heap, deletes)
    except CorruptRecordError as error:
        log.error(  # noqa: TRY400 - the reason identifies the unit
            "timer_slot.damaged second=%d reason=%s remedy=%s",
            second, error, "`kourou store rebuild` recovers missing messages",
        )  # fmt: skip
        heap, deletes = [], []
        for position, unit in timer_log.units_of(second):
            if position <= last:
                _add_unit(unit, heap, deletes)
    heap.sort()
    records = (read_record(offset) for offset in deletes)
    return LoadedUnits(heap, [record for record in records if record is not None])


def waiting_positions(
    timer_log: TimerLog, slots: Iterable[TimerSlot], topics: Iterable[str]
) -> list[int]:
    """Return the log positions of the messages of slots for some topics, sorted; may block.

    Some may be of other topics, whose names have the same hash. A slot with a damaged chain is
    searched for in the whole log, as by `load_slot`.

    Raises:
        OSError: the timer log cannot be read.
    """
    hashes = {java_string_hash(topic) for topic in topics} | {_NO_HASH}
    found: list[int] = []
    for slot in slots:
        try:
            units = [unit for _, unit in timer_log.chain(slot.last)]
        except CorruptRecordError as error:
            log.warning("timer_slot.damaged second=%d reason=%s", slot.second, error)
            units = [unit for at, unit in timer_log.units_of(slot.second) if at <= slot.last]
        found += [unit.physical_offset for unit in units if unit.topic_hash in hashes]
    found.sort()
    return found


def _add_unit(unit: TimerUnit, heap: list[int], deletes: list[int]) -> None:
    if unit.is_delete:
        deletes.append(unit.physical_offset)
    else:
        due_at_ms = unit_due_ms(unit)
        heap.append(DueEntry(due_at_ms, unit.physical_offset, unit.size, unit.is_roll).pack())

"""Timer wheel: for each second with messages, the first and last unit of its chain.

The pages (128 seconds each) from the current second on are in memory; a flush writes the changed
ones. Pages of past seconds are dropped from memory and stay in the file as they are.

Source: TimerWheel.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from kourou.store.timer.layouts import SLOT, SLOTS, TimerSlot

PAGE_BYTES: Final = 4096
_PAGE_SLOTS: Final = PAGE_BYTES // SLOT.size
_BYTES: Final = SLOT.size


class TimerWheel:
    """The slots from one second on, in memory.

    Attributes:
        count: sum of the counts of all slots that are not done.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._dirty: set[int] = set()
        self._seconds: list[int] = []  # a heap of the slots that are not done
        self._behind: set[int] = set()  # pages whose slots are all done
        self.count = 0

    def load(self, pages: Iterator[tuple[int, bytes]], first: int) -> None:
        """Load the slots of `first` and later seconds.

        Args:
            pages: (file offset, up to 4096 bytes from there).
            first: the next second to read.
        """
        for at, data in pages:
            page = bytearray(data.ljust(PAGE_BYTES, b"\0"))
            number, is_used = at // PAGE_BYTES, False
            for index, (second, begin, _, count, _) in enumerate(SLOT.iter_unpack(page)):
                is_pending = first <= second < first + SLOTS and begin >= 0
                if is_pending and second % SLOTS == number * _PAGE_SLOTS + index:
                    self._seconds.append(second)
                    self.count += count
                    is_used = True
            if is_used:
                self._pages[number] = page
        heapify(self._seconds)

    def slot(self, second: int) -> TimerSlot | None:
        """Return the slot of a second; None if it is empty."""
        number, index = divmod(second % SLOTS, _PAGE_SLOTS)
        page = self._pages.get(number)
        if page is None:
            return None
        found, first, last, count, _ = SLOT.unpack_from(page, index * _BYTES)
        return TimerSlot(found, first, last, count) if found == second and last >= 0 else None

    def file_offset_of(self, second: int) -> int:
        """Return the file offset of the slot of a second."""
        return second % SLOTS * _BYTES

    def slots(self) -> list[TimerSlot]:
        """Return all slots that are not done, in no particular order."""
        return [slot for second in self._seconds if (slot := self.slot(second)) is not None]

    def add(self, second: int, position: int, weight: int, slot: TimerSlot | None) -> None:
        """Make a unit of the timer log the last of a slot.

        Args:
            second: of the slot.
            position: of the unit, whose `previous` is the slot's current last unit.
            weight: the unit's contribution to the count.
            slot: the slot's current value; None if it is empty.
        """
        if slot is None:
            heappush(self._seconds, second)
            self.put(TimerSlot(second, position, position, weight))
        else:
            self.put(TimerSlot(second, slot.first, position, slot.messages + weight))
        self.count += weight

    def add_chain(self, second: int, units: tuple[int, int], weight: int) -> None:
        """Make units of the timer log the last of a slot, of which the first names its last one.

        Args:
            second: of the slot.
            units: positions of the first and the last unit.
            weight: the contribution of the units to the count.
        """
        first, last = units
        slot = self.slot(second)
        if slot is None:
            heappush(self._seconds, second)
            self.put(TimerSlot(second, first, last, weight))
        else:
            self.put(TimerSlot(second, slot.first, last, slot.messages + weight))
        self.count += weight

    def put(self, slot: TimerSlot) -> None:
        """Set a slot, which is empty if its `last` is -1; does not update `count`."""
        number, index = divmod(slot.second % SLOTS, _PAGE_SLOTS)
        page = self._pages.setdefault(number, bytearray(PAGE_BYTES))
        SLOT.pack_into(page, index * _BYTES, *slot, 0)
        self._dirty.add(number)

    @property
    def last_second(self) -> int | None:
        """The last second with messages that is not done; None if there is none."""
        return max(self._seconds, default=None)

    @property
    def next_second(self) -> int | None:
        """The first second with messages that is not done; None if there is none."""
        # Recovery may have emptied a slot.
        while self._seconds and self.slot(self._seconds[0]) is None:
            heappop(self._seconds)
        return self._seconds[0] if self._seconds else None

    def next_seconds(self, before: int, count: int) -> list[int]:
        """Return at most `count` first seconds before `before` with messages and not done."""
        found: list[int] = []
        heap = self._seconds
        while heap and heap[0] < before and len(found) < count:
            second = heappop(heap)
            if (not found or found[-1] != second) and self.slot(second) is not None:
                found.append(second)
        for second in found:
            heappush(heap, second)
        return found

    def mark_done(self, second: int) -> None:
        """Mark all slots up to this second as done, and drop their pages once written."""
        before = -1
        while self._seconds and self._seconds[0] <= second:
            popped = heappop(self._seconds)
            slot = self.slot(popped)
            if slot is not None and popped != before:
                self.count -= slot.messages
            self._behind.add(popped % SLOTS // _PAGE_SLOTS)
            before = popped
        self._behind.discard((second + 1) % SLOTS // _PAGE_SLOTS)
        for number in self._behind - self._dirty:
            self._pages.pop(number, None)
            self._behind.discard(number)

    def take_dirty(self) -> Sequence[tuple[int, bytes]]:
        """Return (file offset, contents) of the pages changed since the last call."""
        dirty, self._dirty = sorted(self._dirty), set()
        return [(number * PAGE_BYTES, bytes(self._pages[number])) for number in dirty]

    def mark_all_dirty(self) -> None:
        """Mark all pages as changed."""
        self._dirty.update(self._pages)

    def mark_dirty(self, pages: Sequence[tuple[int, bytes]]) -> None:
        """Mark pages from `take_dirty` as changed again, because they were not written."""
        self._dirty.update(at // PAGE_BYTES for at, _ in pages if at // PAGE_BYTES in self._pages)

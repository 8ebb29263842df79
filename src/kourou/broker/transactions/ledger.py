"""Which half messages are open, and what became of the others. Pure.

One byte for each record of the half queue, from a little below the first that is still open:

    OPEN         nobody said yet what becomes of it
    BUSY         what was said is being stored
    COMMITTED    its message is in its own queue
    ROLLED_BACK  it never will be
    ENDED        one of the two: an op entry of the time before the start says no more
    MOVED        another record stands for the transaction, see below
    GIVEN_UP     nobody is asked about it any more

A record that was stored again, because its producer was asked or it was in the way, is MOVED, and
the later one stands for the transaction: `current`. Which record is the first of a transaction is
in the record itself; which is the current one is kept here for those that are open.

Below `head` all records have ended. That is the progress of the half queue that is persisted; what
the table remembers of records below answers those who end a transaction twice. The same progress of
the op queue, as `OpEntries` has it: its entries below name no record at or above `head`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class State(IntEnum):
    """What is known of one half record; see above."""

    OPEN = 0
    BUSY = 1
    COMMITTED = 2
    ROLLED_BACK = 3
    ENDED = 4
    MOVED = 5
    GIVEN_UP = 6


REMEMBERED: Final = 1 << 17
"""Ended records below `head` whose end is still known."""
_TRIMMED: Final = 1 << 16
"""Bytes that are forgotten at once."""
_UNSETTLED: Final = (State.OPEN, State.BUSY)
_REPLACED: Final = (State.MOVED, State.ENDED)
"""What the records of a transaction are before its last one; ENDED after a start."""


@dataclass(slots=True)
class _Chain:
    """A transaction that has several records.

    Attributes:
        records: queue offset and place in the log of each, the first of the transaction aside.
    """

    first: int
    records: list[tuple[int, int]]


class Ledger:
    """What is known of the records of the half queue."""

    def __init__(self, head: int = 0) -> None:
        """Begin with nothing ended.

        Args:
            head: the first record that may be open.
        """
        self._base = head
        self._head = head
        self._states = bytearray()
        self._chains: dict[int, _Chain] = {}  # by the queue offset of each of their records
        self._waiting: dict[int, list[Callable[[], None]]] = {}  # by current record

    @property
    def head(self) -> int:
        """The first record that is not settled; all below are."""
        states, at = self._states, self._head - self._base
        end = len(states)
        while at < end and states[at] not in _UNSETTLED:
            at += 1
        self._head = self._base + at
        return self._head

    @property
    def moved_count(self) -> int:
        """Records of open transactions that have several: what the table keeps beside bytes."""
        return len(self._chains)

    def state(self, offset: int) -> State | None:
        """Return what is known of a record; None of one that was settled long ago."""
        at = offset - self._base
        if at < 0:
            return None
        return State(self._states[at]) if at < len(self._states) else State.OPEN

    def next_open(self, offset: int, end: int) -> int:
        """Return the first open record from `offset` on; `end` if there is none before that."""
        at = max(offset, self._base) - self._base
        if at >= len(self._states):
            return min(at + self._base, end)
        found = self._states.find(State.OPEN, at)
        return min(end, self._base + (found if found >= 0 else len(self._states)))

    def current(self, offset: int, first: int) -> tuple[int, int | None]:
        """Return which record stands for the transaction of a record.

        Args:
            offset: of the record.
            first: of the transaction's first record.

        Returns:
            Its queue offset, and its place in the log where it is not `offset` itself.
        """
        chain = self._chains.get(offset) or self._chains.get(first)
        if chain is None or chain.records[-1][0] == offset:
            return offset, None
        return chain.records[-1]

    def records_of(self, current: int) -> list[int]:
        """Return the queue offsets of all records that an op entry is to name with this one."""
        chain = self._chains.get(current)
        if chain is None:
            return [current]
        return [chain.first, *(offset for offset, _ in chain.records)]

    # What happens

    def begin(self, current: int) -> None:
        """Note that the end of an open transaction, or its next record, is being stored."""
        assert self.state(current) in (State.OPEN, State.GIVEN_UP), "another one is under way"
        self._set(current, State.BUSY)

    def begin_untouched(self, offset: int) -> bool:
        """As `begin`, of a record that is open and the only one of its transaction; else False."""
        at = offset - self._base
        if at < 0 or offset in self._chains or (at < len(self._states) and self._states[at]):
            return False
        self._set(offset, State.BUSY)
        return True

    def settle(self, current: int, state: State) -> None:
        """Note how what was begun has ended: OPEN if nothing was stored."""
        self._set(current, state)
        if state is not State.OPEN:
            self._forget(current)
        self._call_waiting(current)

    def moved(self, current: int, first: int, record: tuple[int, int]) -> None:
        """Note that another record stands for the transaction from now on.

        Args:
            current: the record that stood for it.
            first: of the transaction.
            record: queue offset and place in the log of the new one.
        """
        self._link(first, record)
        if current != first and current not in self._chains:
            self._chains[current] = self._chains[first]  # it began before the start
        self._set(current, State.MOVED)
        self._call_waiting(current)

    def when_settled(self, current: int, call: Callable[[], None]) -> None:
        """Call when what is under way for a BUSY transaction has ended."""
        self._waiting.setdefault(current, []).append(call)

    # What the files say at the start

    def ended_before(self, offset: int) -> None:
        """Note that an op entry names the record."""
        if offset >= self._base:
            self._set(offset, State.ENDED)

    def found(self, offset: int, physical_offset: int, first: int) -> int | None:
        """Note a record that no op entry names, and return which one it stands in for, if any.

        To be called in the order of the queue.
        """
        if first >= offset or self.state(offset) is not State.OPEN:
            return None
        before, _ = self.current(first, first)
        self._link(first, (offset, physical_offset))
        if before != offset and self.state(before) is State.OPEN:
            self._set(before, State.MOVED)
            return before
        return None

    # Small steps

    def _link(self, first: int, record: tuple[int, int]) -> None:
        chain = self._chains.get(first)
        if chain is None:
            chain = self._chains[first] = _Chain(first, [])
        chain.records.append(record)
        self._chains[record[0]] = chain

    def _forget(self, current: int) -> None:
        """Let the records of a transaction that has ended tell of its end by themselves."""
        chain = self._chains.get(current)
        if chain is None:
            return
        state = self.state(current)
        for offset in (chain.first, *(offset for offset, _ in chain.records)):
            self._chains.pop(offset, None)
            if state is not None and self.state(offset) in _REPLACED:
                self._set(offset, state)
        if self._chains.get(chain.first) is chain:
            del self._chains[chain.first]

    def _call_waiting(self, current: int) -> None:
        for call in self._waiting.pop(current, ()):
            call()

    def _set(self, offset: int, state: State) -> None:
        at = offset - self._base
        if at < 0:
            return
        missing = at + 1 - len(self._states)
        if missing > 0:
            self._states.extend(bytes(missing))
        self._states[at] = state
        if self._head - self._base > REMEMBERED + _TRIMMED:
            self.trim()

    def trim(self) -> None:
        """Forget how the oldest of the settled records have ended."""
        surplus = self.head - self._base - REMEMBERED
        if surplus > 0:
            del self._states[:surplus]
            self._base += surplus


class OpEntries:
    """The entries of the op queue that are still needed: they name a record at or above `head`."""

    def __init__(self, first: int) -> None:
        """Begin at the op queue's offset `first`."""
        self._next = first
        self._last: list[tuple[int, int]] = []  # op offset, highest half offset that it names
        self._start = 0

    def add(self, op_offset: int, offsets: Sequence[int]) -> None:
        """Note an entry; to be called in the order of the queue."""
        self._last.append((op_offset, max(offsets, default=-1)))
        self._next = max(self._next, op_offset + 1)

    def needed_from(self, head: int) -> int:
        """Return the first entry that names a record at or above `head`: the queue's progress."""
        last, at = self._last, self._start
        while at < len(last) and last[at][1] < head:
            at += 1
        self._start = at
        if at > 4096:
            del last[:at]
            self._start = at = 0
        return last[at][0] if at < len(last) else self._next

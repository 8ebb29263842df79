"""State of each half message: open or how it ended. Pure.

There is one byte for each record of the half queue, from shortly before the first open record on:

    OPEN         neither committed nor rolled back
    BUSY         its end or its next record is being stored
    COMMITTED    its message is in its destination queue
    ROLLED_BACK  it ended without a message
    ENDED        one of these two; an op message from before the start does not tell which
    MOVED        another record is the transaction's current one, see below
    GIVEN_UP     no further checks are sent

A record that was stored again, for a check or because too many records followed it, is MOVED; the
later record is the `current` one of the transaction. Each record holds the queue offset of its
transaction's first record. The current record of an open transaction is kept here.

All records below `head` have ended. `head` is the half queue's progress, which is persisted. States
of records below it are used to answer repeated ends. The progress of the op queue is that of
`OpProgress`: op messages below it name no record at or above `head`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class State(IntEnum):
    """State of one half record; see the module's table."""

    OPEN = 0
    BUSY = 1
    COMMITTED = 2
    ROLLED_BACK = 3
    ENDED = 4
    MOVED = 5
    GIVEN_UP = 6


SETTLED_STATES_MAX: Final = 1 << 17
"""Number of ended records below `head` whose state is kept."""
_TRIM_STEP: Final = 1 << 16
"""Number of states that are dropped at once."""
_UNSETTLED: Final = (State.OPEN, State.BUSY)
_REPLACED: Final = (State.MOVED, State.ENDED)
"""States of a transaction's records other than its last one; ENDED occurs after a start."""


@dataclass(slots=True)
class _Chain:
    """A transaction of several records.

    Attributes:
        first: queue offset of the first record.
        records: (queue offset, log position) of the other records.
    """

    first: int
    records: list[tuple[int, int]]


class Ledger:
    """State of the records of the half queue."""

    def __init__(self, head: int = 0) -> None:
        """Create a ledger in which all records from `head` on are open.

        Args:
            head: queue offset of the first record that may be open.
        """
        self._base = head
        self._head = head
        self._states = bytearray()
        self._chains: dict[int, _Chain] = {}  # by the queue offset of each of their records
        self._waiters: dict[int, list[Callable[[], None]]] = {}  # by current record

    @property
    def head(self) -> int:
        """Queue offset of the first unsettled record; all below are settled."""
        states, at = self._states, self._head - self._base
        end = len(states)
        while at < end and states[at] not in _UNSETTLED:
            at += 1
        self._head = self._base + at
        return self._head

    @property
    def moved_count(self) -> int:
        """Number of records of open transactions with several records; each takes memory."""
        return len(self._chains)

    def state(self, offset: int) -> State | None:
        """Return the state of a record; None if it was settled long ago."""
        at = offset - self._base
        if at < 0:
            return None
        return State(self._states[at]) if at < len(self._states) else State.OPEN

    def next_open(self, offset: int, end: int) -> int:
        """Return the first open record at or after `offset`; `end` if there is none below it."""
        at = max(offset, self._base) - self._base
        if at >= len(self._states):
            return min(at + self._base, end)
        found = self._states.find(State.OPEN, at)
        return min(end, self._base + (found if found >= 0 else len(self._states)))

    def current(self, offset: int, first: int) -> tuple[int, int | None]:
        """Return the current record of a record's transaction.

        Args:
            offset: queue offset of the record.
            first: queue offset of the transaction's first record.

        Returns:
            Its queue offset, and its log position, or None if it is the record at `offset`.
        """
        chain = self._chains.get(offset) or self._chains.get(first)
        if chain is None or chain.records[-1][0] == offset:
            return offset, None
        return chain.records[-1]

    def records_of(self, current: int) -> list[int]:
        """Return the queue offsets of all records of the transaction, for its op message."""
        chain = self._chains.get(current)
        if chain is None:
            return [current]
        return [chain.first, *(offset for offset, _ in chain.records)]

    def skip_to(self, head: int) -> None:
        """Settle all records below `head`; only before the recovery."""
        assert not self._states, "the recovery has not begun"
        self._base = self._head = max(self._head, head)

    # Transitions

    def begin(self, current: int) -> None:
        """Note that the end of a transaction, or its next record, is being stored."""
        assert self.state(current) in (State.OPEN, State.GIVEN_UP), "another one is under way"
        self._set(current, State.BUSY)

    def begin_single(self, offset: int) -> bool:
        """As `begin`, if the record is open and its transaction's only one; else return False."""
        at = offset - self._base
        if at < 0 or offset in self._chains or (at < len(self._states) and self._states[at]):
            return False
        self._set(offset, State.BUSY)
        return True

    def settle(self, current: int, state: State) -> None:
        """Note the result of a pending change: OPEN if nothing was stored."""
        self._set(current, state)
        if state is not State.OPEN:
            self._drop_chain(current)
        self._call_waiters(current)

    def moved(self, current: int, first: int, record: tuple[int, int]) -> None:
        """Note that a new record is the transaction's current one.

        Args:
            current: queue offset of the previous current record.
            first: queue offset of the first record.
            record: queue offset and log position of the new record.
        """
        self._link(first, record)
        if current != first and current not in self._chains:
            self._chains[current] = self._chains[first]  # a transaction from before the start
        self._set(current, State.MOVED)
        self._call_waiters(current)

    def when_settled(self, current: int, call: Callable[[], None]) -> None:
        """Call `call` when the pending change of a BUSY transaction is stored or refused."""
        self._waiters.setdefault(current, []).append(call)

    # Recovery at the start

    def note_ended(self, offset: int) -> None:
        """Note that an op message names the record."""
        if offset >= self._base:
            self._set(offset, State.ENDED)

    def note_open(self, offset: int, physical_offset: int, first: int) -> int | None:
        """Note a record without an op message; return the record that it replaces, if any.

        Must be called in queue order.
        """
        if first >= offset or self.state(offset) is not State.OPEN:
            return None
        before, _ = self.current(first, first)
        self._link(first, (offset, physical_offset))
        if before != offset and self.state(before) is State.OPEN:
            self._set(before, State.MOVED)
            return before
        return None

    # Internals

    def _link(self, first: int, record: tuple[int, int]) -> None:
        chain = self._chains.get(first)
        if chain is None:
            chain = self._chains[first] = _Chain(first, [])
        chain.records.append(record)
        self._chains[record[0]] = chain

    def _drop_chain(self, current: int) -> None:
        """Drop the chain of an ended transaction, and set the state of each of its records."""
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

    def _call_waiters(self, current: int) -> None:
        for call in self._waiters.pop(current, ()):
            call()

    def _set(self, offset: int, state: State) -> None:
        at = offset - self._base
        if at < 0:
            return
        missing = at + 1 - len(self._states)
        if missing > 0:
            self._states.extend(bytes(missing))
        self._states[at] = state
        if self._head - self._base > SETTLED_STATES_MAX + _TRIM_STEP:
            self.trim()

    def trim(self) -> None:
        """Drop the states of the oldest settled records."""
        surplus = self.head - self._base - SETTLED_STATES_MAX
        if surplus > 0:
            del self._states[:surplus]
            self._base += surplus


class OpProgress:
    """Tracks the op messages that are still needed: those that name a record at or above `head`."""

    def __init__(self, first: int) -> None:
        """Begin at queue offset `first` of the op queue."""
        self._next = first
        self._named: list[tuple[int, int]] = []  # op offset, highest half offset that it names
        self._start = 0

    def add(self, op_offset: int, offsets: Sequence[int]) -> None:
        """Note an op message; must be called in queue order."""
        self._named.append((op_offset, max(offsets, default=-1)))
        self._next = max(self._next, op_offset + 1)

    def needed_from(self, head: int) -> int:
        """Return the progress: the first op message that names a record at or above `head`."""
        last, at = self._named, self._start
        while at < len(last) and last[at][1] < head:
            at += 1
        self._start = at
        if at > 4096:
            del last[:at]
            self._start = at = 0
        return last[at][0] if at < len(last) else self._next

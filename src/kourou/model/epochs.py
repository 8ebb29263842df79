"""Epochs of a replicated log: which master appended which part of it. Pure.

A controller gives each elected master a greater epoch. The master notes it with the log's end of
that moment, before it appends anything. So two logs are equal up to a position in the newest epoch
that both have from the same position on.

Source: EpochFileCache.java, apache/rocketmq 5.5.0, which refuses an epoch that begins where the
last one does. Here the last one, which has no records, is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from kourou.errors import EpochError

EPOCH_MAX: Final = 0x7FFF_FFFF
POSITION_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
NO_EPOCH: Final = -1
"""Epoch of a log without entries, as in Java."""


class EpochEntry(NamedTuple):
    """Start of an epoch.

    Attributes:
        epoch: number of the epoch.
        start: log position of the first byte that its master could append.
    """

    epoch: int
    start: int


class EpochList:
    """The epochs of one log, oldest first: both numbers and positions increase."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        """Take the entries of a file or a master.

        Raises:
            EpochError: a number or position is out of range, or they do not increase.
        """
        self._entries = list(entries)
        for entry in self._entries:
            _check(entry)
        for one, following in pairwise(self._entries):
            if following.epoch <= one.epoch or following.start <= one.start:
                raise EpochError(f"{_text(following)} must not follow {_text(one)}")

    def __iter__(self) -> Iterator[EpochEntry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"EpochList({[tuple(entry) for entry in self._entries]})"

    @property
    def last_epoch(self) -> int:
        """The newest epoch; `NO_EPOCH` if there is none."""
        return self._entries[-1].epoch if self._entries else NO_EPOCH

    def begin(self, epoch: int, start: int) -> EpochList:
        """Return the list with a newer epoch that begins at the log's end.

        Raises:
            EpochError: the epoch is not newer, or begins before the last one.
        """
        entry = EpochEntry(epoch, start)
        if epoch <= self.last_epoch:
            raise EpochError(f"{_text(entry)} is not newer than epoch {self.last_epoch}")
        kept = [one for one in self._entries if one.start != start]
        return EpochList([*kept, entry])

    def at(self, position: int) -> tuple[EpochEntry, int] | None:
        """Return the epoch that contains a position, and its end; None before the first one.

        The end of the newest epoch is `POSITION_MAX`.
        """
        for entry, end in self._spans(POSITION_MAX):
            if entry.start <= position < end:
                return entry, end
        return None

    def common_end(self, own_end: int, other: EpochList, other_end: int) -> int | None:
        """Return the position up to which two logs are equal; None if nothing shows that.

        A log whose epochs are all older than the first one of the other, which begins at the same
        position, is equal up to there: none of its records was on the replica that was elected.
        Epoch 0 is no epoch of a controller, so that records of it are never given up so.

        Args:
            own_end: end of the log with this list.
            other: the list of the other log.
            other_end: end of the other log.
        """
        shorter = min(own_end, other_end)
        others = dict(other._spans(other_end))
        for entry, end in reversed(list(self._spans(own_end))):
            # An epoch is noted before its first record, so a log may end before its start.
            if entry in others and entry.start <= shorter:
                return min(end, others[entry], shorter)
        if not self._entries or not other._entries:
            return None
        own_first, other_first = self._entries[0], other._entries[0]
        is_older = own_first.epoch > 0 and self.last_epoch < other_first.epoch
        return own_first.start if is_older and own_first.start == other_first.start else None

    def cut(self, end: int) -> EpochList:
        """Return the list of the log truncated at `end`: without the epochs that begin there."""
        return EpochList(entry for entry in self._entries if entry.start < end)

    def expire(self, begin: int) -> EpochList:
        """Return the list of the log that begins at `begin`: without the epochs before it."""
        return EpochList(entry for entry, end in self._spans(POSITION_MAX) if end > begin)

    def _spans(self, log_end: int) -> Iterator[tuple[EpochEntry, int]]:
        """Yield each entry with the position of its end."""
        ends = [entry.start for entry in self._entries[1:]]
        yield from zip(self._entries, [*ends, log_end], strict=len(self._entries) > 0)


def _check(entry: EpochEntry) -> None:
    if not 0 <= entry.epoch <= EPOCH_MAX:
        raise EpochError(f"epoch {entry.epoch} is not in 0..{EPOCH_MAX}")
    if not 0 <= entry.start <= POSITION_MAX:
        raise EpochError(f"the start of {_text(entry)} is not in 0..{POSITION_MAX}")


def _text(entry: EpochEntry) -> str:
    return f"epoch {entry.epoch} from position {entry.start}"

"""Ranges of messages that were verified recently, so that the next reader need not verify them.

Verification detects data that came back from the device corrupt, so the data must have left memory
before. A record that was just verified is still in memory, like one that was just written, and is
trusted for the same number of bytes, `believed_bytes` (see `verified_get`). For written records the
bytes written since are counted; here the bytes verified since count as well, because reading them
from the device may have evicted others. So groups that catch up together, or shortly after one
another, pay for one verification. A group that comes later verifies again, because the records may
have been read from the device again.

The number of stored ranges is bounded. Used on the store's thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kourou.store.queues.simple_queue import SimpleQueue

_PARTS: Final = 16
"""A range is extended until one such part of `believed_bytes` was written or verified since its
begin, because a range expires as a whole."""
_RANGES_MAX: Final = 2 * _PARTS
"""The most ranges of one queue; the oldest is dropped first."""
_QUEUES_MAX: Final = 1024
"""The most queues with ranges; those of the least recently verified queue are dropped first."""


class _Range:
    """A range of verified offsets.

    Attributes:
        age_from: the bytes written and verified in all when its first message was verified.
    """

    __slots__ = ("age_from", "begin", "end")

    def __init__(self, begin: int, end: int, age_from: int) -> None:
        self.begin = begin
        self.end = end
        self.age_from = age_from


class VerifiedRanges:
    """The recently verified messages of all queues.

    Args:
        believed_bytes: the bytes that may be written and verified until a range expires.
    """

    def __init__(self, believed_bytes: int) -> None:
        self._believed_bytes = believed_bytes
        self._verified_bytes = 0
        self._queues: OrderedDict[SimpleQueue, list[_Range]] = OrderedDict()

    def covers(self, queue: SimpleQueue, begin: int, end: int, written: int) -> bool:
        """Tell whether all messages of a range of offsets were verified recently.

        Args:
            queue: the queue of the messages.
            begin: the first offset.
            end: the offset after the last one.
            written: the end of the log.
        """
        oldest = self._oldest(written)
        for verified in self._queues.get(queue, ()):
            if verified.begin <= begin and end <= verified.end and verified.age_from >= oldest:
                return True
        return False

    def add(self, queue: SimpleQueue, begin: int, end: int, written: int, size: int) -> None:
        """Record that these messages, of `size` bytes in all, have just been verified."""
        now = written + self._verified_bytes
        self._verified_bytes += size
        ranges = self._queues.setdefault(queue, [])
        self._queues.move_to_end(queue)
        if len(self._queues) > _QUEUES_MAX:
            self._queues.popitem(last=False)
        for verified in ranges:
            if verified.end == begin and (now - verified.age_from) * _PARTS < self._believed_bytes:
                verified.end = end
                return
        oldest = self._oldest(written)
        ranges[:] = [verified for verified in ranges if verified.age_from >= oldest][
            1 - _RANGES_MAX :
        ]
        ranges.append(_Range(begin, end, now))

    def _oldest(self, written: int) -> int:
        return written + self._verified_bytes - self._believed_bytes

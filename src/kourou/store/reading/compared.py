"""Which messages were compared with their entries not long ago, so that the next reader need not.

The comparison is there for what comes back from the device other than it went there, and for that
it must have left the memory before. What was just compared has not: it was touched, as what was
just written is, and it is believed for as long, `believed_bytes` (see `checked_get`). How long that
is for what was written is told by what was written since; here what was compared since counts too,
since that may have come from the device and taken the place of something else. So groups that catch
up together, or one soon behind the other, pay for one comparison, and one that comes later, when
those records may have been read anew, for its own.

Kept are runs of offsets, at most so many. On the store's thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kourou.store.queues.simple_queue import SimpleQueue

_PARTS: Final = 16
"""A run ends when so much of what is believed was compared since it began: it ages as a whole."""
_RUNS_MAX: Final = 2 * _PARTS
"""Runs of one queue; the oldest is forgotten first."""
_QUEUES_MAX: Final = 1024
"""Queues with runs; of the least recently compared they are forgotten first."""


class _Run:
    """Messages from one offset to another that were compared.

    Attributes:
        age_from: what `Compared` had counted when the first of them was.
    """

    __slots__ = ("age_from", "begin", "end")

    def __init__(self, begin: int, end: int, age_from: int) -> None:
        self.begin = begin
        self.end = end
        self.age_from = age_from


class Compared:
    """The messages of all queues that need no comparison, though this process did not write them.

    Args:
        believed_bytes: how much may have been written and compared since.
    """

    def __init__(self, believed_bytes: int) -> None:
        self._believed_bytes = believed_bytes
        self._compared_bytes = 0
        self._queues: OrderedDict[SimpleQueue, list[_Run]] = OrderedDict()

    def holds(self, queue: SimpleQueue, begin: int, end: int, written: int) -> bool:
        """Tell whether all messages from one offset to another were compared not long ago.

        Args:
            queue: of the messages.
            begin: the first offset.
            end: behind the last one.
            written: where the log ends.
        """
        oldest = self._oldest(written)
        for run in self._queues.get(queue, ()):
            if run.begin <= begin and end <= run.end and run.age_from >= oldest:
                return True
        return False

    def add(self, queue: SimpleQueue, begin: int, end: int, written: int, size: int) -> None:
        """Note that those messages, of `size` bytes in all, have just been compared."""
        now = written + self._compared_bytes
        self._compared_bytes += size
        runs = self._queues.setdefault(queue, [])
        self._queues.move_to_end(queue)
        if len(self._queues) > _QUEUES_MAX:
            self._queues.popitem(last=False)
        for run in runs:
            if run.end == begin and (now - run.age_from) * _PARTS < self._believed_bytes:
                run.end = end
                return
        oldest = self._oldest(written)
        runs[:] = [run for run in runs if run.age_from >= oldest][1 - _RUNS_MAX :]
        runs.append(_Run(begin, end, now))

    def _oldest(self, written: int) -> int:
        return written + self._compared_bytes - self._believed_bytes

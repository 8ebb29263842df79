"""Entries of the queues that are being caught up with, some pulls of them read at a time.

A call for 32 entries takes as long as one for 256: 5 to 8 us, a tenth of such a pull. Entries in
files do not change, but for one that rotted and is written again: who finds that a block of them is
not true forgets it. On the store's thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kourou.store.formats import ENTRY_BYTES
from kourou.store.queues.simple_queue import SimpleQueue

_BLOCK_ENTRIES: Final = 256
_QUEUES_MAX: Final = 512
"""Queues of which a block is kept, 5 KB each; of the least recently read it is forgotten first."""


class EntryBlocks:
    """Reads entries of any queues, out of memory only."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[SimpleQueue, tuple[int, bytes]] = OrderedDict()

    def read(self, queue: SimpleQueue, offset: int, count: int) -> tuple[bytes, int] | None:
        """Return bytes that hold the entries, and where they begin in them.

        None if they might have to be waited for, or are not all in one file or the queue's tail.

        Raises:
            OSError: the queue's file cannot be read.
        """
        block = self._blocks.get(queue)
        if block is not None:
            start, data = block
            at = (offset - start) * ENTRY_BYTES
            if 0 <= at <= len(data) - count * ENTRY_BYTES:
                self._blocks.move_to_end(queue)
                return data, at
        if offset + count > queue.file_end:  # as who has caught up: it costs no call
            return _whole(queue.read_resident(offset, count), count)
        found = _whole(queue.read_resident(offset, _BLOCK_ENTRIES), count)
        if found is None:
            return _whole(queue.read_resident(offset, count), count)
        self._blocks[queue] = (offset, found[0])
        if len(self._blocks) > _QUEUES_MAX:
            self._blocks.popitem(last=False)
        return found

    def forget(self, queue: SimpleQueue) -> None:
        """Read the queue's entries anew."""
        self._blocks.pop(queue, None)


def _whole(data: bytes | None, count: int) -> tuple[bytes, int] | None:
    if data is None or len(data) < count * ENTRY_BYTES:
        return None
    return data, 0

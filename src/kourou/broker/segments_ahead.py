"""Making the log's next segment before it is needed, so that no send waits for that.

Begun when the segment that is written is half full: a store that gets few messages stays small.
Only in sync mode, where each send waits for a sync. See `kourou.store.log.segment_ahead`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from typing import Final

from kourou.remoting.runtime import Offload
from kourou.store.log.segment_ahead import SegmentAhead
from kourou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_OUT_OF_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class SegmentsAhead:
    """Keeps one segment ahead of the log."""

    def __init__(self, store: MessageStore, offload: Offload) -> None:
        """Serve `store`; `offload` takes file calls off the loop."""
        self._store = store
        self._offload = offload
        self._task: asyncio.Task[None] | None = None

    def on_write(self) -> None:
        """Begin a segment if it is time for that; called after each write to the log."""
        if self._task is not None or not self._store.needs_segment_ahead:
            return
        ahead = self._store.begin_segment_ahead(threading.Lock(), threading.Lock())
        self._task = asyncio.get_running_loop().create_task(self._make(ahead))

    async def stop(self) -> None:
        """Leave the segment as it is, and return when nothing writes to it any more."""
        if self._task is not None:
            self._store.end_segment_ahead()
            await asyncio.wait([self._task])

    def abandon(self) -> None:
        """Stop as a killed process stops."""
        if self._task is not None:
            self._store.end_segment_ahead()  # a thread may be about to write
            self._task.cancel()

    async def _make(self, ahead: SegmentAhead) -> None:
        try:
            if await self._offload(self._store.has_room_ahead):
                while await self._offload(ahead.fill_some):
                    pass
        except OSError as error:
            log.warning("segment.not_made start=%d error=%s", ahead.start, error)
            await self._discard(ahead)
            if error.errno not in _OUT_OF_SPACE:
                self._store.set_read_only(f"a write failed: {error}")
        finally:
            self._task = None

    async def _discard(self, ahead: SegmentAhead) -> None:
        try:
            await self._offload(ahead.discard)
        except OSError as error:
            log.warning("segment.not_removed start=%d error=%s", ahead.start, error)

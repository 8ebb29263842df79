"""Half messages by their place in the log: those that came just now from memory."""

from __future__ import annotations

import logging
from typing import Final

from kourou.broker.transactions.half_messages import HalfMessage, half_of, read_half
from kourou.errors import MalformedMessageError
from kourou.protocol.message_layout import RecordDraft
from kourou.remoting.runtime import Offload
from kourou.store.message_store import Appended, MessageStore

log = logging.getLogger(__name__)

KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of bodies and properties that are kept: an end that comes soon needs no read."""
_OVERHEAD_BYTES: Final = 1_000


class Halves:
    """The half messages of one store."""

    def __init__(
        self, store: MessageStore, offload: Offload, kept_bytes_max: int = KEPT_BYTES_MAX
    ) -> None:
        """Read what is not kept from `store`, off the loop."""
        self._store = store
        self._offload = offload
        self._kept_bytes_max = kept_bytes_max
        self._kept: dict[int, tuple[RecordDraft, Appended]] = {}
        self._kept_bytes = 0

    def keep(self, draft: RecordDraft, appended: Appended) -> None:
        """Keep a half message that was stored just now, in place of the oldest."""
        kept = self._kept
        kept[appended.physical_offset] = (draft, appended)
        self._kept_bytes += appended.size + _OVERHEAD_BYTES
        while self._kept_bytes > self._kept_bytes_max:
            oldest = next(iter(kept))
            self._kept_bytes -= kept.pop(oldest)[1].size + _OVERHEAD_BYTES

    def take(self, physical_offset: int) -> HalfMessage | None:
        """Return a half message that was kept, and keep it no longer; None if it is not kept."""
        found = self._kept.pop(physical_offset, None)
        if found is None:
            return None
        draft, appended = found
        self._kept_bytes -= appended.size + _OVERHEAD_BYTES
        return half_of(draft, appended.queue_offset, physical_offset, appended.store_at_ms)

    async def read(self, physical_offset: int) -> HalfMessage | None:
        """Return the half message at a byte of the log; None if there is none."""
        record = await self._offload(self._store.read_record, physical_offset)
        if record is None:
            return None
        try:
            return read_half(record)
        except MalformedMessageError as error:
            log.info("half_message.unreadable physical_offset=%d reason=%s", physical_offset, error)
            return None

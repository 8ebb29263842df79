"""Access to half messages by log position, with a cache of those stored recently."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kourou.broker.transactions.half_messages import HalfMessage, read_half
from kourou.broker.transactions.plain_halves import PlainHalf
from kourou.errors import MalformedMessageError
from kourou.protocol.record.encode import RecordDraft, encode_record
from kourou.remoting.runtime import Offload
from kourou.store.message_store import AppendedRecord, MessageStore

log = logging.getLogger(__name__)

CACHE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit on cached bodies and properties, in bytes: an end that follows soon needs no read."""
_OVERHEAD_BYTES: Final = 1_000


@dataclass(slots=True, eq=False)
class CachedHalf:
    """A cached half message.

    Attributes:
        record: the bytes of its record, in parts.
        plain: data for a commit on the fast path; None if the general path must commit it.
    """

    record: Sequence[bytes]
    appended: AppendedRecord
    plain: PlainHalf | None

    def read(self) -> HalfMessage:
        """Decode the record."""
        return read_half(b"".join(self.record))


class HalfMessages:
    """The half messages of one store, and a cache of recent ones."""

    def __init__(
        self, store: MessageStore, offload: Offload, cache_bytes_max: int = CACHE_BYTES_MAX
    ) -> None:
        """Read half messages that are not cached from `store`, off the event loop."""
        self._reader = store.reader
        self._offload = offload
        self._cache_bytes_max = cache_bytes_max
        self._cache: dict[int, CachedHalf] = {}
        self._cached_bytes = 0

    def add(self, half: CachedHalf) -> None:
        """Add a half message to the cache; evict the oldest ones to stay below the limit."""
        cache = self._cache
        cache[half.appended.physical_offset] = half
        self._cached_bytes += half.appended.size + _OVERHEAD_BYTES
        while self._cached_bytes > self._cache_bytes_max:
            self.pop(next(iter(cache)))

    def add_draft(self, draft: RecordDraft, appended: AppendedRecord) -> None:
        """Encode the stored record of `draft` and add it to the cache."""
        record = encode_record(
            draft, appended.queue_offset, appended.physical_offset, appended.store_at_ms
        )
        self.add(CachedHalf((record,), appended, None))

    def get(self, physical_offset: int) -> CachedHalf | None:
        """Return a cached half message and leave it in the cache; None if it is not cached."""
        return self._cache.get(physical_offset)

    def pop(self, physical_offset: int) -> CachedHalf | None:
        """Remove a half message from the cache and return it; None if it is not cached."""
        half = self._cache.pop(physical_offset, None)
        if half is not None:
            self._cached_bytes -= half.appended.size + _OVERHEAD_BYTES
        return half

    def pop_message(self, physical_offset: int) -> HalfMessage | None:
        """As `pop`, but return the decoded half message."""
        half = self.pop(physical_offset)
        return None if half is None else half.read()

    async def read(self, physical_offset: int) -> HalfMessage | None:
        """Read the half message at a log position; None if there is none."""
        record = await self._offload(self._reader.read_record, physical_offset)
        if record is None:
            return None
        try:
            return read_half(record)
        except MalformedMessageError as error:
            log.info("half_message.unreadable physical_offset=%d reason=%s", physical_offset, error)
            return None

"""Half messages by their place in the log: those that came just now from memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kourou.broker.transactions.half_messages import HalfMessage, half_of, read_half
from kourou.errors import MalformedMessageError
from kourou.model import properties as names
from kourou.protocol.message_layout import RecordDraft
from kourou.remoting.runtime import Offload
from kourou.store.message_store import Appended, MessageStore

log = logging.getLogger(__name__)

KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of bodies and properties that are kept: an end that comes soon needs no read."""
_OVERHEAD_BYTES: Final = 1_000
_LOOKED_AT: Final = frozenset(
    {names.CHECK_IMMUNITY_TIME_IN_SECONDS, names.TRAN_PREPARED_QUEUE_OFFSET, names.CRC32}
)
"""Properties that count when a half message ends."""


@dataclass(slots=True, eq=False)
class KeptHalf:
    """A half message that was stored just now.

    Attributes:
        topic, topic_bytes, queue_id: where it goes when it is committed.
        group: who may end it.
        committed_properties: the property text of its message; None if its end needs a closer look.
    """

    draft: RecordDraft
    appended: Appended
    topic: str
    topic_bytes: bytes
    queue_id: int
    group: str
    committed_properties: bytes | None


def kept_half(
    draft: RecordDraft, appended: Appended, topic: str, properties: Mapping[str, str]
) -> KeptHalf:
    """Return the half message that was stored as `draft` says, with these properties."""
    queue_id = properties[names.REAL_QID]
    # `place_half` puts these three in one after the other; what is before and behind them stays.
    own = f"{names.REAL_TOPIC}\x01{topic}\x02{names.REAL_QID}\x01{queue_id}\x02".encode()
    text = draft.properties
    at = text.rfind(own)
    is_plain = at >= 0 and properties.keys().isdisjoint(_LOOKED_AT)
    return KeptHalf(
        draft,
        appended,
        topic,
        topic.encode(),
        int(queue_id),
        properties[names.PGROUP],
        text[:at] + text[at + len(own) :] if is_plain else None,
    )


class Halves:
    """The half messages of one store."""

    def __init__(
        self, store: MessageStore, offload: Offload, kept_bytes_max: int = KEPT_BYTES_MAX
    ) -> None:
        """Read what is not kept from `store`, off the loop."""
        self._store = store
        self._offload = offload
        self._kept_bytes_max = kept_bytes_max
        self._kept: dict[int, KeptHalf] = {}
        self._kept_bytes = 0

    def keep(self, half: KeptHalf) -> None:
        """Keep a half message that was stored just now, in place of the oldest."""
        kept = self._kept
        kept[half.appended.physical_offset] = half
        self._kept_bytes += half.appended.size + _OVERHEAD_BYTES
        while self._kept_bytes > self._kept_bytes_max:
            self.take_kept(next(iter(kept)))

    keep_again = keep

    def peek(self, physical_offset: int) -> KeptHalf | None:
        """Return a half message if it is kept; it stays so."""
        return self._kept.get(physical_offset)

    def take_kept(self, physical_offset: int) -> KeptHalf | None:
        """Return a half message if it was kept, and keep it no longer."""
        half = self._kept.pop(physical_offset, None)
        if half is not None:
            self._kept_bytes -= half.appended.size + _OVERHEAD_BYTES
        return half

    def take(self, physical_offset: int) -> HalfMessage | None:
        """Return what `take_kept` returns, in the form of one that was read."""
        half = self.take_kept(physical_offset)
        if half is None:
            return None
        appended = half.appended
        return half_of(half.draft, appended.queue_offset, physical_offset, appended.store_at_ms)

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

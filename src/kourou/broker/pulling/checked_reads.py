"""Reads of queues, compared with what was written: at once from memory, or off the loop.

What such a read finds out on its way is seen to here: entries that rotted are written again,
messages that are damaged are counted, and named in the log once each.
"""

from __future__ import annotations

import logging
from typing import Final

from kourou.broker.live_config import LiveConfig
from kourou.errors import DamagedRecordError
from kourou.remoting.runtime import Offload
from kourou.store.message_store import Asked, Found, MessageStore

log = logging.getLogger(__name__)

REMEDY: Final = (
    "it is read again and again until its file is restored from a copy; to go on without it, move "
    "the group behind it (kourou group reset-offset GROUP TOPIC --broker NAME --queue ID "
    "--offset N), or let all go on (kourou broker set NAME skipDamagedRecords=true)"
)
"""What can be done about a damaged record; ends the answer to who asks for it."""

_NAMED_MAX: Final = 10_000
"""Places that are remembered, so that each is said once."""


class CheckedReads:
    """Reads the queues of one store.

    Attributes:
        damaged_count: damaged messages that reads met, each once.
        skipped_count: how often one was passed over, for any reader.
    """

    def __init__(self, store: MessageStore, config: LiveConfig, offload: Offload) -> None:
        """Read `store`.

        Args:
            store: to read, and to mend.
            config: says whether damaged records are skipped.
            offload: takes reads that may wait off the loop.
        """
        self._store = store
        self._config = config
        self._offload = offload
        self._named: set[tuple[str, int, int]] = set()
        self.damaged_count = 0
        self.skipped_count = 0

    def at_once(self, topic: str, queue_id: int, asked: Asked) -> Found | None:
        """Return what is found if it is in memory and in order; None if `read` must look."""
        return self._store.get_resident(topic, queue_id, asked)

    async def read(self, topic: str, queue_id: int, asked: Asked) -> Found:
        """Return what is found.

        Raises:
            DamagedRecordError: the first message is damaged, and not to be skipped.
            CorruptRecordError: the queue's file is missing or cut short.
            OSError: the device fails.
        """
        is_skipping = self._config.now.skip_damaged_records
        try:
            found = await self._offload(
                self._store.get, topic, queue_id, asked, skip_damaged=is_skipping
            )
        except DamagedRecordError as error:
            self._name(error.topic, error.queue_id, error.queue_offset, str(error))
            raise
        self._store.mend(found.mended)
        for damage in found.skipped:
            self.skipped_count += 1
            text = f"{damage.file} at byte {damage.file_offset}: {damage.reason}"
            self._name(damage.topic, damage.queue_id, damage.queue_offset, text)
        return found

    def _name(self, topic: str, queue_id: int, queue_offset: int, reason: str) -> None:
        place = (topic, queue_id, queue_offset)
        if place in self._named:
            return
        self.damaged_count += 1
        if len(self._named) < _NAMED_MAX:
            self._named.add(place)
        log.error(
            "record.damaged topic=%s queue_id=%d queue_offset=%d skipped=%s reason=%s",
            topic, queue_id, queue_offset, self._config.now.skip_damaged_records, reason,
        )  # fmt: skip

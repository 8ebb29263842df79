"""Verified reads of queues, from memory at once or off the event loop.

Repairs and damage found by a read are handled here: corrupt queue entries are rewritten, and each
damaged message is counted and logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from kourou.broker.live_config import LiveConfig
from kourou.errors import DamagedRecordError
from kourou.remoting.runtime import Offload
from kourou.store.message_store import GetRequest, GetResult, MessageStore

log = logging.getLogger(__name__)

DAMAGE_REMEDY: Final = (
    "reads of it fail until its file is restored from a copy; to continue without it, reset the "
    "group's offset beyond it (kourou group reset-offset GROUP TOPIC --broker NAME --queue ID "
    "--offset N), or skip damaged messages for all groups (kourou broker set NAME "
    "skipDamagedRecords=true)"
)
"""Remedies for a damaged record; appended to the answer to its reader."""

Repair = Callable[[int, int], Awaitable[bool]]

_LOGGED_MAX: Final = 10_000
"""Limit on remembered positions of damaged messages, so that each is logged once."""


class VerifiedReads:
    """Reads the queues of one store.

    Attributes:
        damaged_count: damaged messages that reads have found, each counted once.
        skipped_count: number of times that a damaged message was skipped, over all readers.
    """

    def __init__(
        self, store: MessageStore, config: LiveConfig, offload: Offload, repair: Repair
    ) -> None:
        """Read `store`.

        Args:
            store: is read, and repaired where entries are corrupt.
            config: whether damaged records are skipped.
            offload: runs reads that may block off the event loop.
            repair: called with position and size of a damaged record; returns whether it could be
                repaired.
        """
        self._repair = repair
        self._reader = store.reader
        self._writer = store.writer
        self._config = config
        self._offload = offload
        self._logged: set[tuple[str, int, int]] = set()
        self.damaged_count = 0
        self.skipped_count = 0

    def read_resident(self, topic: str, queue_id: int, get_request: GetRequest) -> GetResult | None:
        """Return the result if all of it is in memory and intact; None if `read` is needed."""
        return self._reader.get_resident(topic, queue_id, get_request)

    async def read(self, topic: str, queue_id: int, get_request: GetRequest) -> GetResult:
        """Read from memory or disk.

        Raises:
            DamagedRecordError: the first message is damaged, and skipping is off.
            CorruptRecordError: the queue's file is missing or cut short.
            OSError: the device fails.
        """
        found = await self._read_repaired(topic, queue_id, get_request)
        self._writer.write_repaired(found.repaired)
        for damage in found.skipped:
            self.skipped_count += 1
            text = f"{damage.file} at byte {damage.file_offset}: {damage.reason}"
            self._log_damage(damage.topic, damage.queue_id, damage.queue_offset, text)
        return found

    async def _read_repaired(self, topic: str, queue_id: int, get_request: GetRequest) -> GetResult:
        """Read, and read again after each repair of a damaged record."""
        repaired_offset = -1
        while True:
            is_skipping = self._config.current.skip_damaged_records
            try:
                return await self._offload(
                    self._reader.get, topic, queue_id, get_request, skip_damaged=is_skipping
                )
            except DamagedRecordError as error:
                if error.queue_offset == repaired_offset or not await self._repairs(error):
                    self._log_damage(error.topic, error.queue_id, error.queue_offset, str(error))
                    raise
                repaired_offset = error.queue_offset

    async def _repairs(self, damage: DamagedRecordError) -> bool:
        position = damage.topic, damage.queue_id, damage.queue_offset
        entry = await self._offload(self._reader.entry, *position)
        if entry is None or entry.size <= 0:
            return False
        try:
            return await self._repair(entry.physical_offset, entry.size)
        except OSError:
            log.exception("record.repair_failed position=%d", entry.physical_offset)
            return False

    def _log_damage(self, topic: str, queue_id: int, queue_offset: int, reason: str) -> None:
        position = (topic, queue_id, queue_offset)
        if position in self._logged:
            return
        self.damaged_count += 1
        if len(self._logged) < _LOGGED_MAX:
            self._logged.add(position)
        log.error(
            "record.damaged topic=%s queue_id=%d queue_offset=%d skipped=%s reason=%s",
            topic, queue_id, queue_offset, self._config.current.skip_damaged_records, reason,
        )  # fmt: skip

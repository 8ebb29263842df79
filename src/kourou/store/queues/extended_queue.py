"""Simple consume queue with an extension: each entry refers to an extension unit.

Units are written before the entries that refer to them. A crash may leave entries without units and
units without entries. Of the former only the record's position and size are known; the latter are
overwritten. If the option is off and only Java wrote an extension, new entries hold tags codes
again.

Source: ConsumeQueue.java with enableConsumeQueueExt, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kourou.disk import Disk
from kourou.store.config import StoreConfig
from kourou.store.queues.appended import AppendedBatch, AppendedRecord
from kourou.store.queues.queue_extension import ExtensionUnit, QueueExtension, is_address
from kourou.store.queues.simple_queue import SimpleQueue

BitMapOf = Callable[[AppendedRecord], bytes]
"""Computes the bit map of the filters that a message passed; see `kourou.filter.bloom`."""

_LOOK_BACK_ENTRIES = 1024


class ExtendedQueue(SimpleQueue):
    """One queue in `consumequeue/` with its extension in `consumequeue_ext/`."""

    __slots__ = ("_bit_map_of", "extension")

    def __init__(
        self, disk: Disk, topic: str, queue_id: int, config: StoreConfig, bit_map_of: BitMapOf
    ) -> None:
        super().__init__(disk, topic, queue_id, config.consumequeue_file_bytes)
        self._bit_map_of = bit_map_of if config.consumequeue_extension else None
        self.extension = QueueExtension(disk, topic, queue_id, config.extension_file_bytes)

    def put(self, record: AppendedRecord) -> None:
        """Add the record's unit and its entry, in memory; about 2 us.

        Adds the entry alone if the option is off or the extension is full.
        """
        if self._bit_map_of is not None:
            bits = self._bit_map_of(record)
            unit = ExtensionUnit(record.tags_code, record.store_at_ms, bits)
            address = self.extension.put(unit)
            if address is not None:
                record = record._replace(tags_code=address)
        super().put(record)

    def put_all(self, records: Sequence[AppendedRecord]) -> None:
        """Add the units and entries of records that follow one another, in memory."""
        for record in records:
            self.put(record)

    def put_batch(self, batch: AppendedBatch) -> None:
        """Add the units and entries of the batch's records, in memory."""
        self.put_all(list(batch.records()))

    def tags_code(self, code: int, *, may_block: bool = True) -> int | None:
        """Return the tags code for an entry's code; None if the code is an address without a unit.

        Raises:
            BlockingIOError: the unit is not in memory, and `may_block` is False.
        """
        if not is_address(code):
            return code
        unit = self.extension.unit(code, may_block=may_block)
        return None if unit is None else unit.tags_code

    def unit(self, code: int, *, may_block: bool = True) -> ExtensionUnit | None:
        """Return the unit to which an entry's code refers; None if there is none.

        Raises:
            BlockingIOError: the unit is not in memory, and `may_block` is False.
        """
        return self.extension.unit(code, may_block=may_block) if is_address(code) else None

    def flush(self) -> tuple[list[str], bool]:
        """Write units and tail to the files, without a sync; see `ConsumeQueue.flush`."""
        names, has_new = self.extension.flush()
        more, has_more_new = super().flush()
        return names + more, has_new or has_more_new

    def directories(self) -> tuple[str, ...]:
        """Return the directories to sync after the queue created files."""
        own = super().directories()
        return (*own, *self.extension.directories()) if self._bit_map_of is not None else own

    def restart_at(self, queue_offset: int) -> None:
        """Keep the entries below `queue_offset`, and the units up to that of the last one."""
        super().restart_at(queue_offset)
        if self._bit_map_of is None:
            return
        begin = max(self.segments.first // self.entry_bytes, queue_offset - _LOOK_BACK_ENTRIES)
        address = None
        while begin < queue_offset and (data := self._file_read(begin, queue_offset - begin)):
            for entry in self._entries(data):
                address = entry.tags_code if is_address(entry.tags_code) else address
                begin += 1
        self.extension.end_after(address)

    def truncate(self) -> list[str]:
        """Remove the data after the last entry and its unit from the files."""
        changed = super().truncate()
        return changed if self._bit_map_of is None else changed + self.extension.truncate()

    def hide_extension(self) -> list[int]:
        """Drop the extension files before that of the first entry's unit; return their starts.

        The caller must unlink them.
        """
        first = self.first_entry()
        if first is None or not is_address(first.tags_code):
            return []
        count = self.extension.count_expired_files(first.tags_code)
        return self.extension.segments.hide_first(count)

"""A usual consume queue whose entries have more to say: each names a unit of its extension.

Units are written before the entries that name them. A crash may leave entries without units, and
units without entries: of the former nothing is known but their place, the latter are overwritten.
A queue that only has an extension of Java's goes on without: new entries have their codes again.

Source: ConsumeQueue.java with enableConsumeQueueExt, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kourou.disk import Disk
from kourou.store.config import StoreConfig
from kourou.store.queues.dispatch import Appended, AppendedRun
from kourou.store.queues.queue_extension import ExtensionUnit, QueueExtension, is_address
from kourou.store.queues.simple_queue import SimpleQueue

BitMapOf = Callable[[Appended], bytes]
"""Tells which filters a message passed; see `kourou.filter.bloom`."""

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

    def put(self, record: Appended) -> None:
        """Add the record's unit and its entry, in memory; the entry alone if that is off or full.

        About 2 us.
        """
        if self._bit_map_of is not None:
            bits = self._bit_map_of(record)
            unit = ExtensionUnit(record.tags_code, record.store_at_ms, bits)
            address = self.extension.put(unit)
            if address is not None:
                record = record._replace(tags_code=address)
        super().put(record)

    def put_all(self, records: Sequence[Appended]) -> None:
        """Add the units and entries of records that follow one another, in memory."""
        for record in records:
            self.put(record)

    def put_run(self, run: AppendedRun) -> None:
        """Add the units and entries of the run's records, in memory."""
        self.put_all(list(run.records()))

    def tags_code(self, code: int, *, may_block: bool = True) -> int | None:
        """Return the tags code that an entry's code stands for; None if its unit is not there.

        Raises:
            BlockingIOError: it would have to wait for the device, and must not.
        """
        if not is_address(code):
            return code
        unit = self.extension.unit(code, may_block=may_block)
        return None if unit is None else unit.tags_code

    def unit(self, code: int, *, may_block: bool = True) -> ExtensionUnit | None:
        """Return the unit that an entry's code stands for; None if it stands for none.

        Raises:
            BlockingIOError: it would have to wait for the device, and must not.
        """
        return self.extension.unit(code, may_block=may_block) if is_address(code) else None

    def flush(self) -> tuple[list[str], bool]:
        """Write units and tail to the files, not synced; see `ConsumeQueue.flush`."""
        names, has_new = self.extension.flush()
        more, has_more_new = super().flush()
        return names + more, has_new or has_more_new

    def directories(self) -> tuple[str, ...]:
        """Return what is to be synced when the queue makes files."""
        own = super().directories()
        return (*own, *self.extension.directories()) if self._bit_map_of is not None else own

    def restart_at(self, queue_offset: int) -> None:
        """Take the entries below as they are, and the units up to that of the last one."""
        super().restart_at(queue_offset)
        if self._bit_map_of is None:
            return
        begin = max(self.segments.first // self.entry_bytes, queue_offset - _LOOK_BACK_ENTRIES)
        address = None
        while begin < queue_offset and (data := self._file_read(begin, queue_offset - begin)):
            for entry in self._entries(data):
                address = entry.tags_code if is_address(entry.tags_code) else address
                begin += 1
        self.extension.end_behind(address)

    def cut(self) -> list[str]:
        """Remove from the files what lies behind the last entry and its unit."""
        changed = super().cut()
        return changed if self._bit_map_of is None else changed + self.extension.cut()

    def hide_extension(self) -> list[int]:
        """Forget the units' files that lie before the first entry's; return their starts.

        They are the caller's to unlink.
        """
        first = self.first_entry()
        if first is None or not is_address(first.tags_code):
            return []
        count = self.extension.count_expired_files(first.tags_code)
        return self.extension.segments.hide_first(count)

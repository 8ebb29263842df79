"""Appended records and batches with the values of their queue entries, until they are dispatched.

`kourou.protocol.record.keys` derives these values from a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, final

from kourou.store.formats import ENTRY


class AppendedRecord(NamedTuple):
    """An appended record, with the values of its queue entry.

    `StoreWriter.dispatch` returns the same object when consumers can see the record.

    Attributes:
        queue_offset: 0 for a prepared or rolled back transaction's record, which has no entry.
        tags_code: the tags code of the queue entry: the tag's hash, or a delayed message's due
            time.
        store_at_ms: the record's store time.
        count: the number of messages in it: more than one in an inner batch, of which the first
            has `queue_offset`.
    """

    physical_offset: int
    queue_offset: int
    size: int
    topic: str
    queue_id: int
    tags_code: int
    store_at_ms: int
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which is not used

    @property
    def end(self) -> int:
        """The byte of the log just after the record."""
        return self.physical_offset + self.size

    def records(self) -> tuple[AppendedRecord]:
        """Return the record alone; the same interface as `AppendedBatch`, like `last`."""
        return (self,)

    @property
    def last(self) -> AppendedRecord:
        return self


@final
class AppendedBatch(NamedTuple):
    """The appended records of a batch, consecutive in the log and in a queue.

    They are written, synced and dispatched together, without any work for single records: their
    queue entries are already encoded.

    Attributes:
        physical_offset, queue_offset: those of the first record.
        size: the size of all records together.
        store_at_ms: the store time of all records.
        count: the number of records.
        entries: their encoded entries of a simple queue: position, size and tags code of each.
    """

    physical_offset: int
    queue_offset: int
    size: int
    topic: str
    queue_id: int
    store_at_ms: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    entries: bytes

    @property
    def end(self) -> int:
        """The byte of the log just after the last record."""
        return self.physical_offset + self.size

    def records(self) -> Iterator[AppendedRecord]:
        """Yield the records one by one."""
        _, queue_offset, _, topic, queue_id, store_at_ms, _, entries = self
        for number, (position, size, code) in enumerate(ENTRY.iter_unpack(entries), queue_offset):
            yield AppendedRecord(position, number, size, topic, queue_id, code, store_at_ms)

    @property
    def last(self) -> AppendedRecord:
        """The last record."""
        position, size, code = ENTRY.unpack_from(self.entries, len(self.entries) - ENTRY.size)
        offset = self.queue_offset + self.count - 1
        return AppendedRecord(
            position, offset, size, self.topic, self.queue_id, code, self.store_at_ms
        )


Arrival = AppendedRecord | AppendedBatch
"""A record, or several records of a batch, that became visible to consumers."""

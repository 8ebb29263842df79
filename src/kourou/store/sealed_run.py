"""Appends of records that the caller has already encoded and sealed."""

from __future__ import annotations

from collections.abc import Mapping

from kourou.store.deletion import Pending
from kourou.store.index.index_feed import FedBatch, FedRecord, IndexFeed
from kourou.store.queues.consumequeue import ConsumeQueue


class SealedRun:
    """A run of appends of encoded and sealed records; created by `StoreWriter.begin_run`.

    The caller assigns each record its position and queue offset. For each record it does four
    things in this order, with nothing in between: append the record to `buffers`; append the queue
    and the result that `StoreWriter.append` would return to `pending`; advance the queue's
    `next_offset`; move `position` to the record's end. For a batch of records it may do this once,
    with one `AppendedBatch` in `pending`.

    Attributes:
        position: the byte of the log for the next record.
        limit: the byte at or before which each record must end; a run stays in one segment.
        store_at_ms: the store time of all records of the run.
        queues: by topic and queue id: the queues that accept messages and have had one.
        buffers: the records of the next write.
        pending: records that readers do not see yet.
        keyed: optionally gets a `FedRecord` for each record, so that the key index does not read
            the record.
        feed: optionally gets the records of a batch, by `add_batch`.
    """

    __slots__ = (
        "buffers",
        "feed",
        "keyed",
        "limit",
        "pending",
        "position",
        "queues",
        "store_at_ms",
    )

    def __init__(
        self,
        queues: Mapping[tuple[bytes, int], ConsumeQueue],
        pending: Pending,
        feed: IndexFeed,
    ) -> None:
        self.queues = queues
        self.pending = pending
        self.feed = feed
        self.position = self.limit = self.store_at_ms = 0
        self.buffers: list[bytes | memoryview] = []
        self.keyed: list[FedRecord | FedBatch] = []

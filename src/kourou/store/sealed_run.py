"""Appends of records that their maker has encoded and sealed, one after another, in one go."""

from __future__ import annotations

from collections.abc import Mapping

from kourou.store.deletion import Pending
from kourou.store.index.index_feed import FedBatch, FedRecord, IndexFeed
from kourou.store.queues.consumequeue import ConsumeQueue


class SealedRun:
    """Takes records that their maker has encoded and sealed; made by `StoreWriter.begin_run`.

    The maker gives each record its place and its offset, in this order and with nothing between:
    `buffers` gets the record, `pending` the queue and what `StoreWriter.append` would return, the
    queue its `next_offset`, and `position` moves behind the record. Of the records of a batch all
    that may be done at once: `pending` gets one `AppendedRun`.

    Attributes:
        position: where the next record goes.
        limit: no record may end behind; the next segment is not for a run.
        store_at_ms: the store time of all its records.
        queues: by topic and queue id; those that take messages, and had one before.
        buffers: what is written next.
        pending: records that readers do not see yet.
        keyed: a `FedRecord` of each may be added here, which spares the key index to read it.
        feed: the same with `add_batch` for those of a batch.
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
        self.buffers: list[bytes] = []
        self.keyed: list[FedRecord | FedBatch] = []

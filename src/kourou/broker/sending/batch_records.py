"""Records, queue entries and message ids of a batch on the fast path, built column by column."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from kourou.broker.sending.batch_columns import BatchColumns
from kourou.broker.sending.batch_layouts import layouts
from kourou.protocol.record.encode import encode_batch_records
from kourou.store.index.index_feed import FedBatch
from kourou.store.message_store import AppendedBatch, SealedRun
from kourou.store.queues.consumequeue import ConsumeQueue


class Target(NamedTuple):
    """Destination of a batch, and the values that its records share.

    Attributes:
        topic_bytes: size and name of the topic as encoded in a record.
        common: the shared bytes of the records' heads, packed by `pack_shared`.
        unique_id: unique id of the batch; None if the request has none.
        kind: message type of the batch.
    """

    topic: str
    topic_bytes: bytes
    queue_id: int
    queue: ConsumeQueue
    common: bytes
    unique_id: str | None
    kind: str


def positions_from(position: int, sizes: Sequence[int]) -> Sequence[int]:
    """Return the start positions of consecutive records of these sizes, beginning at `position`."""
    size, count = sizes[0], len(sizes)
    if sizes.count(size) == count:
        return range(position, position + size * count, size)
    return list(accumulate(sizes[:-1], initial=position))


def message_ids(id_prefix: str, positions: Sequence[int]) -> str:
    """Return the offset message ids of the records at `positions`, joined by commas.

    `id_prefix` is the broker's part of each id. One `hex` of all positions takes half the time
    of one format operation per message.
    """
    texts = layouts(len(positions)).pack_longs(*positions).hex(",", 8).upper()
    return id_prefix + texts.replace(",", "," + id_prefix)


def append_records(
    columns: BatchColumns, positions: Sequence[int], end: int, target: Target, run: SealedRun
) -> None:
    """Append the messages to the log. No step can fail once state has changed.

    Args:
        columns: the messages.
        positions: log position at which each record begins.
        end: log position at which the last record ends.
        target: their destination.
        run: receives the records; it must have room for them.
    """
    sizes, queue = columns.records.sizes, target.queue
    count = len(sizes)
    first_offset = queue.next_offset
    records = encode_batch_records(
        columns.records, positions, target.queue_id, first_offset, target.common
    )
    of_count = layouts(count)
    entries = [0] * (3 * count)
    entries[::3], entries[1::3], entries[2::3] = positions, sizes, columns.codes
    appended = AppendedBatch(
        positions[0], first_offset, end - positions[0], target.topic, target.queue_id,
        run.store_at_ms, count, of_count.pack_entries(*entries),
    )  # fmt: skip
    run.buffers.append(records)
    run.pending.append((queue, appended))
    if columns.id_tails:
        starts = array("q", of_count.pack_longs(*positions))  # a quarter of the time of `extend`
        if sys.byteorder == "little":
            starts.byteswap()
        run.feed.add_batch(
            FedBatch(
                positions[0], end, run.store_at_ms, target.topic, starts, columns.tags,
                columns.id_head, columns.id_tails, columns.keys,
            )
        )  # fmt: skip
    queue.next_offset += count
    run.position = end

"""The records of a plain batch, made column by column, with their queue entries and ids.

Each step is one call for all messages: a call for each of them, of ten steps, took twice the time.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from kourou.broker.sending.batch_columns import BatchColumns
from kourou.broker.sending.batch_layouts import layouts
from kourou.protocol.hashing import crc32_all
from kourou.protocol.message_layout import MAGIC_V1
from kourou.store.index.index_feed import FedBatch
from kourou.store.log.record_seal import encode_seal
from kourou.store.message_store import AppendedRun, SealedRun
from kourou.store.queues.consumequeue import ConsumeQueue

_HEAD_COLUMNS: Final = 9
COMMON: Final = struct.Struct(">iq4siq4siiq")
"""Those bytes: `HEAD_V4` from the system flag on, without the size of the body."""
assert COMMON.size == struct.calcsize(">48s"), "what a head has room for"
_MAGIC: Final = struct.pack(">i", MAGIC_V1)
# All seals of a batch are written by one `%`, and backwards, since their digits are.
_SEAL_BACKWARDS: Final = encode_seal(0)[::-1].replace(b"0" * 10, b"%010d")


class Target(NamedTuple):
    """Where a batch goes, and what its records have in common.

    Attributes:
        part: topic size and topic, as a record has them.
        common: what `COMMON` packs of the records' heads.
        unique_id, kind: of the whole batch: its id, None if it came without one, and its type.
    """

    topic: str
    part: bytes
    queue_id: int
    queue: ConsumeQueue
    common: bytes
    unique_id: str | None
    kind: str


def places_from(position: int, sizes: Sequence[int]) -> Sequence[int]:
    """Return where records of these sizes begin that follow one another from the position on."""
    size, count = sizes[0], len(sizes)
    if sizes.count(size) == count:
        return range(position, position + size * count, size)
    return list(accumulate(sizes[:-1], initial=position))


def message_ids(broker_place: str, places: Sequence[int]) -> str:
    """Return the ids of the messages at `places`, joined by commas; `broker_place` begins each.

    By one `hex` of all of them: half the time of a format.
    """
    texts = layouts(len(places)).pack_longs(*places).hex(",", 8).upper()
    return broker_place + texts.replace(",", "," + broker_place)


def append_records(
    columns: BatchColumns, places: Sequence[int], end: int, target: Target, run: SealedRun
) -> None:
    """Append the messages to the log; nothing of it can fail once something has changed.

    Args:
        columns: the messages.
        places: where the record of each begins.
        end: where the last one ends.
        target: where they go.
        run: takes the records; it has room for them.
    """
    sizes, bodies = columns.sizes, columns.bodies
    count, queue = len(bodies), target.queue
    first_offset = queue.next_offset
    heads = [0, _MAGIC, 0, target.queue_id, 0, 0, 0, target.common, 0] * count
    heads[::_HEAD_COLUMNS] = sizes
    heads[2::_HEAD_COLUMNS] = crc32_all(bodies)
    heads[4::_HEAD_COLUMNS] = columns.flags
    heads[5::_HEAD_COLUMNS] = range(first_offset, first_offset + count)
    heads[6::_HEAD_COLUMNS] = places
    heads[8::_HEAD_COLUMNS] = columns.body_sizes
    of_count = layouts(count)
    cut = of_count.cut_heads(of_count.pack_heads(*heads))
    parts = [b""] * (2 * count)
    parts[::2] = records = list(map(b"".join, zip(cut, bodies, *columns.tails, strict=False)))
    checksums = crc32_all(records)
    checksums.reverse()
    seals = (_SEAL_BACKWARDS * count % tuple(checksums))[::-1]
    parts[1::2] = of_count.cut_seals(seals)
    entries = [0] * (3 * count)
    entries[::3], entries[1::3], entries[2::3] = places, sizes, columns.codes
    appended = AppendedRun(
        places[0], first_offset, end - places[0], target.topic, target.queue_id, run.store_at_ms,
        count, of_count.pack_entries(*entries),
    )  # fmt: skip
    run.buffers.append(b"".join(parts))
    run.pending.append((queue, appended))
    if columns.id_rests:
        starts = array("q", of_count.pack_longs(*places))  # a quarter of the time of `extend`
        if sys.byteorder == "little":
            starts.byteswap()
        run.feed.add_batch(
            FedBatch(
                places[0], end, run.store_at_ms, target.topic, starts, columns.tags,
                columns.id_head, columns.id_rests, columns.keys,
            )
        )  # fmt: skip
    queue.next_offset += count
    run.position = end

"""Fast path of batches (SEND_BATCH_MESSAGE, 320): all messages of a batch are processed at once.

The messages of a batch are alike. So each step is one interpreter call for all of them, by `map`,
`zip` and `struct`, on columns of bodies, ids and checksums; no object is created for a message. A
frame is accepted only if it has all of these properties:

    header      JSON, with the members and fields that clients write, each of its usual type
    messages    complete, uncompressed or compressed, no property that the broker interprets
    topic       exists, is saved and writable; no retry topic, no batch queues; the queue exists
    room        in the log's segment for all, and below every limit on unsynced records

All other frames are left to the general path (`send.py`), which serves every request. Both paths
produce the same records, queue entries and answer; `tests/broker/sending/test_fast_batch.py`
compares them.

Source: see `send.py` beside it, `kourou.protocol.message_batch`, `kourou.protocol.record.layout`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from kourou.broker.context import BrokerContext
from kourou.broker.decline_runs import CUT_OFF, DeclineRuns
from kourou.broker.message_type import message_type
from kourou.broker.sending.batch_columns import BatchColumns, BatchReader
from kourou.broker.sending.batch_layouts import layouts
from kourou.broker.sending.plain_header import BORN_DIGITS_MAX, BatchFields, decode_batch
from kourou.broker.sending.plain_sends import CachedPeer, PlainSends, SendCache, is_number
from kourou.broker.sending.plain_shapes import UNIQ_KEY, UNIQ_KEY_CHARS, Shapes
from kourou.broker.sending.verdicts import batch_flag_refusal, waits_for_sync
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.record.encode import encode_batch_records, pack_shared
from kourou.protocol.record.layout import SEAL_BYTES
from kourou.remoting.connection import Connection
from kourou.store.index.index_feed import FedBatch
from kourou.store.message_store import AppendedBatch, SealedRun
from kourou.store.queues.consumequeue import ConsumeQueue

_START: Final = b'{"code":320,'
_START_AT: Final = 8
_START_END: Final = _START_AT + len(_START)
_SIZES: Final = struct.Struct(">II").unpack_from
_PACK_SIZES: Final = struct.Struct(">II").pack
_ID_CHARS_MAX: Final = 255
ANSWER_BYTES_MAX: Final = FRAME_SIZE_MAX - 4096
"""Leaves room for a remark if the sync is late. A longer answer holds half a million ids."""

_BatchProperties = tuple[str | None, str]
"""Values from the properties of a whole batch: its unique id, None for none, and its type."""


class _Target(NamedTuple):
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


class _Batches(PlainSends):
    """The batches of one read that the fast path accepted.

    Attributes:
        owner: connection that the read came from.
        replies, request_bytes: see `PlainSends.reads`.
        batches: arguments of `BrokerStats.on_put` for each batch, without the duration.
        put_bytes: bytes of all records, without their seals.
    """

    __slots__ = ("batches", "owner", "put_bytes", "replies", "request_bytes")

    def __init__(self, path: FastBatch, owner: Connection, began_ms: int) -> None:
        super().__init__(path, began_ms)
        self.owner = owner
        self.replies: list[bytes] = []
        self.request_bytes = 0
        self.batches: list[tuple[str, int, str, int, int]] = []
        self.put_bytes = 0

    def _count(self) -> None:
        took_ms = self._path.clock.now_ms() - self.began_ms
        for batch in self.batches:
            self._path.stats.on_put(*batch, took_ms)


class FastBatch:
    """Serves batches on the fast path; a `FastPath` of connections.

    Attributes:
        answers: builds the answers.
        stats, clock: those of the context.
        declined: reads whose rest was left to the general path, by the reason in its first frame;
            "skipped" after a run of declined frames.
    """

    def __init__(self, context: BrokerContext) -> None:
        self.declined: Counter[str] = Counter()
        self._decline_runs = DeclineRuns(self.declined)
        self._live = context.live_config
        self._writer = context.store.writer
        self._commit = context.commit
        self.stats = context.stats
        self.clock = context.clock
        self._unique_ids = context.unique_ids
        self._cache = SendCache(context)
        self.answers = self._cache.answers
        self._reader = BatchReader()
        self._properties_cache: Shapes[str, _BatchProperties] = Shapes(_parse_batch_properties)

    @property
    def copies(self) -> int:
        """See `GroupCommit.copies`."""
        return self._commit.copies

    def __call__(self, connection: Connection, buffer: bytearray, start: int, end: int) -> int:
        """Serve the leading frames that the path accepts; return the position after them."""
        if buffer[start + _START_AT : start + _START_END] != _START:
            return start
        if self._decline_runs.runs and self._decline_runs.skips(connection):
            return start
        cache = self._cache
        if cache.is_outdated(self._live.current):
            cache.reset(self._live.current)
            self.answers = cache.answers
        try:
            peer = cache.peers[connection]
        except KeyError:
            peer = cache.add_peer(connection)
        if peer is None:
            return self._decline("connection", start)
        now_ms = self.clock.now_ms()
        run = self._writer.begin_run(now_ms)
        if run is None:
            return self._decline("store", start)
        batches = _Batches(self, connection, now_ms)
        at, reason = start, ""
        try:
            while at < end and not reason:
                at, reason = self._serve(buffer, at, end, peer, run, batches)
        finally:
            if batches.replies:
                self._commit_batches(run, batches)
        if at == start:
            self._decline_runs.note(connection, reason)
        return self._decline(reason, at) if reason else at

    def _commit_batches(self, run: SealedRun, batches: _Batches) -> None:
        """Enter the group commit with the accepted batches."""
        self._writer.end_run(run)
        owner, puts = batches.owner, len(batches.replies)
        owner.unanswered.add_all(batches.request_bytes, puts)
        batches.reads.append((owner, batches.replies, batches.request_bytes))
        batches.owner_sizes.append((owner, batches.put_bytes))
        batches.follow(self._commit, run.position, batches.put_bytes, puts)

    def _serve(
        self,
        buffer: bytearray,
        at: int,
        end: int,
        peer: CachedPeer,
        run: SealedRun,
        batches: _Batches,
    ) -> tuple[int, str]:
        """Append the batch of the frame at `at`.

        Returns:
            The frame's end and ""; or `at` and why the frame is declined.
        """
        if end - at <= _START_END or buffer[at + _START_AT : at + _START_END] != _START:
            return at, CUT_OFF if end - at <= _START_END else "other request"
        size, header_size = _SIZES(buffer, at)
        next_at: int = at + 4 + size
        body_at: int = at + 8 + header_size
        connection = batches.owner
        if next_at > end:
            return at, CUT_OFF
        if (
            size > connection.limits.frame_bytes_max
            or not 0 < next_at - body_at <= self._cache.config.max_message_size_bytes
        ):
            return at, "size"
        if header_size >> 24:
            return at, "header"
        try:
            header = decode_batch(buffer[at + 8 : body_at])  # decoding a view takes 1.5 times
            properties = self._batch_properties(header.extFields.i)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return at, "header"
        if properties is None:
            return at, "properties"
        target = self._target(header.extFields, properties, peer, run)
        if target is None:
            return at, "destination"
        messages_max = self._cache.config.batch_messages_max
        columns = self._reader.read(
            memoryview(buffer)[body_at:next_at], target.topic_bytes, messages_max
        )
        if columns is None:
            return at, "messages"
        if not self._append(columns, target, peer, run, batches, size, header.opaque):
            return at, "limit"
        return next_at, ""

    def _decline(self, reason: str, at: int) -> int:
        """Count a frame that is left to the general path; return its position."""
        self.declined[reason] += 1
        return at

    def _append(
        self,
        columns: BatchColumns,
        target: _Target,
        peer: CachedPeer,
        run: SealedRun,
        batches: _Batches,
        frame_bytes: int,
        opaque: int,
    ) -> bool:
        """Append the messages and note the answer, if all of them fit."""
        count, total = len(columns.codes), sum(columns.records.sizes)
        request_bytes = batches.request_bytes + frame_bytes
        put_bytes = batches.put_bytes + total - SEAL_BYTES * count
        puts = len(batches.replies) + 1
        if (
            run.position + total > run.limit
            or not batches.owner.unanswered.has_room(request_bytes, puts)
            or not self._commit.has_room(batches.owner, put_bytes, puts)
        ):
            return False
        positions = _positions_from(run.position, columns.records.sizes)
        offset = target.queue.next_offset
        ids = _message_ids(peer.id_prefix, positions)
        unique_id = target.unique_id or self._unique_ids.next(batches.began_ms)
        to_ids, to_offset, to_unique_id, to_opaque, to_end = peer.answers.get(
            target.queue_id
        ) or self._cache.answer_parts(peer, target.queue_id)
        answer = (
            f"{to_ids}{ids}{to_offset}{offset}{to_unique_id}{unique_id}{to_opaque}{opaque}{to_end}"
        ).encode()
        if len(answer) > ANSWER_BYTES_MAX:
            return False
        _append_records(columns, positions, run.position + total, target, run)
        batches.replies.append(_PACK_SIZES(len(answer) + 4, len(answer)) + answer)
        batches.batches.append((target.topic, target.queue_id, target.kind, count, total))
        batches.put_bytes = put_bytes
        batches.request_bytes = request_bytes
        return True

    def _target(
        self,
        fields: BatchFields,
        properties: _BatchProperties,
        peer: CachedPeer,
        run: SealedRun,
    ) -> _Target | None:
        """Return the batch's destination; None if the general path must serve it."""
        cache = self._cache
        topic = cache.valid_topic(fields.b)
        if topic is None:
            return None
        queue_key = topic.queue(fields.e)
        queue = None if queue_key is None else run.queues.get(queue_key[1])
        sys_flag = cache.sys_flags.get(fields.f)
        if sys_flag is None:
            sys_flag = cache.sys_flag(fields.f)
        if (
            queue_key is None
            or queue is None
            or sys_flag is None
            or batch_flag_refusal(sys_flag) is not None
            or not (fields.d in cache.numbers or cache.check_number(fields.d))
            or not is_number(fields.g, BORN_DIGITS_MAX)
        ):
            return None
        common = pack_shared(
            sys_flag, int(fields.g), peer.born_address, peer.born_port, run.store_at_ms,
            peer.store_address, peer.store_port, 0, 0,
        )  # fmt: skip
        return _Target(fields.b, topic.topic_bytes, queue_key[0], queue, common, *properties)

    def _batch_properties(self, text: str) -> _BatchProperties | None:
        """Return the values of a whole batch's properties; None if these are unusual.

        They are not stored. Without their unique id they mostly equal those of the previous batch.
        """
        before, _, after = text.partition(UNIQ_KEY)
        unique_id = after[:UNIQ_KEY_CHARS]
        if (
            after[UNIQ_KEY_CHARS : UNIQ_KEY_CHARS + 1] == "\x02"
            and unique_id.isalnum()
            and unique_id.isascii()
            and (not before or before[-1] == "\x02")
        ):
            properties = self._properties_cache[before + after[UNIQ_KEY_CHARS + 1 :]]
            if properties is None:
                return None
            if properties[0] is None:  # else the rest has another unique id: decode the whole text
                return unique_id, properties[1]
        return self._properties_cache[text]


def _parse_batch_properties(text: str) -> _BatchProperties | None:
    """Parse the properties of a whole batch; None if they are unusual."""
    properties = decode_properties(text.encode())
    unique_id = properties.get(names.UNIQ_KEY, "x")
    if not (
        unique_id.isalnum() and unique_id.isascii() and len(unique_id) <= _ID_CHARS_MAX
    ) or not waits_for_sync(properties):
        return None
    return properties.get(names.UNIQ_KEY), message_type(properties)


def _positions_from(position: int, sizes: Sequence[int]) -> Sequence[int]:
    """Return the start positions of consecutive records of these sizes, beginning at `position`."""
    size, count = sizes[0], len(sizes)
    if sizes.count(size) == count:
        return range(position, position + size * count, size)
    return list(accumulate(sizes[:-1], initial=position))


def _message_ids(id_prefix: str, positions: Sequence[int]) -> str:
    """Return the offset message ids of the records at `positions`, joined by commas.

    `id_prefix` is the broker's part of each id. One `hex` of all positions takes half the time
    of one format operation per message.
    """
    texts = layouts(len(positions)).pack_longs(*positions).hex(",", 8).upper()
    return id_prefix + texts.replace(",", "," + id_prefix)


def _append_records(
    columns: BatchColumns, positions: Sequence[int], end: int, target: _Target, run: SealedRun
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

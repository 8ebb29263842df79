"""Fast path of sends: SEND_MESSAGE_V2 (310) without command, header or draft objects.

This is the broker's most frequent operation, so it is written as one loop by hand, and this module
is exempt from the limits on function size. It accepts a frame only if it has all of these
properties:

    header      JSON, with the members and fields that clients write, each of its usual type
    message     uncompressed or compressed, no property that the broker interprets except unique
                id, keys, tags and the born time of gRPC clients
    topic       exists, is saved and writable; no retry topic, no batch queues; the queue exists
    room        in the log's segment, and below every limit on unsynced records

Half messages of transactions are accepted as well: they are stored in the queue of half messages,
with their destination in their properties. Frames that end transactions may come between the
sends; they are passed to the fast path of ends.

A read of one small frame, as from a producer that waits for each answer, is buffered until the end
of the loop iteration. Then all buffered frames are processed together, which saves each of them the
cost of a read's fixed steps, and are answered together. No frame is checked before that.

All other frames are left to the general path (`send.py`), which serves every request. Both paths
produce the same record, queue entry and answer; `tests/broker/sending/test_fast_send.py` compares
them.

Source: see `send.py` beside it, `kourou.protocol.record`.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from kourou.broker.config import BrokerConfig
from kourou.broker.context import BrokerContext
from kourou.broker.decline_runs import CUT_OFF, DeclineRuns
from kourou.broker.message_type import NORMAL
from kourou.broker.sending.plain_header import BORN_DIGITS_MAX, decode_send
from kourou.broker.sending.plain_sends import PlainSends, SendCache, SendPath, is_number
from kourou.broker.sending.plain_shapes import (
    KEYS,
    UNIQ_KEY,
    UNIQ_KEY_CHARS,
    Shapes,
    send_shape,
)
from kourou.broker.sending.verdicts import half_refusal
from kourou.broker.transactions.half_cache import CachedHalf
from kourou.broker.transactions.plain_halves import (
    HALF_KEY,
    HALF_TOPIC_BYTES,
    MORE_BYTES_MAX,
    TRANSACTION_ID,
    PlainHalf,
)
from kourou.model import properties as names
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.model.sysflag import TRANSACTION_PREPARED
from kourou.model.topic import TRANS_HALF_TOPIC
from kourou.protocol.hashing import unmasked_crc32
from kourou.protocol.record.encode import ENDING, TAIL, pack_head, pack_properties_size
from kourou.protocol.record.layout import (
    CRC_MASK,
    FIXED_BYTES,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    SEAL_BYTES,
    SEAL_TEN_DIGITS,
)
from kourou.remoting.connection import Connection, FastPath
from kourou.store.message_store import AppendedRecord, SealedRun

log = logging.getLogger(__name__)

_START: Final = b'{"code":310,'
_START_AT: Final = 8
_START_END: Final = _START_AT + len(_START)
_SIZES: Final = struct.Struct(">II").unpack_from
_PACK_SIZES: Final = struct.Struct(">II").pack
_BORN: Final = f"{names.BORN_TIMESTAMP}\x01"
_ID_BYTES: Final = len(UNIQ_KEY) + UNIQ_KEY_CHARS + 1
"""Size of the unique id property that the broker adds to a message without one."""
_FRAME_BYTES_MIN: Final = 128
"""Lower bound of a frame that this path accepts: the header fields alone take more."""
_BUFFERED_READ_BYTES_MAX: Final = 8 * 1024
"""Largest read that is buffered: below this size, the copy costs less than buffering saves."""
BUFFERED_BYTES_MAX: Final = 1024 * 1024
"""Once more bytes than this are buffered, further reads are processed at once."""

_Read = tuple[Connection, bytearray, int, int]
"""Connection of a read, a buffer, and the read's first byte and end in that buffer."""


class Transactions(Protocol):
    """Registers half messages; see `kourou.broker.transactions.transactions.Transactions`."""

    def on_plain_halves(self, halves: Sequence[CachedHalf]) -> None:
        """Register half messages that were stored."""


class _Sends(PlainSends):
    """Sends that the fast path accepted, half messages among them.

    Attributes:
        halves: the half messages.
    """

    __slots__ = ("_transactions", "halves")

    def __init__(self, path: SendPath, began_ms: int, transactions: Transactions) -> None:
        super().__init__(path, began_ms)
        self.halves: list[CachedHalf] = []
        self._transactions = transactions

    def _count(self) -> None:
        if self.halves:
            self._transactions.on_plain_halves(self.halves)
        super()._count()


class FastSend:
    """Serves sends on the fast path; a `FastPath` of connections.

    Attributes:
        answers: builds the answers.
        stats, clock: those of the context.
        declined: reads whose rest was left to the general path, by the reason in its first frame;
            "cut off" for one whose frame is incomplete, "limit" near a limit on unsynced records,
            "store" if the store has no place for a run of records, "skipped" after a run of
            declined frames.
    """

    def __init__(self, context: BrokerContext, transactions: Transactions, ends: FastPath) -> None:
        """Create the fast path.

        Args:
            context: the broker's state and services.
            transactions: registers half messages.
            ends: fast path of requests that end transactions. It must not touch the store before
                the end of the loop iteration.
        """
        self._live = context.live_config
        self._topics = context.topics
        self._writer = context.store.writer
        self._commit = context.commit
        self.stats = context.stats
        self.clock = context.clock
        self._next_id = context.unique_ids.next
        self._transactions = transactions
        self._fast_end = ends
        self._buffered: list[_Read] = []
        self._buffered_bytes = 0
        self._is_returning = False
        self.declined: Counter[str] = Counter()
        self._decline_runs = DeclineRuns(self.declined)
        self._born = ("0", 0)  # the born timestamp decoded last, as text and as number
        self._cache = SendCache(context)
        self._reset(context.live_config.current)

    def _reset(self, config: BrokerConfig) -> None:
        """Drop all cached data and use other options."""
        cache = self._cache
        cache.reset(config)
        self.answers = cache.answers
        suffix = cache.suffix
        # Bytes of a record beyond those of its frame, at most.
        self._more_bytes = RECORD_BYTES_MIN + _ID_BYTES + len(suffix) + SEAL_BYTES + MORE_BYTES_MAX
        # Values that `_append` binds to locals, in one tuple to unpack at once.
        self._locals = (
            cache, self._topics.by_name.get, cache.topics, cache.sys_flags, cache.numbers,
            suffix, len(suffix) + SEAL_BYTES, config.max_message_size_bytes,
        )  # fmt: skip
        takes_halves = half_refusal(config) is None
        self.shapes = Shapes(partial(send_shape, takes_halves=takes_halves))

    def __call__(self, connection: Connection, buffer: bytearray, start: int, end: int) -> int:
        """Serve or buffer the leading sends; return the position after them."""
        if self._is_returning or buffer[start + _START_AT : start + _START_END] != _START:
            return start
        if self._decline_runs.runs and self._decline_runs.skips(connection):
            return start
        size = end - start
        if (
            size <= _BUFFERED_READ_BYTES_MAX
            and _SIZES(buffer, start)[0] + 4 == size
            and self._buffered_bytes <= BUFFERED_BYTES_MAX
        ):
            if not self._buffered:
                self._commit.call_before_write(self._serve_buffered)
            self._buffered.append((connection, buffer[start:end], 0, size))
            self._buffered_bytes += size
            connection.before_next = self._serve_buffered
            return end
        left = self._serve([(connection, buffer, start, end)], size, size // _FRAME_BYTES_MIN)
        return left[0][2] if left else end

    @property
    def copies(self) -> int:
        """See `GroupCommit.copies`."""
        return self._commit.copies

    @property
    def buffered_bytes(self) -> int:
        """Size of the reads that wait for the next write of the log."""
        return self._buffered_bytes

    def _serve_buffered(self) -> None:
        """Serve the buffered frames; return those that this path refuses to their connections."""
        buffered, self._buffered = self._buffered, []
        size, self._buffered_bytes = self._buffered_bytes, 0
        reads = []
        for read in buffered:
            connection = read[0]
            if connection.before_next is not None:  # else it was closed without reading this frame
                connection.before_next = None
                reads.append(read)
        try:
            left = self._serve(reads, size, len(reads)) if reads else []
        except Exception:  # the producers must be disconnected, and the event loop must continue
            log.exception("fast_send.failed reads=%d", len(reads))
            for read in reads:
                read[0].abort("internal error")
            return
        self._is_returning = True
        for connection, frame, _, _ in left:
            try:
                connection.replay_frames(bytes(frame))
            except Exception:  # a failure for one producer must not affect the others
                log.exception("fast_send.handing_back_failed peer=%s", connection)
        self._is_returning = False

    def _serve(self, reads: list[_Read], size: int, puts_max: int) -> list[_Read]:
        """Append the leading sends of each read, and return the rest of the reads.

        Args:
            reads: one read, or several of one frame each, all of different connections.
            size: bytes of all reads.
            puts_max: upper bound of the number of sends in all reads.
        """
        config = self._live.current
        if self._cache.is_outdated(config):
            self._reset(config)
        commit, put_bytes = self._commit, size + puts_max * self._more_bytes
        # An upper bound of what the reads can bring must fit within every limit. Near a limit each
        # read is checked alone, and nearer still the general path checks each message.
        if len(reads) == 1:
            if not commit.has_room(reads[0][0], put_bytes, puts_max):
                self.declined["limit"] += 1
                return reads
        elif not commit.has_room_for_any(put_bytes, puts_max):
            return [left for read in reads for left in self._serve([read], read[3] - read[2], 1)]
        now_ms = self.clock.now_ms()
        run = self._writer.begin_run(now_ms)
        if run is None:
            self.declined["store"] += len(reads)
            return reads
        sends, began_at = _Sends(self, now_ms, self._transactions), run.position
        left = self._append(reads, puts_max // len(reads), run, sends)
        if puts := len(sends.records):
            self._writer.end_run(run)
            sends.follow(commit, run.position, run.position - began_at - SEAL_BYTES * puts, puts)
        return left

    def _append(  # noqa: C901, PLR0912, PLR0915 - one loop by hand, see the module
        self, reads: list[_Read], puts_max: int, run: SealedRun, sends: _Sends
    ) -> list[_Read]:
        """Append the leading sends of each read, and note their answers.

        Takes about 4 us for a message of 1 KB. Every name used per message is a local one.

        Args:
            reads: as `_serve` takes them.
            puts_max: upper bound of the number of sends in each read.
            run: receives the records.
            sends: receives the answers and the data for statistics.

        Returns:
            The rest of each read that this path did not accept as a whole.
        """
        cache, topic_of, topics, sys_flags, numbers, suffix, own_bytes, body_max = self._locals
        shapes, peers = self.shapes, cache.peers
        queue_of, pending, buffers = run.queues.get, run.pending, run.buffers
        position, limit, store_at_ms = run.position, run.limit, run.store_at_ms
        records, keyed, declined = sends.records, run.keyed, self.declined
        new_tuple, crc32 = tuple.__new__, unmasked_crc32
        born_text, born_at_ms = self._born  # most messages have the timestamp of the one before
        left: list[_Read] = []
        for read in reads:
            connection, buffer, start, end = read
            try:
                peer = peers[connection]
            except KeyError:
                peer = cache.add_peer(connection)
            unanswered = connection.unanswered
            if peer is None or not unanswered.add(end - start, puts_max):
                declined["connection"] += 1
                left.append(read)
                continue
            frame_max = connection.limits.frame_bytes_max
            born_address, born_port, store_address, store_port, id_prefix, answers = peer
            # Bodies in a short read are copied: that costs less than the two views of each.
            view = buffer if end - start <= _BUFFERED_READ_BYTES_MAX else memoryview(buffer)
            began_at, at, replies, reason = position, start, [], CUT_OFF
            try:
                while end - at > _START_END:
                    if buffer[at + _START_AT : at + _START_END] != _START:
                        began, at = at, self._fast_end(connection, buffer, at, end)
                        if at == began:
                            reason = "other request"
                            break
                        continue
                    size, header_size = _SIZES(buffer, at)
                    next_at = at + 4 + size
                    body_at = at + 8 + header_size
                    body_size = next_at - body_at
                    if next_at > end:
                        break
                    if size > frame_max or not 0 < body_size <= body_max:
                        reason = "size"
                        break
                    if header_size >> 24:
                        reason = "header"
                        break
                    # Decode.
                    try:
                        header = decode_send(buffer[at + 8 : body_at])  # decoding a view: 1.5 times
                        fields = header.extFields
                        text = fields.i
                        properties = text.encode()
                    except (msgspec.DecodeError, UnicodeError, RecursionError):
                        reason = "header"
                        break
                    # The verdict on the topic and its queue.
                    name = fields.b
                    topic = topics.get(name)
                    if topic is None or topic_of(name) is not topic.config:
                        topic = cache.topic(name)
                        if topic is None:
                            reason = "topic"
                            break
                    queue_key = topic.queues.get(fields.e) or topic.add_queue(fields.e)
                    if queue_key is None:
                        reason = "queue"
                        break
                    queue_id, key = queue_key
                    queue = queue_of(key)
                    if queue is None:
                        reason = "queue"
                        break
                    # The verdict on the numbers, which are texts.
                    sys_flag = sys_flags.get(fields.f)
                    if sys_flag is None:
                        sys_flag = cache.sys_flag(fields.f)
                        if sys_flag is None:
                            reason = "flag"
                            break
                    if fields.d not in numbers and not cache.check_number(fields.d):
                        reason = "number"
                        break
                    if fields.g != born_text:
                        if not is_number(fields.g, BORN_DIGITS_MAX):
                            reason = "number"
                            break
                        born_text = fields.g
                        born_at_ms = int(born_text)
                        self._born = (born_text, born_at_ms)
                    # The verdict on the properties, which is cached by shape: without unique id,
                    # keys and born time, they mostly equal those of the previous message.
                    properties_size = len(properties) + own_bytes
                    if properties_size > SENT_PROPERTIES_SIZE_MAX:
                        reason = "properties too long"
                        break
                    before, has_id, after = text.partition(UNIQ_KEY)
                    unique_id, id_end, after = after.partition("\x02")
                    if has_id and (
                        not id_end or not unique_id.isalnum() or (before and before[-1] != "\x02")
                    ):
                        reason = "unique id"
                        break
                    rest, keys = before + after, ""
                    if _BORN in rest:
                        before, _, after = rest.partition(_BORN)
                        if before and before[-1] != "\x02":
                            reason = "born time"
                            break
                        rest = before + after.partition("\x02")[2]
                    if KEYS in rest:
                        keys_at = rest.find(KEYS)
                        if keys_at == 0 or rest[keys_at - 1] == "\x02":
                            keys_end = rest.find("\x02", keys_at + 5)
                            if keys_end <= keys_at + 5:
                                reason = "keys"
                                break
                            keys = rest[keys_at + 5 : keys_end]
                            rest = rest[:keys_at] + rest[keys_end + 1 :]
                    shape = shapes[rest]
                    if shape is None:
                        reason = "properties"
                        break
                    code, kind, tags, group = shape
                    topic_bytes, record_queue_id, ending = topic.topic_bytes, queue_id, suffix
                    half: PlainHalf | None = None
                    if group or sys_flag & TRANSACTION_PREPARED:
                        # A half message: stored in another queue, its destination in properties.
                        queue = queue_of(HALF_KEY)
                        if queue is None or not (
                            has_id and group and sys_flag & TRANSACTION_PREPARED
                        ):
                            reason = "half message"
                            break
                        target = topic.halves.get(queue_id) or topic.add_half(queue_id)
                        ending += f"{TRANSACTION_ID}{unique_id}\x02".encode()
                        half = PlainHalf(
                            target, group, len(properties) + len(ending), code, tags, unique_id,
                            keys,
                        )  # fmt: skip
                        ending += target.properties
                        properties_size = len(properties) + len(ending) + SEAL_BYTES
                        if properties_size > SENT_PROPERTIES_SIZE_MAX:
                            reason = "properties too long"
                            break
                        name, topic_bytes, record_queue_id, sys_flag = (
                            TRANS_HALF_TOPIC, HALF_TOPIC_BYTES, 0, sys_flag ^ TRANSACTION_PREPARED
                        )  # fmt: skip
                    if not has_id:
                        properties_size += _ID_BYTES
                        if properties_size > SENT_PROPERTIES_SIZE_MAX:
                            reason = "properties too long"
                            break
                    # The record.
                    total = FIXED_BYTES + body_size + len(topic_bytes) + properties_size
                    if position + total > limit:
                        reason = "segment end"
                        break
                    if not has_id:  # only now, so that a frame that is refused uses up no id
                        unique_id = self._next_id(sends.began_ms)
                        properties += f"{UNIQ_KEY}{unique_id}\x02".encode()
                    tail = TAIL % (
                        topic_bytes, pack_properties_size(properties_size), properties, ending
                    )  # fmt: skip
                    body = view[body_at:next_at]
                    queue_offset = queue.next_offset
                    sealed = b"".join((
                        pack_head(
                            total, MAGIC_V1, crc32(body) & CRC_MASK, record_queue_id, 0,
                            queue_offset, position, sys_flag, born_at_ms, born_address, born_port,
                            store_at_ms, store_address, store_port, 0, 0, body_size,
                        ),
                        body,
                        tail,
                    ))  # fmt: skip
                    digits = str(SEAL_TEN_DIGITS + (crc32(sealed) & CRC_MASK))[:0:-1]
                    seal = ENDING % digits.encode()
                    # The answer.
                    to_ids, to_offset, to_unique_id, to_opaque, to_end = answers.get(
                        queue_id
                    ) or cache.answer_parts(peer, queue_id)
                    answer = (
                        f"{to_ids}{id_prefix}{position:016X}{to_offset}{queue_offset}"
                        f"{to_unique_id}{unique_id}{to_opaque}{header.opaque}{to_end}"
                    ).encode()
                    answer_size = len(answer)
                    # No step from here to the end of the loop can fail.
                    appended = new_tuple(
                        AppendedRecord,
                        (position, queue_offset, total, name, record_queue_id, code, store_at_ms,
                         1),
                    )  # fmt: skip
                    buffers += (sealed, seal)  # joining them would be one more copy
                    pending.append((queue, appended))
                    queue.next_offset = queue_offset + 1
                    record_at, position = position, position + total
                    run.position = position
                    keyed.append((record_at, position, store_at_ms, name, tags, unique_id, keys))
                    replies.append(_PACK_SIZES(answer_size + 4, answer_size) + answer)
                    if kind is not NORMAL:
                        sends.note_kind(kind)
                        if half is not None:
                            sends.halves.append(CachedHalf((sealed, seal), appended, half))
                    records.append(appended)
                    at = next_at
            except Exception:  # a failure for one producer must not affect the others
                log.exception("fast_send.failed peer=%s", connection)
                connection.abort("internal error")
                at = end
            if replies:
                sends.reads.append((connection, replies, at - start))
                unsealed = position - began_at - SEAL_BYTES * len(replies)
                sends.owner_sizes.append((connection, unsealed))
            if at != end or len(replies) != puts_max:
                unanswered.remove(end - at, puts_max - len(replies))
                if at != end:
                    declined[reason] += 1
                    if at == start:
                        self._decline_runs.note(connection, reason)
                    left.append((connection, buffer, at, end))
        return left

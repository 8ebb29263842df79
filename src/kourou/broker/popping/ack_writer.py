"""Stores acks of popped messages: all acks of one loop iteration in one put.

Acks of one checkpoint share one record. A request is answered when all of its acks are stored, also
if the sync takes long: until then their messages are not revived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kourou.broker.context import BrokerContext
from kourou.broker.popping.buffer_scans import BufferScans
from kourou.broker.popping.checkpoint import CheckpointKey
from kourou.broker.popping.due_marks import DueMarks
from kourou.broker.popping.in_flight import InFlight, offsets_of
from kourou.broker.popping.pop_counts import ACK, PopCounts
from kourou.broker.popping.revive_log import ReviveLog
from kourou.broker.writing.put import CODES, PutResult, PutStatus
from kourou.errors import RemoteError
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.popping.revive_records import NO_ACK_OFFSET, AckRecord
from kourou.protocol.record.encode import RecordDraft
from kourou.store.message_store import AppendedRecord

BITS_MAX: Final = 16_383
"""Largest difference of a message's offset from the start offset that is a bit."""
PUT_RECORDS_MAX: Final = 128
"""Limit on the records of one put, which must fit into one segment of the log."""


@dataclass(slots=True)
class AckAnswer:
    """The outstanding acks of one request.

    Attributes:
        reply: called once, with None or with the first error.
        outstanding: acks that are not stored yet, and 1 while more may be added.
        error: of the first ack that could not be stored.
    """

    reply: Callable[[RemoteError | None], None]
    outstanding: int = 1
    error: RemoteError | None = None

    def settle(self, error: RemoteError | None = None) -> None:
        """Note the end of one ack, or of adding acks; reply with the last one."""
        self.error = self.error or error
        self.outstanding -= 1
        if not self.outstanding:
            self.reply(self.error)


@dataclass(slots=True)
class _Acks:
    """Acks of one checkpoint that are stored together.

    Attributes:
        bits: of the messages; bit n stands for the checkpoint's start offset + n.
        far: queue offsets of messages that are no bits.
        count: number of acknowledged messages, with repetitions.
    """

    key: CheckpointKey
    revive_queue: int
    revive_at_ms: int
    bits: int = 0
    far: dict[int, None] = field(default_factory=dict)
    answers: list[AckAnswer] = field(default_factory=list)
    count: int = 0

    def offsets(self) -> list[int]:
        """Return the queue offsets of all messages."""
        return [*offsets_of(self.bits, self.key.start_offset), *self.far]


class AckWriter:
    """Stores acks for the revive topic."""

    def __init__(
        self,
        context: BrokerContext,
        revive_log: ReviveLog,
        in_flight: InFlight,
        scans: BufferScans,
        counts: PopCounts,
        marks: DueMarks,
    ) -> None:
        """Store acks of the checkpoints of `in_flight`; those of buffered ones go to `scans`."""
        self._counts = counts
        self._marks = marks
        self._stats = context.stats
        self._cluster_name = context.config.cluster_name
        self._commit = context.commit
        self._clock = context.clock
        self._revive_log = revive_log
        self._in_flight = in_flight
        self._scans = scans
        self._added: dict[CheckpointKey, _Acks] = {}
        self._unstored: dict[CheckpointKey, int] = {}

    def has_unstored(self, key: CheckpointKey) -> bool:
        """Return whether an ack of the checkpoint is accepted and not stored or refused yet."""
        return key in self._added or key in self._unstored

    def add(
        self,
        key: CheckpointKey,
        offsets: Iterable[int],
        place: tuple[int, int],
        answer: AckAnswer,
    ) -> None:
        """Acknowledge messages of one checkpoint, at the end of this loop iteration.

        Args:
            key: of the checkpoint.
            offsets: the queue offsets of the messages; at least one.
            place: queue of the checkpoint, and the time at which its messages become visible.
            answer: settled when the acks are stored or refused; not if they are buffered.
        """
        offsets, start = tuple(offsets), key.start_offset
        if self._scans.ack(key, offsets):
            self._in_flight.ack_all(key, offsets)
            self._count(key, len(offsets))
            return
        bits, far = 0, []
        for offset in offsets:
            if 0 <= offset - start <= BITS_MAX:
                bits |= 1 << offset - start
            else:
                far.append(offset)
        self.add_bits(key, bits, place, answer).far.update(dict.fromkeys(far))

    def add_bits(
        self, key: CheckpointKey, bits: int, place: tuple[int, int], answer: AckAnswer
    ) -> _Acks:
        """Acknowledge messages like `add`; bit n stands for start offset + n.

        The merge buffer must be empty. Returns all acks of the checkpoint in this iteration.
        """
        if not self._added:
            self._commit.call_before_write(self._put)
        acks = self._added.get(key)
        if acks is None:
            acks = self._added[key] = _Acks(key, *place)
        acks.bits |= bits
        acks.count += bits.bit_count()
        acks.answers.append(answer)
        answer.outstanding += 1
        return acks

    def add_unanswered(
        self, key: CheckpointKey, offsets: Iterable[int], place: tuple[int, int]
    ) -> None:
        """Acknowledge messages like `add`, for no request."""
        self.add(key, offsets, place, AckAnswer(_ignore))

    def _put(self) -> None:
        """Store the acks that were added in this loop iteration."""
        added, self._added = list(self._added.values()), {}
        now_ms = self._clock.now_ms()
        drafts: list[RecordDraft] = []
        stored: list[_Acks] = []
        for acks in added:
            offsets = acks.offsets()
            self._count(acks.key, acks.count + len(acks.far))
            try:
                text = self._revive_log.ack_text(
                    acks.key, acks.revive_queue, offsets, acks.revive_at_ms, now_ms
                )
                if text is None:
                    drafts.append(self._draft(acks, tuple(offsets), now_ms))
            except RemoteError as error:
                _settle(acks, error)
                continue
            self._unstored[acks.key] = self._unstored.get(acks.key, 0) + 1
            if text is None:
                stored.append(acks)
            else:
                self._revive_log.puts.add((text,), partial(self._stored, [acks]))
        for at in range(0, len(drafts), PUT_RECORDS_MAX):
            end = at + PUT_RECORDS_MAX
            after = partial(self._stored, stored[at:end])
            self._commit.put(drafts[at:end], now_ms, after, answers_late=False)

    def _draft(self, acks: _Acks, offsets: tuple[int, ...], now_ms: int) -> RecordDraft:
        topic, group, queue_id, start_offset, pop_time_ms, broker_name = acks.key
        is_single = len(offsets) == 1
        record = AckRecord(
            topic,
            group,
            queue_id,
            start_offset,
            pop_time_ms,
            broker_name,
            offsets[0] if is_single else NO_ACK_OFFSET,
            None if is_single else offsets,
        )
        return self._revive_log.ack_draft(record, acks.revive_queue, acks.revive_at_ms, now_ms)

    def _stored(self, stored: list[_Acks], result: PutResult) -> None:
        error = None
        if result.status is not PutStatus.OK:
            text = f"the ack was not stored: {result.status.name}: {result.reason}"
            error = RemoteError(CODES[result.status], text)
        for number, acks in enumerate(stored):
            self._counts.on_put(ACK, acks.key, result.status)
            left = self._unstored[acks.key] - 1
            if left:
                self._unstored[acks.key] = left
            else:
                del self._unstored[acks.key]
            if error is None:
                self._acked(acks, result.appended[number])
            _settle(acks, error)

    def _acked(self, acks: _Acks, stored: AppendedRecord) -> None:
        """Acknowledge messages whose ack is stored."""
        settled = self._in_flight.ack_bits(acks.key, acks.bits)
        if acks.far:
            self._in_flight.ack_all(acks.key, tuple(acks.far))
        elif stored.topic == TIMER_TOPIC:
            self._marks.ack_stored(acks.key, acks.revive_at_ms, stored.physical_offset, settled)

    def _count(self, key: CheckpointKey, count: int) -> None:
        self._stats.count("GROUP_ACK_NUMS", f"{key.topic}@{key.group}", count)
        self._stats.count("BROKER_ACK_NUMS", self._cluster_name, count)


def _settle(acks: _Acks, error: RemoteError | None) -> None:
    for answer in acks.answers:
        answer.settle(error)


def _ignore(_: RemoteError | None) -> None:
    """Ignore the result: an ack that is not stored only leaves a message to be revived twice."""

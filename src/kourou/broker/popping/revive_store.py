"""Makes messages visible again: stores them in their retry topics.

The messages of one checkpoint are stored in one put, if that is not too large. What cannot be
stored is either tried again by the caller, or gets a new checkpoint that is due later:

    the store is busy or refuses writes     the caller tries again
    the record of a message is damaged,     a checkpoint of its own, due after the next of
    its retry topic refuses it, or cannot   `RE_PUT_AFTER_S`
    be created
    the message has expired, or another     nothing: it is done
    one has its offset now

The messages of another broker's checkpoint (`foreign_revivals.py`) are stored likewise. One that
could not be read there, or whose topic or group does not exist here, gets a new checkpoint: neither
shows that it is gone. If its broker has no message at the offset, that ends after the last of
`RE_PUT_AFTER_S`.

Source: PopReviveService.reviveMsgFromCk, rePutCK, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.checkpoint import RE_PUT_AFTER_S, CheckpointKey, PopCheckpoint
from kourou.broker.popping.in_flight import InFlight
from kourou.broker.popping.pop_counts import CHECKPOINT, PopCounts
from kourou.broker.popping.revive_log import ReviveLog
from kourou.broker.popping.revived import (
    new_retry_topic,
    retry_queue_of,
    retry_topic_of,
    revived_draft,
)
from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.broker.replication.foreign_messages import ForeignReads
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.errors import (
    CorruptRecordError,
    DamagedRecordError,
    MalformedMessageError,
    RemoteError,
)
from kourou.model.host import Host
from kourou.model.topic import TopicConfig
from kourou.protocol.popping.topic_names import normal_topic
from kourou.protocol.record.encode import RecordDraft, record_size
from kourou.protocol.record.layout import POSITION, head_struct
from kourou.remoting.log_rate import LogRate
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import GetRequest, GetResult

log = logging.getLogger(__name__)

PUT_BYTES_MAX: Final = 256 * 1024
"""Limit on the bytes of one put; a single message may be larger."""

_READ_BYTES_MAX: Final = 4 * 1024 * 1024
_QUEUE_OFFSET: Final = head_struct("queue_offset")
_LOCAL: Final = ("127.0.0.1", 0)


@dataclass(slots=True)
class Revived:
    """Result of an attempt to revive the messages of a checkpoint.

    Attributes:
        count: messages that were stored for their retry topic.
        is_done: nothing of the checkpoint is left: each message is stored, has a new checkpoint, or
            does not exist any more.
        reason: why it is not done.
    """

    count: int = 0
    is_done: bool = True
    reason: str = ""


class ReviveStore:
    """Stores the messages of checkpoints in retry topics."""

    def __init__(
        self,
        context: BrokerContext,
        offsets: ConsumerOffsets,
        reads: VerifiedReads,
        revive_log: ReviveLog,
        in_flight: InFlight,
        counts: PopCounts,
    ) -> None:
        """Read messages by `reads`, and commit the first offset of new retry topics."""
        self._counts = counts
        self._context = context
        self._config = context.live_config
        self._topics = context.topics
        self._commit = context.commit
        self._offsets = offsets
        self._reads = reads
        self._revive_log = revive_log
        self._in_flight = in_flight
        self._host: Host = context.store_host or _LOCAL
        self._failures = LogRate()

    async def revive(
        self, checkpoint: PopCheckpoint, revive_queue: int, *, is_delivered: bool = True
    ) -> Revived:
        """Store the unacknowledged messages of a checkpoint; they are acknowledged in it then.

        Args:
            checkpoint: changed: messages that need no further attempt are acknowledged.
            revive_queue: queue for new checkpoints of messages that cannot be stored.
            is_delivered: see `revived_draft`.

        Raises:
            OSError: a record cannot be read at present.
        """
        result = Revived()
        key, topics = checkpoint.key, self._topics
        if topics.get(key.topic) is None or self._context.groups.get(key.group) is None:
            return result  # deleted
        found, damaged = await self._read(checkpoint)
        if not found and not damaged:
            return result  # expired, or of a topic that was deleted
        return await self._store(
            checkpoint, revive_queue, found, damaged, is_delivered=is_delivered
        )

    async def revive_foreign(
        self, checkpoint: PopCheckpoint, revive_queue: int, read: ForeignReads
    ) -> Revived:
        """Store the unacknowledged messages of another broker's checkpoint, as `revive`.

        Args:
            checkpoint: changed: messages that need no further attempt are acknowledged.
            revive_queue: queue for new checkpoints of messages that cannot be stored.
            read: what that broker has of its messages.
        """
        gone = set(read.expired)
        if checkpoint.re_puts >= len(RE_PUT_AFTER_S):
            gone |= read.absent
        found: dict[int, bytes] = {}
        for offset, record in read.records.items():
            if checkpoint.covers(POSITION.unpack_from(record)[0]):
                found[offset] = record
            else:
                gone.add(offset)
        checkpoint.ack_all(gone)
        if checkpoint.is_acknowledged:
            return Revived()
        unknown = self._unknown_here(checkpoint.key)
        if unknown:
            found.clear()
        later = [offset for offset in checkpoint.unacked() if offset not in found]
        if later:
            self._log_failure(checkpoint, unknown or read.reason or "its broker has no message")
        return await self._store(checkpoint, revive_queue, found, later)

    def _unknown_here(self, key: CheckpointKey) -> str:
        """Return why a group pops no messages of a topic here; empty if it may."""
        if self._context.groups.get(key.group) is None:
            return f"group {key.group} does not exist here"
        if self._topics.get(key.topic) or self._topics.get(normal_topic(key.topic, key.group)):
            return ""
        return f"topic {key.topic} does not exist here"

    async def _store(
        self,
        checkpoint: PopCheckpoint,
        revive_queue: int,
        found: Mapping[int, bytes],
        damaged: list[int],
        *,
        is_delivered: bool = True,
    ) -> Revived:
        """Store messages, by queue offset, and new checkpoints of those that cannot be."""
        result = Revived()
        if not found:
            return await self._put_later(checkpoint, damaged, revive_queue)
        topic = await self._retry_topic(checkpoint)
        if topic is None:
            return await self._put_later(checkpoint, list(checkpoint.unacked()), revive_queue)
        queue = (topic.name, retry_queue_of(checkpoint, topic, self._config.current.pop))
        drafts: list[tuple[int, RecordDraft]] = []
        for offset in checkpoint.unacked():
            record = found.get(offset)
            if record is None:
                continue
            try:
                draft = revived_draft(
                    record, checkpoint, queue, self._host, is_delivered=is_delivered
                )
            except MalformedMessageError:
                damaged.append(offset)
                continue
            drafts.append((offset, draft))
        for part in _parts(drafts):
            refused = await self._put(part, checkpoint, result)
            damaged += refused
            if not result.is_done:
                return result
        if damaged:
            later = await self._put_later(checkpoint, damaged, revive_queue)
            result.is_done, result.reason = later.is_done, later.reason
        return result

    async def _put(
        self, part: Sequence[tuple[int, RecordDraft]], checkpoint: PopCheckpoint, result: Revived
    ) -> list[int]:
        """Store messages; return the offsets of those that are refused for good."""
        drafts = [draft for _, draft in part]
        stored = await self._stored(drafts)
        self._counts.on_retry(checkpoint.key, stored.status, len(part))
        if stored.status is PutStatus.OK:
            checkpoint.ack_all(offset for offset, _ in part)
            result.count += len(part)
            self._count(stored)
            return []
        if stored.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.TOPIC_REFUSED):
            if len(part) == 1:
                self._log_failure(checkpoint, stored.reason)
                return [part[0][0]]
            refused: list[int] = []
            for one in part:
                refused += await self._put((one,), checkpoint, result)
            return refused
        result.is_done, result.reason = False, f"{stored.status.name}: {stored.reason}"
        return []

    async def _stored(self, drafts: Sequence[RecordDraft]) -> PutResult:
        """Return the final result of a put, also if its sync takes long."""
        now_ms = self._context.clock.now_ms()
        return await self._commit.put_and_wait(drafts, now_ms, answers_late=False)

    async def _put_later(
        self, checkpoint: PopCheckpoint, offsets: Sequence[int], revive_queue: int
    ) -> Revived:
        """Store a new checkpoint for each message that cannot be revived at present."""
        now_ms = self._context.clock.now_ms()
        is_skipping = self._config.current.pop.skip_when_ck_re_put_reach_max_times
        if is_skipping and checkpoint.re_puts >= len(RE_PUT_AFTER_S):
            log.error("pop.revive_given_up key=%s offsets=%s", checkpoint.key, offsets)
            checkpoint.ack_all(offsets)
            return Revived()
        try:
            later = [checkpoint.re_put(offset, now_ms) for offset in offsets]
            drafts = [self._revive_log.checkpoint_draft(one, revive_queue, now_ms) for one in later]
        except RemoteError as error:
            return Revived(is_done=False, reason=error.remark)
        for one in later:
            if not one.is_foreign:
                self._in_flight.add(one)
        result = await self._stored(drafts)
        for one in later:
            self._counts.on_put(CHECKPOINT, one.key, result.status)
        if result.status is PutStatus.OK:
            checkpoint.ack_all(offsets)
            return Revived()
        for one in later:
            self._in_flight.settle(one.key)
        return Revived(is_done=False, reason=f"{result.status.name}: {result.reason}")

    # Read

    async def _read(self, checkpoint: PopCheckpoint) -> tuple[dict[int, bytes], list[int]]:
        """Return the records of the unacknowledged messages, and the offsets of damaged ones.

        Raises:
            OSError: they cannot be read at present.
        """
        found: dict[int, bytes] = {}
        damaged: list[int] = []
        for first, count in _runs(checkpoint.unacked()):
            at, end = first, first + count
            while at < end:
                try:
                    result = await self._get(checkpoint, at, end - at)
                except (DamagedRecordError, CorruptRecordError) as error:
                    self._log_failure(checkpoint, str(error))
                    damaged.append(at)
                    at += 1
                    continue
                for record in result.records():
                    offset = _QUEUE_OFFSET.unpack_from(record)[0]
                    if at <= offset < end and checkpoint.covers(POSITION.unpack_from(record)[0]):
                        found[offset] = record
                if result.plan.next_offset <= at:
                    break  # nothing is left there
                at = result.plan.next_offset
        return found, damaged

    async def _get(self, checkpoint: PopCheckpoint, offset: int, count: int) -> GetResult:
        get_request = GetRequest(offset, count, _READ_BYTES_MAX, None)
        where = (checkpoint.key.topic, checkpoint.key.queue_id)
        found = self._reads.read_resident(*where, get_request)
        return await self._reads.read(*where, get_request) if found is None else found

    # Retry topic

    async def _retry_topic(self, checkpoint: PopCheckpoint) -> TopicConfig | None:
        """Return the retry topic, durable; None if it cannot be created at present."""
        config, topics = self._config.current.pop, self._topics
        name = retry_topic_of(checkpoint, config)
        if not topics.is_saved(name):
            try:
                topics.ensure(new_retry_topic(name, topics.get(checkpoint.key.topic), config))
            except RemoteError as error:
                self._log_failure(checkpoint, error.remark)
                return None
            await topics.persist()  # else a crash could leave messages without their topic
            key = (checkpoint.key.group, name, 0)
            if self._offsets.query(*key) is None:
                self._offsets.commit(*key, 0)
        return topics.get(name)

    def _count(self, stored: PutResult) -> None:
        for appended in stored.appended:
            self._context.stats.on_single_puts((appended,), 0)

    def _log_failure(self, checkpoint: PopCheckpoint, reason: str) -> None:
        suppressed = self._failures.take(steady_ms() / 1000)
        if suppressed is not None:
            log.warning(
                "pop.not_revived key=%s re_puts=%d suppressed=%d reason=%s",
                checkpoint.key, checkpoint.re_puts, suppressed, reason,
            )  # fmt: skip


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first offset and length of each run of consecutive offsets."""
    at = 0
    while at < len(offsets):
        end = at + 1
        while end < len(offsets) and offsets[end] == offsets[end - 1] + 1:
            end += 1
        yield offsets[at], end - at
        at = end


def _parts(
    drafts: Sequence[tuple[int, RecordDraft]],
) -> Iterator[Sequence[tuple[int, RecordDraft]]]:
    """Yield the drafts in parts of at most `PUT_BYTES_MAX` bytes, or of a single draft."""
    part: list[tuple[int, RecordDraft]] = []
    size = 0
    for one in drafts:
        one_size = record_size(one[1])
        if part and size + one_size > PUT_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(one)
        size += one_size
    if part:
        yield part

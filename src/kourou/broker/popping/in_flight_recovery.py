"""Recovery of the checkpoints in flight at a start: from the timer's wheel and the revive queues.

Until it is complete, a receipt handle that is not known may be a valid one: its ack is stored
without regard to checkpoints, and a change waits. Pops need not wait.

Early acks
----------
When a checkpoint is due, the timer leaves it out if all its messages are acknowledged, and then its
acks too. An ack may be delivered nevertheless: when the clock is set forward, many slots are due
together, and it may overtake the decision on its checkpoint. The revive queue passes such an ack,
because its checkpoint does not come any more. But after a kill it may come: the timer decides again
on what its files do not count as done, and does not deliver again what it had delivered. So these
acks are looked up at a start, in the part of the revive queues that the timer's files do not count.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kourou.broker.context import BrokerContext
from kourou.broker.popping.ack_writer import AckWriter
from kourou.broker.popping.checkpoint import (
    CheckpointKey,
    PopCheckpoint,
    checkpoint_of,
    is_relayed,
    key_of_ack,
)
from kourou.broker.popping.in_flight import DueCopies, InFlight
from kourou.broker.popping.java_checkpoints import queue_records
from kourou.broker.popping.revive import Revives, is_served
from kourou.broker.popping.revive_log import REVIVE_PREFIX, log_end_of
from kourou.broker.timer.timers import Timers
from kourou.errors import MalformedBodyError, MalformedMessageError, ServiceNotAvailableError
from kourou.model.properties import TAGS, decode_properties
from kourou.protocol.codes import ResponseCode
from kourou.protocol.popping.revive_records import CHECKPOINT_TAG, decode_ack, decode_checkpoint
from kourou.store.reader import StoreReader
from kourou.store.timer.timer_record import TimerRecord, read_timer_record

log = logging.getLogger(__name__)

READ_RECORDS: Final = 2_000
"""Records that are read and decoded by one call off the event loop."""
ADD_RECORDS: Final = 200
"""Records that are added in one iteration of the event loop."""
RETRY_MS: Final = 1_000
TIMER_CHECK_MS: Final = 20
"""How often to look whether the timer has read its topic."""


class WaitingAck(NamedTuple):
    """An ack that waits in the wheel."""

    key: CheckpointKey
    offsets: Sequence[int]


class Waiting(NamedTuple):
    """A record that waits in the wheel, for one of the revive queues."""

    record: PopCheckpoint | WaitingAck
    revive_queue: int


class InFlightRecovery:
    """Recovers the checkpoints in flight once, in the background.

    Attributes:
        is_complete: whether all checkpoints are known.
    """

    def __init__(
        self,
        context: BrokerContext,
        timers: Timers,
        in_flight: InFlight,
        copies: DueCopies,
        writer: AckWriter,
        revives: Revives,
    ) -> None:
        """Recover the checkpoints of all revive topics into `in_flight`.

        Args:
            context: the broker's state and services.
            timers: hold what is not due yet.
            in_flight: gets the checkpoints.
            copies: is complete as soon as `in_flight` is.
            writer: stores acks of messages that were revived before their time.
            revives: read the revive queues.
        """
        self.is_complete = False
        self._context = context
        self._reader = context.store.reader
        self._offload = context.offload
        self._broker_name = context.config.broker_name
        self._timers = timers
        self._in_flight = in_flight
        self._copies = copies
        self._writer, self._revives = writer, revives
        self._revive_topics = tuple(revives.topics)
        self._completed = asyncio.Event()
        self._read_from: dict[tuple[str, int], int] = {}

    def note_read_from(self) -> None:
        """Note from where on the revive queues are read; to be called before they are."""
        self._read_from = self._revives.next_offsets

    async def wait(self) -> None:
        """Wait until all checkpoints are known.

        Raises:
            ServiceNotAvailableError: the broker stops before.
        """
        await self._completed.wait()
        if not self.is_complete:
            raise ServiceNotAvailableError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping"
            )

    async def run(self) -> None:
        """Recover; tried again until it succeeds."""
        is_failing = False
        while not self.is_complete:
            try:
                # In this order: what the timer delivers meanwhile is read in the revive queue.
                acks = await self._recover_waiting()
                await self._revives.wait_read()
                await self._apply(acks)
            except Exception:
                if not is_failing:
                    log.exception("in_flight.not_recovered again_in_ms=%d", RETRY_MS)
                is_failing = True
                await asyncio.sleep(RETRY_MS / 1000)
            else:
                self.is_complete = self._copies.is_complete = True
                self._revives.forget_taken()
                self._completed.set()

    def end(self) -> None:
        """Refuse requests that wait: the broker stops."""
        self._completed.set()

    async def note_early_acks(self) -> None:
        """Look up early acks after a kill; to be called before messages are revived.

        Has no effect before the timer has its files: it then calls this again.

        Raises:
            OSError: the log cannot be read.
        """
        delivered_from = self._timers.storage.delivered_from
        if delivered_from is None:
            return
        acked = await self._offload(
            find_early_acks,
            self._reader,
            self._read_from,
            delivered_from,
            self._broker_name,
        )
        self._revives.note_early_acked(acked)

    async def _recover_waiting(self) -> list[WaitingAck]:
        """Add the checkpoints that wait in the wheel; return the acks that do.

        Raises:
            OSError: timer log or commit log cannot be read.
        """
        while not self._timers.has_recovered:  # noqa: ASYNC110 - it is so within milliseconds
            await asyncio.sleep(TIMER_CHECK_MS / 1000)
        positions = await self._timers.storage.waiting_records(self._revive_topics)
        acks: list[WaitingAck] = []
        for at in range(0, len(positions), READ_RECORDS):
            part = positions[at : at + READ_RECORDS]
            found = await self._offload(self._read, part)
            for first in range(0, len(found), ADD_RECORDS):
                for record, revive_queue in found[first : first + ADD_RECORDS]:
                    if isinstance(record, WaitingAck):
                        acks.append(record)
                    elif record.is_foreign or self._revives.was_taken(record.key):
                        continue  # never in flight here, or not any more since it was read
                    elif is_served(record, self._context):
                        self._revives.ack_early(record)
                        self._in_flight.add(record)
                        self._ack_revived(record, revive_queue)
                await asyncio.sleep(0)
        return acks

    def _ack_revived(self, checkpoint: PopCheckpoint, revive_queue: int) -> None:
        """Acknowledge messages that were revived before their time, when a kill prevented that."""
        revived = self._revives.revived_before(checkpoint.key).intersection(checkpoint.offsets)
        if revived:
            place = (revive_queue, checkpoint.revive_at_ms)
            self._writer.add_unanswered(checkpoint.key, sorted(revived), place)

    async def _apply(self, acks: Sequence[WaitingAck]) -> None:
        for number, ack in enumerate(acks):
            self._in_flight.ack_all(ack.key, ack.offsets)
            if not number % ADD_RECORDS:
                await asyncio.sleep(0)
        self._in_flight.apply_unknown_acks()
        count = self._in_flight.checkpoint_count
        if count:
            log.info("in_flight.recovered checkpoints=%d acks=%d", count, len(acks))

    def _read(self, positions: Sequence[int]) -> list[Waiting]:
        """Read and decode records of the timer topic; runs on any thread."""
        found: list[Waiting] = []
        for position in positions:
            record = self._reader.read_record(position)
            try:
                decoded = None if record is None else self._decode(record)
            except (MalformedMessageError, MalformedBodyError):
                continue  # the timer logs it
            if decoded is not None:
                found.append(decoded)
        return found

    def _decode(self, record: bytes) -> Waiting | None:
        timer = read_timer_record(record)
        # What was delivered before a kill is in the revive queue, or handled.
        if not timer.topic.startswith(REVIVE_PREFIX) or self._timers.storage.was_delivered(timer):
            return None
        return Waiting(read_revive_record(timer, self._broker_name), timer.queue_id)


def read_revive_record(timer: TimerRecord, broker_name: str) -> PopCheckpoint | WaitingAck:
    """Return the checkpoint or ack of a record of the timer topic.

    Raises:
        MalformedBodyError: it is neither.
    """
    body = timer.header.body(timer.record)
    if timer.properties.get(TAGS) == CHECKPOINT_TAG:
        return checkpoint_of(
            decode_checkpoint(body),
            broker_name,
            log_end_of(timer.properties),
            relayed=is_relayed(timer.properties),
        )
    ack = decode_ack(body)
    return WaitingAck(key_of_ack(ack, broker_name), ack.offsets)


def find_early_acks(
    reader: StoreReader,
    next_offsets: Mapping[tuple[str, int], int],
    delivered_from: int,
    broker_name: str,
) -> dict[CheckpointKey, set[int]]:
    """Return the acknowledged queue offsets of checkpoints that do not precede their acks.

    May wait for the device. A checkpoint before `delivered_from` may be among them: it is not
    delivered again.

    Args:
        reader: reads the store.
        next_offsets: by revive queue: the offset of the first record that is read anyway.
        delivered_from: the log position from which the timer's files may lack deliveries.
        broker_name: of records that name none.

    Raises:
        OSError: the log cannot be read.
    """
    found: dict[CheckpointKey, set[int]] = {}
    for (topic, queue_id), end in next_offsets.items():
        checkpoints: set[CheckpointKey] = set()
        first = _first_from(reader, topic, queue_id, end, delivered_from)
        for header, record in queue_records(reader, topic, queue_id, first, end):
            try:
                body = header.body(record)
                if decode_properties(header.properties(record)).get(TAGS) == CHECKPOINT_TAG:
                    checkpoints.add(checkpoint_of(decode_checkpoint(body), broker_name).key)
                    continue
                ack = decode_ack(body)
            except (MalformedBodyError, MalformedMessageError):
                continue  # logged when it was read first
            key = key_of_ack(ack, broker_name)
            if key not in checkpoints:
                found.setdefault(key, set()).update(ack.offsets)
    return found


def _first_from(reader: StoreReader, topic: str, queue_id: int, end: int, position: int) -> int:
    """Return the first offset whose record is at or after a log position; `end` without one."""

    def position_of(offset: int) -> int:
        entry = reader.entry(topic, queue_id, offset)
        return -1 if entry is None else entry.physical_offset

    offsets = range(reader.min_offset(topic, queue_id), end)
    return offsets.start + bisect_left(offsets, position, key=position_of)

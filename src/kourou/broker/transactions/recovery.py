"""Recovery of the open transactions at a broker's start.

    read                                              to learn
    op messages from the op queue's progress on       the half messages that have ended
    half records from the half queue's progress on    the half messages that may be open
    the destination queues of those                   whether the message is already committed
    the queue of transactions that were given up      whether a later copy of the half record is
                                                      there

The last two are needed because an op message is written some seconds after the commit, or the copy,
that it closes. A kill in between leaves a committed message whose transaction looks open. RocketMQ
then checks the producer again, and consumers get the message twice. Here the committed message is
found, because its record holds the log position of its half record. A copy holds the queue offset
of the transaction's first record. A destination queue is read from the log position of its oldest
open half message on.

This runs in the background, off the event loop. Until it is done, no checks are sent and requests
that end transactions wait.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.broker.topics import Topics
from kourou.broker.transactions.half_messages import HALF_QUEUE, HalfMessage, read_half
from kourou.broker.transactions.ledger import Ledger, OpProgress
from kourou.broker.transactions.op_messages import read_op
from kourou.errors import MalformedBodyError, MalformedMessageError
from kourou.model import properties as names
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from kourou.model.topic import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from kourou.protocol.record.read import read_record
from kourou.remoting.runtime import Offload
from kourou.store.message_store import GetRequest, MessageStore

log = logging.getLogger(__name__)

READ_MESSAGES_MAX: Final = 256
READ_BYTES_MAX: Final = 4 * 1024 * 1024
ENTRIES_PER_CALL: Final = 512
"""Entries of a queue that one call off the event loop examines."""


@dataclass(slots=True)
class RecoveredTransactions:
    """The transactions found at the start that have ended without an op message, and counts.

    Attributes:
        committed: current records of transactions whose message is stored.
        given_up: current records of transactions that were given up.
        replaced: records that a later record of the same transaction replaces.
        open_by_topic: number of open transactions for each topic.
    """

    committed: list[int] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)
    open_by_topic: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _OpenInQueue:
    """Transactions that may be open, for one destination queue.

    Attributes:
        from_position: lowest log position of their half records.
        current: log position of each half record -> queue offset of the transaction's current
            record.
    """

    from_position: int
    current: dict[int, int] = field(default_factory=dict)


class TransactionRecovery:
    """Reads the queues once and reports their state."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        reads: VerifiedReads,
        offload: Offload,
        ledger: Ledger,
        ops: OpProgress,
    ) -> None:
        """Fill `ledger` and `ops` from `store`; `offload` runs reads off the event loop.

        `topics` give the queue that holds a message whose own queue no longer exists.
        """
        self._reader = store.reader
        self._topics = topics
        self._reads = reads
        self._offload = offload
        self._ledger = ledger
        self._ops = ops

    async def run(self, op_offset: int) -> RecoveredTransactions:
        """Read all queues, op messages from `op_offset` on, and return the result.

        Raises:
            CorruptRecordError: a record is damaged, and reads are not configured to skip it.
            OSError: the device fails.
        """
        found = RecoveredTransactions()
        half_end = self._reader.max_offset(TRANS_HALF_TOPIC, HALF_QUEUE)
        await self._read_ops(op_offset)
        halves = await self._read_halves(half_end, found)
        given_up = await self._find_given_up(halves)
        for (topic, queue_id), open_in_queue in self._by_queue(halves).items():
            committed: list[int] = []
            delivery_queue = self._topics.delivery_queue(topic, queue_id)
            for target in {queue_id} if delivery_queue is None else {queue_id, delivery_queue}:
                committed += await self._find_committed(topic, target, open_in_queue)
            found.committed += committed
            current = set(open_in_queue.current.values())
            still_given_up = (current & given_up).difference(committed)
            found.given_up += sorted(still_given_up)
            found.open_by_topic[topic] += len(current) - len(committed) - len(still_given_up)
        return found

    async def _read_ops(self, offset: int) -> None:
        end = self._reader.max_offset(TRANS_OP_HALF_TOPIC, HALF_QUEUE)
        while offset < end:
            records, offset = await self._read(TRANS_OP_HALF_TOPIC, offset)
            for op_offset, record in records:
                try:
                    ended = read_op(record)
                except (MalformedBodyError, MalformedMessageError) as error:
                    log.warning("op_entry.unreadable queue_offset=%d reason=%s", op_offset, error)
                    continue
                self._ops.add(op_offset, ended)
                for half_offset in ended:
                    if half_offset < self._reader.max_offset(TRANS_HALF_TOPIC, HALF_QUEUE):
                        self._ledger.note_ended(half_offset)

    async def _read_halves(self, end: int, found: RecoveredTransactions) -> dict[int, HalfMessage]:
        """Return the records of transactions that may be open, by queue offset."""
        halves: dict[int, HalfMessage] = {}
        ledger = self._ledger
        offset = ledger.next_open(ledger.head, end)
        while offset < end:
            records, next_offset = await self._read(TRANS_HALF_TOPIC, offset)
            for half_offset, record in records:
                if half_offset >= end:
                    break  # stored since the start: counted when it was stored
                if ledger.next_open(half_offset, end) != half_offset:
                    continue
                try:
                    half = read_half(record)
                except MalformedMessageError:
                    continue  # the check rounds log it
                replaced = ledger.note_open(half_offset, half.physical_offset, half.first_offset)
                if replaced is not None:
                    found.replaced.append(replaced)
                halves[half_offset] = half
            offset = ledger.next_open(next_offset, end)
        return halves

    def _by_queue(self, halves: dict[int, HalfMessage]) -> dict[tuple[str, int], _OpenInQueue]:
        """Group the transactions that may be open by destination queue."""
        queues: dict[tuple[str, int], _OpenInQueue] = {}
        for offset, half in halves.items():
            current, _ = self._ledger.current(offset, half.first_offset)
            open_in_queue = queues.setdefault(
                (half.topic, half.queue_id), _OpenInQueue(half.physical_offset)
            )
            open_in_queue.from_position = min(open_in_queue.from_position, half.physical_offset)
            open_in_queue.current[half.physical_offset] = current
        return queues

    async def _read(self, topic: str, offset: int) -> tuple[list[tuple[int, bytes]], int]:
        """Return records with their queue offsets, and the offset to continue from."""
        asked = GetRequest(offset, READ_MESSAGES_MAX, READ_BYTES_MAX, None)
        found = await self._reads.read(topic, HALF_QUEUE, asked)
        offsets = [wanted.queue_offset for wanted in found.plan.expected]
        records = list(zip(offsets, found.records(), strict=True))
        return records, max(offset + 1, found.plan.next_offset)

    async def _find_committed(
        self, topic: str, queue_id: int, open_in_queue: _OpenInQueue
    ) -> list[int]:
        """Return the current records of transactions whose message is in the queue."""
        end = self._reader.max_offset(topic, queue_id)
        at = await self._offload(
            self._first_after, topic, queue_id, open_in_queue.from_position, end
        )
        committed: list[int] = []
        while at < end and len(committed) < len(open_in_queue.current):
            until = min(end, at + ENTRIES_PER_CALL)
            for position in await self._offload(
                self._committed_positions, topic, queue_id, at, until
            ):
                current = open_in_queue.current.get(position)
                if current is not None and current not in committed:
                    committed.append(current)
            at = until
        return committed

    async def _find_given_up(self, halves: dict[int, HalfMessage]) -> set[int]:
        """Return the current records of transactions that have a later given-up copy."""
        current = {
            half.first_offset: half
            for offset, half in halves.items()
            if self._ledger.current(offset, half.first_offset)[0] == offset
        }
        given_up: set[int] = set()
        if not current:
            return given_up
        topic = TRANS_CHECK_MAX_TIME_TOPIC
        position = min(half.physical_offset for half in current.values())
        end = self._reader.max_offset(topic, HALF_QUEUE)
        at = await self._offload(self._first_after, topic, HALF_QUEUE, position, end)
        while at < end:
            records, at = await self._read(topic, at)
            for _, record in records:
                try:
                    copy = read_half(record)
                except MalformedMessageError:
                    continue  # a message of another origin
                if names.TRAN_PREPARED_QUEUE_OFFSET not in copy.properties:
                    continue  # given up by Java's broker, which does not write the property
                found = current.get(copy.first_offset)
                if found is not None and found.physical_offset < copy.physical_offset:
                    given_up.add(found.queue_offset)
        return given_up

    def _first_after(self, topic: str, queue_id: int, position: int, end: int) -> int:
        """Return the first queue offset whose record lies after a log position."""
        low, high = self._reader.min_offset(topic, queue_id), end
        while low < high:
            middle = (low + high) // 2
            entry = self._reader.entry(topic, queue_id, middle)
            if entry is not None and entry.physical_offset > position:
                high = middle
            else:
                low = middle + 1
        return low

    def _committed_positions(self, topic: str, queue_id: int, first: int, until: int) -> list[int]:
        """Return the log positions of half records that committed messages of the queue name."""
        positions = []
        for offset in range(first, until):
            entry = self._reader.entry(topic, queue_id, offset)
            record = None if entry is None else self._reader.read_record(entry.physical_offset)
            if record is None:
                continue
            header = read_record(record, check_crc=False)
            if header.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
                positions.append(header.prepared_transaction_offset)
        return positions

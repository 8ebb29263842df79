"""What a broker must find out at its start: which half messages are open.

    op entries from the op queue's progress on        these have ended
    half records from the half queue's progress on    the others may be open,
    the queues that those are for                     unless their message is there already,
    the queue of those given up                       or a later copy of the half record is

The last two are needed because an op entry follows the commit that it closes, or the copy, after
some seconds; a kill in between leaves a message that is committed, and a transaction that looks
open. RocketMQ asks the producer again then, and its consumers get the message twice; here its
record is found by the place of its half record, which it holds. A copy names the transaction's
first record. What is read of a queue begins where its oldest open half message lies in the log.

All this goes on in the background, off the loop. Until it is done nobody is asked, and ends wait.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from kourou.broker.pulling.checked_reads import CheckedReads
from kourou.broker.topics import Topics
from kourou.broker.transactions.half_messages import HALF_QUEUE, HalfMessage, read_half
from kourou.broker.transactions.ledger import Ledger, OpEntries
from kourou.broker.transactions.op_entries import read_op
from kourou.errors import MalformedBodyError, MalformedMessageError
from kourou.model import properties as names
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from kourou.model.topic import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from kourou.protocol.message_layout import read_record
from kourou.remoting.runtime import Offload
from kourou.store.message_store import Asked, MessageStore

log = logging.getLogger(__name__)

READ_MESSAGES_MAX: Final = 256
READ_BYTES_MAX: Final = 4 * 1024 * 1024
SLICE_ENTRIES: Final = 512
"""Entries of a queue that are looked at by one call off the loop."""


@dataclass(slots=True)
class Found:
    """What was found.

    Attributes:
        committed: records that stand for transactions whose message is stored, and that no op entry
            names.
        given_up: records of transactions that were given up, and that no op entry names.
        replaced: records for which another one stands, and that no op entry names.
        open_by_topic: how many transactions are open for each topic.
    """

    committed: list[int] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)
    open_by_topic: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Open:
    """The open transactions for one queue: place of each half record -> the current one's."""

    from_place: int
    current: dict[int, int] = field(default_factory=dict)


class CatchingUp:
    """Reads the queues once."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        reads: CheckedReads,
        offload: Offload,
        ledger: Ledger,
        ops: OpEntries,
    ) -> None:
        """Tell `ledger` and `ops` what `store` holds; `offload` takes reads off the loop.

        `topics` tell in which queue a message is stored whose own is gone.
        """
        self._store = store
        self._topics = topics
        self._reads = reads
        self._offload = offload
        self._ledger = ledger
        self._ops = ops

    async def run(self, op_offset: int) -> Found:
        """Read everything, op entries from `op_offset` on, and return what was found.

        Raises:
            CorruptRecordError: a record is damaged, and is not to be skipped.
            OSError: the device fails.
        """
        found = Found()
        half_end = self._store.max_offset(TRANS_HALF_TOPIC, HALF_QUEUE)
        await self._read_ops(op_offset)
        halves = await self._read_halves(half_end, found)
        given_up = await self._find_given_up(halves)
        for (topic, queue_id), opened in self._by_queue(halves).items():
            committed: list[int] = []
            takes = self._topics.delivery_queue(topic, queue_id)
            for target in {queue_id} if takes is None else {queue_id, takes}:
                committed += await self._find_committed(topic, target, opened)
            found.committed += committed
            current = set(opened.current.values())
            kept = (current & given_up).difference(committed)
            found.given_up += sorted(kept)
            found.open_by_topic[topic] += len(current) - len(committed) - len(kept)
        return found

    async def _read_ops(self, offset: int) -> None:
        end = self._store.max_offset(TRANS_OP_HALF_TOPIC, HALF_QUEUE)
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
                    if half_offset < self._store.max_offset(TRANS_HALF_TOPIC, HALF_QUEUE):
                        self._ledger.ended_before(half_offset)

    async def _read_halves(self, end: int, found: Found) -> dict[int, HalfMessage]:
        """Return the records of transactions that may be open, by their queue offsets."""
        halves: dict[int, HalfMessage] = {}
        ledger = self._ledger
        offset = ledger.next_open(ledger.head, end)
        while offset < end:
            records, following = await self._read(TRANS_HALF_TOPIC, offset)
            for half_offset, record in records:
                if ledger.next_open(half_offset, end) != half_offset:
                    continue
                try:
                    half = read_half(record)
                except MalformedMessageError:
                    continue  # the rounds of checks say so
                replaced = ledger.found(half_offset, half.physical_offset, half.first_offset)
                if replaced is not None:
                    found.replaced.append(replaced)
                halves[half_offset] = half
            offset = ledger.next_open(following, end)
        return halves

    def _by_queue(self, halves: dict[int, HalfMessage]) -> dict[tuple[str, int], _Open]:
        """Return the transactions that may be open by the queue that they are for."""
        queues: dict[tuple[str, int], _Open] = {}
        for offset, half in halves.items():
            current, _ = self._ledger.current(offset, half.first_offset)
            opened = queues.setdefault((half.topic, half.queue_id), _Open(half.physical_offset))
            opened.from_place = min(opened.from_place, half.physical_offset)
            opened.current[half.physical_offset] = current
        return queues

    async def _read(self, topic: str, offset: int) -> tuple[list[tuple[int, bytes]], int]:
        """Return records with their queue offsets, and where to read on."""
        asked = Asked(offset, READ_MESSAGES_MAX, READ_BYTES_MAX, None)
        found = await self._reads.read(topic, HALF_QUEUE, asked)
        offsets = [wanted.queue_offset for wanted in found.plan.wanted]
        records = list(zip(offsets, found.records(), strict=True))
        return records, max(offset + 1, found.plan.next_offset)

    async def _find_committed(self, topic: str, queue_id: int, opened: _Open) -> list[int]:
        """Return the current records of those transactions whose message is in the queue."""
        end = self._store.max_offset(topic, queue_id)
        at = await self._offload(self._first_behind, topic, queue_id, opened.from_place, end)
        committed: list[int] = []
        while at < end and len(committed) < len(opened.current):
            until = min(end, at + SLICE_ENTRIES)
            for place in await self._offload(self._commits, topic, queue_id, at, until):
                current = opened.current.get(place)
                if current is not None and current not in committed:
                    committed.append(current)
            at = until
        return committed

    async def _find_given_up(self, halves: dict[int, HalfMessage]) -> set[int]:
        """Return the current records of those transactions of which a later copy was kept."""
        current = {
            half.first_offset: half
            for offset, half in halves.items()
            if self._ledger.current(offset, half.first_offset)[0] == offset
        }
        given_up: set[int] = set()
        if not current:
            return given_up
        topic = TRANS_CHECK_MAX_TIME_TOPIC
        place = min(half.physical_offset for half in current.values())
        end = self._store.max_offset(topic, HALF_QUEUE)
        at = await self._offload(self._first_behind, topic, HALF_QUEUE, place, end)
        while at < end:
            records, at = await self._read(topic, at)
            for _, record in records:
                try:
                    copy = read_half(record)
                except MalformedMessageError:
                    continue  # somebody else's
                if names.TRAN_PREPARED_QUEUE_OFFSET not in copy.properties:
                    continue  # Java gave it up
                found = current.get(copy.first_offset)
                if found is not None and found.physical_offset < copy.physical_offset:
                    given_up.add(found.queue_offset)
        return given_up

    def _first_behind(self, topic: str, queue_id: int, place: int, end: int) -> int:
        """Return the first queue offset whose record lies behind a place of the log."""
        low, high = self._store.min_offset(topic, queue_id), end
        while low < high:
            middle = (low + high) // 2
            entry = self._store.entry(topic, queue_id, middle)
            if entry is not None and entry.physical_offset > place:
                high = middle
            else:
                low = middle + 1
        return low

    def _commits(self, topic: str, queue_id: int, first: int, until: int) -> list[int]:
        """Return the half records' places that the committed messages of the queue name."""
        places = []
        for offset in range(first, until):
            entry = self._store.entry(topic, queue_id, offset)
            record = None if entry is None else self._store.read_record(entry.physical_offset)
            if record is None:
                continue
            header = read_record(record, check_crc=False)
            if header.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
                places.append(header.prepared_transaction_offset)
        return places

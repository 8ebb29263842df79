"""Reads of a queue with a property filter: batch by batch until enough messages match.

The filter needs the records, so a read examines many messages that it does not return. It examines
at most as many queue entries as in Java, and so few bytes that the event loop is not blocked. A
read without a match up to then returns the offset to continue from (code 20), and the client pulls
again.

Source: DefaultMessageStore.getMessage with a MessageFilter, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.pulling.long_polling import ArrivedMessage
from kourou.broker.pulling.message_filters import MessageFilter
from kourou.broker.pulling.verified_reads import VerifiedReads
from kourou.errors import DamagedRecordError, MalformedMessageError
from kourou.model.properties import decode_properties
from kourou.protocol.record.keys import message_count
from kourou.protocol.record.read import read_record
from kourou.store.message_store import GetPlan, GetRequest, GetResult, GetStatus, MessageStore

ENTRIES_MAX: Final = 800
"""Limit on queue entries that one read examines: Java's 16,000 bytes of them."""
BYTES_MAX: Final = 1024 * 1024
"""Limit on bytes of records that one read examines; the last batch may exceed it."""
COST_MAX: Final = 200_000
"""Limit on the filtering cost of one read, in units of `MessageFilter.cost`: about 25 ms, in which
no other client is served."""

_BATCH_MESSAGES: Final = 128


class FilteredReads:
    """Reads the queues of one store with filters."""

    def __init__(self, reads: VerifiedReads) -> None:
        self._reads = reads

    def read_resident(
        self, topic: str, queue_id: int, get_request: GetRequest, message_filter: MessageFilter
    ) -> GetResult | None:
        """Return the matches if all records to examine are in memory; None if not."""
        read = _FilteredRead(get_request, message_filter)
        while (run := read.next_batch()) is not None:
            found = self._reads.read_resident(topic, queue_id, run)
            if found is None:
                return read.found() if read.has_matches else None
            read.add_batch(found)
        return read.found()

    async def read(
        self, topic: str, queue_id: int, get_request: GetRequest, message_filter: MessageFilter
    ) -> GetResult:
        """Return the matches; may read from disk, off the event loop.

        Raises:
            DamagedRecordError, CorruptRecordError, OSError: as `VerifiedReads.read`, for what
                records before the first match.
        """
        read = _FilteredRead(get_request, message_filter)
        while (run := read.next_batch()) is not None:
            try:
                found = await self._reads.read(topic, queue_id, run)
            except DamagedRecordError:
                if read.has_matches:
                    break  # the read after the matches reports it
                raise
            read.add_batch(found)
        return read.found()


class _FilteredRead:
    """Progress of one filtered read: matches so far, and limits."""

    def __init__(self, get_request: GetRequest, message_filter: MessageFilter) -> None:
        self._get_request = get_request
        self._filter = message_filter
        self._next_offset = get_request.offset
        self._plan: GetPlan | None = None  # of the last run
        self._is_first = True
        self._examined_bytes = 0
        self._cost = 0
        self._parts: list[bytes] = []
        self._count = 0
        self._size = 0
        self._is_full = False

    @property
    def has_matches(self) -> bool:
        return bool(self._parts)

    def next_batch(self) -> GetRequest | None:
        """Return the next batch to read; None at the end."""
        plan, get_request = self._plan, self._get_request
        run = get_request._replace(
            offset=self._next_offset,
            max_messages=_BATCH_MESSAGES if plan is not None else get_request.max_messages,
            may_match=self._filter.may_match,
        )
        if plan is None:
            return run
        left = ENTRIES_MAX - (self._next_offset - get_request.offset)
        if self._is_full or left <= 0 or self._examined_bytes >= BYTES_MAX:
            return None
        if plan.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
            return None
        return run if self._next_offset < plan.max_offset else None

    def add_batch(self, found: GetResult) -> None:
        """Add the matches of a batch."""
        before = self._next_offset
        self._is_first, self._plan = self._plan is None, found.plan
        self._examined_bytes += len(found.body)
        self._next_offset = found.plan.next_offset
        for record in found.records():
            try:
                header = read_record(record, check_crc=False)
            except MalformedMessageError:
                self._add(record, 1, before)  # consumers report the malformed record
                continue
            text = header.properties(record)
            if self._cost >= COST_MAX:  # not examined: the next read begins with it
                self._is_full = True
                self._next_offset = header.queue_offset
                return
            self._cost += self._filter.cost(len(text))
            if not self._filter.matches(decode_properties(text)):
                continue
            self._add(record, message_count(header.sys_flag, text), header.queue_offset)
            if self._is_full:
                return
        if self._next_offset <= before:
            self._is_full = True  # nothing was examined, nor would the next batch be

    def _add(self, record: bytes, count: int, queue_offset: int) -> None:
        """Add a match; if it does not fit, end the read before it."""
        size = self._size + len(record)
        if self._parts and (
            self._count + count > self._get_request.max_messages
            or size > self._get_request.max_bytes
        ):
            self._is_full = True
            self._next_offset = queue_offset
            return
        self._parts.append(record)
        self._count += count
        self._size = size

    def found(self) -> GetResult:
        """Return the result of the read."""
        plan = self._plan
        assert plan is not None, "a batch was read"
        status = plan.status
        if self._parts:
            status = GetStatus.FOUND
        elif not self._is_first or status is GetStatus.FOUND:
            status = GetStatus.NO_MATCHED_MESSAGE
        plan = GetPlan(status, self._next_offset, plan.min_offset, plan.max_offset, [], self._count)
        return GetResult(plan, b"".join(self._parts))


class ArrivalFilter:
    """Evaluates the filters of held pulls on new messages; reads each message's properties once."""

    def __init__(self, store: MessageStore) -> None:
        self._reader = store.reader
        self._last: tuple[int, dict[str, str]] = (-1, {})

    def is_wanted(self, message_filter: MessageFilter, arrived: ArrivedMessage) -> bool:
        """Return whether the message matches; also True if it cannot be read."""
        properties = self._properties_at(arrived.physical_offset, arrived.size)
        return properties is None or message_filter.matches(properties)

    def _properties_at(self, physical_offset: int, size: int) -> dict[str, str] | None:
        """Return the properties of a written record; None if it cannot be read."""
        if self._last[0] == physical_offset:
            return self._last[1]
        try:
            record = self._reader.written_bytes(physical_offset, size)
            header = read_record(record, check_crc=False)
        except (OSError, MalformedMessageError):
            return None
        properties = decode_properties(header.properties(record))
        self._last = (physical_offset, properties)
        return properties

"""Finds messages by key, unique id or tag: positions from the index, verified by the records.

The index has only hashes, and times in seconds. Each record that it names is read, verified, and
accepted only if it has the topic, the exact key, and a store time in the span. The end of the log
that is not indexed yet is searched too, so that a message just sent is found.

Source: DefaultMessageStore.queryMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from kourou.errors import StoreError
from kourou.protocol.record.read import read_record
from kourou.store.index.index_keys import KeyKind, has_key, is_indexed, key_hash
from kourou.store.index.index_log import LogCursor
from kourou.store.index.key_index import KeyIndex
from kourou.store.log.commitlog import CommitLog

TAIL_BYTES_MAX: Final = 32 * 1024 * 1024
"""Unindexed bytes at the end of the log that a query searches: a tenth of a second."""
_CANDIDATES_MAX: Final = 4096
"""Records read by a query, so that a hash shared by many keys costs some tenths of a second."""
_RECORDS_AT_ONCE: Final = 256
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024 - 64 * 1024
"""Limit of an answer's records: Java's clients close the connection on a frame above 16 MiB."""


class KeyQuery(NamedTuple):
    """A query for messages.

    Attributes:
        messages_max: limit of the returned messages; the newest are returned.
        begin_ms: lowest store time, in epoch milliseconds.
        end_ms: highest store time, in epoch milliseconds.
        deleted_below: records below this log position belong to a deleted topic of the same name.
    """

    topic: str
    key: str
    kind: KeyKind
    messages_max: int
    begin_ms: int
    end_ms: int
    deleted_below: int = 0


class FoundMessages(NamedTuple):
    """The result of a query.

    Attributes:
        records: the stored bytes, in log order.
        index_at_ms: store time of the index's last record.
        index_offset: physical offset of that record.
    """

    records: list[bytes]
    index_at_ms: int
    index_offset: int


ReadRecord = Callable[[int], bytes | None]
"""Returns the verified record at a log position; None if there is none."""


def find_messages(
    query: KeyQuery, index: KeyIndex, log_: CommitLog, until: int, read: ReadRecord
) -> FoundMessages:
    """Return the newest messages with the key, as many as fit into an answer.

    Blocks on the device; runs on any thread.

    Args:
        query: the key, its kind, the span and the limit.
        index: may get more entries meanwhile.
        log_: may grow meanwhile.
        until: only records that end at or below this log position are returned.
        read: reads and verifies a record.

    Raises:
        OSError: a file of the index cannot be read.
    """
    last = index.last_header
    found: dict[int, bytes] = {}
    seen: set[int] = set()
    size = 0
    for offset in _candidates(query, index, log_, until):
        if len(found) >= query.messages_max or len(seen) >= _CANDIDATES_MAX:
            break
        if offset in seen:
            continue
        seen.add(offset)
        record = _verified(query, offset, read)
        if record is None:
            continue
        size += len(record)
        if found and size > _ANSWER_BYTES_MAX:
            break
        found[offset] = record
    records = [found[offset] for offset in sorted(found)]
    return FoundMessages(records, last.end_at_ms, last.end_offset)


def _candidates(query: KeyQuery, index: KeyIndex, log_: CommitLog, until: int) -> Iterator[int]:
    """Yield positions of records that may match, newest first."""
    tail_start = index.position  # read before the search, since the index may advance meanwhile
    yield from reversed(_unindexed_candidates(query, log_, tail_start, until))
    hash_ = key_hash(query.topic, query.key, query.kind)
    yield from index.find(hash_, query.begin_ms, query.end_ms)


def _unindexed_candidates(query: KeyQuery, log_: CommitLog, start: int, until: int) -> list[int]:
    """Return positions of matching records in the part of the log that is not indexed yet."""
    topic, key = query.topic.encode(), query.key.encode()
    cursor = LogCursor(log_, start)
    positions: list[int] = []
    until_read = min(until, max(start, log_.min_position) + TAIL_BYTES_MAX)
    while cursor.position < until_read:
        if not cursor.read(until, may_block=True):
            break
        positions += [
            record.start
            for record in cursor.next_records(until, _RECORDS_AT_ONCE)
            if record.topic == topic
            and query.begin_ms <= record.store_at_ms <= query.end_ms
            and is_indexed(record.sys_flag)
            and has_key(record.properties, key, query.kind)
        ]
    return positions


def _verified(query: KeyQuery, offset: int, read: ReadRecord) -> bytes | None:
    """Return the record at `offset` if it matches the query."""
    if offset < query.deleted_below:
        return None
    data = None
    with suppress(StoreError):  # a damaged record cannot be verified to have the key
        data = read(offset)
    if data is None:
        return None
    record = read_record(data, 0, check_crc=False)
    properties = record.properties(data)
    is_match = (
        record.topic == query.topic
        and query.begin_ms <= record.store_at_ms <= query.end_ms
        and has_key(properties, query.key.encode(), query.kind)
    )
    return data if is_match else None

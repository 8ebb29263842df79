"""Finding messages by key, unique id or tag: places from the index, proven by the records.

The index knows hashes, and times to a second. Each record that it names is read, checked, and taken
only if it has that topic, that very key, and a store time in the span. What the log got since the
index was last brought up is looked through too, so that a message just sent is found.

Source: DefaultMessageStore.queryMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from kourou.errors import StoreError
from kourou.protocol.message_layout import read_record
from kourou.store.index.index_keys import KeyKind, has_key, is_indexed, key_hash
from kourou.store.index.index_log import LogCursor
from kourou.store.index.key_index import KeyIndex
from kourou.store.log.commitlog import CommitLog

TAIL_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of the log behind the index that a query looks through: a tenth of a second."""
_CANDIDATES_MAX: Final = 4096
"""Records that are read, so that a hash that many keys share costs some tenths of a second."""
_RECORDS_AT_ONCE: Final = 256
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024 - 64 * 1024
"""Java's clients close the connection on a frame of more than 16 MiB."""


class KeyQuery(NamedTuple):
    """What is looked for.

    Attributes:
        messages_max: the newest so many.
        begin_ms: store time of the oldest, in epoch milliseconds.
        end_ms: of the newest.
        gone_below: records of the topic below this position of the log are of one deleted before.
    """

    topic: str
    key: str
    kind: KeyKind
    messages_max: int
    begin_ms: int
    end_ms: int
    gone_below: int = 0


class FoundMessages(NamedTuple):
    """What was found.

    Attributes:
        records: as they are stored, in the order of the log.
        index_at_ms: store time of the index's last record.
        index_offset: where that is in the log.
    """

    records: list[bytes]
    index_at_ms: int
    index_offset: int


ReadRecord = Callable[[int], bytes | None]
"""Returns the checked record at a place of the log; None if none is there."""


def find_messages(
    query: KeyQuery, index: KeyIndex, log_: CommitLog, until: int, read: ReadRecord
) -> FoundMessages:
    """Return the newest messages with the key, as many as fit into an answer.

    Waits for the device, on any thread.

    Args:
        query: what is looked for.
        index: which may be followed meanwhile.
        log_: which may grow meanwhile.
        until: records that end at or below count.
        read: how a record is read.

    Raises:
        OSError: a file of the index cannot be read.
    """
    last = index.last_header
    found: dict[int, bytes] = {}
    seen: set[int] = set()
    size = 0
    for offset in _places(query, index, log_, until):
        if len(found) >= query.messages_max or len(seen) >= _CANDIDATES_MAX:
            break
        if offset in seen:
            continue
        seen.add(offset)
        record = _proven(query, offset, read)
        if record is None:
            continue
        size += len(record)
        if found and size > _ANSWER_BYTES_MAX:
            break
        found[offset] = record
    records = [found[offset] for offset in sorted(found)]
    return FoundMessages(records, last.end_at_ms, last.end_offset)


def _places(query: KeyQuery, index: KeyIndex, log_: CommitLog, until: int) -> Iterator[int]:
    """Yield where the message may be, newest first."""
    tail_start = index.position  # before the index is asked: it may move on meanwhile
    yield from reversed(_tail_places(query, log_, tail_start, until))
    hash_ = key_hash(query.topic, query.key, query.kind)
    yield from index.find(hash_, query.begin_ms, query.end_ms)


def _tail_places(query: KeyQuery, log_: CommitLog, start: int, until: int) -> list[int]:
    """Return where records with the key are that the index may not have yet."""
    topic, key = query.topic.encode(), query.key.encode()
    cursor = LogCursor(log_, start)
    places: list[int] = []
    until_read = min(until, max(start, log_.min_position) + TAIL_BYTES_MAX)
    while cursor.position < until_read:
        if not cursor.read(until, may_block=True):
            break
        places += [
            record.start
            for record in cursor.take(until, _RECORDS_AT_ONCE)
            if record.topic == topic
            and query.begin_ms <= record.store_at_ms <= query.end_ms
            and is_indexed(record.sys_flag)
            and has_key(record.properties, key, query.kind)
        ]
    return places


def _proven(query: KeyQuery, offset: int, read: ReadRecord) -> bytes | None:
    """Return the record there if it is one that was asked for."""
    if offset < query.gone_below:
        return None
    data = None
    with suppress(StoreError):  # damaged: it cannot be said to have the key
        data = read(offset)
    if data is None:
        return None
    record = read_record(data, 0, check_crc=False)
    start = record.properties_start
    properties = bytes(data[start : start + record.properties_size])
    is_meant = (
        record.topic == query.topic
        and query.begin_ms <= record.store_at_ms <= query.end_ms
        and has_key(properties, query.key.encode(), query.kind)
    )
    return data if is_meant else None

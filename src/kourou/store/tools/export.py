"""Exports messages of a store as rows, and converts rows back to records.

Exports every valid record that consumers can see, in log order; damage is skipped and reported. A
row contains everything of a message that another store can keep:

    topic, queue_id, queue_offset, store_at_ms, store_host      position and time of storage
    msg_id, tags, keys, properties                              `properties` has the user's own
                                                                properties only
    system_properties                                           all other properties, including id,
                                                                tags and keys; if None, an import
                                                                uses the three fields above
    flag, sys_flag, born_at_ms, born_host, reconsume_times      as stored
    body                                                        bytes, decompressed if possible

Inner batches are split into their messages. A body whose codec is not installed stays compressed,
as `sys_flag` shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, TypedDict

from kourou.decimals import is_decimal
from kourou.disk import Disk
from kourou.errors import CodecMissingError, InvalidMessageError, KourouError, MalformedMessageError
from kourou.model.host import Host, pack_address
from kourou.model.message import MessageExt
from kourou.model.properties import (
    CRC32,
    INNER_MULTI_QUEUE_OFFSET,
    KEYS,
    RESERVED,
    TAGS,
    UNIQ_KEY,
    encode_properties,
)
from kourou.model.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    COMPRESSION_MASK,
    INNER_BATCH,
    NEED_UNWRAP,
    STORE_HOST_V6,
    TRANSACTION_MASK,
)
from kourou.model.topic import is_system_topic
from kourou.protocol.record.decode import decode_messages
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.keys import is_visible
from kourou.protocol.record.layout import RecordHeader
from kourou.store.log.log_walk import LogPiece, PieceKind, Progress, walk_log, with_damage
from kourou.store.paths import COMMITLOG
from kourou.store.state.checkpoint import load_checkpoint
from kourou.store.state.file_sizes import find_sizes, log_files
from kourou.store.state.store_state import StoreStateFile

_STORES_OWN: Final = (CRC32, INNER_MULTI_QUEUE_OFFSET)
"""Properties that the importing store sets itself."""
_UNWRAP_FLAGS: Final = INNER_BATCH | NEED_UNWRAP
_HOST_FLAGS: Final = BORN_HOST_V6 | STORE_HOST_V6


class Row(TypedDict):
    """A message outside of a store."""

    topic: str
    queue_id: int
    queue_offset: int
    store_at_ms: int
    store_host: str
    msg_id: str
    tags: str | None
    keys: list[str]
    properties: dict[str, str]
    system_properties: dict[str, str] | None
    flag: int
    sys_flag: int
    born_at_ms: int
    born_host: str
    reconsume_times: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects messages.

    Attributes:
        topics: messages of these topics; empty: of all except system topics.
        with_system: with empty `topics`, include system topics.
        queue_id: messages of this queue; None: of all queues.
        begin_ms: lowest store time, epoch milliseconds.
        end_ms: highest store time, epoch milliseconds; None: no limit.
    """

    topics: Collection[str] = ()
    with_system: bool = False
    queue_id: int | None = None
    begin_ms: int = 0
    end_ms: int | None = None

    def matches(self, header: RecordHeader) -> bool:
        """Tell whether the record is selected."""
        if self.queue_id is not None and header.queue_id != self.queue_id:
            return False
        if not self.begin_ms <= header.store_at_ms or (
            self.end_ms is not None and header.store_at_ms > self.end_ms
        ):
            return False
        if self.topics:
            return header.topic in self.topics
        return self.with_system or not is_system_topic(header.topic)


def export_messages(
    disk: Disk, wanted: Selection, progress: Progress | None = None, *, live: bool = False
) -> Iterator[Row | LogPiece]:
    """Yield the rows of the selected messages, and damage of the log as pieces.

    Args:
        disk: holds the store.
        wanted: selects the messages.
        progress: called now and then with the progress.
        live: the store may be in use: records that are not known to be synced may be half written,
            and are left out.

    Raises:
        OSError: a directory cannot be read.
    """
    deleted = _deleted_below(disk)
    synced_position = load_checkpoint(disk).synced_position if live else 0
    files = log_files(disk, COMMITLOG)
    pieces = walk_log(disk, files, find_sizes(disk).segment_bytes, progress=progress)
    for piece in with_damage(pieces):
        if 0 < synced_position < piece.end:
            return
        header = piece.header
        if piece.kind is PieceKind.DAMAGE:
            yield piece
        elif (
            header is not None
            and is_visible(header.sys_flag)
            and piece.position >= deleted.get(header.topic, 0)
            and wanted.matches(header)
        ):
            yield from map(to_row, _messages(piece))


def _deleted_below(disk: Disk) -> dict[str, int]:
    try:
        state = StoreStateFile(disk).read()
    except KourouError:
        return {}  # unreadable: export messages of deleted topics rather than omit others
    return state.deleted_topics if state is not None else {}


def _messages(piece: LogPiece) -> list[MessageExt]:
    assert piece.header is not None
    record = piece.header.record(piece.buffer)
    try:
        return decode_messages(record)
    except (CodecMissingError, MalformedMessageError):
        return decode_messages(record, decompress=False)


def to_row(message: MessageExt) -> Row:
    """Return the message as a row."""
    properties = {k: v for k, v in message.properties.items() if k not in _STORES_OWN}
    sys_flag = message.sys_flag & ~_HOST_FLAGS
    if not sys_flag & COMPRESSED:
        sys_flag &= ~(_UNWRAP_FLAGS | COMPRESSION_MASK)
    return Row(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        store_at_ms=message.store_at_ms,
        store_host=_host_text(message.store_host),
        msg_id=message.msg_id,
        tags=message.tags,
        keys=message.keys,
        properties={k: v for k, v in properties.items() if k not in RESERVED},
        system_properties={k: v for k, v in properties.items() if k in RESERVED},
        flag=message.flag,
        sys_flag=sys_flag,
        born_at_ms=message.born_at_ms,
        born_host=_host_text(message.born_host),
        reconsume_times=message.reconsume_times,
        body=message.body,
    )


def to_draft(row: Row) -> RecordDraft:
    """Return the record to store for a row; it is part of no transaction.

    Raises:
        InvalidMessageError: a host is not an address, or a property is not a text.
    """
    return RecordDraft(
        topic=row["topic"].encode(),
        queue_id=row["queue_id"],
        flag=row["flag"],
        sys_flag=row["sys_flag"] & ~TRANSACTION_MASK,
        born_at_ms=row["born_at_ms"],
        born_host=_host(row["born_host"]),
        store_host=_host(row["store_host"]),
        reconsume_times=row["reconsume_times"],
        prepared_transaction_offset=0,
        body=row["body"],
        properties=encode_properties(_properties(row)),
    )


def _properties(row: Row) -> dict[str, str]:
    """Return all properties of a row."""
    system = row["system_properties"]
    if system is None:  # the row is not from an export
        named = {TAGS: row["tags"], KEYS: " ".join(row["keys"]), UNIQ_KEY: row["msg_id"]}
        system = {name: value for name, value in named.items() if value}
    found = system | row["properties"]
    for name in _STORES_OWN:
        found.pop(name, None)
    return found


def _host_text(host: Host) -> str:
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _host(text: str) -> Host:
    address, _, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    if not is_decimal(port, 10):
        raise InvalidMessageError(f"{text!r} must be a host and port, such as 127.0.0.1:10911")
    pack_address(address)
    return address, int(port)

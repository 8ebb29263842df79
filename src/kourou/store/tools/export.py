"""Taking messages out of a store, and what a message looks like outside of one: a row.

Every whole record that readers can see, in the order of the log; damage is stepped over and told.
A row has everything of a message that another store can keep:

    topic, queue_id, queue_offset, store_at_ms, store_host      where and when it was stored
    msg_id, tags, keys, properties                              by their names; properties are the
                                                                user's own
    system_properties                                           all others; id, tag and keys again;
                                                                without them those above count
    flag, sys_flag, born_at_ms, born_host, reconsume_times      as stored
    body                                                        bytes, inflated if they can be

Inner batches are taken apart. A body whose codec is not installed stays compressed, and `sys_flag`
says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, TypedDict

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
from kourou.protocol.message_decoding import decode_messages
from kourou.protocol.message_layout import RecordDraft, RecordHeader
from kourou.store.log.log_walk import LogPiece, Piece, Progress, damage_in, walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.queues.dispatch import is_visible
from kourou.store.state.checkpoint import load_checkpoint
from kourou.store.state.store_sizes import find_sizes, log_files
from kourou.store.state.store_state import StoreStateFile

_STORES_OWN: Final = (CRC32, INNER_MULTI_QUEUE_OFFSET)
"""Properties that a store sets anew."""
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
    """Which messages are wanted.

    Attributes:
        topics: of these; empty: of all but the system's own.
        with_system: the system's own as well.
        queue_id: of this queue of them; None: of all.
        begin_ms: stored then or later.
        end_ms: stored then or before; None: without end.
    """

    topics: Collection[str] = ()
    with_system: bool = False
    queue_id: int | None = None
    begin_ms: int = 0
    end_ms: int | None = None

    def takes(self, header: RecordHeader) -> bool:
        """Tell whether a record is wanted."""
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
    """Return the rows of the messages that are wanted, and the damage on the way, as pieces.

    Args:
        disk: where the store is.
        wanted: which messages.
        progress: told now and then how far this is.
        live: somebody may write to it: what is not known to be synced may be in the middle of a
            write, and is left out.

    Raises:
        OSError: a directory cannot be read.
    """
    deleted = _deleted_below(disk)
    synced_position = load_checkpoint(disk).synced_position if live else 0
    files = log_files(disk, COMMITLOG)
    pieces = walk_log(disk, files, find_sizes(disk).segment_bytes, progress=progress)
    for piece in damage_in(pieces):
        if 0 < synced_position < piece.end:
            return
        header = piece.header
        if piece.kind is Piece.DAMAGE:
            yield piece
        elif (
            header is not None
            and is_visible(header.sys_flag)
            and piece.position >= deleted.get(header.topic, 0)
            and wanted.takes(header)
        ):
            yield from map(to_row, _messages(piece))


def _deleted_below(disk: Disk) -> dict[str, int]:
    try:
        state = StoreStateFile(disk).read()
    except KourouError:
        return {}  # it cannot be read: rather too many messages than too few
    return state.deleted_topics if state is not None else {}


def _messages(piece: LogPiece) -> list[MessageExt]:
    assert piece.header is not None
    start = piece.header.body_start - _head_bytes(piece.header)
    record = piece.buffer[start : start + piece.size]
    try:
        return decode_messages(record)
    except (CodecMissingError, MalformedMessageError):
        return decode_messages(record, decompress=False)


def _head_bytes(header: RecordHeader) -> int:
    """Return how many bytes of the record come before its body."""
    return 80 + len(header.born_address) + len(header.store_address)


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
    """Return what a store takes of a row; what it says of a transaction is over.

    Raises:
        InvalidMessageError: a host is no address, or a property no text.
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
    if system is None:  # not from a store: what it has of them has names of its own
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
    if not (port.isascii() and port.isdecimal() and len(port) <= 10):
        raise InvalidMessageError(f"{text!r} is no host and port, as 127.0.0.1:10911")
    pack_address(address)
    return address, int(port)

"""Decodes any file of a store into rows, for inspection by people.

Damaged files are decoded too: bytes that do not match the layout become a row of their own. Nothing
is changed and nothing is locked, so that it works on a store in use; then the last rows may be half
written.

Source of the layouts: `kourou.store.formats` and `kourou.store.tools.dump_units`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import count
from typing import Any, Final

from kourou.disk import Disk
from kourou.errors import KourouError
from kourou.model.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from kourou.model.sysflag import TRANSACTION_MASK
from kourou.protocol import fastjson
from kourou.store.formats import (
    COPY_AT,
    COPY_BYTES,
    decode_checkpoint,
    decode_checkpoint_copy,
)
from kourou.store.log.log_walk import LogPiece, PieceKind, walk_log
from kourou.store.paths import parse_file_name
from kourou.store.state.config_file import BARE_KEYS_BYTES_MAX
from kourou.store.state.file_sizes import LogFile, detect_sizes, find_sizes
from kourou.store.tools.dump_units import UNIT_LAYOUTS, dump_index, dump_units, dump_units_ext

Row = dict[str, Any]
"""Values of one row by name; all rows of a kind have the same names."""

_TRANSACTIONS: Final = {0x4: "prepared", 0x8: "committed", 0xC: "rolled back"}
_TEXT_BYTES_MAX: Final = 64 * 1024


class FileKind(StrEnum):
    """Kinds of files in a store."""

    LOG = "log"
    QUEUE = "queue"
    BATCH_QUEUE = "batch-queue"
    EXTENSION = "extension"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"
    TEXT = "text"
    TIMER_LOG = "timer-log"
    TIMER_WHEEL = "timer-wheel"
    TIMER_CHECK = "timer-check"


_BY_DIRECTORY: Final = {
    "commitlog": FileKind.LOG,
    "consumequeue": FileKind.QUEUE,
    "batchconsumequeue": FileKind.BATCH_QUEUE,
    "consumequeue_ext": FileKind.EXTENSION,
    "index": FileKind.INDEX,
    "timerlog": FileKind.TIMER_LOG,
    "config": FileKind.CONFIG,
}
_BY_NAME: Final = {
    "checkpoint": FileKind.CHECKPOINT,
    "abort": FileKind.TEXT,
    "abort.bak": FileKind.TEXT,
    "lock": FileKind.TEXT,
    "timerwheel": FileKind.TIMER_WHEEL,
    "compaction/position-checkpoint": FileKind.CONFIG,
    "config/timercheck": FileKind.TIMER_CHECK,
}


def kind_of(name: str) -> FileKind | None:
    """Return the kind of a file by its path below the store's root; None if it is unknown."""
    kind = _BY_NAME.get(name)
    return kind if kind is not None else _BY_DIRECTORY.get(name.partition("/")[0])


def dump_file(
    disk: Disk,
    name: str,
    kind: FileKind,
    *,
    start: int = 0,
    stop: int | None = None,
    slots: int | None = None,
) -> Iterator[Row]:
    """Return the rows of a file.

    Args:
        disk: holds the store.
        name: path of the file below the store's root.
        kind: kind of the file.
        start: first row: a log position, a queue offset, or the number of a unit.
        stop: end, excluded, in the same unit as `start`; None: to the end of the file.
        slots: number of slots of an index file; None to use the recorded or guessed number.

    Raises:
        OSError: the file cannot be read.
    """
    if kind is FileKind.LOG:
        return _dump_log(disk, name, start, stop)
    if kind is FileKind.INDEX:
        slots = slots or detect_sizes(disk).get("index_slots")
        return dump_index(disk, name, start, stop, slots)
    if kind is FileKind.EXTENSION:
        return dump_units_ext(disk, name, start, stop)
    if kind in UNIT_LAYOUTS:
        return dump_units(disk, name, UNIT_LAYOUTS[kind], start, stop)
    return _SMALL[kind](disk, name)


def _dump_log(disk: Disk, name: str, start: int, stop: int | None) -> Iterator[Row]:
    size = disk.size(name)
    first = parse_file_name(name.rpartition("/")[2])
    if first is None:
        yield {"what": PieceKind.DAMAGE, "problem": "the name of a log file must be 20 digits"}
        return
    segment_bytes = find_sizes(disk).segment_bytes
    file = LogFile(name, first, size)
    for piece in walk_log(disk, [file], segment_bytes, start=first):
        if stop is not None and piece.position >= stop:
            return
        if piece.end > start:
            yield log_row(piece)


def log_row(piece: LogPiece) -> Row:
    """Return the row of a piece of the log."""
    row: Row = {"position": piece.position, "size": piece.size, "what": str(piece.kind)}
    header = piece.header
    if header is None:
        return {**row, "problem": piece.problem} if piece.problem else row
    properties = decode_properties(header.properties(piece.buffer))
    row |= {
        "topic": header.topic,
        "queue_id": header.queue_id,
        "queue_offset": header.queue_offset,
        "store_at_ms": header.store_at_ms,
        "born_at_ms": header.born_at_ms,
        "msg_id": properties.get(UNIQ_KEY),
        "tags": properties.get(TAGS),
        "keys": properties.get(KEYS, "").split(),
        "body_bytes": header.body_size,
        "flag": header.flag,
        "sys_flag": header.sys_flag,
        "reconsume_times": header.reconsume_times,
        "born_host": f"{header.born_host[0]} {header.born_host[1]}",
        "store_host": f"{header.store_host[0]} {header.store_host[1]}",
        "properties": properties,
    }
    transaction = header.sys_flag & TRANSACTION_MASK
    if transaction:
        row["transaction"] = _TRANSACTIONS[transaction]
        row["prepared_transaction_offset"] = header.prepared_transaction_offset
    return row


def _dump_checkpoint(disk: Disk, name: str) -> Iterator[Row]:
    data = disk.read(name, 0, disk.size(name))
    numbers = decode_checkpoint(data)._asdict()
    for field in ("synced_position", "queue_files", "deleted_files"):
        del numbers[field]  # in the copy only
    yield {"what": "size", "value": len(data)}
    yield from ({"what": field, "value": value} for field, value in numbers.items())
    copy = decode_checkpoint_copy(data[COPY_AT : COPY_AT + COPY_BYTES])
    if copy is not None:
        fields = copy._asdict().items()
        yield from ({"what": f"copy.{field}", "value": value} for field, value in fields)
    elif data[COPY_AT:].strip(b"\0"):
        yield {"what": "copy", "value": "damaged"}


def _dump_text(disk: Disk, name: str) -> Iterator[Row]:
    data = disk.read(name, 0, _TEXT_BYTES_MAX)
    yield {"what": "text", "value": data.decode(errors="replace")}


def _dump_config(disk: Disk, name: str) -> Iterator[Row]:
    data = disk.read(name, 0, disk.size(name))
    try:
        value = fastjson.loads(data, bare_keys_bytes_max=BARE_KEYS_BYTES_MAX)
    except (KourouError, ValueError, RecursionError) as error:
        yield {"what": "damage", "problem": str(error)}
        yield from _dump_text(disk, name)
        return
    if not isinstance(value, dict):
        yield {"what": "value", "value": value}
        return
    for key, inner in value.items():
        if isinstance(inner, dict) and inner and all(isinstance(v, dict) for v in inner.values()):
            yield from ({"what": f"{key}.{one}", "value": v} for one, v in inner.items())
        else:
            yield {"what": str(key), "value": inner}


_TIMER_CHECK_FIELDS: Final = (
    "last_read_at_ms",
    "last_timer_log_position",
    "last_timer_queue_offset",
    "master_timer_queue_offset",
    "state_version",
    "timestamp",
    "counter",
)


def _dump_timer_check(disk: Disk, name: str) -> Iterator[Row]:
    data = disk.read(name, 0, 8 * len(_TIMER_CHECK_FIELDS))
    for at, field in zip(count(0, 8), _TIMER_CHECK_FIELDS, strict=False):
        if at + 8 > len(data):
            yield {"what": "damage", "problem": f"{len(data)} bytes long"}
            return
        yield {"what": field, "value": int.from_bytes(data[at : at + 8], "big", signed=True)}


_SMALL: Final[dict[FileKind, Callable[[Disk, str], Iterator[Row]]]] = {
    FileKind.CHECKPOINT: _dump_checkpoint,
    FileKind.TEXT: _dump_text,
    FileKind.CONFIG: _dump_config,
    FileKind.TIMER_CHECK: _dump_timer_check,
}

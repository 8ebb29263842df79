"""Decodes files that consist of units into rows: queues, extensions, index and timer files.

    file          unit
    queue         physical offset 8, size 4, tags code 8
    batch queue   physical offset 8, size 4, tags code 8, store time 8, first queue offset 8,
                  messages 2, compacted offset 4, 4 unused
    extension     size 2, tags code 8, store time 8, size of the bit map 2, bit map
    index         header 40, slots of 4, entries: key hash 4, physical offset 8, seconds 4,
                  previous entry of the slot 4
    timer log     size 4, previous unit 8, kind 4, written at 8, delay 4, physical offset 8, record
                  size 4, hash of the topic 4, 8 unused
    timer wheel   second 8, first unit 8, last unit 8, messages 4, 4 unused

Source: ConsumeQueue.java, BatchConsumeQueue.java, ConsumeQueueExt.java, IndexHeader.java,
IndexFile.java, TimerLog.java, Slot.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kourou.disk import Disk
from kourou.store.formats import BATCH_ENTRY, BLANK_ENTRY, ENTRY
from kourou.store.paths import parse_file_name

Row = dict[str, Any]

_READ_BYTES: Final = 256 * 1024


class UnitLayout(NamedTuple):
    """Layout of a file's units.

    Attributes:
        unit: format of one unit.
        fields: names of its fields, in order; a field with an empty name is left out.
        number: name of the unit's number in a row.
        counts_from_start: units are numbered from the first file of the log or queue, not from
            the start of this file.
    """

    unit: struct.Struct
    fields: tuple[str, ...]
    number: str
    counts_from_start: bool = True


UNIT_LAYOUTS: Final[dict[str, UnitLayout]] = {
    "queue": UnitLayout(ENTRY, ("physical_offset", "size", "tags_code"), "offset"),
    "batch-queue": UnitLayout(
        BATCH_ENTRY,
        (
            "physical_offset",
            "size",
            "tags_code",
            "store_at_ms",
            "queue_offset",
            "messages",
            "compacted_offset",
            "",
        ),
        "number",
    ),
    "timer-log": UnitLayout(
        struct.Struct(">iqiqiqiiq"),
        (
            "size",
            "previous",
            "kind",
            "written_at_ms",
            "delay_ms",
            "physical_offset",
            "record_size",
            "topic_hash",
            "",
        ),
        "number",
    ),
    "timer-wheel": UnitLayout(
        struct.Struct(">qqqii"), ("second", "first", "last", "messages", ""), "slot", False
    ),
}
"""By kind of file."""

_EXTENSION: Final = struct.Struct(">hqqh")
_EXTENSION_ADDRESS_START: Final = -(1 << 63)
_INDEX_HEADER: Final = struct.Struct(">qqqqii")
_INDEX_FIELDS: Final = (
    "begin_at_ms",
    "end_at_ms",
    "begin_physical_offset",
    "end_physical_offset",
    "used_slots",
    "entries",
)
_INDEX_ENTRY: Final = struct.Struct(">iqii")
_SLOT_BYTES: Final = 4
_SLOTS_DEFAULT: Final = 5_000_000
_SLOTS_PER_ENTRY: Final = 4
"""Java's default ratio of entries to slots."""


def dump_units(
    disk: Disk, name: str, layout: UnitLayout, start: int, stop: int | None
) -> Iterator[Row]:
    """Yield a row for each unit, and one for each run of zeros."""
    unit = layout.unit
    first = parse_file_name(name.rpartition("/")[2]) or 0
    base = first // unit.size if layout.counts_from_start else 0
    yield from _rows(disk, name, layout, 0, base, start, stop)


def _rows(
    disk: Disk, name: str, layout: UnitLayout, at: int, number: int, start: int, stop: int | None
) -> Iterator[Row]:
    """Yield the rows of units; the one at byte `at` has number `number`."""
    unit, size = layout.unit, disk.size(name)
    skipped = min(max(0, start - number), max(0, size - at) // unit.size)
    at, number = at + skipped * unit.size, number + skipped
    zeros = bytes(unit.size)
    unused_from = number
    while stop is None or number < stop:
        data = disk.read(name, at, _READ_BYTES - _READ_BYTES % unit.size)
        for offset in range(0, len(data) - len(data) % unit.size, unit.size):
            if stop is not None and number >= stop:
                break
            one = data[offset : offset + unit.size]
            if one != zeros:
                yield from _unused(layout, unused_from, number)
                yield _row(layout, number, one)
                unused_from = number + 1
            number += 1
        rest = len(data) % unit.size
        at += len(data) - rest
        if len(data) < unit.size or rest:
            break
    yield from _unused(layout, unused_from, number)
    if stop is None and at < size:
        yield {layout.number: number, "what": "damage", "problem": f"{size - at} bytes are no unit"}


def _row(layout: UnitLayout, number: int, data: bytes) -> Row:
    what = "blank" if data == BLANK_ENTRY else "entry"
    values = zip(layout.fields, layout.unit.unpack(data), strict=True)
    return {layout.number: number, "what": what, **{name: value for name, value in values if name}}


def _unused(layout: UnitLayout, start: int, stop: int) -> Iterator[Row]:
    if stop > start:
        yield {layout.number: start, "what": "unused", "count": stop - start}


def dump_units_ext(disk: Disk, name: str, start: int, stop: int | None) -> Iterator[Row]:
    """Yield a row for each unit of an extension file, with the address used in queue entries."""
    size, at = disk.size(name), 0
    first = parse_file_name(name.rpartition("/")[2]) or 0
    while at < size:
        position = first + at
        if stop is not None and position >= stop:
            return
        row: Row = {"position": position, "address": position + _EXTENSION_ADDRESS_START}
        head = disk.read(name, at, _EXTENSION.size)
        unit_size = int.from_bytes(head[:2], "big", signed=True)
        if unit_size == -1:
            yield {**row, "what": "end"}
            return
        if unit_size == 0:
            yield {**row, "what": "unused", "count": size - at}
            return
        if unit_size < _EXTENSION.size or len(head) < _EXTENSION.size or at + unit_size > size:
            yield {**row, "what": "damage", "problem": f"a unit of {unit_size} bytes"}
            return
        _, code, store_at_ms, map_size = _EXTENSION.unpack(head)
        if position >= start:
            bit_map = disk.read(name, at + _EXTENSION.size, max(0, map_size))
            fields = {"tags_code": code, "store_at_ms": store_at_ms, "bit_map": bit_map.hex()}
            yield {**row, "what": "unit", "size": unit_size, **fields}
        at += unit_size


def dump_index(
    disk: Disk, name: str, start: int, stop: int | None, slots: int | None
) -> Iterator[Row]:
    """Yield a row for the header of an index file, and one for each entry."""
    size = disk.size(name)
    head = disk.read(name, 0, _INDEX_HEADER.size)
    if len(head) < _INDEX_HEADER.size:
        yield {"what": "damage", "problem": f"{size} bytes long"}
        return
    header = dict(zip(_INDEX_FIELDS, _INDEX_HEADER.unpack(head), strict=True))
    slots = slots if slots is not None else guess_slots(size)
    entries_at = _INDEX_HEADER.size + slots * _SLOT_BYTES
    yield {"number": None, "what": "header", **header, "slots": slots}
    fields = ("key_hash", "physical_offset", "seconds", "previous")
    layout = UnitLayout(_INDEX_ENTRY, fields, "number")
    for row in _rows(disk, name, layout, entries_at, 0, max(1, start), stop):
        if row["what"] == "entry":
            row["at_ms"] = header["begin_at_ms"] + row["seconds"] * 1000
            if row["number"] >= header["entries"]:
                row["what"] = "behind the header's count"
        yield row


def guess_slots(size: int) -> int:
    """Return the number of slots of an index file of this size, by RocketMQ's default ratio."""
    full = _INDEX_HEADER.size + _SLOTS_DEFAULT * (_SLOT_BYTES + _SLOTS_PER_ENTRY * 20)
    if size == full:
        return _SLOTS_DEFAULT
    return max(0, size - _INDEX_HEADER.size) // (_SLOT_BYTES + _SLOTS_PER_ENTRY * _INDEX_ENTRY.size)

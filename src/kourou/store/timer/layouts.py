"""Layouts of the timer's files: units of the timer log, slots of the wheel, the check file.

Unit of the timer log, 52 bytes, big-endian:

    offset  size  field
    0       4     52
    4       8     previous        byte of the timer log where the slot's unit before begins; -1 none
    12      4     kind            bits: 1 always, 2 to be rolled, 4 takes another message back
    16      8     written_at_ms   when it was written, whole seconds
    24      4     delay_ms        from then to the slot's second; may be negative
    28      8     physical_offset of the message's record in topic rmq_sys_wheel_timer
    36      4     size            of that record
    40      4     topic_hash      Java's hash of the topic that the message is for
    44      8     due_at_ms       when exactly it is due, or to be rolled; Java writes 0 and never
                                  reads it

Where a unit and the 16 bytes of a blank do not fit into the rest of a file, the blank goes there:
bytes left 4, 0 8, BLANK_KIND 4.

Slot of the wheel, 32 bytes: second 8, first unit 8, last unit 8, messages 4 (those that take others
back count less than nothing), 4 unused. The slot of a second is at `second % SLOTS`; one that names
another second is empty.

Check file, 512 bytes and zeros to 4096; Java writes the first 56 and leaves the others:

    0   read_at_ms        slots before this one are done
    8   log_position      of the timer log: units before are on the disk, and in the wheel's file
    16  queue_offset      messages of the timer topic before are in the timer log
    24  the same as 16
    32  data version: state 8, timestamp 8, counter 8
    64  ours: magic 8, scan_from 8 (commit log: all that was delivered of slots from `read_at_ms` on
        lies behind), checksum of bytes 0 to 79, 4. One sector with the above: Java's after ours
        does not fit the checksum.

Source: TimerLog.java, Slot.java, TimerCheckpoint.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kourou.protocol.hashing import crc32

PRECISION_MS: Final = 1000
SLOTS: Final = 2 * 7 * 86_400
SLOT: Final = struct.Struct(">qqqii")
WHEEL_BYTES: Final = SLOTS * SLOT.size

UNIT: Final = struct.Struct(">iqiqiqiiq")
UNIT_BYTES: Final = UNIT.size
BLANK: Final = struct.Struct(">iqi")
BLANK_KIND: Final = 0xCBD43194 - (1 << 32)
KIND_DEFAULT: Final = 1
KIND_ROLL: Final = 2
KIND_DELETE: Final = 4
_KINDS_MAX: Final = 0xF

CHECK_BYTES: Final = 4096
_CHECK: Final = struct.Struct(">7q")
_OURS: Final = struct.Struct(">8sqI")
_OURS_AT: Final = 64
_MAGIC: Final = b"KOUTIMER"
_COVERED: Final = _OURS_AT + 16


class TimerUnit(NamedTuple):
    """One unit of the timer log; see the module's table."""

    previous: int
    kind: int
    written_at_ms: int
    delay_ms: int
    physical_offset: int
    size: int
    topic_hash: int
    due_at_ms: int

    @property
    def second(self) -> int:
        """The second of its slot."""
        return (self.written_at_ms + self.delay_ms) // PRECISION_MS

    @property
    def is_roll(self) -> bool:
        """Whether it is put into the timer topic again when its slot comes."""
        return bool(self.kind & KIND_ROLL)

    @property
    def is_delete(self) -> bool:
        """Whether it takes another message of its slot back."""
        return bool(self.kind & KIND_DELETE) and not self.kind & KIND_ROLL

    @property
    def weight(self) -> int:
        """What it counts among the messages of its slot."""
        return -1 if self.kind & KIND_DELETE else 1


class TimerSlot(NamedTuple):
    """A slot of the wheel that is in use: the ends of its chain of units, and how many count."""

    second: int
    first: int
    last: int
    messages: int


class TimerCheck(NamedTuple):
    """What the check file says; see the module's table.

    Attributes:
        scan_from: None where Java wrote last, or nobody.
    """

    read_at_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    changed_at_ms: int = 0
    counter: int = 0
    scan_from: int | None = None


def encode_unit(unit: TimerUnit) -> bytes:
    """Return the 52 bytes of a unit."""
    return UNIT.pack(UNIT_BYTES, *unit)


def decode_unit(data: bytes | memoryview, at: int = 0) -> TimerUnit | None:
    """Return the unit at byte `at`; None if there is none: a blank, zeros, an end, or damage."""
    if len(data) - at < UNIT_BYTES:
        return None
    size, *fields = UNIT.unpack_from(data, at)
    unit = TimerUnit._make(fields)
    if size != UNIT_BYTES or not 0 < unit.kind <= _KINDS_MAX:
        return None
    if unit.physical_offset < 0 or unit.size <= 0 or unit.previous < -1:
        return None
    return unit


def is_blank(data: bytes | memoryview, at: int = 0) -> bool:
    """Return whether the rest of a file is blank from byte `at` on."""
    return len(data) - at >= BLANK.size and BLANK.unpack_from(data, at)[2] == BLANK_KIND


def encode_check(check: TimerCheck) -> bytes:
    """Return the beginning of a check file; ours too, if `scan_from` is known."""
    head = _CHECK.pack(*check[:7])
    if check.scan_from is None:
        return head
    covered = head.ljust(_OURS_AT, b"\0") + _MAGIC + check.scan_from.to_bytes(8, "big")
    return covered + crc32(covered).to_bytes(4, "big")


def has_bad_note(data: bytes) -> bool:
    """Return whether a check file has our note, and another checksum than it says.

    Java wrote its numbers since; or, if it did not, they are damaged.
    """
    if len(data) < _OURS_AT + _OURS.size:
        return False
    magic, _, checksum = _OURS.unpack_from(data, _OURS_AT)
    return bool(magic == _MAGIC and checksum != crc32(data[:_COVERED]))


def decode_check(data: bytes) -> TimerCheck:
    """Return what a check file says; zeros where it is too short to say anything."""
    if len(data) < _CHECK.size:
        return TimerCheck()
    check = TimerCheck(*_CHECK.unpack_from(data))
    if len(data) < _OURS_AT + _OURS.size:
        return check
    magic, scan_from, checksum = _OURS.unpack_from(data, _OURS_AT)
    if magic != _MAGIC or checksum != crc32(data[:_COVERED]):
        return check
    return check._replace(scan_from=scan_from)

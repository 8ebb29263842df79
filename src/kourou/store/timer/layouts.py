"""Layouts of the timer's files: units of the timer log, slots of the wheel, the check file.

Unit of the timer log, 52 bytes, big-endian:

    offset  size  field
    0       4     52
    4       8     previous        timer log position of the slot's previous unit; -1 for none
    12      4     kind            bits: 1 always, 2 to be rolled, 4 recall of another message
    16      8     written_at_ms   time of writing, whole seconds
    24      4     delay_ms        from then to the slot's second; may be negative
    28      8     physical_offset of the message's record in topic rmq_sys_wheel_timer
    36      4     size            of that record
    40      4     topic_hash      Java's hash of the message's target topic
    44      8     due_at_ms       exact time at which it is due, or to be rolled; Java writes 0 and
                                  never reads it

If a unit and the 16 bytes of a blank do not fit into the rest of a file, a blank is written there:
bytes left 4, 0 8, BLANK_KIND 4.

Slot of the wheel, 32 bytes: second 8, first unit 8, last unit 8, messages 4 (recalls count as -1),
4 unused. The slot of a second is at `second % SLOTS`; a slot that holds another second is empty.

Check file, 512 bytes and zeros to 4096; Java writes the first 56 and leaves the others:

    0   read_at_ms        slots before this one are done
    8   log_position      of the timer log: units before it are durable, also in the wheel's file
    16  queue_offset      messages of the timer topic before it are in the timer log
    24  the same as 16
    32  data version: state 8, timestamp 8, counter 8
    64  Kourou's: magic 8, scan_from 8 (commit log position before all deliveries from slots from
        `read_at_ms` on), checksum of bytes 0 to 79, 4. It lies in one sector with the above. After
        a write by Java the checksum is wrong.
    84  for replicas, see `TimerCheck`: covered_at 8, window_ms 8, exact_from_ms 8, checksum of
        bytes 0 to 107, 4. Files of earlier versions lack it.

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
_KOUROU_PART: Final = struct.Struct(">8sqI")
_KOUROU_PART_AT: Final = 64
_MAGIC: Final = b"KOUTIMER"
_COVERED: Final = _KOUROU_PART_AT + 16
_REPLICA_PART: Final = struct.Struct(">3q")
_REPLICA_PART_AT: Final = _KOUROU_PART_AT + _KOUROU_PART.size
_REPLICA_END: Final = _REPLICA_PART_AT + _REPLICA_PART.size


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
        """The second of the unit's slot."""
        return (self.written_at_ms + self.delay_ms) // PRECISION_MS

    @property
    def is_roll(self) -> bool:
        """True if the message is stored in the timer topic again when its slot is due."""
        return bool(self.kind & KIND_ROLL)

    @property
    def is_delete(self) -> bool:
        """True if it recalls another message of its slot."""
        return bool(self.kind & KIND_DELETE) and not self.kind & KIND_ROLL

    @property
    def weight(self) -> int:
        """Its contribution to the number of messages of its slot."""
        return -1 if self.kind & KIND_DELETE else 1


class TimerSlot(NamedTuple):
    """A used slot of the wheel.

    Attributes:
        second: since the epoch.
        first, last: timer log positions of the first and last unit of the slot's chain.
        messages: the sum of the units' weights.
    """

    second: int
    first: int
    last: int
    messages: int


class TimerCheck(NamedTuple):
    """Contents of the check file; see the module's table.

    Attributes:
        scan_from: None if Java wrote the file last, or it has never been written.
        covered_at: the files are valid for each commit log that agrees up to this position: it has
            the messages before `queue_offset`, and their deliveries from slots that are done. None
            if unknown.
        window_ms: see `choose_slot`; by this the slots were chosen.
        exact_from_ms: messages in slots before this time may be there for other reasons.
    """

    read_at_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    changed_at_ms: int = 0
    counter: int = 0
    scan_from: int | None = None
    covered_at: int | None = None
    window_ms: int = 0
    exact_from_ms: int = 0


def encode_unit(unit: TimerUnit) -> bytes:
    """Return the 52 bytes of a unit."""
    return UNIT.pack(UNIT_BYTES, *unit)


def decode_unit(data: bytes | memoryview, at: int = 0) -> TimerUnit | None:
    """Return the unit at byte `at`; None for a blank, zeros, too few bytes, or damage."""
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
    """Return the beginning of a check file; with Kourou's parts if their values are known."""
    head = _CHECK.pack(*check[:7])
    if check.scan_from is None:
        return head
    covered = head.ljust(_KOUROU_PART_AT, b"\0") + _MAGIC + check.scan_from.to_bytes(8, "big")
    text = covered + crc32(covered).to_bytes(4, "big")
    if check.covered_at is None:
        return text
    text += _REPLICA_PART.pack(check.covered_at, check.window_ms, check.exact_from_ms)
    return text + crc32(text).to_bytes(4, "big")


def has_wrong_checksum(data: bytes) -> bool:
    """Return whether a check file has Kourou's part with a wrong checksum.

    Either Java has written its fields since, or the file is damaged.
    """
    if len(data) < _KOUROU_PART_AT + _KOUROU_PART.size:
        return False
    magic, _, checksum = _KOUROU_PART.unpack_from(data, _KOUROU_PART_AT)
    return bool(magic == _MAGIC and checksum != crc32(data[:_COVERED]))


def decode_check(data: bytes) -> TimerCheck:
    """Return the contents of a check file; zeros if it is too short."""
    if len(data) < _CHECK.size:
        return TimerCheck()
    check = TimerCheck(*_CHECK.unpack_from(data))
    if len(data) < _KOUROU_PART_AT + _KOUROU_PART.size:
        return check
    magic, scan_from, checksum = _KOUROU_PART.unpack_from(data, _KOUROU_PART_AT)
    if magic != _MAGIC or checksum != crc32(data[:_COVERED]):
        return check
    check = check._replace(scan_from=scan_from)
    checksum = int.from_bytes(data[_REPLICA_END : _REPLICA_END + 4], "big")
    if len(data) < _REPLICA_END + 4 or checksum != crc32(data[:_REPLICA_END]):
        return check
    covered_at, window_ms, exact_from_ms = _REPLICA_PART.unpack_from(data, _REPLICA_PART_AT)
    return check._replace(covered_at=covered_at, window_ms=window_ms, exact_from_ms=exact_from_ms)

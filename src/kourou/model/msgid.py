"""Message ids: the offset message id, made of a storage position, and the producer's unique id.

    offset message id    address (4 or 16 bytes), port int32, physical offset int64
    unique id            address (4 or 16 bytes), low 16 bits of the process id, salt (4 bytes),
                         milliseconds since the month began (32 bits unsigned), counter (16 bits)

Both are big-endian and written as upper-case hexadecimal, 32 characters with an IPv4 address and 56
with an IPv6 one.

Source: MessageDecoder.createMessageId, UtilAll, MessageClientIDSetter.java.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from kourou.errors import InvalidMessageError
from kourou.model.host import Host, pack_address, unpack_address

_PORT_AND_OFFSET: Final = struct.Struct(">iq")
_PID: Final = struct.Struct(">H")
_PID_AND_SALT: Final = struct.Struct(">HI")
_TIME_AND_COUNTER: Final = struct.Struct(">IH")
_TEXT_SIZES: Final = (32, 56)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def encode_offset_msg_id(host: Host, physical_offset: int) -> str:
    """Return the id of the message at a physical offset of the broker at `host`."""
    address, port = host
    return (pack_address(address) + _PORT_AND_OFFSET.pack(port, physical_offset)).hex().upper()


def decode_offset_msg_id(text: str) -> tuple[Host, int]:
    """Return the broker's host and the physical offset of an offset message id.

    Raises:
        InvalidMessageError: the text is not 32 or 56 hexadecimal characters.
    """
    packed = _from_hex(text, "offset message id")
    port, physical_offset = _PORT_AND_OFFSET.unpack_from(packed, len(packed) - 12)
    return (unpack_address(packed[:-12]), port), physical_offset


class UniqueId(NamedTuple):
    """The parts of a unique id; `month_ms` counts from the start of an unnamed month."""

    address: str
    pid: int
    salt: int
    month_ms: int
    counter: int


def decode_unique_id(text: str) -> UniqueId:
    """Return the parts of a unique id.

    Raises:
        InvalidMessageError: the text is not 32 or 56 hexadecimal characters.
    """
    packed = _from_hex(text, "unique id")
    pid, salt = _PID_AND_SALT.unpack_from(packed, len(packed) - 12)
    month_ms, counter = _TIME_AND_COUNTER.unpack_from(packed, len(packed) - 6)
    return UniqueId(unpack_address(packed[:-12]), pid, salt, month_ms, counter)


class UniqueIdGenerator:
    """Generates unique ids for one process.

    Two processes differ by address, process id and salt. An id contains neither month nor year.
    Therefore a new salt is drawn for each month, and whenever the clock was set back. With one
    salt, ids repeat only if more than 65,536 are generated in one millisecond. The month begins in
    UTC, in Java in local time: a program that derives the creation time from the id can be off by
    the time zone's offset.

    Args:
        ip: the address of this machine.
        pid: the process id; its low 16 bits are used.
        next_salt: returns a salt of 32 random bits.
    """

    def __init__(self, ip: str, pid: int, next_salt: Callable[[], int]) -> None:
        self._process = (pack_address(ip) + _PID.pack(pid & 0xFFFF)).hex().upper()
        self._next_salt = next_salt
        self._prefix = ""
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._counter = 0
        # The id without its counter; ids of the same millisecond differ only in the counter.
        self._last_ms = -1
        self._last_text = ""

    def next(self, now_ms: int) -> str:
        """Return a new id for the time `now_ms`, in epoch milliseconds."""
        if now_ms != self._last_ms:
            if not self._last_ms <= now_ms < self._month_end_ms:
                self._start_period(now_ms)
            self._last_ms = now_ms
            self._last_text = f"{self._prefix}{now_ms - self._month_start_ms:08X}"
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._last_text}{counter:04X}"

    def _start_period(self, now_ms: int) -> None:
        """Draw a salt for a new month or after a clock step, because the numbers repeat then."""
        self._prefix = f"{self._process}{self._next_salt() & 0xFFFF_FFFF:08X}"
        now = _EPOCH + timedelta(milliseconds=now_ms)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        # 32 days after the first of a month lies in the next month.
        end = (start + timedelta(days=32)).replace(day=1)
        self._month_start_ms = (start - _EPOCH) // _MILLISECOND
        self._month_end_ms = (end - _EPOCH) // _MILLISECOND


def _from_hex(text: str, kind: str) -> bytes:
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        packed = b""
    # bytes.fromhex skips blanks, so the length of the text is checked as well.
    if len(text) not in _TEXT_SIZES or len(packed) * 2 != len(text):
        raise InvalidMessageError(
            f"{text!r} is not a valid {kind}: expected 32 or 56 hexadecimal characters"
        )
    return packed

"""Conversion between milliseconds and protobuf's timestamps and durations.

Source: Timestamps.java and Durations.java of protobuf-java-util, as RocketMQ's proxy uses them:
values out of their range fail the call.
"""

from __future__ import annotations

from typing import Final

from kourou.errors import CallRefusedError
from kourou.proxy.pb.v2 import Code
from kourou.proxy.pb.wire import Duration, Timestamp

_SECONDS_MIN: Final = -62_135_596_800
"""Year 1."""
SECONDS_MAX: Final = 253_402_300_799
"""End of year 9999."""
_DURATION_SECONDS_MAX: Final = 315_576_000_000
"""10,000 years."""
NANOS_MAX: Final = 999_999_999
_NANOS_OF_MS: Final = 1_000_000


def timestamp(ms: int) -> Timestamp:
    """Return a time given in epoch milliseconds."""
    seconds, rest = divmod(ms, 1_000)
    return Timestamp(seconds=seconds, nanos=rest * _NANOS_OF_MS)


def fill_timestamp(target: Timestamp, ms: int) -> None:
    """Set a field of a message to a time given in epoch milliseconds."""
    target.seconds, rest = divmod(ms, 1_000)
    target.nanos = rest * _NANOS_OF_MS


def duration(ms: int) -> Duration:
    """Return a duration given in milliseconds, 0 or more."""
    seconds, rest = divmod(ms, 1_000)
    return Duration(seconds=seconds, nanos=rest * _NANOS_OF_MS)


def is_timestamp(value: Timestamp) -> bool:
    """Return whether a timestamp is within the years 1 to 9999."""
    return _SECONDS_MIN <= value.seconds <= SECONDS_MAX and 0 <= value.nanos <= NANOS_MAX


def timestamp_ms(value: Timestamp) -> int:
    """Return epoch milliseconds, rounded down.

    Raises:
        CallRefusedError: the timestamp is out of range.
    """
    if not is_timestamp(value):
        raise CallRefusedError(
            Code.INTERNAL_SERVER_ERROR,
            f"timestamp of {value.seconds} s and {value.nanos} ns is invalid: it must lie in the "
            "years 1 to 9999",
        )
    return value.seconds * 1_000 + value.nanos // _NANOS_OF_MS


def duration_ms(value: Duration) -> int:
    """Return milliseconds, rounded toward 0.

    Raises:
        CallRefusedError: the duration is out of range, or its parts have different signs.
    """
    seconds, nanos = value.seconds, value.nanos
    is_valid = abs(seconds) <= _DURATION_SECONDS_MAX and abs(nanos) <= NANOS_MAX
    if not is_valid or seconds * nanos < 0:
        raise CallRefusedError(
            Code.INTERNAL_SERVER_ERROR,
            f"duration of {seconds} s and {nanos} ns is invalid: it must be at most 10,000 years, "
            "with parts of one sign",
        )
    part_ms = abs(nanos) // _NANOS_OF_MS
    return seconds * 1_000 + (part_ms if nanos >= 0 else -part_ms)

"""Reads the timer's check file and wheel from disk, including Java's snapshots of the wheel.

Source: TimerWheel.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kourou.decimals import is_decimal
from kourou.disk import Disk
from kourou.store.timer.layouts import (
    CHECK_BYTES,
    SLOT,
    TimerCheck,
    decode_check,
    has_wrong_checksum,
)
from kourou.store.timer.wheel import PAGE_BYTES, TimerWheel

TIMER_WHEEL: Final = "timerwheel"
TIMER_CHECK: Final = "config/timercheck"
_READ_BYTES: Final = 256 * PAGE_BYTES
_ZEROS: Final = bytes(PAGE_BYTES)
_SECONDS_MAX: Final = 3_000_000_000
"""Greater slot times are in units below a second: this is the year 2065 in seconds, but half
seconds since 1970 have exceeded it since 2017."""
_SNAPSHOT: Final = f"{TIMER_WHEEL}."


def read_check(disk: Disk) -> TimerCheck:
    """Return the contents of a store's check file; zeros if there is none.

    Raises:
        OSError: the file cannot be read.
    """
    if not disk.exists(TIMER_CHECK):
        return TimerCheck()
    return decode_check(disk.read(TIMER_CHECK, 0, CHECK_BYTES))


def is_check_damaged(disk: Disk) -> bool:
    """Return whether the check file is damaged; only valid if Kourou had the store open last.

    Raises:
        OSError: the file cannot be read.
    """
    return disk.exists(TIMER_CHECK) and has_wrong_checksum(disk.read(TIMER_CHECK, 0, CHECK_BYTES))


def newest_wheel(disk: Disk, log_position: int) -> tuple[str, int]:
    """Return the wheel's file, and the timer log position that it covers.

    Java may write snapshots instead (`timerWheelSnapshotFlush`), whose names contain the position.

    Args:
        disk: holds the store.
        log_position: the position in the check file, for a wheel that is no snapshot.
    """
    found = [name for name in disk.list("") if name.startswith(_SNAPSHOT)]
    positions = [int(end) for name in found if is_decimal(end := name.removeprefix(_SNAPSHOT))]
    if not positions:
        return TIMER_WHEEL, log_position
    return f"{_SNAPSHOT}{max(positions)}", max(positions)


def has_finer_slots(disk: Disk) -> bool:
    """Return whether a wheel of Java has slots of half, a fifth or a tenth of a second.

    Java's `timerPrecisionMs` sets this; the slots then contain times in such units since 1970.

    Raises:
        OSError: the wheel cannot be read.
    """
    name, _ = newest_wheel(disk, 0)
    if not disk.exists(name):
        return False
    return any(
        second >= _SECONDS_MAX
        for _, page in _pages(disk, name)
        for second, *_ in SLOT.iter_unpack(page[: len(page) - len(page) % SLOT.size])
    )


def read_wheel(disk: Disk, name: str, first: int) -> TimerWheel:
    """Read the slots from second `first` on from a wheel's file.

    Raises:
        OSError: the file cannot be read.
    """
    wheel = TimerWheel()
    wheel.load(_pages(disk, name), first)
    return wheel


def is_wheel_file(name: str) -> bool:
    """Return whether a file is the wheel, a snapshot of it by Java, or an unfinished snapshot."""
    rest = name.removeprefix(_SNAPSHOT).removesuffix(".tmp")
    return name == TIMER_WHEEL or (name.startswith(_SNAPSHOT) and is_decimal(rest))


def _pages(disk: Disk, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield (file offset, contents) of the pages of a wheel's file that are not all zeros."""
    at, size = 0, disk.size(name)
    while at < size:
        at = disk.next_data(name, at) & -PAGE_BYTES
        data = disk.read(name, at, _READ_BYTES) if at < size else b""
        for index in range(0, len(data), PAGE_BYTES):
            page = data[index : index + PAGE_BYTES]
            if page != _ZEROS[: len(page)]:
                yield at + index, page
        at += _READ_BYTES

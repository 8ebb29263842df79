"""What lies on the disk of the timer: the check file, the wheel, and Java's snapshots of it.

Source: TimerWheel.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kourou.disk import Disk
from kourou.store.timer.layouts import (
    CHECK_BYTES,
    SLOT,
    TimerCheck,
    decode_check,
    has_bad_note,
)
from kourou.store.timer.wheel import PAGE_BYTES, TimerWheel

TIMER_WHEEL: Final = "timerwheel"
TIMER_CHECK: Final = "config/timercheck"
_READ_BYTES: Final = 256 * PAGE_BYTES
_SECONDS_MAX: Final = 3_000_000_000
"""In the year 2065; half seconds have been more since 1987."""
_SNAPSHOT: Final = f"{TIMER_WHEEL}."


def read_check(disk: Disk) -> TimerCheck:
    """Return what the check file of a store says; zeros if there is none.

    Raises:
        OSError: it cannot be read.
    """
    if not disk.exists(TIMER_CHECK):
        return TimerCheck()
    return decode_check(disk.read(TIMER_CHECK, 0, CHECK_BYTES))


def is_check_damaged(disk: Disk) -> bool:
    """Return whether the check file of a store that Kourou had open last is not what it wrote.

    Raises:
        OSError: it cannot be read.
    """
    return disk.exists(TIMER_CHECK) and has_bad_note(disk.read(TIMER_CHECK, 0, CHECK_BYTES))


def newest_wheel(disk: Disk, log_position: int) -> tuple[str, int]:
    """Return the wheel's file, and up to where it has the timer log.

    Java may write snapshots instead (`timerWheelSnapshotFlush`), which have that in their names.

    Args:
        disk: the store's.
        log_position: what the check file says.
    """
    found = [name for name in disk.list("") if name.startswith(_SNAPSHOT)]
    positions = [int(end) for name in found if (end := name.removeprefix(_SNAPSHOT)).isdecimal()]
    if not positions:
        return TIMER_WHEEL, log_position
    return f"{_SNAPSHOT}{max(positions)}", max(positions)


def has_finer_slots(disk: Disk) -> bool:
    """Return whether a wheel has slots of a tenth of a second, or a fifth, or half of one.

    That is `timerPrecisionMs` of Java: then its slots count such units, since 1970 too.

    Raises:
        OSError: it cannot be read.
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
    """Return the slots from second `first` on of a wheel's file.

    Raises:
        OSError: it cannot be read.
    """
    wheel = TimerWheel()
    wheel.load(_pages(disk, name), first)
    return wheel


def is_wheel_file(name: str) -> bool:
    """Return whether a file is the wheel, one of Java's snapshots of it, or half a snapshot."""
    rest = name.removeprefix(_SNAPSHOT).removesuffix(".tmp")
    return name == TIMER_WHEEL or (name.startswith(_SNAPSHOT) and rest.isdecimal())


def _pages(disk: Disk, name: str) -> Iterator[tuple[int, bytes]]:
    """Return the pages of a wheel's file that are in no hole."""
    at, size = 0, disk.size(name)
    while at < size:
        at = disk.next_data(name, at) & -PAGE_BYTES
        data = disk.read(name, at, _READ_BYTES) if at < size else b""
        for index in range(0, len(data), PAGE_BYTES):
            page = data[index : index + PAGE_BYTES]
            if any(page):
                yield at + index, page
        at += _READ_BYTES

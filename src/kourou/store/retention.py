"""Which segments of the log may go, and when: by their age, never to make room for others.

Pure: times and file dates are arguments. What removes the files is `kourou.store.expiry`.

A run of the cleaner removes expired segments if one of these holds, in this order of telling why:

    HOUR       the local hour is one of `delete_when`
    DISK       the file system is fuller than `disk_max_used_percent`
    REQUEST    somebody asked for it (request 329), in the last 20 runs

A segment is expired when it was last written `file_reserved_hours` ago. The oldest go first, up to
the first that is not expired; the last segment never goes.

Both times come from clocks that may have been wrong. The time is that of a clock that follows a
jump only when it has lasted for `clock_settle_minutes` (`kourou.clock.SettledClock`). Segments are
written one after the other, so a date that is before that of an earlier segment counts as that
one, and a date in the future as that of the next segment whose date is not.

RocketMQ also removes segments that are not expired once the disk is 85 % full. Kourou does not:
it refuses sends while there is too little room, and keeps what it promised to keep.

Source: DefaultMessageStore.CleanCommitLogService, MappedFileQueue.deleteExpiredFileByTime, apache/
rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError

REQUESTED_RUNS: Final = 20
"""Runs of the cleaner for which a request holds."""

_HOUR_MS: Final = 3_600_000
_HOURS_A_DAY: Final = 24
_PERCENT_MIN: Final = 10
_PERCENT_MAX: Final = 95


class Trigger(Enum):
    """Why expired segments are removed now."""

    HOUR = "hour"
    DISK = "disk"
    REQUEST = "request"


@documented
@dataclass(frozen=True, kw_only=True)
class RetentionConfig:
    """How long messages are kept, and when those that are older go.

    Raises:
        ConfigError: a value is out of its range.
    """

    file_reserved_hours: int = field(default=72, metadata={"key": "fileReservedTime", "live": True})
    """Hours after the last write to a commit log file that it may be removed, with all messages in
    it, delayed ones that still wait included. A broker keeps them for longer than its longest delay
    level (`messageDelayLevel`, 2 h); for a store alone, 0 keeps only the last file."""
    delete_when: str = field(default="04", metadata={"live": True})
    """The local hours of the day, as `04;16`, in which expired files are removed."""
    disk_max_used_percent: int = field(
        default=75, metadata={"key": "diskMaxUsedSpaceRatio", "live": True}
    )
    """Above this, 10 to 95, expired files are removed at any hour. Files that are not expired stay,
    however full the disk is."""
    delete_files_max: int = field(default=10, metadata={"key": "deleteFileBatchMax", "live": True})
    """Commit log files that one run removes."""
    delete_pause_ms: int = field(
        default=100, metadata={"key": "deleteCommitLogFilesInterval", "live": True}
    )
    """Between two of them, so that the file system keeps up."""
    clock_settle_minutes: int = field(default=60, metadata={"live": True})
    """How long a jump of the system's clock must last before messages expire by it; 0 believes the
    clock at once. So a clock that is days ahead for a moment removes nothing. After a start the
    time of the last stored message counts until the clock has run evenly for so long."""
    clean_interval_ms: int = field(default=10_000, metadata={"key": "cleanResourceInterval"})
    """How often it is looked for expired files; for the first time a minute after the start."""

    def __post_init__(self) -> None:
        for name, least in (
            ("file_reserved_hours", 0),
            ("delete_files_max", 1),
            ("delete_pause_ms", 0),
            ("clock_settle_minutes", 0),
            ("clean_interval_ms", 1),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be {least} at least")
        if not _PERCENT_MIN <= self.disk_max_used_percent <= _PERCENT_MAX:
            raise ConfigError(
                f"disk_max_used_percent is {self.disk_max_used_percent}; it must be {_PERCENT_MIN} "
                f"to {_PERCENT_MAX}"
            )
        _hours(self.delete_when)


def _hours(text: str) -> frozenset[int]:
    """Return the hours of `delete_when`.

    Raises:
        ConfigError: one of them is no hour of the day.
    """
    hours = set()
    for part in text.split(";"):
        digits = part.strip()
        if not (digits.isdecimal() and int(digits) < _HOURS_A_DAY):
            raise ConfigError(
                f"delete_when is {text!r}; it must be hours from 00 to 23, separated by ';'"
            )
        hours.add(int(digits))
    return frozenset(hours)


def trigger(
    config: RetentionConfig, *, hour: int, used_part: float, is_requested: bool
) -> Trigger | None:
    """Return why a run removes expired segments, None if it does not.

    Args:
        config: the hours, and how full the disk may be.
        hour: of the day, local time.
        used_part: of the file system, from 0 to 1; less than 0 where that is not known, which
            counts as full.
        is_requested: somebody asked, and it still holds.
    """
    if hour in _hours(config.delete_when):
        return Trigger.HOUR
    if used_part < 0 or used_part > config.disk_max_used_percent / 100:
        return Trigger.DISK
    return Trigger.REQUEST if is_requested else None


def count_expired(modified_at_ms: Iterable[int], config: RetentionConfig, now_ms: int) -> int:
    """Return how many segments a run removes.

    Args:
        modified_at_ms: when each was last written, oldest segment first, and the last one, which
            stays; not asked for more than is needed.
        config: their life, and how many may go at once.
        now_ms: the time.
    """
    count = 0
    life_ms = config.file_reserved_hours * _HOUR_MS
    for at_ms in _credible(modified_at_ms, now_ms):
        if now_ms < at_ms + life_ms:
            break
        count += 1
        if count == config.delete_files_max:
            break
    return count


def _credible(modified_at_ms: Iterable[int], now_ms: int) -> Iterator[int]:
    """Yield the dates without those in the future, or before an earlier one; see above.

    A date in the future that no other follows is not yielded.
    """
    latest_ms = ahead = 0
    for at_ms in modified_at_ms:
        ahead += 1
        if at_ms <= now_ms:
            latest_ms = max(latest_ms, at_ms)
            yield from repeat(latest_ms, ahead)
            ahead = 0

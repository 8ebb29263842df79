"""Retention rules: selects the log segments to remove, by age and never to free space.

Pure: times and file dates are arguments. `kourou.store.expiry` removes the files.

A run of the cleaner removes expired segments if one of these holds; the first is reported:

    HOUR       the local hour is one of `delete_when`
    DISK       the file system is fuller than `disk_max_used_percent`
    REQUEST    a client requested it (request 329) during the last 20 runs

A segment is expired when it was last written `file_reserved_hours` ago. The oldest are removed
first, up to the first that is not expired; the last segment is never removed.

The current time and the file dates come from clocks that may be wrong. The current time comes from
a clock that follows a jump only after it has lasted for `clock_settle_minutes`
(`kourou.clock.SettledClock`). Segments are written in order, so a date before that of an earlier
segment counts as the earlier segment's date. A date in the future counts as that of the next
segment whose date is not in the future.

RocketMQ also removes segments that are not expired once the disk is 85 % full. Kourou does not: it
refuses sends while free space is short, and keeps messages for the configured time.

Source: DefaultMessageStore.CleanCommitLogService, MappedFileQueue.deleteExpiredFileByTime, apache/
rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from typing import Final

from kourou.decimals import decimal_or
from kourou.documented import documented
from kourou.errors import ConfigError

REQUESTED_RUNS: Final = 20
"""The number of cleaner runs for which a request is valid."""

_HOUR_MS: Final = 3_600_000
_HOURS_A_DAY: Final = 24
_PERCENT_MIN: Final = 10
_PERCENT_MAX: Final = 95


class Trigger(Enum):
    """The condition that starts a removal of expired segments."""

    HOUR = "hour"
    DISK = "disk"
    REQUEST = "request"


@documented
@dataclass(frozen=True, kw_only=True)
class RetentionConfig:
    """The options for how long messages are kept and when expired ones are removed.

    Raises:
        ConfigError: a value is out of its range.
    """

    file_reserved_hours: int = field(default=72, metadata={"key": "fileReservedTime", "live": True})
    """Hours after the last write to a commit log file until it may be removed with all of its
    messages, including delayed messages that are not due yet. A broker requires more than its
    longest delay level (`messageDelayLevel`, 2 h); in a store alone, 0 keeps only the last file."""
    delete_when: str = field(default="04", metadata={"live": True})
    """The local hours of the day in which expired files are removed, such as `04;16`."""
    disk_max_used_percent: int = field(
        default=75, metadata={"key": "diskMaxUsedSpaceRatio", "live": True}
    )
    """The percentage of used disk space, 10 to 95, above which expired files are removed at any
    hour. Files that are not expired stay, however full the disk is."""
    delete_files_max: int = field(default=10, metadata={"key": "deleteFileBatchMax", "live": True})
    """The most commit log files that one run removes."""
    delete_pause_ms: int = field(
        default=100, metadata={"key": "deleteCommitLogFilesInterval", "live": True}
    )
    """The pause between two removals, so that the file system is not overloaded."""
    clock_settle_minutes: int = field(default=60, metadata={"live": True})
    """How long a jump of the system clock must last before messages expire by the new time; 0
    trusts the clock at once. A clock that is briefly days ahead therefore removes nothing. After a
    start the time of the last stored message is used until the clock has run evenly for so long."""
    clean_interval_ms: int = field(default=10_000, metadata={"key": "cleanResourceInterval"})
    """How often the broker looks for expired files; first a minute after the start."""

    def __post_init__(self) -> None:
        for name, minimum in (
            ("file_reserved_hours", 0),
            ("delete_files_max", 1),
            ("delete_pause_ms", 0),
            ("clock_settle_minutes", 0),
            ("clean_interval_ms", 1),
        ):
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {minimum}")
        if not _PERCENT_MIN <= self.disk_max_used_percent <= _PERCENT_MAX:
            raise ConfigError(
                f"disk_max_used_percent is {self.disk_max_used_percent}; it must be {_PERCENT_MIN} "
                f"to {_PERCENT_MAX}"
            )
        _hours(self.delete_when)


def _hours(text: str) -> frozenset[int]:
    """Return the hours of `delete_when`.

    Raises:
        ConfigError: one of them is not an hour of the day.
    """
    hours = set()
    for part in text.split(";"):
        digits = part.strip()
        if not 0 <= decimal_or(digits, -1) < _HOURS_A_DAY:
            raise ConfigError(
                f"delete_when is {text!r}; it must be hours from 00 to 23, separated by ';'"
            )
        hours.add(int(digits))
    return frozenset(hours)


def trigger(
    config: RetentionConfig, *, hour: int, used_part: float, is_requested: bool
) -> Trigger | None:
    """Return the condition by which a run removes expired segments; None if none holds.

    Args:
        config: the hours, and the limit of used disk space.
        hour: the hour of the day, local time.
        used_part: the used part of the file system, from 0 to 1; a negative value means unknown,
            which counts as full.
        is_requested: a client requested a removal, and the request is still valid.
    """
    if hour in _hours(config.delete_when):
        return Trigger.HOUR
    if used_part < 0 or used_part > config.disk_max_used_percent / 100:
        return Trigger.DISK
    return Trigger.REQUEST if is_requested else None


def count_expired(modified_at_ms: Iterable[int], config: RetentionConfig, now_ms: int) -> int:
    """Return how many segments a run removes.

    Args:
        modified_at_ms: the date of the last write to each segment, oldest first, including the last
            segment, which always stays; read only as far as needed.
        config: the retention time, and the limit of one run.
        now_ms: the time.
    """
    count = 0
    life_ms = config.file_reserved_hours * _HOUR_MS
    for at_ms in _corrected(modified_at_ms, now_ms):
        if now_ms < at_ms + life_ms:
            break
        count += 1
        if count == config.delete_files_max:
            break
    return count


def _corrected(modified_at_ms: Iterable[int], now_ms: int) -> Iterator[int]:
    """Yield the dates, corrected by the rules in the module's documentation.

    A date in the future that no valid date follows is not yielded.
    """
    latest_ms = ahead = 0
    for at_ms in modified_at_ms:
        ahead += 1
        if at_ms <= now_ms:
            latest_ms = max(latest_ms, at_ms)
            yield from repeat(latest_ms, ahead)
            ahead = 0

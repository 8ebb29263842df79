"""Retention rules: expired segments and the times of their removal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kourou.errors import ConfigError
from kourou.store.retention import RetentionConfig, Trigger, count_expired, trigger

HOUR_MS = 3_600_000
CONFIG = RetentionConfig(delete_when="04;16")


@pytest.mark.parametrize(
    ("hour", "used_part", "is_requested", "expected"),
    [
        (4, 0.1, False, Trigger.HOUR),
        (16, 0.9, True, Trigger.HOUR),
        (5, 0.75, False, None),
        (5, 0.76, True, Trigger.DISK),
        (5, -1.0, False, Trigger.DISK),
        (5, 0.1, True, Trigger.REQUEST),
        (0, 0.1, False, None),
    ],
)
def test_files_are_removed_at_the_hour_on_a_full_disk_or_on_request(
    hour: int, used_part: float, *, is_requested: bool, expected: Trigger | None
) -> None:
    assert trigger(CONFIG, hour=hour, used_part=used_part, is_requested=is_requested) is expected


def test_a_file_expires_when_its_last_write_is_old_enough() -> None:
    now_ms = 1_000 * HOUR_MS
    just = now_ms - 72 * HOUR_MS

    assert count_expired([just], CONFIG, now_ms) == 1
    assert count_expired([just + 1], CONFIG, now_ms) == 0


def test_the_first_file_that_is_not_expired_ends_a_run() -> None:
    assert count_expired([0, 0, 5 * HOUR_MS, 0], CONFIG, 73 * HOUR_MS) == 2


def test_a_run_reads_no_more_dates_than_it_removes_files() -> None:
    asked: list[int] = []

    def dates() -> Iterator[int]:
        for number in range(100):
            asked.append(number)
            yield 0

    assert count_expired(dates(), CONFIG, 1_000 * HOUR_MS) == 10
    assert len(asked) == 10


def test_a_file_dated_in_the_future_expires_with_the_next_one_that_is_not() -> None:
    ahead = 500 * HOUR_MS
    dates = [0, ahead, ahead + 1, 2 * HOUR_MS, 70 * HOUR_MS]
    assert count_expired(dates, CONFIG, 73 * HOUR_MS) == 1
    assert count_expired(dates, CONFIG, 74 * HOUR_MS) == 4
    assert count_expired([0, ahead], CONFIG, 74 * HOUR_MS) == 1


def test_a_file_dated_before_an_earlier_one_counts_as_that_one() -> None:
    dates = [0, 10 * HOUR_MS, 0, 11 * HOUR_MS]
    assert count_expired(dates, CONFIG, 81 * HOUR_MS) == 1
    assert count_expired(dates, CONFIG, 82 * HOUR_MS) == 3


def test_a_clock_that_stepped_back_removes_nothing() -> None:
    assert count_expired([1_000 * HOUR_MS], CONFIG, 0) == 0


@pytest.mark.parametrize("text", ["", "24", "4.5", "-1", "04,16", "04;", "four", "٣", "1" * 5_000])
def test_invalid_hours_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="hours from 00 to 23"):
        RetentionConfig(delete_when=text)


@pytest.mark.parametrize("percent", [9, 96])
def test_a_disk_limit_out_of_range_is_refused(percent: int) -> None:
    with pytest.raises(ConfigError, match="10 to 95"):
        RetentionConfig(disk_max_used_percent=percent)


def test_numbers_below_their_minimum_are_refused() -> None:
    with pytest.raises(ConfigError, match="file_reserved_hours is -1"):
        RetentionConfig(file_reserved_hours=-1)

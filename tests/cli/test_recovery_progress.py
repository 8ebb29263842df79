"""Tests of the progress of a long recovery: a line on a terminal, else log entries."""

from __future__ import annotations

import io
import logging

import pytest

from kourou.cli.progress import RECOVERY_FIRST_MS, RECOVERY_LOG_INTERVAL_MS, RecoveryProgress

MIB = 1024 * 1024


class Clock:
    def __init__(self) -> None:
        self.at_ms = 1_000

    def now_ms(self) -> int:
        return self.at_ms


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_short_recovery_reports_no_progress(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for stream in (Terminal(), io.StringIO()):
        progress = RecoveryProgress(stream=stream, clock=Clock())
        progress(3 * MIB, 4 * MIB)
        progress.end()

        assert stream.getvalue() == ""
    assert caplog.text == ""


def test_recovery_progress_on_a_terminal_is_one_line_erased_at_the_end() -> None:
    stream, clock = Terminal(), Clock()
    progress = RecoveryProgress(stream=stream, clock=clock)
    progress(1 * MIB, 400 * MIB)
    clock.at_ms += RECOVERY_FIRST_MS
    progress(100 * MIB, 400 * MIB)
    progress.end()

    line, wiped, last = stream.getvalue().split("\r")[1:]
    assert line.startswith("100 of 400 MiB of the log checked")
    assert (wiped.strip(), last) == ("", "")


def test_recovery_progress_without_a_terminal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    progress = RecoveryProgress(stream=io.StringIO(), clock=clock)
    for step_ms in (0, RECOVERY_FIRST_MS, RECOVERY_LOG_INTERVAL_MS - 1, 1):
        clock.at_ms += step_ms
        progress(step_ms, 9 * MIB)

    assert [record.getMessage() for record in caplog.records] == [
        f"store.recovered_in_part bytes=1000 of={9 * MIB}",
        f"store.recovered_in_part bytes=1 of={9 * MIB}",
    ]

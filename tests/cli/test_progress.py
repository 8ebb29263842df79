"""Tests of the progress line."""

from __future__ import annotations

import io

from kourou.cli.progress import FIRST_MS, INTERVAL_MS, Progress


class Clock:
    def __init__(self) -> None:
        self.at_ms = 1_000

    def now_ms(self) -> int:
        return self.at_ms


def test_progress_line_is_overwritten_and_erased_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("messages", 4_000, stream=stream, clock=clock, is_shown=True) as progress:
        progress.advance(500)
        assert stream.getvalue() == ""
        clock.at_ms += FIRST_MS
        progress.advance(500)
        progress.advance(500)
        clock.at_ms += INTERVAL_MS
        progress.advance(2_500)

    shown = ["1,000 of 4,000 messages (25%)", "4,000 of 4,000 messages (100%)"]
    assert stream.getvalue().split("\r")[1:3] == shown
    assert stream.getvalue().split("\r")[3:] == [" " * len(shown[1]), ""]


def test_total_may_change_later() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("dead letters", 0, stream=stream, clock=clock, is_shown=True) as progress:
        clock.at_ms += FIRST_MS
        progress.reach(64, 256)

    assert stream.getvalue().split("\r")[1] == "64 of 256 dead letters (25%)"


def test_progress_is_hidden_without_a_terminal() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("messages", 10, stream=stream, clock=clock) as progress:
        clock.at_ms += FIRST_MS
        progress.advance()

    assert stream.getvalue() == ""


def test_progress_beyond_the_total_is_100_percent() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("topics", 0, stream=stream, clock=clock, is_shown=True)
    clock.at_ms += FIRST_MS
    progress.advance(3)

    assert stream.getvalue() == "\r3 of 0 topics (100%)"

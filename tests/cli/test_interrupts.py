"""Tests of deferred Ctrl-C: it takes effect between two rows, and in a wait at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from kourou.cli.interrupts import Interrupts


def test_interrupt_waits_for_the_current_row() -> None:
    seen: list[int] = []

    def work(rows: Iterator[int]) -> None:
        for row in rows:
            if row == 2:
                signal.raise_signal(signal.SIGINT)
            seen.append(row)

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        work(interrupts.between(range(5)))

    assert (seen, interrupts.done) == ([0, 1, 2], 3)


def test_interrupt_ends_a_wait_for_a_row_at_once() -> None:
    def rows() -> Iterator[int]:
        yield 1
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        list(interrupts.between(rows()))

    assert interrupts.done == 1


def test_interrupt_after_the_last_row_lets_the_work_finish() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        rows = list(interrupts.between("ab"))
        signal.raise_signal(signal.SIGINT)

    assert (rows, interrupts.done) == (["a", "b"], 2)
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_that_is_blocked_in_the_background_arrives_while_rows_are_read() -> None:
    def rows() -> Iterator[int]:
        yield 1
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
            list(interrupts.between(rows()))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Tests of command output: tables, JSON, and the bounded wait for an answer."""

from __future__ import annotations

import asyncio
import errno
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.cli import output
from kourou.errors import RequestTimeoutError, UsageError


def test_a_table_aligns_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(
        ("TOPIC", "QUEUES", "LAG", "ONLINE"),
        [("orders", 8, 12_345, True), ("a-much-longer-name", 16, None, False)],
    )

    assert capsys.readouterr().out == (
        "TOPIC               QUEUES     LAG  ONLINE\n"
        "orders                   8  12,345  yes\n"
        "a-much-longer-name      16       -  no\n"
    )


def test_words_of_columns_are_below_one_another_if_the_table_is_wider_than_the_terminal() -> None:
    columns = ("TOPIC", "MESSAGES PER SECOND", "LATENCY P50 MS")
    rows = [("orders", 12, 7), ("payments", 3, None)]

    assert output.table_lines(columns, rows, 80) == [
        "TOPIC     MESSAGES PER SECOND  LATENCY P50 MS",
        "orders                     12               7",
        "payments                    3               -",
    ]
    assert output.table_lines(columns, rows, 44) == [
        "          MESSAGES",
        "               PER  LATENCY",
        "TOPIC       SECOND   P50 MS",
        "orders          12        7",
        "payments         3        -",
    ]


def test_columns_that_do_not_fit_into_the_terminal_are_on_further_lines_of_their_row() -> None:
    columns = ("MSG ID", "TOPIC", "CONSUMER GROUP", "RETRIES", "PRODUCED AT", "SEND MS", "TOTAL MS")
    at = "2026-11-27 22:54:39"
    rows = [
        ("7F" * 16, "orders", "billing", 0, at, 3, 12_123),
        ("A1" * 16, "a", "b", 2, None, 4, 5),
    ]

    assert output.table_lines(columns, rows, 80) == [
        "MSG ID                            TOPIC   CONSUMER GROUP  RETRIES",
        "    PRODUCED AT          SEND MS  TOTAL MS",
        "7F7F7F7F7F7F7F7F7F7F7F7F7F7F7F7F  orders  billing               0",
        "    2026-11-27 22:54:39        3    12,123",
        "A1A1A1A1A1A1A1A1A1A1A1A1A1A1A1A1  a       b                     2",
        "    -                          4         5",
    ]


def test_a_sentence_in_a_table_takes_the_rest_of_a_line_and_continues_below() -> None:
    columns = ("FINDING", "TOPIC", "POSITION", "CAUSE")
    cause = "acknowledged at broker-a 0:12, and the queue holds offsets from 0 to below 12"
    rows = [("lost", "orders", "broker-a 0:12", cause), ("duplicate", "orders", "-", "2 times")]

    assert output.table_lines(columns, rows, 80) == [
        "FINDING    TOPIC   POSITION       CAUSE",
        "lost       orders  broker-a 0:12  acknowledged at broker-a 0:12, and the queue",
        "                                  holds offsets from 0 to below 12",
        "duplicate  orders  -              2 times",
    ]


def test_a_name_wider_than_the_terminal_is_not_broken() -> None:
    lines = output.table_lines(("TOPIC", "LAG"), [("t" * 50, 12)], 40)

    assert lines == ["TOPIC", "    LAG", "t" * 50, "     12"]


@given(
    columns=st.integers(1, 6).flatmap(
        lambda count: st.lists(
            st.lists(st.text("ab ", max_size=30), min_size=count, max_size=count), min_size=1
        )
    ),
    width=st.integers(1, 100),
)
def test_a_table_of_any_width_keeps_every_word(columns: list[list[str]], width: int) -> None:
    names, *rows = columns

    folded = "\n".join(output.table_lines(names, rows, width))

    assert sorted(folded.split()) == sorted(
        word for row in columns for word in " ".join(row).split()
    )


def test_an_empty_table_has_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("TOPIC", "QUEUES"), [])

    assert capsys.readouterr().out == "TOPIC  QUEUES\n"


def test_control_characters_in_a_table_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("CLIENT",), [("a\n\x1b[2J",)])

    assert capsys.readouterr().out == "CLIENT\na\\n\\x1b[2J\n"


def test_json_is_one_line_for_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"topic": "Köln", "queues": [1, 2]})

    out = capsys.readouterr().out
    assert out == '{"topic": "Köln", "queues": [1, 2]}\n'
    assert json.loads(out)["queues"] == [1, 2]


def test_an_answer_in_time_is_returned() -> None:
    async def answer() -> int:
        return 5

    assert output.run_bounded(answer(), 1.0, "x") == 5


def test_missing_answer_is_an_error_that_names_the_server() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RequestTimeoutError, match=r"within 0.001 s from 10.0.0.1:9876"):
        output.run_bounded(never(), 0.001, "10.0.0.1:9876")


def test_timeout_error_of_the_request_is_passed_through() -> None:
    async def failing() -> None:
        raise TimeoutError("inner")

    with pytest.raises(TimeoutError, match="inner"):
        output.run_bounded(failing(), 1.0, "x")


def test_failed_write_to_stdout_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sys.stdout", Full())

    with pytest.raises(UsageError, match="cannot write the output: No space left on device"):
        output.print_line("x")

"""Log entries are lines for a terminal and JSON for programs, and cannot be forged by a value."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from kourou import logs
from kourou.logs import JsonFormatter, Level, LineFormatter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(template: str, *args: object, name: str = "kourou.broker.topics") -> logging.LogRecord:
    entry = logging.LogRecord(name, logging.INFO, "", 0, template, args, None)
    entry.created, entry.msecs = 1_735_819_384.125, 125.0
    return entry


def test_json_entry_has_event_and_typed_values() -> None:
    text = JsonFormatter().format(record("topic.created name=%s queues=%d", "orders", 8))

    assert text == (
        '{"at":"2025-01-02T12:03:04.125Z","level":"info","logger":"kourou.broker.topics",'
        '"event":"topic.created","name":"orders","queues":8}'
    )


def test_json_entry_has_literal_values_and_values_with_precision() -> None:
    text = JsonFormatter().format(record("try.failed delay_s=%.3f why=no_route n=%d", 0.25, 3))

    assert text.endswith('"event":"try.failed","delay_s":0.25,"why":"no_route","n":3}')


@pytest.mark.parametrize(
    ("template", "args", "message"),
    [
        ("Task was destroyed but it is pending!", (), "Task was destroyed but it is pending!"),
        ("store.opened after %d ms", (5,), "store.opened after 5 ms"),
        ("topic.created level=%s", ("x",), "topic.created level=x"),
        ("half = %d%%", (50,), "half = 50%"),
    ],
)
def test_json_entry_of_another_form_has_its_text(
    template: str, args: tuple[object, ...], message: str
) -> None:
    entry = json.loads(JsonFormatter().format(record(template, *args)))

    assert entry["message"] == message
    assert entry["level"] == "info"
    assert "event" not in entry


def test_json_entry_is_always_one_line() -> None:
    text = JsonFormatter().format(
        record("peer.closed address=%s why=%s", ("h", 1), OSError("a\nb"))
    )

    assert "\n" not in text
    assert json.loads(text)["why"] == "a\nb"


def test_line_has_time_level_logger_and_event() -> None:
    line = LineFormatter().format(record("topic.created name=%s", "orders"))

    assert line[2] == ":"
    assert line[8:] == ".125 INFO    broker.topics     topic.created name=orders"


def test_value_cannot_forge_a_line_or_control_the_terminal() -> None:
    line = LineFormatter().format(record("topic.refused name=%s", "a\nERROR \x1b[2J\x9b"))

    assert line.endswith("name=a\\x0aERROR \\x1b[2J\\x9b")


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()])
def test_traceback_is_included(formatter: logging.Formatter) -> None:
    entry = record("loop.failed")
    try:
        b"\xff".decode()
    except UnicodeDecodeError:
        entry.exc_info = sys.exc_info()

    text = formatter.format(entry)

    assert "Traceback" in text
    assert "UnicodeDecodeError" in text


def test_terminal_gets_lines_and_pipe_gets_json() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        logs.configure(Level.INFO, stream)
        logging.getLogger("kourou.x").info("broker.started port=%d", 10911)

    assert terminal.getvalue().endswith("broker.started port=10911\n")
    assert json.loads(pipe.getvalue())["port"] == 10911


def test_second_configure_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(Level.INFO, first)
    logs.configure(Level.ERROR, second)
    logging.getLogger("kourou.x").warning("disk.slow")
    logging.getLogger("kourou.x").error("disk.failed")

    assert first.getvalue() == ""
    assert [json.loads(line)["event"] for line in second.getvalue().splitlines()] == ["disk.failed"]


def test_only_warnings_of_other_libraries_are_written() -> None:
    stream = io.StringIO()
    logs.configure(Level.DEBUG, stream)
    logging.getLogger("asyncio").debug("Using selector")
    logging.getLogger("asyncio").warning("slow callback")
    logging.getLogger("kourou.x").debug("frame.decoded")

    assert [json.loads(line)["logger"] for line in stream.getvalue().splitlines()] == [
        "asyncio",
        "kourou.x",
    ]


def test_stderr_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Level.INFO)
    logging.getLogger("kourou.x").info("broker.started")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "broker.started"

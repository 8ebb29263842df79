"""Output of commands: tables for people, JSON for programs; and a bounded wait for an answer."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from kourou.cli.exits import one_line
from kourou.errors import RequestTimeoutError, UsageError

T = TypeVar("T")

_NUMBER: Final = re.compile(r"-?[0-9][0-9,]*(\.[0-9]+)?%?")


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def print_line(text: str) -> None:
    """Print a line on stdout and flush it.

    Raises:
        BrokenPipeError: the reader of a pipe has closed it; the command ends without an error text.
        UsageError: the line cannot be written, for example on a full disk.
    """
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot write the output: {error.strerror or error}") from error


def print_json(value: object) -> None:
    """Print a JSON document, indented for a terminal."""
    indent = 2 if is_terminal() else None
    print_line(json.dumps(value, ensure_ascii=False, indent=indent))


def counted(count: int, noun: str) -> str:
    """Return `1 message` or `12,345 messages`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def time_text(at_ms: int) -> str | None:
    """Return an instant in epoch ms as local time; None for 0, which means never."""
    if at_ms <= 0:
        return None
    return f"{datetime.fromtimestamp(at_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their column names: numbers right-aligned, None as a dash."""
    width = shutil.get_terminal_size().columns if is_terminal() else None
    for line in table_lines(columns, rows, width):
        print_line(line)


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None
) -> list[str]:
    """Return the lines of a table.

    A column is as wide as its widest cell. Nothing is truncated, so that names can be copied.

    Args:
        columns: the column names.
        rows: the cells.
        width: of the terminal, in characters. If the table is wider, the words of the names are
            below one another. None: each name is on one line.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [
        bool(cells) and all(_is_number(row[at]) for row in cells) for at in range(len(columns))
    ]
    headings = [[name] for name in columns]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    if width is not None and sum(widths) + 2 * (len(columns) - 1) > width:
        for at, name in enumerate(columns):
            words = name.split()
            widths[at] = max(map(len, [*words, *(row[at] for row in cells)]), default=0)
            headings[at] = textwrap.wrap(name, max(1, widths[at]))
    height = max(map(len, headings), default=0)
    above = [[""] * (height - len(lines)) + lines for lines in headings]
    return [
        "  ".join(
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in (*zip(*above, strict=True), *cells)
    ]


def run_bounded(answer: Coroutine[Any, Any, T], timeout_s: float, server: str) -> T:
    """Run `answer` in a new event loop and return its result.

    Raises:
        RequestTimeoutError: it took longer than `timeout_s`; the text names `server`.
    """

    async def bounded() -> T:
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                return await answer
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise RequestTimeoutError(f"no answer within {timeout_s:g} s from {server}") from error

    return asyncio.run(bounded())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else one_line(str(value))


def _is_number(text: str) -> bool:
    return text == "-" or _NUMBER.fullmatch(text) is not None

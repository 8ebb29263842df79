"""Output of commands: tables for people, JSON for programs; and a bounded wait for an answer."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final, TypeVar

from kourou.cli.exits import one_line
from kourou.errors import RequestTimeoutError, UsageError

T = TypeVar("T")

_NUMBER: Final = re.compile(r"-?[0-9][0-9,]*(\.[0-9]+)?%?")
_GAP: Final = "  "
"""Separates the columns of a table."""
_INDENT: Final = "    "
"""Begins the second and further lines of a row."""


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
            below one another; if it is still wider, each row has several lines (`_fold`). None:
            each name and each row is on one line.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    headings = [[name] for name in columns]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [list(range(len(columns)))]
    if width is not None and _line_width(widths) > width:
        broken = [
            max(map(len, [*name.split(), *(row[at] for row in cells)]), default=0)
            for at, name in enumerate(columns)
        ]
        if _line_width(broken) <= width:
            widths = broken
            headings = [
                textwrap.wrap(name, max(1, size))
                for name, size in zip(columns, widths, strict=True)
            ]
        else:
            lines, widths = _fold(widths, [columns, *cells], width)
    layout = _Layout(lines, widths, _numeric_columns(len(columns), cells))
    height = max(map(len, headings), default=0)
    above = [[""] * (height - len(names)) + names for names in headings]
    return [
        *layout.lines_of(above),
        *(
            line
            for row in cells
            for line in layout.lines_of(
                [_wrapped(cell, size) for cell, size in zip(row, widths, strict=True)]
            )
        ),
    ]


@dataclass(frozen=True)
class _Layout:
    """Positions of the cells of a row.

    Attributes:
        lines: the columns on each line of a row.
        widths: of the columns.
        is_right: whether a column is aligned to the right.
    """

    lines: Sequence[Sequence[int]]
    widths: Sequence[int]
    is_right: Sequence[bool]

    def lines_of(self, row: Sequence[Sequence[str]]) -> Iterator[str]:
        """Yield the lines of a row whose cells may have several lines."""
        for number, columns in enumerate(self.lines):
            indent = _INDENT if number else ""
            for texts in zip_longest(*(row[at] for at in columns), fillvalue=""):
                placed = (
                    text.rjust(self.widths[at])
                    if self.is_right[at]
                    else text.ljust(self.widths[at])
                    for at, text in zip(columns, texts, strict=True)
                )
                yield (indent + _GAP.join(placed)).rstrip()


def _fold(
    widths: Sequence[int], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[list[int]], list[int]]:
    """Return the columns on each line of a row, and their widths.

    A column that does not fit begins the next line, which is indented. Sentences take the rest of a
    line if that is at least half of it; their words continue below.
    """
    lines: list[list[int]] = [[]]
    folded = list(widths)
    used = 0
    for at, size in enumerate(widths):
        room = width - used - (len(_GAP) if lines[-1] else 0)
        longest = max(len(word) for row in rows for word in row[at].split() or ("",))
        if size > room and (room < width // 2 or longest > room):
            lines.append([])
            used = len(_INDENT)
            room = width - used
        folded[at] = min(size, max(room, longest))
        used = width - room + folded[at]
        lines[-1].append(at)
    return [line for line in lines if line], folded


def _line_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _wrapped(cell: str, width: int) -> list[str]:
    """Return the lines of a cell, which is broken between words only."""
    if len(cell) <= width:
        return [cell]
    return textwrap.wrap(cell, max(1, width), break_long_words=False, break_on_hyphens=False)


def _numeric_columns(count: int, cells: Sequence[Sequence[str]]) -> list[bool]:
    return [bool(cells) and all(_is_number(row[at]) for row in cells) for at in range(count)]


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

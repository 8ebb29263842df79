"""`kourou store dump`: content of a store file, row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kourou.cli import output
from kourou.cli.exits import one_line
from kourou.cli.options import AsJson, StoreFile
from kourou.cli.store_access import instant
from kourou.disk import OsDisk
from kourou.errors import StoreUnusableError, UsageError
from kourou.store.paths import COMMITLOG
from kourou.store.tools.dump import FileKind, Row, dump_file, kind_of

DUMP_HELP: Final = """\
Print the content of FILE of a store, row by row. Damaged files can be read too.

FILE is a segment of the log, a file of a queue, batch queue or queue extension, an index file, the
checkpoint, abort, a config file, or a timer file; or a directory, for all files in it. Data that
does not fit the layout becomes a row with the problem. Nothing is locked: if the store is in use,
the last rows may be incomplete.

--from and --to are bytes of the log, offsets of a queue, or numbers of an index file's entries.
With --json each row is a JSON object on its own line, with more members.

\b
Examples:
  kourou store dump ~/.kourou/store/commitlog --from 1048576 --count 20
  kourou store dump ~/.kourou/store/consumequeue/orders/0 --from 17 --to 18
  kourou store dump ~/.kourou/store/checkpoint
  kourou store dump ~/.kourou/store/commitlog --json | jq 'select(.what == "damage")'
  kourou store dump ./20251121090000000 --kind index
"""

_WIDTH_MAX: Final = 48
_INSTANT_END: Final = "_at_ms"
_LOG_COLUMNS: Final = {
    "position": 14,
    "size": 8,
    "what": 7,
    "topic": 20,
    "queue_id": 8,
    "queue_offset": 12,
    "store_at_ms": 23,
    "tags": 8,
    "body_bytes": 10,
}
_PIECE_COLUMNS: Final = {name: _LOG_COLUMNS[name] for name in ("position", "size", "what")}
_NUMBER_WIDTH: Final = 12


def dump(
    file: StoreFile,
    *,
    start: Annotated[int, typer.Option("--from", metavar="N", min=0, help="First row.")] = 0,
    stop: Annotated[
        int | None, typer.Option("--to", metavar="N", min=0, help="End (exclusive).")
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="End after N rows.")] = None,
    kind: Annotated[
        FileKind | None, typer.Option(help="Kind of FILE, if its path does not show it.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Hash slots of an index file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the rows."""
    file = file.expanduser()
    if not file.exists():
        raise UsageError(f"{file}: no such file or directory")
    root, name = _root_of(file) if kind is None else (file.parent, file.name)
    print_row = _JsonRows() if as_json else _TextRows()
    try:
        with closing(OsDisk(root)) as disk:
            names = [name] if file.is_file() else _files_in(disk, name)
            rows = (
                row
                for one in names
                for row in _rows(disk, one, kind or kind_of(one), start, stop, slots)
            )
            for one in islice(rows, count):
                print_row(one)
    except BrokenPipeError:
        raise  # the reader of stdout has closed the pipe
    except OSError as error:
        raise StoreUnusableError(str(file), error.strerror or str(error)) from error


def _rows(
    disk: OsDisk, name: str, kind: FileKind | None, start: int, stop: int | None, slots: int | None
) -> Iterator[Row]:
    if kind is None:
        yield {"what": "unknown", "problem": f"{name} is not the name of a store file"}
        return
    yield from dump_file(disk, name, kind, start=start, stop=stop, slots=slots)


def _root_of(file: Path) -> tuple[Path, str]:
    """Return the root of the store that contains the file, and the file's name below it.

    Raises:
        UsageError: the path does not show the kind of the file.
    """
    whole = file.absolute()
    for depth, root in enumerate(whole.parents):
        name = "/".join(whole.parts[-depth - 1 :])
        if kind_of(name) is not None:
            return root, name
    if (file / COMMITLOG).is_dir():
        raise UsageError(f"{file} is a whole store: name a file or a directory in it")
    kinds = ", ".join(FileKind)
    raise UsageError(f"{file}: the path does not show the kind of file; use --kind: {kinds}")


def _files_in(disk: OsDisk, name: str) -> list[str]:
    """Return the files in the directory and below it, sorted."""
    found = []
    for inner in disk.list(name):
        path = f"{name}/{inner}"
        found += [path] if Path(disk.root, path).is_file() else _files_in(disk, path)
    return found


class _JsonRows:
    """Prints each row as a JSON object on its own line."""

    def __call__(self, row: Row) -> None:
        output.print_line(json.dumps(row, ensure_ascii=False, default=str))


class _TextRows:
    """Prints rows as text under column names, which are repeated when the columns change."""

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def __call__(self, row: Row) -> None:
        if "value" in row:
            output.print_line(f"{one_line(str(row['what']))}  {_value(row)}")
        elif row.get("what") == "header":
            output.print_line(
                ", ".join(f"{name} {_text(name, value)}" for name, value in row.items())
            )
        else:
            self._print(row)

    def _print(self, row: Row) -> None:
        widths = _columns(row)
        if widths != self._widths and not (
            widths is _PIECE_COLUMNS or {"count", "problem"} & row.keys()
        ):
            self._widths = widths
            self._line({name: name.removesuffix("_ms").upper() for name in widths}, widths)
        notes = [f"{row['count']:,} in a row"] if "count" in row else []
        notes += [one_line(str(row["problem"]))] if "problem" in row else []
        cells = {name: _text(name, row[name]) if name in row else "" for name in widths}
        self._line(cells, widths, *notes)

    def _line(self, cells: Mapping[str, str], widths: Mapping[str, int], *notes: str) -> None:
        padded = [
            cells[name].rjust(width) if width == _NUMBER_WIDTH else cells[name].ljust(width)
            for name, width in widths.items()
        ]
        output.print_line("  ".join([" ".join(padded).rstrip(), *notes]))


def _columns(row: Row) -> dict[str, int]:
    """Return the columns of this kind of row, with their widths."""
    if "position" in row and "address" not in row:
        return _LOG_COLUMNS if "topic" in row else _PIECE_COLUMNS
    names = [name for name in row if name not in ("count", "problem")]
    return {name: 23 if name.endswith(_INSTANT_END) else _NUMBER_WIDTH for name in names}


def _text(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name.endswith(_INSTANT_END) and isinstance(value, int):
        return instant(value) or "-"
    return one_line(str(value))[:_WIDTH_MAX]


def _value(row: Row) -> str:
    value: Any = row["value"]
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, int):
        return _text(str(row["what"]), value)
    return one_line(json.dumps(value, ensure_ascii=False, default=str))

"""`kourou store export` and `import`: messages of a store directory to and from files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from kourou.cli import output
from kourou.cli.exits import FAILED, print_stderr
from kourou.cli.interrupts import Interrupts
from kourou.cli.options import AsJson, Live, StoredSince, StoredUntil, StoreFile, StorePath
from kourou.cli.progress import LogProgress, Progress
from kourou.cli.start_time import Start, parse_span
from kourou.cli.store_access import check_store_directory, open_store_disk
from kourou.cli.store_rows import RowFormat, RowWriter, format_of, read_rows, row_writer
from kourou.clock import SystemClock
from kourou.errors import StoreError, UsageError
from kourou.store.log.log_walk import LogPiece
from kourou.store.tools.export import Row, Selection, export_messages
from kourou.store.tools.import_messages import import_messages

_MIB: Final = 1024 * 1024

EXPORT_HELP: Final = """\
Write the messages of the store in PATH to FILE, as JSON lines or Parquet by its extension.

Messages that consumers can read are written with all their fields, in the order in which they were
stored. Damaged parts of the log are skipped and reported. Bodies are decompressed. A JSON line has
`body` if the body is text, else `body_base64`. FILE - is stdout. System topics are omitted unless
they are named or --all is given.

\b
Examples:
  kourou store export ~/.kourou/store all.jsonl
  kourou store export ~/.kourou/store orders.parquet --topic orders --from -2d
  kourou store export ~/.kourou/store - --topic orders --queue 3 --live | jq .body

Exit codes: 0 exported, 1 exported except for damaged parts, 2 no store in PATH, FILE exists or
cannot be written, or pyarrow is not installed, 3 a broker uses the store, or it cannot be read.
"""

IMPORT_HELP: Final = """\
Append the messages of FILE to the store in PATH, which no broker may use. A missing store is
created.

FILE is a file of `kourou store export`, or JSON lines as `kourou receive` and `kourou message
print` write them; only `topic` and `body` are required. FILE - is stdin, for JSON lines. A message
keeps its topic, queue, id, tag, keys, properties, hosts and times, except that its store time is
never before that of the store's last message. Its offset is the next one of its queue. Missing
topics are created, and a topic with too few queues for its messages gets more read queues. Running
consumers are not notified. If the import is interrupted by Ctrl-C or a crash, the first part of the
messages is stored.

\b
Examples:
  kourou store import ~/.kourou/new-store all.jsonl
  kourou store export ./old - --topic orders | kourou store import ./new -
  kourou store import ~/.kourou/store orders.parquet --json

Exit codes: 0 imported, 2 no FILE, or a message that cannot be stored (those before it are stored),
3 a broker uses the store, or it cannot be written.
"""

_Format = Annotated[
    RowFormat | None,
    typer.Option("--format", help="Format of FILE, if its extension does not show it."),
]


def export_store(
    path: StorePath,
    file: StoreFile,
    *,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be repeated."),
    ] = None,
    queue: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only this queue of each topic.")
    ] = None,
    start: StoredSince = "earliest",
    end: StoredUntil = "now",
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Include system topics.")] = False,
    row_format: _Format = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    live: Live = False,
) -> None:
    """Write the messages, and print their number."""
    check_store_directory(path.expanduser())
    chosen = format_of(file, row_format)
    selection = _selection(topics or (), queue, start, end, with_system=show_all)
    if str(file) != "-" and file.exists() and not force:
        raise UsageError(f"{file} exists: use --force to replace it")
    with (
        open_store_disk(path, lock=not live, may_be_live=True) as disk,
        LogProgress("read", is_shown=str(file) != "-") as progress,
        _new_file(file) as opened,
    ):
        found = export_messages(disk, selection, progress, live=live)
        messages, damaged, missing = _write(found, row_writer(opened, chosen), file, topics or ())
    target = "stdout" if str(file) == "-" else file
    print_stderr(f"{target}: {output.counted(messages, 'message')}")
    for topic in sorted(missing):
        print_stderr(f"note: no messages of topic {topic}; `kourou store info {path}` lists topics")
    if damaged:
        raise typer.Exit(FAILED)


def _selection(
    topics: Iterable[str], queue: int | None, start: str, end: str, *, with_system: bool
) -> Selection:
    """Return the selection of the options.

    Raises:
        UsageError: as `parse_span`.
    """
    begin, end_ms = parse_span(start, end, SystemClock().now_ms())
    return Selection(
        topics=frozenset(topics),
        with_system=with_system,
        queue_id=queue,
        begin_ms=0 if isinstance(begin, Start) else begin,
        end_ms=end_ms,
    )


def _write(
    found: Iterable[Row | LogPiece], writer: RowWriter, file: Path, topics: Iterable[str]
) -> tuple[int, int, set[str]]:
    """Write all rows.

    Returns:
        The number of rows, the number of damaged parts of the log, and the topics without a row.

    Raises:
        UsageError: the file cannot be written.
    """
    messages = damaged = 0
    missing = set(topics)
    write_errors = _WriteErrors(file)
    for one in found:
        if isinstance(one, LogPiece):
            damaged += 1
            at = f"byte {one.position:,}: {one.size:,} bytes"
            print_stderr(f"warning: the log is damaged at {at}: {one.problem}")
        else:
            with write_errors:
                writer.write(one)
            messages += 1
            missing.discard(one["topic"])
    with write_errors:
        writer.finish()
    return messages, damaged, missing


def import_store(
    path: StorePath, file: StoreFile, *, row_format: _Format = None, as_json: AsJson = False
) -> None:
    """Append the messages, and print their number."""
    chosen = format_of(file, row_format)
    with (
        _opened(file, chosen) as (opened, size),
        open_store_disk(path, lock=False, may_be_new=True) as disk,
        Interrupts() as interrupts,
        # The size of a pipe is unknown, and the program that fills it may show its own progress.
        Progress(
            f"MiB of {file.name}", size // _MIB, is_shown=size > 0 and sys.stderr.isatty()
        ) as line,
    ):
        rows = interrupts.between(read_rows(opened, chosen, _in_mib(line)))
        try:
            done = import_messages(disk, rows, SystemClock().now_ms(), pid=os.getpid())
        except KeyboardInterrupt:
            stored = output.counted(interrupts.done, "message")
            print_stderr(f"interrupted: the first {stored} stored")
            raise
        except StoreError:
            if interrupts.done:
                print_stderr(
                    f"failed: the first messages are stored; see `kourou store info {path}`"
                )
            raise
    if as_json:
        output.print_json(
            {
                "store": str(path),
                "messages": done.messages,
                "topics": sorted(done.queues),
                "new_topics": done.new_topics,
                "grown_topics": done.grown_topics,
            }
        )
        return
    new = f"; new: {' '.join(done.new_topics)}" if done.new_topics else ""
    output.print_line(
        f"{path}: {output.counted(done.messages, 'message')} of "
        f"{output.counted(len(done.queues), 'topic')} stored{new}"
    )


@contextmanager
def _opened(path: Path, row_format: RowFormat) -> Iterator[tuple[BinaryIO, int]]:
    """Yield a file to read (stdin for `-`) and its size, 0 if unknown.

    Raises:
        UsageError: the file cannot be read, or the format does not allow stdin.
    """
    if str(path) == "-":
        if row_format is RowFormat.PARQUET:
            raise UsageError("Parquet cannot be read from stdin: name a file")
        yield sys.stdin.buffer, 0
        return
    path = path.expanduser()
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    with file:
        yield file, path.stat().st_size


def _in_mib(line: Progress) -> Callable[[int], None]:
    """Return a function that takes bytes read and advances the progress line in whole MiB."""
    seen = 0

    def advance(count: int) -> None:
        nonlocal seen
        before, seen = seen // _MIB, seen + count
        line.advance(seen // _MIB - before)

    return advance


class _WriteErrors:
    """Context manager that reports a failed write to the output file, not as a store error."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            target = "stdout" if str(self._file) == "-" else self._file
            raise UsageError(f"{target} cannot be written: {error.strerror or error}") from error


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write; it is renamed to `path` once it is complete.

    Raises:
        UsageError: the file cannot be created or completed.
    """
    if str(path) == "-":
        yield sys.stdout.buffer
        return
    path = path.expanduser()
    part = path.with_name(f"{path.name}.part")
    write_errors = _WriteErrors(path)
    try:
        with write_errors:
            file = part.open("wb")
        try:
            yield file
        finally:
            with write_errors:
                file.close()
        with write_errors:
            part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)

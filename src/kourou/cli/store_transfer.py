"""`kourou store export` and `import`: messages out of a store directory, and into one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from kourou.cli import output
from kourou.cli.exits import FAILED, say
from kourou.cli.interrupts import Interrupts
from kourou.cli.options import AsJson
from kourou.cli.progress import Progress
from kourou.cli.start_time import Start, parse_span
from kourou.cli.store_place import Live, LogProgress, StorePath, check_store_at, store_at
from kourou.cli.store_rows import RowFormat, RowWriter, format_of, read_rows, row_writer
from kourou.clock import SystemClock
from kourou.errors import StoreError, UsageError
from kourou.store.log.log_walk import LogPiece
from kourou.store.tools.export import Row, Selection, export_messages
from kourou.store.tools.import_messages import import_messages

_MIB: Final = 1024 * 1024

EXPORT_HELP: Final = """\
Write the messages of the store in PATH to FILE: JSON lines or Parquet, as its ending says.

Each message that readers can see comes with all that is known of it, in the order in which they
were stored; damaged parts of the log are stepped over, and told. Bodies are inflated. A JSON line
has `body` where that is text, else `body_base64`. FILE - is stdout. Topics of the system are left
out unless they are named, or --all is given.

\b
Examples:
  kourou store export ~/.kourou/store all.jsonl
  kourou store export ~/.kourou/store orders.parquet --topic orders --from -2d
  kourou store export ~/.kourou/store - --topic orders --queue 3 --live | jq .body

Exit codes: 0 exported, 1 the same but for damaged parts, 2 no store there, FILE exists or cannot be
written, or pyarrow is not installed, 3 a broker uses the store, or it cannot be read.
"""

IMPORT_HELP: Final = """\
Append the messages of FILE to the store in PATH, which no broker uses; a new one is made.

FILE is what `kourou store export` wrote, or JSON lines as `kourou receive` and `kourou message
print` write them; `topic` and `body` are enough. FILE - is stdin, for JSON lines. Topic, queue, id,
tag, keys, properties, hosts and times stay, but a message is never stored earlier than the store's
last. Its offset is the next of its queue. Topics that the store does not know are added, and those
with fewer queues than their messages need get more to read from. Nothing is told to consumers that
are connected elsewhere: it is a store, not a broker. Cut short, by Ctrl-C or a crash, it leaves a
beginning of the messages.

\b
Examples:
  kourou store import ~/.kourou/new-store all.jsonl
  kourou store export ./old - --topic orders | kourou store import ./new -
  kourou store import ~/.kourou/store orders.parquet --json

Exit codes: 0 imported, 2 a message that cannot be stored: those before it are, or no FILE, 3 a
broker uses the store, or it cannot be written.
"""

_File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]
_Format = Annotated[
    RowFormat | None, typer.Option("--format", help="Of FILE, where its ending does not tell.")
]


def export_store(
    path: StorePath,
    file: _File,
    *,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only this one; may be repeated."),
    ] = None,
    queue: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only this queue of them.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="Stored then or later.")
    ] = "earliest",
    end: Annotated[
        str, typer.Option("--to", metavar="WHEN", help="Stored then or before.")
    ] = "now",
    show_all: Annotated[bool, typer.Option("--all", "-a", help="System topics too.")] = False,
    row_format: _Format = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    live: Live = False,
) -> None:
    """Write the messages, and tell how many there were."""
    check_store_at(path.expanduser())
    chosen = format_of(file, row_format)
    begin, end_ms = parse_span(start, end, SystemClock().now_ms())
    begin_ms = 0 if isinstance(begin, Start) else begin
    wanted = Selection(
        topics=frozenset(topics or ()),
        with_system=show_all,
        queue_id=queue,
        begin_ms=begin_ms,
        end_ms=end_ms,
    )
    if str(file) != "-" and file.exists() and not force:
        raise UsageError(f"{file} exists: --force replaces it")
    with (
        store_at(path, lock=not live, may_be_live=True) as disk,
        LogProgress("read", is_shown=str(file) != "-") as progress,
        _new_file(file) as opened,
    ):
        found = export_messages(disk, wanted, progress, live=live)
        messages, damaged, unseen = _write(found, row_writer(opened, chosen), file, topics or ())
    place = "stdout" if str(file) == "-" else file
    say(f"{place}: {output.counted(messages, 'message')}")
    for topic in sorted(unseen):
        say(f"note: of topic {topic} there was none; `kourou store info {path}` shows the topics")
    if damaged:
        raise typer.Exit(FAILED)


def _write(
    found: Iterable[Row | LogPiece], writer: RowWriter, file: Path, topics: Iterable[str]
) -> tuple[int, int, set[str]]:
    """Write the rows to the end.

    Returns:
        How many there were, how many damaged parts of the log, and the topics without a row.

    Raises:
        UsageError: the file cannot be written.
    """
    messages = damaged = 0
    unseen = set(topics)
    writing = _Writing(file)
    for one in found:
        if isinstance(one, LogPiece):
            damaged += 1
            at = f"byte {one.position:,}: {one.size:,} bytes"
            say(f"warning: the log is damaged at {at}: {one.problem}")
        else:
            with writing:
                writer.write(one)
            messages += 1
            unseen.discard(one["topic"])
    with writing:
        writer.finish()
    return messages, damaged, unseen


def import_store(
    path: StorePath, file: _File, *, row_format: _Format = None, as_json: AsJson = False
) -> None:
    """Append the messages, and tell how many there were."""
    chosen = format_of(file, row_format)
    with (
        _opened(file, chosen) as (opened, size),
        store_at(path, lock=False, may_be_new=True) as disk,
        Interrupts() as interrupts,
        # Of a pipe it is not known how much will come, and whoever fills it may show progress.
        Progress(
            f"MiB of {file.name}", size // _MIB, is_shown=size > 0 and sys.stderr.isatty()
        ) as line,
    ):
        rows = interrupts.between(read_rows(opened, chosen, _in_mib(line)))
        try:
            done = import_messages(disk, rows, SystemClock().now_ms(), pid=os.getpid())
        except KeyboardInterrupt:
            stored = output.counted(interrupts.done, "message")
            say(f"stopped: the first {stored} stored")
            raise
        except StoreError:
            if interrupts.done:
                say(f"stopped: the first ones are stored; `kourou store info {path}` counts them")
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
    """Give a file to read, stdin for `-`, and its size; 0 where that is not known.

    Raises:
        UsageError: it cannot be read, or the format needs a file.
    """
    if str(path) == "-":
        if row_format is RowFormat.PARQUET:
            raise UsageError("Parquet is read from its end: give a file, not -")
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
    """Return what tells a progress line whole MiB of what is read in bytes."""
    seen = 0

    def advance(count: int) -> None:
        nonlocal seen
        before, seen = seen // _MIB, seen + count
        line.advance(seen // _MIB - before)

    return advance


class _Writing:
    """Tells failures to write a file as such, and not as the store's."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            place = "stdout" if str(self._file) == "-" else self._file
            raise UsageError(f"{place} cannot be written: {error.strerror or error}") from error


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write; it has its name once it is whole.

    Raises:
        UsageError: it cannot be made or finished.
    """
    if str(path) == "-":
        yield sys.stdout.buffer
        return
    path = path.expanduser()
    part = path.with_name(f"{path.name}.part")
    writing = _Writing(path)
    try:
        with writing:
            file = part.open("wb")
        try:
            yield file
        finally:
            with writing:
                file.close()
        with writing:
            part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)

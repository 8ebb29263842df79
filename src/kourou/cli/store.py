"""`kourou store`: inspect, verify and repair a store directory, export and import messages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou.cli import output, store_dump, store_transfer
from kourou.cli.exits import FAILED, print_stderr
from kourou.cli.options import AsJson, Live, StorePath, Yes, confirm
from kourou.cli.progress import LogProgress
from kourou.cli.store_access import instant, open_store_disk
from kourou.clock import SystemClock
from kourou.errors import UsageError
from kourou.store.paths import LOCK
from kourou.store.tools.check import CheckReport, check_store
from kourou.store.tools.info import QueueInfo, StoreInfo, TimersInfo, store_info
from kourou.store.tools.rebuild import rebuild as rebuild_store
from kourou.store.tools.truncate import Truncation, plan_truncation, truncate_log

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Inspect, verify and repair a store directory, export and import messages.",
)


@app.callback()
def store() -> None:
    """Group the commands below."""


INFO_HELP: Final = """\
Show the store in PATH: its sizes, its topics and the program that wrote it last.

The command reads the ends of the log and of each queue, and the timer wheel. It works for any
store: in use, damaged, or of RocketMQ. It changes and verifies nothing; to verify a store, use
`kourou store check`.

\b
Examples:
  kourou store info ~/.kourou/store
  kourou store info ~/.kourou/store --queues        one row for each queue
  kourou store info /data/store --json
"""


def info(
    path: StorePath,
    *,
    queues: Annotated[bool, typer.Option("--queues", help="One row for each queue.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the information."""
    with open_store_disk(path, lock=False) as disk:
        found = store_info(disk)
        in_use = disk.is_locked(LOCK)
        taken = taken_bytes(path.expanduser())
        free = disk.free_bytes()
    if as_json:
        output.print_json(
            _info_json(path, found, in_use=in_use, taken_bytes=taken, free_bytes=free)
        )
        return
    rows = [
        ("Store", str(path)),
        ("State", state_text(found, in_use=in_use)),
        ("Space", f"{taken:,} bytes used, {free:,} free"),
        ("Log", f"bytes {found.log_first:,} to {found.log_end:,}"),
        ("Log files", f"{found.log_files:,} of {found.sizes.segment_bytes:,} bytes"),
        ("Queue files", f"{found.sizes.queue_bytes:,} bytes each"),
        ("First message", instant(found.first_at_ms) or "-"),
        ("Last message", instant(found.last_at_ms) or "-"),
    ]
    if found.timers is not None:
        rows.append(("Timers", timers_text(found.timers)))
    for name, value in rows:
        output.print_line(f"{name:<13}  {value}")
    if not found.queues:
        return
    output.print_line("")
    if queues:
        columns = ("TOPIC", "QUEUE", "FIRST", "NEXT", "MESSAGES", "FILES", "KIND")
        output.print_table(columns, [_queue_row(queue) for queue in found.queues])
    else:
        output.print_table(("TOPIC", "QUEUES", "MESSAGES", "FILES"), _topic_rows(found))


def state_text(found: StoreInfo, *, in_use: bool) -> str:
    """Return as text which program opened the store last, and whether it closed it cleanly."""
    if in_use:
        return "in use by a running broker"
    run = found.last_run
    writer = "Kourou" if run.was_kourou else "RocketMQ"
    if run.was_clean:
        return f"closed cleanly, by {writer}" if found.log_files else "never used"
    synced = " after a failed sync" if run.was_kourou and run.is_cache_suspect else ""
    return f"not closed cleanly, by {writer}{synced}: the next start recovers it"


def timers_text(timers: TimersInfo) -> str:
    """Return as text the number of scheduled messages and their delivery times."""
    text = f"{output.counted(timers.waiting, 'message')} in the wheel"
    if timers.first_at_ms is not None:
        text += f", for {instant(timers.first_at_ms)} to {instant(timers.last_at_ms)}"
    if timers.behind:
        text += f"; {timers.behind:,} not yet in the wheel"
    return text


def taken_bytes(path: Path) -> int:
    """Return the space that the directory's (sparse) files use on the device, in bytes."""
    total = 0
    for file in path.rglob("*"):
        try:
            total += file.lstat().st_blocks * 512
        except OSError:
            continue  # removed in the meantime
    return total


def _queue_row(queue: QueueInfo) -> tuple[object, ...]:
    messages = queue.max_offset - queue.min_offset
    return (
        queue.topic,
        queue.queue_id,
        queue.min_offset,
        queue.max_offset,
        messages,
        queue.files,
        queue.kind,
    )


def _topic_rows(found: StoreInfo) -> Iterator[tuple[object, ...]]:
    for topic, group in groupby(found.queues, key=lambda queue: queue.topic):
        queues = list(group)
        messages = sum(queue.max_offset - queue.min_offset for queue in queues)
        yield topic, len(queues), messages, sum(queue.files for queue in queues)


def _info_json(
    path: Path, found: StoreInfo, *, in_use: bool, taken_bytes: int, free_bytes: int
) -> dict[str, object]:
    run = found.last_run
    return {
        "store": str(path),
        "in_use": in_use,
        "closed_cleanly": run.was_clean and not in_use,
        "last_writer": "kourou" if run.was_kourou else "rocketmq",
        "sync_failed": run.was_kourou and run.is_cache_suspect,
        "taken_bytes": taken_bytes,
        "free_bytes": free_bytes,
        "segment_bytes": found.sizes.segment_bytes,
        "queue_file_bytes": found.sizes.queue_bytes,
        "log": {
            "first": found.log_first,
            "end": found.log_end,
            "files": found.log_files,
            "first_store_at_ms": found.first_at_ms,
            "last_store_at_ms": found.last_at_ms,
        },
        "queues": [
            {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "min_offset": queue.min_offset,
                "max_offset": queue.max_offset,
                "kind": queue.kind,
                "files": queue.files,
            }
            for queue in found.queues
        ],
        "timers": None if found.timers is None else asdict(found.timers),
    }


FINDINGS_SHOWN_MAX: Final = 50
"""Maximum number of findings in text output; JSON has all."""

CHECK_HELP: Final = """\
Verify every file of the store in PATH without changing any.

Verified are each record of the commit log with its checksum, each consume queue entry against its
record, the index, the timer files, the checkpoint and the config files. After a crash, start the
broker once before, because only its recovery makes the files consistent. With --live the store may
be in use, and only the part that was durable at the start of the command is verified.

\b
Examples:
  kourou store check ~/.kourou/store
  kourou store check ~/.kourou/store --live         while a broker uses it
  kourou store check /data/store --json

Exit codes: 0 no problems, 1 problems found, 2 no store in PATH, 3 a broker uses it, or it is not
readable.
"""


def check(path: StorePath, *, live: Live = False, as_json: AsJson = False) -> None:
    """Check the store and print the findings."""
    with (
        open_store_disk(path, lock=not live, may_be_live=True) as disk,
        LogProgress("verified") as progress,
    ):
        report = check_store(disk, progress=progress, live=live)
    if as_json:
        output.print_json({"store": str(path), "ok": not report.findings, **asdict(report)})
    else:
        _print_check(report, path)
    if report.findings:
        raise typer.Exit(FAILED)


def _print_check(report: CheckReport, path: Path) -> None:
    """Print the findings, and the totals of the verified data."""
    shown = report.findings[:FINDINGS_SHOWN_MAX]
    if shown:
        output.print_table(
            ("FILE", "BYTE", "PROBLEM"), [(f.file, f.offset, f.problem) for f in shown]
        )
    if len(shown) < len(report.findings):
        output.print_line(f"... and {len(report.findings) - len(shown):,} more: --json prints all")
    found = len(report.findings)
    verdict = output.counted(found, "problem") if found else "no problems"
    output.print_line(
        f"{path}: {verdict}; {output.counted(report.records, 'message')} in "
        f"{output.counted(report.bytes, 'byte')}, {output.counted(report.queues, 'queue')}"
        + (f", {output.counted(report.timers, 'timer')}" if report.timers else "")
    )


REBUILD_HELP: Final = """\
Rebuild the consume queues, the key index and the timer files of the store in PATH from its log.

Use it if such files were lost or damaged; the messages are not changed. Scheduled messages stay
scheduled; those that are due are delivered at the next start. The command may be interrupted: the
next start of a broker completes it. A queue without messages in the log keeps its files.

\b
Examples:
  kourou store rebuild ~/.kourou/store
  kourou store rebuild /data/store --json

Exit codes: 0 rebuilt, 2 no store in PATH, 3 a broker uses it, or it cannot be read or written.
"""

TRUNCATE_HELP: Final = """\
Truncate the log of the store in PATH: all messages from a position on are deleted permanently.

Use it if the durable end of the log was lost or damaged, which a broker does not truncate by
itself, or to remove the messages after a point in time. --at-damage truncates at the first damage;
intact messages after it are deleted too, so save them with `kourou store export` before. --at is a
byte of the log, as printed by `kourou store check` and `dump`; the message that contains the byte
is deleted too. The command shows what it will delete, and asks for confirmation.

\b
Examples:
  kourou store truncate ~/.kourou/store --at-damage
  kourou store truncate ~/.kourou/store --at 1073741824 --yes

Exit codes: 0 truncated, or nothing to truncate, 1 not confirmed, 2 no store in PATH, 3 a broker
uses it, or it cannot be read or written.
"""


def rebuild(path: StorePath, *, as_json: AsJson = False) -> None:
    """Rebuild queues, index and timer files."""
    with open_store_disk(path, lock=False) as disk, LogProgress("read") as progress:
        rebuilt = rebuild_store(disk, SystemClock().now_ms(), pid=os.getpid(), progress=progress)
    if as_json:
        output.print_json({"store": str(path), **asdict(rebuilt)})
        return
    output.print_line(
        f"{path}: {output.counted(rebuilt.queues, 'queue')} and "
        f"{output.counted(rebuilt.index_files, 'index file')} rebuilt from "
        f"{output.counted(rebuilt.records, 'message')}"
    )
    if rebuilt.timers:
        output.print_line(f"{output.counted(rebuilt.timers, 'message')} of them scheduled")
    if rebuilt.damaged:
        print_stderr(
            f"warning: {output.counted(rebuilt.damaged, 'part')} of the log cannot be read"
        )
        print_stderr(f"  `kourou store check {path}` lists them")


def truncate(
    path: StorePath,
    *,
    at: Annotated[
        int | None, typer.Option("--at", metavar="BYTE", min=0, help="Truncate at this byte.")
    ] = None,
    at_damage: Annotated[
        bool, typer.Option("--at-damage", help="Truncate at the first damage.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Truncate the log."""
    if (at is None) == (not at_damage):
        raise UsageError("name the position: either --at BYTE or --at-damage")
    with open_store_disk(path, lock=True) as disk, LogProgress("read") as progress:
        plan = plan_truncation(disk, at, progress)
    if plan is None:
        _print_nothing(path, at, as_json=as_json)
        return
    if not as_json:
        _print_plan(plan)
    confirm(
        f"Truncate the log of {path}? Continue",
        "truncated messages cannot be restored",
        yes=yes,
    )
    with open_store_disk(path, lock=False) as disk:
        truncate_log(disk, plan, SystemClock().now_ms(), pid=os.getpid())
    if as_json:
        output.print_json(
            {
                "store": str(path),
                "position": plan.position,
                "bytes": plan.bytes,
                "records": plan.records,
                "damaged_bytes": plan.damaged_bytes,
                "messages": dict(plan.messages),
            }
        )
    else:
        output.print_line(f"{path}: the log now ends at byte {plan.position:,}")


def _print_nothing(path: Path, at: int | None, *, as_json: bool) -> None:
    if as_json:
        nothing: dict[str, object] = {
            "position": None,
            "bytes": 0,
            "records": 0,
            "damaged_bytes": 0,
            "messages": {},
        }
        output.print_json({"store": str(path), **nothing})
    elif at is None:
        output.print_line(f"{path}: nothing to truncate: the log is not damaged")
    else:
        output.print_line(f"{path}: nothing to truncate: the log ends before byte {at:,}")


def _print_plan(plan: Truncation) -> None:
    why = f" ({plan.problem})" if plan.problem else ""
    output.print_line(f"To be deleted, from byte {plan.position:,}{why} to {plan.end:,}:")
    rows = [(topic, count) for topic, count in sorted(plan.messages.items()) if count]
    if rows:
        output.print_table(("TOPIC", "MESSAGES"), rows)
    if plan.damaged_bytes:
        output.print_line(f"{output.counted(plan.damaged_bytes, 'byte')} that cannot be read")
    if plan.first_at_ms is not None:
        output.print_line(f"The first message was stored at {instant(plan.first_at_ms)}")


app.command(help=INFO_HELP, short_help="Show sizes, topics and state of a store.")(info)
app.command(help=CHECK_HELP, short_help="Verify every file.")(check)
app.command(help=store_dump.DUMP_HELP, short_help="Print the content of a file, row by row.")(
    store_dump.dump
)
app.command(help=REBUILD_HELP, short_help="Rebuild queues, index and timers from the log.")(rebuild)
app.command(help=TRUNCATE_HELP, short_help="Truncate the log.")(truncate)
app.command("export", help=store_transfer.EXPORT_HELP, short_help="Write the messages to a file.")(
    store_transfer.export_store
)
app.command("import", help=store_transfer.IMPORT_HELP, short_help="Append the messages of a file.")(
    store_transfer.import_store
)

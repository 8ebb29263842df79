"""`kourou store info`: sizes, topics and state of a store, read from its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.options import AsJson
from kourou.cli.store_access import StorePath, instant, open_store_disk
from kourou.disk import OsDisk
from kourou.errors import StoreLockedError
from kourou.store.paths import LOCK
from kourou.store.tools.info import QueueInfo, StoreInfo, TimersInfo, store_info

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
        in_use = _is_in_use(disk)
        taken = taken_bytes(path.expanduser())
        free = disk.free_bytes()
    if as_json:
        output.print_json(_json(path, found, in_use=in_use, taken_bytes=taken, free_bytes=free))
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


def _is_in_use(disk: OsDisk) -> bool:
    if not disk.exists(LOCK):
        return False
    try:
        disk.lock(LOCK)()
    except StoreLockedError:
        return True
    except OSError:
        return False  # no permission to lock: a store of another user, opened for reading
    return False


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


def _json(
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

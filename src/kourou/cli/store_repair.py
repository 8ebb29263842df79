"""`kourou store rebuild` and `truncate`: repair of a store that no broker uses."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.confirm import confirm
from kourou.cli.exits import print_stderr
from kourou.cli.options import AsJson, Yes
from kourou.cli.store_access import LogProgress, StorePath, instant, open_store_disk
from kourou.clock import SystemClock
from kourou.errors import UsageError
from kourou.store.tools.rebuild import rebuild as rebuild_store
from kourou.store.tools.truncate import Truncation, plan_truncation, truncate_log

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

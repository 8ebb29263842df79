"""`kourou store rebuild` and `truncate`: mending a store that no broker uses."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.confirm import confirm
from kourou.cli.exits import say
from kourou.cli.options import AsJson, Yes
from kourou.cli.store_place import LogProgress, StorePath, instant, store_at
from kourou.clock import SystemClock
from kourou.errors import UsageError
from kourou.store.tools.rebuild import rebuild as rebuild_store
from kourou.store.tools.truncate import Truncation, plan_truncation, truncate_log

REBUILD_HELP: Final = """\
Make the consume queues, the key index and the timer files of the store in PATH again, from its log.

For a store of which such files were lost or damaged; its messages are not touched. Messages that
wait for their time wait on; those whose time has come are delivered at the next start. It may be
interrupted: the next start of a broker goes on. A queue of which the log has no message any more
keeps its files.

\b
Examples:
  kourou store rebuild ~/.kourou/store
  kourou store rebuild /data/store --json

Exit codes: 0 rebuilt, 2 no store there, 3 a broker uses it, or it cannot be read or written.
"""

TRUNCATE_HELP: Final = """\
Cut the log of the store in PATH: all messages from a place on go, for good.

For a log whose durable end was lost or damaged, which a broker refuses to cut by itself, or to undo
what came after a moment. --at-damage cuts at the first damage; whole messages behind it go too:
`kourou store export` saves them before. --at names a byte of the log, as `kourou store check` and
`dump` tell them; the message that holds that byte goes as well. It says what would go, and asks.

\b
Examples:
  kourou store truncate ~/.kourou/store --at-damage
  kourou store truncate ~/.kourou/store --at 1073741824 --yes

Exit codes: 0 cut, or nothing to cut, 1 not agreed to, 2 no store there, 3 a broker uses it, or it
cannot be read or written.
"""


def rebuild(path: StorePath, *, as_json: AsJson = False) -> None:
    """Make queues and index again."""
    with store_at(path, lock=False) as disk, LogProgress("read") as progress:
        rebuilt = rebuild_store(disk, SystemClock().now_ms(), pid=os.getpid(), progress=progress)
    if as_json:
        output.print_json({"store": str(path), **asdict(rebuilt)})
        return
    output.print_line(
        f"{path}: {output.counted(rebuilt.queues, 'queue')} and "
        f"{output.counted(rebuilt.index_files, 'index file')} made again from "
        f"{output.counted(rebuilt.records, 'message')}"
    )
    if rebuilt.timers:
        output.print_line(
            f"{output.counted(rebuilt.timers, 'message')} of them wait for their time"
        )
    if rebuilt.damaged:
        say(f"warning: {output.counted(rebuilt.damaged, 'part')} of the log cannot be read")
        say(f"  `kourou store check {path}` names them")


def truncate(
    path: StorePath,
    *,
    at: Annotated[
        int | None, typer.Option("--at", metavar="BYTE", min=0, help="Cut at this byte of the log.")
    ] = None,
    at_damage: Annotated[
        bool, typer.Option("--at-damage", help="Cut at the first damage.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cut the log."""
    if (at is None) == (not at_damage):
        raise UsageError("say where: --at BYTE or --at-damage")
    with store_at(path, lock=True) as disk, LogProgress("read") as progress:
        plan = plan_truncation(disk, at, progress)
    if plan is None:
        _print_nothing(path, at, as_json=as_json)
        return
    if not as_json:
        _print_plan(plan)
    confirm(f"Cut the log of {path}? Go on", "what is cut is gone for good", yes=yes)
    with store_at(path, lock=False) as disk:
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
        output.print_line(f"{path}: the log ends at byte {plan.position:,} now")


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
        output.print_line(f"{path}: nothing to cut: the log is not damaged")
    else:
        output.print_line(f"{path}: nothing to cut: the log ends before byte {at:,}")


def _print_plan(plan: Truncation) -> None:
    why = f" ({plan.problem})" if plan.problem else ""
    output.print_line(f"From byte {plan.position:,}{why} to {plan.end:,} goes:")
    rows = [(topic, count) for topic, count in sorted(plan.messages.items()) if count]
    if rows:
        output.print_table(("TOPIC", "MESSAGES"), rows)
    if plan.damaged_bytes:
        output.print_line(f"{output.counted(plan.damaged_bytes, 'byte')} that cannot be read")
    if plan.first_at_ms is not None:
        output.print_line(f"The first of them was stored at {instant(plan.first_at_ms)}")

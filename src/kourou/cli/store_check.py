"""`kourou store check`: verification of every file of a store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

import typer

from kourou.cli import output
from kourou.cli.exits import FAILED
from kourou.cli.options import AsJson
from kourou.cli.store_access import Live, LogProgress, StorePath, open_store_disk
from kourou.store.tools.check import CheckReport, check_store

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
        _print(report, path)
    if report.findings:
        raise typer.Exit(FAILED)


def _print(report: CheckReport, path: Path) -> None:
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

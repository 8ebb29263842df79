"""`kourou store`: look at a store directory while no broker uses it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.exits import FAILED
from kourou.cli.options import AsJson
from kourou.disk import OsDisk
from kourou.errors import StoreUnusableError, UsageError
from kourou.store.check import CheckReport, check_store
from kourou.store.paths import LOCK

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Verify a store directory while no broker uses it.",
)

FINDINGS_SHOWN_MAX: Final = 50
"""Findings that people are shown; JSON has them all."""

CHECK_HELP: Final = """\
Verify every file of the store in PATH, without changing any.

Each record of the commit log with its checksum, each consume queue entry against the record that it
names, the checkpoint and the config files. A store that crashed is in order as soon as the broker
has recovered it: start the broker once before.

\b
Examples:
  kourou store check ~/.kourou/store
  kourou store check /data/store --json

Exit codes: 0 in order, 1 something found, 2 no store there, 3 a broker uses it, or not readable.
"""


@app.callback()
def store() -> None:
    """Group the commands below."""


@app.command(help=CHECK_HELP)
def check(
    path: Annotated[Path, typer.Argument(metavar="PATH", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """Check the store and print what was found."""
    if not path.is_dir():
        raise UsageError(f"{path} is no directory: give the one that `kourou serve` showed")
    if not (path / "commitlog").is_dir():
        raise UsageError(f"{path} holds no store: there is no commitlog directory in it")
    disk = OsDisk(path)
    unlock = disk.lock(LOCK) if disk.exists(LOCK) else None
    try:
        report = check_store(disk)
    except OSError as error:
        raise StoreUnusableError(str(path), error.strerror or str(error)) from error
    finally:
        if unlock is not None:
            unlock()
        disk.close()
    if as_json:
        output.print_json({"store": str(path), "ok": not report.findings, **asdict(report)})
    else:
        _print(report, path)
    if report.findings:
        raise typer.Exit(FAILED)


def _print(report: CheckReport, path: Path) -> None:
    """Print the findings, and the sum of what was read."""
    shown = report.findings[:FINDINGS_SHOWN_MAX]
    if shown:
        output.print_table(
            ("FILE", "BYTE", "PROBLEM"), [(f.file, f.offset, f.problem) for f in shown]
        )
    if len(shown) < len(report.findings):
        output.print_line(f"... and {len(report.findings) - len(shown):,} more: --json has all")
    found = len(report.findings)
    verdict = output.counted(found, "problem") if found else "in order"
    output.print_line(
        f"{path}: {verdict}; {output.counted(report.records, 'message')} in "
        f"{output.counted(report.bytes, 'byte')}, {output.counted(report.queues, 'queue')}"
    )

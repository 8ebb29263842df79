"""`kourou doctor`: problems of this machine and of the cluster, with remedies."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou.cli import output
from kourou.cli.doctor_cluster import check_cluster
from kourou.cli.doctor_machine import (
    Port,
    check_open_files,
    check_ports,
    check_store,
    check_versions,
)
from kourou.cli.exits import FAILED
from kourou.cli.finding import Finding, State
from kourou.cli.options import CONSOLE_PORT, AsJson, Namesrv, Timeout
from kourou.clock import SystemClock
from kourou.model.host import NAMESRV_DEFAULT

_STATE_WIDTH: Final = 7
_NAME_WIDTH: Final = 30

app = typer.Typer(rich_markup_mode=None, add_completion=False)

TIMEOUT_S: Final = 2.0
BROKER_PORT: Final = 10911
NAMESRV_PORT: Final = 9876
VIP_DISTANCE: Final = 2
"""A broker also listens on the port this much below its own (the VIP port)."""

HELP: Final = """\
Check this machine and the cluster for problems, and name the remedies.

On this machine: versions, the limit of open files, the ports of `kourou serve` and the processes
that use them, the store, the space on its disk and the time of a sync. In the cluster: every name
server, and every broker at its registered address, its clock and its store. Nothing is changed.

\b
Examples:
  kourou doctor
  kourou doctor --store /data/store --port 20911
  kourou doctor -n 10.0.0.1:9876 --json

Exit codes: 0 no problem found (notes do not count), 1 a problem found, 2 wrong option.
"""

_Port = Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The broker's port.")]


@app.command(help=HELP)
def doctor(
    *,
    store: Annotated[Path, typer.Option(metavar="DIR", help="The store directory.")] = Path(
        "~/.kourou/store"
    ),
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The local address of the ports.")
    ] = "127.0.0.1",
    port: _Port = BROKER_PORT,
    namesrv_port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="The name server's port.")
    ] = NAMESRV_PORT,
    console_port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="The port of /metrics.")
    ] = CONSOLE_PORT,
    namesrv: Namesrv = NAMESRV_DEFAULT,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Run the checks, print the findings, and exit with the code."""
    # The default name server need not run yet. The checks send requests in sequence.
    cluster = output.run_bounded(
        check_cluster(namesrv, timeout, SystemClock(), is_expected=namesrv != NAMESRV_DEFAULT),
        3 * timeout + 1,
        f"the cluster at {namesrv}",
    )
    ports = [
        Port(namesrv_port, "the name server", "--namesrv-port"),
        Port(port, "the broker", "--port"),
        Port(port - VIP_DISTANCE, "old clients of the broker", "--port", is_needed=False),
        Port(console_port, "/metrics and /healthz", "--console-port", is_needed=False),
    ]
    findings = [
        *check_versions(),
        *check_open_files(),
        *check_ports(listen, [one for one in ports if one.number > 0], answered=cluster.ports),
        *check_store(store.expanduser()),
        *cluster.findings,
    ]
    _print(findings, as_json=as_json)
    if any(finding.state is State.WRONG for finding in findings):
        raise typer.Exit(FAILED)


def _print(findings: Sequence[Finding], *, as_json: bool) -> None:
    wrong = sum(finding.state is State.WRONG for finding in findings)
    if as_json:
        output.print_json({"ok": not wrong, "findings": list(map(asdict, findings))})
        return
    name_width = max(len(finding.check) for finding in findings)
    # A long name must leave room for the text next to it.
    begin_width = _STATE_WIDTH + min(name_width, _NAME_WIDTH)
    columns = max(begin_width + 30, shutil.get_terminal_size().columns)
    for finding in findings:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        begin = f"{finding.state.value:<5}  {finding.check}".ljust(begin_width) + "  "
        lines = textwrap.wrap(
            f"{begin}{finding.detail}{remedy}",
            columns,
            subsequent_indent=" " * (begin_width + 2),
            drop_whitespace=True,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines:
            output.print_line(line)
    output.print_line("")
    output.print_line(f"{output.counted(wrong, 'problem')} found" if wrong else "no problems found")

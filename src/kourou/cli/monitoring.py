"""The console of a server process: its settings, options and start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kourou.cli.exits import print_stderr
from kourou.cli.options import CONSOLE_PORT
from kourou.console.server import Console, ReadMetrics, ReadReasons
from kourou.documented import documented
from kourou.errors import ConfigError, ListenFailedError
from kourou.remoting.network import Address, format_address

ConsolePort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65535,
        help="The port of /metrics, /healthz and /readyz; 0 means any free.  [default: 5557]",
    ),
]
NoConsole = Annotated[bool, typer.Option("--no-console", help="No /metrics, /healthz and /readyz.")]


@documented
@dataclass(frozen=True, kw_only=True)
class ConsoleConfig:
    """Settings of the console.

    Raises:
        ConfigError: the port is out of its range.
    """

    console_enable: bool = True
    """Whether /metrics, /healthz and /readyz are served."""
    console_listen: str = "127.0.0.1"
    """The local address for /metrics, /healthz and /readyz. They show names of topics and groups,
    so choose a wider address with care."""
    console_port: int | None = None
    """The port for /metrics, /healthz and /readyz; 0 chooses a free one. None means 5557, the port
    of RocketMQ's exporter, or a free one if the port for clients is 0; then a port in use is only a
    warning."""

    def __post_init__(self) -> None:
        if not 0 <= (self.console_port or 0) <= 65535:
            raise ConfigError(f"console_port is {self.console_port}; it must be 0 to 65535")

    def plan(self, client_port: int) -> ConsolePlan | None:
        """Return where to listen; None if the console is disabled.

        Args:
            client_port: the port for clients of the process, as configured.
        """
        if not self.console_enable:
            return None
        default_port = CONSOLE_PORT if client_port else 0
        port = default_port if self.console_port is None else self.console_port
        return ConsolePlan((self.console_listen, port), self.console_port is not None)


@dataclass(frozen=True, slots=True)
class ConsolePlan:
    """Settings of a console that is to be started.

    Attributes:
        address: where it listens.
        is_required: whether a port in use ends the start; else it is a warning.
    """

    address: Address
    is_required: bool = False


def start_console(
    plan: ConsolePlan | None, read_metrics: ReadMetrics, read_unready_reasons: ReadReasons
) -> Console | None:
    """Start the console; return None if it is disabled, or if its default port is in use.

    Raises:
        ListenFailedError: listening on a configured port failed.
    """
    if plan is None:
        return None
    console = Console(read_metrics, read_unready_reasons)
    try:
        console.start(*plan.address)
    except ListenFailedError as error:
        if plan.is_required:
            raise
        print_stderr(
            f"warning: no /metrics, /healthz and /readyz: {error}; "
            "choose another port with --console-port"
        )
        return None
    return console


def console_url(console: Console | None) -> str | None:
    """Return the address of the console; None without one."""
    return None if console is None else f"http://{format_address(console.address)}"

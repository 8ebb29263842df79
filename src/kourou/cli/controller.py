"""`kourou controller`: registers the replicas of broker sets and elects their masters."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou import __version__, logs
from kourou.cli.exits import print_stderr
from kourou.cli.monitoring import (
    ConsoleConfig,
    ConsolePort,
    NoConsole,
    console_url,
    start_console,
)
from kourou.cli.options import ListenOn, LogLevel, ReadyJson, StopAtEof
from kourou.cli.process import (
    default_log_level,
    limit_gc_pauses,
    run_loop,
    stop_at_stdin_end,
    stop_on_signals,
)
from kourou.console.server import ReadMetrics
from kourou.controller.config import ControllerConfig
from kourou.controller.etcd_gateway import EtcdConfig, EtcdGateway
from kourou.controller.etcd_store import EtcdStore
from kourou.controller.file_store import FileStore
from kourou.controller.server import Controller, lease_clock_ms
from kourou.controller.state_store import StateStore
from kourou.disk import OsDisk, require_file_calls
from kourou.documented import documented
from kourou.errors import ConfigError, StoreUnusableError
from kourou.metrics import Family
from kourou.remoting.network import is_loopback
from kourou.remoting.runtime import Runtime
from kourou.settings import load

app = typer.Typer(rich_markup_mode=None, add_completion=False)

PREFIX: Final = "KOUROU_CONTROLLER_"

SINGLE_ID: Final = "n0"
"""The id of a controller that is alone, as in Java's examples."""

SINGLE: Final = (
    "warning: this controller is a single point of failure: while it is down, no master is "
    "elected, and masters of Kourou stop when their lease ends"
)


@documented
@dataclass(frozen=True, kw_only=True)
class ControllerSettings:
    """Settings of `kourou controller`.

    Raises:
        ConfigError: a value is out of its range.
    """

    controller: ControllerConfig = field(default_factory=ControllerConfig)
    """The controller's settings; their keys are in the same flat file."""
    file: Path | None = field(default=None, metadata={"key": "controllerStorePath"})
    """The directory of the state of a single controller; created if it is missing."""
    etcd: EtcdConfig = field(default_factory=EtcdConfig)
    """Settings of etcd, which has the state of several controllers."""
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    """Settings of /metrics, /healthz and /readyz."""

    def check_place(self) -> None:
        """Verify that the state has one place.

        Raises:
            ConfigError: it has none, or two.
        """
        if self.file is not None and self.etcd.endpoints:
            raise ConfigError("file and etcd are both set; the state is in one place only")
        if self.file is None and not self.etcd.endpoints:
            raise ConfigError(
                "the controller has no place for its state: name a directory with --file, or etcd "
                "with --etcd http://host:2379"
            )

    @property
    def state(self) -> str:
        """The place of the state, for people."""
        if self.file is not None:
            return str(self.directory)
        return f"{','.join(self.etcd.endpoints)} {self.etcd.etcd_prefix}"

    @property
    def directory(self) -> Path:
        """The absolute directory of the state; only with `file`."""
        assert self.file is not None
        return self.file.expanduser().absolute()


@dataclass(frozen=True, kw_only=True)
class ControllerReady:
    """The state of the process at the moment when it became ready.

    Attributes:
        controller: the address for brokers and tools.
        state: where the state is.
        is_exposed: other machines can connect.
        console: URL of /metrics, /healthz and /readyz; None without a console.
    """

    version: str = __version__
    pid: int
    controller: str
    state: str
    is_exposed: bool
    console: str | None = None


HELP: Final = """\
Run a controller, which elects the masters of broker sets, until Ctrl-C.

Brokers of Kourou and RocketMQ register with it in controller mode (enableControllerMode,
controllerAddr). When a master is dead, a replica that has all acknowledged messages becomes master.

With --etcd the state is in etcd, and several controllers may run: one leads, the others wait. With
--file it is in a directory, and this controller is the only one: for development, or where a
failure of its machine may wait for you.

\b
Examples:
  kourou controller --etcd http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379
  kourou controller --file ./controller
  kourou controller --file ./controller --listen 0.0.0.0 --advertise 10.0.0.1:19876

Settings: defaults, then --config, environment (KOUROU_CONTROLLER_LEASE_MS_MAX), options; later ones
override. An unknown setting is refused.

Exit codes: 0 stopped, 2 wrong option or setting, 3 could not start (port in use, state in use or
damaged), 130 stopped by a second Ctrl-C.
"""

_File = Annotated[
    Path | None,
    typer.Option("--file", metavar="DIR", help="The directory of a single controller's state."),
]
_Etcd = Annotated[
    str | None,
    typer.Option("--etcd", metavar="URL[,...]", help="The endpoints of etcd, http:// or https://."),
]
_Prefix = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="The prefix of all etcd keys.  [default: /kourou/controller]"
    ),
]
_Port = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65535,
        help="The port for brokers and tools; 0 means any free.  [default: 19876]",
    ),
]
_Advertise = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The address for brokers.  [default: that of --listen]"),
]
_Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings: a .toml or .properties file.")
]


@app.command(help=HELP)
def controller(
    *,
    etcd: _Etcd = None,
    prefix: _Prefix = None,
    file: _File = None,
    listen: ListenOn = None,
    port: _Port = None,
    advertise: _Advertise = None,
    console_port: ConsolePort = None,
    no_console: NoConsole = False,
    config: _Config = None,
    log_level: LogLevel = None,
    ready_json: ReadyJson = False,
    stop_at_eof: StopAtEof = False,
) -> None:
    """Read the options and serve."""
    require_file_calls("`kourou controller`")
    logs.configure(log_level or default_log_level())
    if stop_at_eof:
        stop_at_stdin_end()
    flags = {
        "file": file,
        "etcd": etcd,
        "etcd_prefix": prefix,
        "listen": listen,
        "port": port,
        "advertise": advertise,
        "console_port": console_port,
        "console_enable": False if no_console else None,
    }
    settings = load(ControllerSettings, path=config, environ=os.environ, prefix=PREFIX, flags=flags)
    settings.check_place()

    def announce(ready: ControllerReady) -> None:
        if ready_json:
            typer.echo(json.dumps({"ready": True, **asdict(ready)}, ensure_ascii=False))
        else:
            typer.echo(f"controller: {ready.controller}")
            typer.echo(f"state:      {ready.state}")
            typer.echo(f"monitoring: {ready.console or 'not served'}")
        if ready.is_exposed:
            print_stderr(
                f"warning: {ready.controller} is open to other machines, without access control: "
                "every program that can connect to it can elect masters"
            )

    if settings.file is not None:
        print_stderr(SINGLE)
    run_loop(serve_controller(settings, announce))


async def serve_controller(
    settings: ControllerSettings, announce: Callable[[ControllerReady], None]
) -> None:
    """Serve until a signal; call `announce` once, when brokers can connect.

    Raises:
        ListenFailedError: the port is in use, or the address is not one of this machine.
        StoreError: the directory is in use, damaged, or cannot be written.
    """
    stop = asyncio.Event()
    stop_on_signals(stop, "stopped immediately")
    config = settings.controller
    async with AsyncExitStack() as running:
        runtime = Runtime.system()
        if settings.file is None:
            gateway = EtcdGateway(settings.etcd, runtime.offload)
            running.callback(gateway.close)
            store: StateStore = EtcdStore(
                gateway,
                settings.etcd.etcd_prefix,
                ttl_s=settings.etcd.etcd_ttl_s,
                lease_ms=config.lease_ms_max,
                now_ms=lease_clock_ms,
            )
        else:
            config = replace(config, controller_id=config.controller_id or SINGLE_ID)
            store = _file_store(settings.directory, runtime, config, running)
        server = Controller(config, runtime, store)
        await server.start()
        running.push_async_callback(server.stop)
        console = start_console(
            settings.console.plan(config.port), _metrics_reader(server), server.unready_reasons
        )
        if console is not None:
            running.push_async_callback(console.stop)
        announce(
            ControllerReady(
                pid=os.getpid(),
                controller=server.member.address,
                state=settings.state,
                is_exposed=not is_loopback(config.listen),
                console=console_url(console),
            )
        )
        limit_gc_pauses()
        await stop.wait()


def _file_store(
    directory: Path, runtime: Runtime, config: ControllerConfig, running: AsyncExitStack
) -> StateStore:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        disk = OsDisk(directory)
        running.callback(disk.close)
        store = FileStore(disk, runtime.offload, config.lease_ms_max)
        store.open()
    except OSError as error:
        raise StoreUnusableError(str(directory), error.strerror or str(error)) from error
    running.push_async_callback(store.close)
    return store


def _metrics_reader(server: Controller) -> ReadMetrics:
    async def read() -> list[Family]:
        return server.metrics()

    return read

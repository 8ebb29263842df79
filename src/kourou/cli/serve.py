"""`kourou serve`: a name server and a broker in one process, until Ctrl-C."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou import logs
from kourou.broker.config import BrokerConfig
from kourou.broker.rocketmq_keys import REFUSED_KEYS, ROCKETMQ_KEYS
from kourou.cli.exits import FAILED, print_stderr
from kourou.cli.machine import memory_bytes
from kourou.cli.monitoring import ConsoleConfig, ConsolePort, NoConsole
from kourou.cli.options import (
    GRPC_PORT,
    GrpcAdvertise,
    GrpcPort,
    ListenOn,
    LogLevel,
    ReadyJson,
    StopAtEof,
    refuse_options,
)
from kourou.cli.process import (
    Plan,
    Ready,
    default_log_level,
    ready_line,
    run,
    stop_at_stdin_end,
)
from kourou.cli.serve_grpc import GrpcPlan, advertised_address
from kourou.cli.serve_namesrv import HELP as NAMESRV_HELP
from kourou.cli.serve_namesrv import PREFIX as NAMESRV_PREFIX
from kourou.cli.serve_namesrv import namesrv as serve_namesrv
from kourou.cli.serve_proxy import HELP as PROXY_HELP
from kourou.cli.serve_proxy import proxy
from kourou.disk import OsDisk, require_file_calls
from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.model.route import WILDCARD_HOSTS
from kourou.namesrv.config import NamesrvConfig
from kourou.remoting.network import is_loopback, parse_address
from kourou.remoting.tls import TlsMode
from kourou.remoting.transport_config import TransportConfig
from kourou.settings import load, values_of
from kourou.store.config import StoreConfig
from kourou.store.paths import ABORT, COMMITLOG
from kourou.store.state.file_sizes import detect_sizes

log = logging.getLogger(__name__)

app = typer.Typer(rich_markup_mode=None, add_completion=False)

PREFIX: Final = "KOUROU_BROKER_"
_GIB: Final = 1024**3
_BELIEVED_PART: Final = 16
"""Divisor of the machine's memory for `believed_bytes`. The result is much less than the share of
recent writes that the page cache keeps, even beside other programs. Java takes two fifths
(`accessMessageInMemoryMaxRatio`)."""


class Flush(Enum):
    """`--flush`: short form of RocketMQ's flushDiskType."""

    SYNC = "sync"
    ASYNC = "async"


class Profile(Enum):
    """`--profile`: default settings for a laptop or a server."""

    DEV = "dev"
    PROD = "prod"


PROFILES: Final[dict[Profile, dict[str, object]]] = {
    Profile.DEV: {},
    Profile.PROD: {
        "commitlog_segment_bytes": _GIB,
        "index_slots": 5_000_000,
        "index_entries": 20_000_000,
    },
}
"""Settings of each profile, which every other source overrides. DEV uses the config's defaults."""


@documented
@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Settings of the file of `--config`: those of the broker, and these.

    Raises:
        ConfigError: a value is out of its range.
    """

    broker: BrokerConfig = field(default_factory=BrokerConfig)
    """The broker's settings; their keys are in the same flat file."""
    store_path: Path = field(default=Path("~/.kourou/store"), metadata={"key": "storePathRootDir"})
    """The store's directory; created if it is missing. The default is never Java's ~/store."""
    store_path_commit_log: Path | None = None
    """The commit log's directory, which RocketMQ's files often name. Only `commitlog` below the
    store is supported."""
    namesrv_port: int = 9876
    """The port of the name server in this process; 0 chooses a free one."""
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    """Settings of /metrics, /healthz and /readyz."""
    grpc_enable: bool = True
    """Whether gRPC clients (RocketMQ's 5.x SDKs) are served. Needs the extra `proxy`."""
    grpc_server_port: int | None = None
    """The port for gRPC clients; 0 chooses a free one. None means 8081, or a free one if the
    broker's port is 0; then a missing package or a port in use is only a warning."""
    grpc_advertise: str | None = None
    """The address, `host:port`, in the routes of gRPC clients. None: the address that each client
    uses already, which is right behind port mappings too."""

    def __post_init__(self) -> None:
        commit_log = self.store_path.expanduser() / COMMITLOG
        if (self.store_path_commit_log or commit_log).expanduser() != commit_log:
            raise ConfigError(
                f"store_path_commit_log is {self.store_path_commit_log}; Kourou reads the commit "
                f"log only from {commit_log}, so its messages would be missing. Move the directory "
                "there, or create a symbolic link there"
            )
        if not 0 <= self.namesrv_port <= 65535:
            raise ConfigError(f"namesrv_port is {self.namesrv_port}; it must be 0 to 65535")
        if not 0 <= (self.grpc_server_port or 0) <= 65535:
            raise ConfigError(f"grpc_server_port is {self.grpc_server_port}; it must be 0 to 65535")
        advertised_address("grpc_advertise", self.grpc_advertise)

    @property
    def grpc_plan(self) -> GrpcPlan | None:
        """Settings of the port for gRPC clients; None: they are not served."""
        if not self.grpc_enable:
            return None
        port = self.grpc_server_port
        if port is None:
            port = GRPC_PORT if self.broker.port else 0
        return GrpcPlan(
            address=(self.broker.listen, port),
            is_required=self.grpc_server_port is not None,
            advertise=advertised_address("grpc_advertise", self.grpc_advertise),
        )


HELP: Final = """\
Run a name server and a broker in this process, until Ctrl-C.

It is ready in about a second and then prints the addresses and the store. Ctrl-C or SIGTERM stops
it cleanly, a second Ctrl-C immediately (the next start then recovers the store).

\b
Examples:
  kourou serve
  kourou serve --store ./data --port 0 --namesrv-port 0     any free ports
  kourou serve --config broker.conf                         RocketMQ's keys, or TOML
  kourou serve --namesrv 10.0.0.1:9876 --listen 0.0.0.0     join a cluster
  kourou serve namesrv --listen 0.0.0.0                     only a name server
  kourou serve proxy --name-server 10.0.0.1:9876            gRPC clients of a cluster

Settings: defaults, then --profile, --config, environment (KOUROU_BROKER_FLUSH_DISK_TYPE), options;
later ones override. An unknown setting is refused.

Exit codes: 0 stopped, 1 stopped and the store not closed cleanly, 2 wrong option or setting,
3 could not start (port in use, store in use or not writable), 130 stopped by a second Ctrl-C.
"""


_Store = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The store directory.  [default: ~/.kourou/store]"),
]
_Port = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65535,
        help="The broker's port; 0 means any free.  [default: 10911]",
    ),
]
_NamesrvPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65535,
        help="The name server's port; 0 means any free.  [default: 9876]",
    ),
]
_Namesrv = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT[;...]",
        help="Join these name servers instead of running one.",
    ),
]
_Advertise = Annotated[
    str | None,
    typer.Option(
        metavar="HOST[:PORT]",
        help="The broker's address for clients. The default is the address of --listen, or with "
        "--listen 0.0.0.0 the one at which they connect to the name server.",
    ),
]
_NoGrpc = Annotated[bool, typer.Option("--no-grpc", help="No port for gRPC clients.")]
_NoTls = Annotated[
    bool,
    typer.Option(
        "--no-tls",
        help="Plain connections only, and no self-signed certificate. Without this option the "
        "ports accept plain connections and TLS.",
    ),
]
_Flush = Annotated[
    Flush | None,
    typer.Option(
        help="sync: acknowledged messages are on disk; async: in the system's memory.  "
        "[default: sync]"
    ),
]
_Profile = Annotated[
    Profile, typer.Option(help="prod: commit-log files of 1 GiB, as in Java; dev: 64 MiB.")
]
_Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A broker.conf as for RocketMQ, or a .toml file."),
]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No start screen.")]


app.command("proxy", help=PROXY_HELP)(proxy)
app.command("namesrv", help=NAMESRV_HELP)(serve_namesrv)


@app.callback(help=HELP, invoke_without_command=True)
def serve(
    context: typer.Context,
    *,
    store: _Store = None,
    listen: ListenOn = None,
    port: _Port = None,
    namesrv_port: _NamesrvPort = None,
    namesrv: _Namesrv = None,
    advertise: _Advertise = None,
    flush: _Flush = None,
    console_port: ConsolePort = None,
    no_console: NoConsole = False,
    grpc_port: GrpcPort = None,
    no_grpc: _NoGrpc = False,
    grpc_advertise: GrpcAdvertise = None,
    no_tls: _NoTls = False,
    profile: _Profile = Profile.DEV,
    config: _Config = None,
    log_level: LogLevel = None,
    quiet: _Quiet = False,
    ready_json: ReadyJson = False,
    stop_at_eof: StopAtEof = False,
) -> None:
    """Read the options and serve."""
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    require_file_calls("`kourou serve`")
    logs.configure(log_level or default_log_level())
    if stop_at_eof:
        stop_at_stdin_end()
    flags = {
        "store_path": store,
        "listen": listen,
        "port": port,
        "namesrv_port": namesrv_port,
        "namesrv_addr": namesrv,
        "advertise": advertise,
        "console_port": console_port,
        "console_enable": False if no_console else None,
        "grpc_server_port": grpc_port,
        "grpc_enable": False if no_grpc else None,
        "grpc_advertise": grpc_advertise,
        "tls_server_mode": TlsMode.DISABLED if no_tls else None,
        "flush_disk_type": f"{flush.name}_FLUSH" if flush else None,
    }
    _run(read_plan(flags, config, profile), quiet=quiet, as_json=ready_json)


def _run(plan: Plan, *, quiet: bool, as_json: bool) -> None:
    """Serve until a signal, and report the end."""
    run(plan, lambda ready: _announce(ready, quiet=quiet, as_json=as_json))
    if (plan.store_path / ABORT).exists():
        print_stderr(
            "stopped; the store was not closed cleanly (see the log): the next start recovers it"
        )
        raise typer.Exit(FAILED)
    if not quiet and not as_json:
        with suppress(OSError):  # the terminal has closed, which may be why the server stopped
            typer.echo("Stopped; the store is closed.")


def _memory_defaults() -> dict[str, object]:
    memory = memory_bytes()
    return {"believed_bytes": memory // _BELIEVED_PART, "memory_bytes": memory}


def read_plan(flags: Mapping[str, object], file: Path | None, profile: Profile) -> Plan:
    """Return the plan from the options, the file and the environment.

    Raises:
        ConfigError: a setting is unknown or out of its range.
    """
    served = load(
        ServeConfig,
        path=file,
        environ=os.environ,
        prefix=PREFIX,
        flags=flags,
        defaults=_memory_defaults() | PROFILES[profile],
        unserved=ROCKETMQ_KEYS,
        refused=REFUSED_KEYS,
    )
    namesrv_config = load(
        NamesrvConfig,
        environ=os.environ,
        prefix=NAMESRV_PREFIX,
        flags={"listen": served.broker.listen, "port": served.namesrv_port},
        # The name server uses the broker's certificate, unless the environment names another.
        defaults=values_of(served.broker.limits) | values_of(served.broker.transport),
    )
    if served.broker.namesrv_addr:
        _check_advertised(served.broker)
    else:
        _check_reachable(served.broker.transport, namesrv_config.transport)
    path = served.store_path.expanduser()
    return Plan(
        broker=_with_stored_sizes(served.broker, path),
        namesrv=None if served.broker.namesrv_addr else namesrv_config,
        store_path=path,
        profile=profile.value,
        console=served.console.plan(served.broker.port),
        grpc=served.grpc_plan,
    )


def _check_reachable(broker: TransportConfig, namesrv: TransportConfig) -> None:
    """Refuse a name server with which the broker of this process cannot register.

    Raises:
        ConfigError: the name server requires TLS, and the broker's client does not use it.
    """
    if namesrv.tls_server_mode is TlsMode.ENFORCING and not broker.tls_enable:
        raise ConfigError(
            "tls_server_mode is enforcing, also for the name server of this process, with which "
            "the broker registers: set tls_enable to true (tls.enable), and "
            "tls_client_trust_cert_path unless a public authority issued the certificate"
        )


def _check_advertised(broker: BrokerConfig) -> None:
    """Refuse to join a name server that would return a loopback address of the broker to clients.

    Raises:
        ConfigError: the name server's address is loopback, and the broker listens on all addresses.
    """
    if broker.advertise is not None or broker.listen not in WILDCARD_HOSTS:
        return
    for address in broker.namesrv_addr:
        if is_loopback(parse_address(address)[0]):
            raise ConfigError(
                f"listen is {broker.listen!r} and namesrv_addr {address}: that name server would "
                "return an address to other machines that works on this one only; set advertise "
                "(--advertise, brokerIP1) to an address for other machines"
            )


def _with_stored_sizes(config: BrokerConfig, path: Path) -> BrokerConfig:
    """Return the config with the file sizes of the existing store, which never change."""
    sizes: dict[str, int] = {}
    if path.is_dir():
        with closing(OsDisk(path)) as disk:
            sizes = detect_sizes(disk)
    for name, size in sizes.items():
        if (requested := getattr(config.store, name)) != size:
            log.info("store.size_kept name=%s made_with=%d asked=%d", name, size, requested)
    store: StoreConfig = replace(config.store, **sizes)  # type: ignore[arg-type]  # two int fields
    try:
        return replace(config, store=store)
    except ConfigError as error:
        raise ConfigError(f"{error} (the store {path} was created with this size)") from None


def _announce(ready: Ready, *, quiet: bool, as_json: bool) -> None:
    """Print the JSON line or the start screen, and warn if the broker accepts other machines."""
    if as_json:
        typer.echo(ready_line(ready))
    elif not quiet:
        # Imported only for the screen: rich takes 0.1 s and some megabytes.
        from kourou.cli.start_screen import print_screen  # noqa: PLC0415

        print_screen(ready)
    if ready.is_exposed and (as_json or quiet):
        print_stderr(
            f"warning: {ready.broker} is open to other machines, without access control: every "
            "program that can connect to it can read, write and delete every topic"
        )

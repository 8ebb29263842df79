"""`kourou serve proxy`: a proxy in front of the brokers of a cluster, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from kourou import __version__, logs
from kourou.broker.periodic_tasks import PeriodicTasks
from kourou.cli.exits import print_stderr
from kourou.cli.machine import machine_addresses
from kourou.cli.monitoring import (
    ConsoleConfig,
    ConsolePort,
    NoConsole,
    console_url,
    start_console,
)
from kourou.cli.options import (
    GRPC_PORT,
    GrpcAdvertise,
    GrpcPort,
    ListenOn,
    LogLevel,
    NoTls,
    ReadyJson,
    StopAtEof,
)
from kourou.cli.own_certificate import RENEWAL_INTERVAL_MS, OwnCertificate, with_certificate
from kourou.cli.process import (
    default_log_level,
    limit_gc_pauses,
    run_loop,
    stop_at_stdin_end,
    stop_on_signals,
)
from kourou.cli.serve_grpc import ALPN, advertised_address, missing_packages, proxy_labels
from kourou.client.namesrv_addr import parse_namesrv_addr
from kourou.clock import Clock
from kourou.console.server import ReadMetrics
from kourou.disk import require_file_calls
from kourou.documented import documented
from kourou.errors import ConfigError, ListenFailedError, TransportError
from kourou.metrics import Family
from kourou.model.host import NAMESRV_DEFAULT, NAMESRV_VARIABLES
from kourou.model.route import WILDCARD_HOSTS
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address, TcpNetwork, format_address, is_loopback
from kourou.remoting.runtime import Runtime
from kourou.remoting.tls import TlsMode
from kourou.remoting.transport_config import TransportConfig
from kourou.settings import load
from kourou.store.paths import TLS

if TYPE_CHECKING:
    from kourou.proxy.cluster import Cluster
    from kourou.proxy.remoting_port import RemotingPort
    from kourou.proxy.server import Proxy

log = logging.getLogger(__name__)

PREFIX: Final = "KOUROU_PROXY_"
REMOTING_PORT: Final = 8080
"""Default port for remoting clients, as RocketMQ's proxy."""
_PORT_MAX: Final = 65_535
_NAMESRV_RETRY_S: Final = 1.0
_NAMESRV_TIMEOUT_S: Final = 3.0


@documented
@dataclass(frozen=True, kw_only=True)
class ProxyConfig:
    """Settings of `kourou serve proxy`.

    Raises:
        ConfigError: a value is out of its range.
    """

    namesrv_addr: str = NAMESRV_DEFAULT
    """The name servers of the cluster, as `host:port` separated by `;`."""
    listen: str = "127.0.0.1"
    """The local address to listen on."""
    grpc_server_port: int = GRPC_PORT
    """The port for gRPC clients; 0 chooses a free one."""
    grpc_advertise: str | None = None
    """The address, `host:port`, in the routes of gRPC clients. None: the address that each client
    uses already."""
    remoting_enable: bool = True
    """Whether remoting clients are served, those of RocketMQ's older protocol."""
    remoting_listen_port: int = REMOTING_PORT
    """The port for remoting clients; 0 chooses a free one. A port in use is only a warning."""
    remoting_advertise: str | None = None
    """The address, `host:port`, in the routes of remoting clients. None: that to which each client
    has connected."""
    reuse_port: bool = False
    """Whether several proxies may listen on the same ports (SO_REUSEPORT); the system distributes
    connections among them."""
    proxy_cluster_name: str = "DefaultCluster"
    """The name of the proxies' cluster in metrics."""
    home: Path = Path("~/.kourou/proxy")
    """The directory of the self-signed certificate, which proxies of one machine may share."""
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    """Settings of /metrics, /healthz and /readyz."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """Limits of connections."""
    transport: TransportConfig = field(default_factory=TransportConfig)
    """TLS of the ports, and of connections to name servers and brokers (`tls_enable`)."""

    def __post_init__(self) -> None:
        parse_namesrv_addr(self.namesrv_addr)
        for name in ("grpc_server_port", "remoting_listen_port"):
            if not 0 <= getattr(self, name) <= _PORT_MAX:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 0 to 65535")
        port = self.grpc_server_port
        if port and self.reuse_port and self.remoting_enable and port == self.remoting_listen_port:
            raise ConfigError(
                f"grpc_server_port and remoting_listen_port are both {port}: with reuse_port, "
                "connections of either kind would arrive at both; use another port for one"
            )
        _ = self.grpc_advertised, self.remoting_advertised  # ConfigError

    @property
    def grpc_advertised(self) -> Address | None:
        """The address in the routes of gRPC clients; None: the one that each uses."""
        return advertised_address("grpc_advertise", self.grpc_advertise)

    @property
    def remoting_advertised(self) -> Address | None:
        """The address in the routes of remoting clients; None: the one that each uses."""
        return advertised_address("remoting_advertise", self.remoting_advertise)


@dataclass(frozen=True, kw_only=True)
class ProxyReady:
    """The state of the process at the moment when it became ready.

    Attributes:
        namesrv: addresses of the name servers.
        grpc: the address for gRPC clients.
        remoting: the address for remoting clients; None if they are not served.
        is_exposed: other machines can connect.
        certificate: path of the self-signed certificate, for clients to trust; None without one.
        console: URL of /metrics, /healthz and /readyz; None without a console.
    """

    version: str = __version__
    pid: int
    namesrv: str
    grpc: str
    remoting: str | None = None
    is_exposed: bool
    certificate: str | None = None
    console: str | None = None


HELP: Final = """\
Serve gRPC and remoting clients in front of the brokers of a cluster, until Ctrl-C.

The brokers may be those of Kourou or RocketMQ. SIGTERM ends the calls in progress, makes messages
that clients hold visible to others, and stops.

\b
Examples:
  kourou serve proxy --name-server 10.0.0.1:9876
  kourou serve proxy --name-server 10.0.0.1:9876;10.0.0.2:9876 --listen 0.0.0.0
  kourou serve proxy --reuse-port     several processes on one port

Settings: defaults, then --config, environment (KOUROU_PROXY_GRPC_SERVER_PORT), options; later ones
override. An unknown setting is refused.

Exit codes: 0 stopped, 2 wrong option or setting, 3 could not start (port in use), 130 stopped by a
second Ctrl-C.
"""

_NameServer = Annotated[
    str | None,
    typer.Option(
        "--name-server",
        "--namesrv",
        "-n",
        metavar="HOST:PORT[;...]",
        envvar=list(NAMESRV_VARIABLES),
        help="The name servers of the cluster.  [default: 127.0.0.1:9876]",
    ),
]
_RemotingPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=_PORT_MAX,
        help="The port for remoting clients, which use it as their name server; 0 means any free.  "
        "[default: 8080]",
    ),
]
_NoRemoting = Annotated[bool, typer.Option("--no-remoting", help="No port for remoting clients.")]
_ReusePort = Annotated[
    bool | None,
    typer.Option("--reuse-port", help="Let several proxies share the port (SO_REUSEPORT)."),
]
_Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings: a .toml or .properties file.")
]


def proxy(
    *,
    name_server: _NameServer = None,
    listen: ListenOn = None,
    grpc_port: GrpcPort = None,
    grpc_advertise: GrpcAdvertise = None,
    remoting_port: _RemotingPort = None,
    no_remoting: _NoRemoting = False,
    reuse_port: _ReusePort = None,
    console_port: ConsolePort = None,
    no_console: NoConsole = False,
    no_tls: NoTls = False,
    config: _Config = None,
    log_level: LogLevel = None,
    ready_json: ReadyJson = False,
    stop_at_eof: StopAtEof = False,
) -> None:
    """Read the options and serve."""
    require_file_calls("`kourou serve proxy`")
    logs.configure(log_level or default_log_level())
    if stop_at_eof:
        stop_at_stdin_end()
    flags = {
        "namesrv_addr": name_server,
        "listen": listen,
        "grpc_server_port": grpc_port,
        "grpc_advertise": grpc_advertise,
        "remoting_listen_port": remoting_port,
        "remoting_enable": False if no_remoting else None,
        "reuse_port": reuse_port,
        "console_port": console_port,
        "console_enable": False if no_console else None,
        "tls_server_mode": TlsMode.DISABLED if no_tls else None,
    }
    settings = load(ProxyConfig, path=config, environ=os.environ, prefix=PREFIX, flags=flags)
    missing = missing_packages()
    if missing:
        raise ConfigError(missing)

    def announce(ready: ProxyReady) -> None:
        if ready_json:
            typer.echo(json.dumps({"ready": True, **asdict(ready)}, ensure_ascii=False))
        else:
            typer.echo(f"proxy for the cluster of {ready.namesrv}")
            typer.echo(f"gRPC clients:     {ready.grpc}")
            typer.echo(f"remoting clients: {ready.remoting or 'not served'}")
            typer.echo(f"monitoring:       {ready.console or 'not served'}")
        if ready.is_exposed:
            print_stderr(f"warning: {ready.grpc} is open to other machines, without access control")

    run_loop(serve_proxy(settings, announce))


async def serve_proxy(config: ProxyConfig, announce: Callable[[ProxyReady], None]) -> None:
    """Serve until a signal; call `announce` once, when a name server has answered.

    Raises:
        ListenFailedError: a port is in use, or the address is not one of this machine.
    """
    stop = asyncio.Event()
    stop_on_signals(stop, "stopped immediately")
    async with AsyncExitStack() as running:
        runtime = replace(Runtime.system(), network=TcpNetwork(reuse_port=config.reuse_port))
        transport, certificate = config.transport, None
        if transport.uses_self_signed:
            own = _own_certificate(config, runtime.clock)
            certificate = own.make()
            if certificate is not None:
                transport = with_certificate(transport, certificate)
                tasks = PeriodicTasks()
                running.push_async_callback(tasks.stop)
                tasks.start("renew the certificate", RENEWAL_INTERVAL_MS, own.renew)
        ports = await _open_ports(config, transport, runtime, running)
        waiting = ["no name server has answered"]
        console = start_console(
            config.console.plan(config.grpc_server_port),
            _metrics_reader(ports.proxy, config),
            lambda: waiting,
        )
        if console is not None:
            running.push_async_callback(console.stop)
        if not await _wait_for_namesrv(ports.proxy.cluster, stop):
            return
        waiting.clear()
        announce(
            ProxyReady(
                pid=os.getpid(),
                namesrv=";".join(parse_namesrv_addr(config.namesrv_addr)),
                grpc=format_address(ports.proxy.address),
                remoting=None if ports.remoting is None else format_address(ports.remoting),
                is_exposed=not is_loopback(config.listen),
                certificate=None if certificate is None else str(certificate.certificate),
                console=console_url(console),
            )
        )
        limit_gc_pauses()
        await stop.wait()


class _Ports(NamedTuple):
    """The open ports of a proxy; `remoting` is None if remoting clients are not served."""

    proxy: Proxy
    remoting: Address | None


def _metrics_reader(proxy: Proxy, config: ProxyConfig) -> ReadMetrics:
    labels = proxy_labels(config.proxy_cluster_name, "cluster")

    async def read() -> list[Family]:
        return proxy.metrics(labels)

    return read


async def _open_ports(
    config: ProxyConfig, transport: TransportConfig, runtime: Runtime, running: AsyncExitStack
) -> _Ports:
    # Imported only here: protobuf takes 0.1 s, and is an extra.
    from kourou.proxy.cluster import Cluster  # noqa: PLC0415
    from kourou.proxy.member_sync import MemberSync  # noqa: PLC0415
    from kourou.proxy.remoting_port import RemotingPort  # noqa: PLC0415
    from kourou.proxy.server import Proxy  # noqa: PLC0415

    namesrv = parse_namesrv_addr(config.namesrv_addr)
    cluster = Cluster(runtime, namesrv, tls=transport.tls_client())
    proxy = Proxy(
        runtime.network,
        cluster,
        advertised=config.grpc_advertised,
        admission=transport.admission(config.limits, alpn=ALPN),
    )
    grpc = await proxy.start((config.listen, config.grpc_server_port))
    running.push_async_callback(proxy.stop)
    if not config.remoting_enable:
        # Proxies of RocketMQ list gRPC consumers among the members of a group, too.
        members = MemberSync(cluster, f"{_host(config)}%0%{grpc[1]}", lambda _: None)
        members.start()
        running.push_async_callback(members.stop)
        proxy.announce_members(members)
        return _Ports(proxy, None)
    port = RemotingPort(
        runtime,
        cluster,
        name=f"{_host(config)}%{grpc[1]}",
        limits=config.limits,
        advertised=config.remoting_advertised,
        admission=transport.admission(config.limits),
    )
    remoting = await _start_remoting(port, (config.listen, config.remoting_listen_port))
    running.push_async_callback(port.stop)
    if port.members is not None:
        proxy.announce_members(port.members)
    return _Ports(proxy, remoting)


def _host(config: ProxyConfig) -> str:
    """Return a host that distinguishes this machine from those of other proxies."""
    advertised = config.remoting_advertised
    if advertised is not None:
        return advertised[0]
    if config.listen not in WILDCARD_HOSTS:
        return config.listen
    return next(iter(machine_addresses()), "127.0.0.1")


async def _start_remoting(port: RemotingPort, address: Address) -> Address | None:
    """Open the port for remoting clients; if that fails, warn, and return None."""
    try:
        return await port.start(address)
    except ListenFailedError as error:
        print_stderr(
            f"warning: remoting clients are not served: {error}; choose another port with "
            "--remoting-port, or none with --no-remoting"
        )
        return None


async def _wait_for_namesrv(cluster: Cluster, stop: asyncio.Event) -> bool:
    """Return True when a name server has answered, False if the process is to stop before.

    Raises:
        RemoteError: the server is not a name server.
    """
    is_told = False
    while not stop.is_set():
        command = request(RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            await cluster.name_servers.request(command, _NAMESRV_TIMEOUT_S)
        except TransportError as error:
            if not is_told:
                print_stderr(f"waiting for a name server: {error}")
                is_told = True
        else:
            return True
        try:
            async with asyncio.timeout(_NAMESRV_RETRY_S):
                await stop.wait()
        except TimeoutError:
            pass
    return False


def _own_certificate(config: ProxyConfig, clock: Clock) -> OwnCertificate:
    return OwnCertificate(config.home.expanduser().absolute() / TLS, _hosts(config), clock)


def _hosts(config: ProxyConfig) -> list[str]:
    """Return the names in the certificate, beside those of this machine."""
    hosts = [] if config.listen in WILDCARD_HOSTS else [config.listen]
    advertised = (config.grpc_advertised, config.remoting_advertised)
    return [*hosts, *dict.fromkeys(address[0] for address in advertised if address is not None)]

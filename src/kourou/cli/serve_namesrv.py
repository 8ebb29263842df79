"""`kourou serve namesrv`: a name server in a process of its own, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from kourou import __version__, logs
from kourou.broker.periodic_tasks import PeriodicTasks
from kourou.cli.exits import print_stderr
from kourou.cli.options import ListenOn, LogLevel, NoTls, ReadyJson, StopAtEof
from kourou.cli.own_certificate import RENEWAL_INTERVAL_MS, OwnCertificate, with_certificate
from kourou.cli.process import (
    default_log_level,
    limit_gc_pauses,
    make_directory,
    open_name_server,
    run_loop,
    stop_at_stdin_end,
    stop_on_signals,
)
from kourou.disk import OsDisk, require_file_calls
from kourou.model.route import WILDCARD_HOSTS
from kourou.namesrv.config import NamesrvConfig
from kourou.remoting.network import format_address, is_loopback
from kourou.remoting.runtime import Runtime
from kourou.remoting.tls import TlsMode
from kourou.settings import load
from kourou.store.paths import TLS

PREFIX: Final = "KOUROU_NAMESRV_"

HELP: Final = """\
Run a name server without a broker, until Ctrl-C.

Brokers register with each name server of a cluster; name servers do not communicate with each
other. Its key-value configuration is in the directory.

\b
Examples:
  kourou serve namesrv
  kourou serve namesrv --listen 0.0.0.0 --dir /var/lib/kourou/namesrv
  kourou serve namesrv --port 0 --ready-json                any free port, for programs

Settings: defaults, then --config, environment (KOUROU_NAMESRV_BROKERS_MAX), options; later ones
override. An unknown setting is refused.

Exit codes: 0 stopped, 2 wrong option or setting, 3 could not start (port in use, directory not
writable), 130 stopped by a second Ctrl-C.
"""

_Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="The directory of its configuration.")
]
_Port = Annotated[
    int | None,
    typer.Option(
        metavar="PORT", min=0, max=65535, help="The port; 0 means any free.  [default: 9876]"
    ),
]
_Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A namesrv.conf as for RocketMQ, or a .toml file."),
]


@dataclass(frozen=True, kw_only=True)
class NamesrvReady:
    """The state of the process at the moment when clients can connect.

    Attributes:
        namesrv: the address on which it listens.
        is_exposed: other machines can connect.
        certificate: path of the self-signed certificate, for clients to trust; None without one.
    """

    version: str = __version__
    pid: int
    namesrv: str
    directory: str
    is_exposed: bool
    certificate: str | None = None


def namesrv(
    *,
    directory: _Directory = Path("~/.kourou/namesrv"),
    listen: ListenOn = None,
    port: _Port = None,
    no_tls: NoTls = False,
    config: _Config = None,
    log_level: LogLevel = None,
    ready_json: ReadyJson = False,
    stop_at_eof: StopAtEof = False,
) -> None:
    """Read the options and serve."""
    require_file_calls("`kourou serve namesrv`")
    logs.configure(log_level or default_log_level())
    if stop_at_eof:
        stop_at_stdin_end()
    flags = {
        "listen": listen,
        "port": port,
        "tls_server_mode": TlsMode.DISABLED if no_tls else None,
    }
    settings = load(NamesrvConfig, path=config, environ=os.environ, prefix=PREFIX, flags=flags)

    def announce(ready: NamesrvReady) -> None:
        if ready_json:
            typer.echo(json.dumps({"ready": True, **asdict(ready)}, ensure_ascii=False))
        else:
            typer.echo(f"name server: {ready.namesrv}")
            typer.echo(f"directory:   {ready.directory}")
        if ready.is_exposed:
            print_stderr(
                f"warning: {ready.namesrv} is open to other machines, without access control: "
                "every program that can connect to it can register brokers"
            )

    run_loop(_serve(settings, directory.expanduser().absolute(), announce))


async def _serve(
    config: NamesrvConfig, directory: Path, announce: Callable[[NamesrvReady], None]
) -> None:
    """Serve until a signal; call `announce` once, when clients can connect."""
    stop = asyncio.Event()
    stop_on_signals(stop, "stopped immediately")
    make_directory(directory)
    async with AsyncExitStack() as running:
        runtime = Runtime.system()
        certificate = None
        if config.transport.uses_self_signed:
            hosts = [] if config.listen in WILDCARD_HOSTS else [config.listen]
            own = OwnCertificate(directory / TLS, hosts, runtime.clock)
            certificate = own.make()
            if certificate is not None:
                transport = with_certificate(config.transport, certificate)
                config = replace(config, transport=transport)
                tasks = PeriodicTasks()
                running.push_async_callback(tasks.stop)
                tasks.start("renew the certificate", RENEWAL_INTERVAL_MS, own.renew)
        disk = OsDisk(directory)
        running.callback(disk.close)
        server = open_name_server(config, runtime, disk)
        address = await server.start()
        running.push_async_callback(server.stop)
        announce(
            NamesrvReady(
                pid=os.getpid(),
                namesrv=format_address(address),
                directory=str(directory),
                is_exposed=not is_loopback(config.listen),
                certificate=None if certificate is None else str(certificate.certificate),
            )
        )
        limit_gc_pauses()
        await stop.wait()

"""The server process: starts the name server and the broker, waits for a signal, stops them.

The first SIGINT or SIGTERM stops cleanly: acknowledged messages are on disk, and the store is
closed. A second signal ends the process at once and leaves the store as after a crash.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from kourou import __version__
from kourou.broker.config import BrokerConfig
from kourou.broker.controlling.switching_broker import SwitchingBroker
from kourou.broker.periodic_tasks import PeriodicTasks
from kourou.broker.server import FIRST_REGISTRATION_MS, Broker
from kourou.cli.exits import INTERRUPTED, print_stderr
from kourou.cli.interrupts import handle_stop_signals
from kourou.cli.machine import machine_addresses
from kourou.cli.monitoring import ConsolePlan, console_url, start_console
from kourou.cli.output import counted
from kourou.cli.own_certificate import RENEWAL_INTERVAL_MS, OwnCertificate, with_certificate
from kourou.cli.progress import RecoveryProgress
from kourou.cli.serve_controlled import create_broker, obtain_id
from kourou.cli.serve_grpc import GrpcPlan, metrics_reader, start_proxy
from kourou.clock import Clock
from kourou.disk import OsDisk
from kourou.errors import StoreUnusableError
from kourou.logs import Level
from kourou.model.route import WILDCARD_HOSTS
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.remoting.network import Address, format_address, is_loopback, parse_address
from kourou.remoting.runtime import Runtime
from kourou.store.message_store import RecoveryReport
from kourou.store.paths import COMMITLOG, TLS


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged part of the log that recovery skipped.

    Attributes:
        file: name of the file below the store's root.
        byte: position in the file at which the part begins.
        size: size of the part in bytes.
        reason: why the part cannot be read.
    """

    file: str
    byte: int
    size: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The state of a server process at the moment when it became ready.

    Attributes:
        namesrv: addresses of the name servers: its own, or those that it joined.
        own_namesrv: whether the name server runs in this process.
        namesrv_for_others: the own name server's address for other machines; None if it is the same
            or there is none.
        broker: the address on which the broker listens.
        found: result of opening the store, as text.
        damaged: damaged parts of the log that recovery found; it does not read the whole log.
        index_lag_bytes: bytes of the log that the key index does not cover yet.
        kept_hours: how long a log file is kept after its last write, in hours.
        expired_at: local hours at which expired files are deleted, such as "04;16".
        free_bytes: free space on the store's file system.
        profile: dev or prod.
        certificate: path of the self-signed certificate, for clients to trust; None without one.
        console: URL of /metrics, /healthz and /readyz; None without a console.
        grpc: the address for gRPC clients; None if they are not served.
    """

    version: str = __version__
    pid: int
    namesrv: str
    own_namesrv: bool
    namesrv_for_others: str | None = None
    broker: str
    broker_name: str
    cluster: str
    store: str
    found: str
    damaged: tuple[Damage, ...] = ()
    index_lag_bytes: int = 0
    kept_hours: int
    expired_at: str
    free_bytes: int
    flush_disk_type: str
    flush_interval_ms: int
    segment_bytes: int
    profile: str
    is_exposed: bool
    certificate: str | None = None
    console: str | None = None
    grpc: str | None = None


def ready_line(ready: Ready) -> str:
    """Return the state as one line of JSON; `"ready": true` comes first."""
    return json.dumps({"ready": True, **asdict(ready)}, ensure_ascii=False)


try:
    from uvloop import new_event_loop
except ImportError:  # the extra `fast`
    from asyncio import new_event_loop


log = logging.getLogger(__name__)

OWN_NAMESRV_MS: Final = 30_000
"""Maximum wait for the registration of the broker with the name server of this process, which can
be slow on a busy machine. Clients that connected earlier would find no route."""

_STOP_S: Final = 30.0
"""Most time of a clean stop after the end of stdin."""
_YOUNG_OBJECTS: Final = 2_000
"""Threshold of the youngest generation: objects allocated and not freed. The requests of one
iteration of the event loop create fewer."""
_YOUNG_COLLECTIONS: Final = 2
"""Collections of the youngest generation before one of the middle generation, of some 8,000
objects; the longest measured took 5 ms."""
_OLD_COLLECTIONS: Final = 64
"""Collections of the middle generation before one of the oldest, which holds all objects created
since the start; up to half a million objects may be garbage until then."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The configuration of one server process.

    Attributes:
        namesrv: None to join the name servers that `broker` names.
        profile: name of the profile, for the start screen.
        console: where the console listens; None for no console.
        grpc: settings of the port for gRPC clients; None: they are not served.
    """

    broker: BrokerConfig
    namesrv: NamesrvConfig | None
    store_path: Path
    profile: str
    console: ConsolePlan | None = None
    grpc: GrpcPlan | None = None


def run(plan: Plan, announce: Callable[[Ready], None]) -> None:
    """Serve until a signal; call `announce` once, when clients can connect.

    Raises:
        ListenFailedError: a port is in use, or the address is not one of this machine.
        StoreLockedError: another broker uses the store.
        StoreUnusableError: the directory cannot be created, read or written.
        StoreError: the files of the store are inconsistent, or were created with other sizes.
    """
    run_loop(_serve(plan, announce))


def run_loop(work: Coroutine[None, None, None]) -> None:
    """Run the work of a server in the fastest event loop that is installed."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work)


async def _serve(plan: Plan, announce: Callable[[Ready], None]) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop, "stopped immediately; the next start recovers the store")
    make_directory(plan.store_path)
    is_new = not (plan.store_path / COMMITLOG).exists()
    async with AsyncExitStack() as running:
        runtime = Runtime.system()
        plan, certificate = with_self_signed(plan, runtime.clock)
        config = plan.broker
        disk = OsDisk(plan.store_path)
        running.callback(disk.close)
        if plan.namesrv is not None:
            namesrv = open_name_server(plan.namesrv, runtime, disk)
            address = await namesrv.start()
            running.push_async_callback(namesrv.stop)
            config = replace(config, namesrv_addr=(format_address(reachable_address(address)),))
        broker = create_broker(config, disk, runtime)
        if isinstance(broker, SwitchingBroker) and not await obtain_id(broker, stop):
            return
        await _start(broker, plan)
        running.push_async_callback(broker.stop)
        proxy = await start_proxy(plan.grpc, config, broker, runtime)
        if proxy is not None:
            running.push_async_callback(proxy.stop)
        read_metrics = metrics_reader(broker, proxy, config)
        console = start_console(plan.console, read_metrics, broker.unready_reasons)
        if console is not None:
            running.push_async_callback(console.stop)
        ready = _ready(plan, config, broker, disk, is_new=is_new)
        ready = replace(ready, console=console_url(console))
        if proxy is not None:
            ready = replace(ready, grpc=format_address(proxy.address))
        if certificate is not None:
            ready = replace(ready, certificate=str(certificate))
            tasks = PeriodicTasks()
            running.push_async_callback(tasks.stop)
            renew = certificate_renewal(plan, runtime.clock)
            tasks.start("renew the certificate", RENEWAL_INTERVAL_MS, renew)
        announce(ready)
        limit_gc_pauses()
        await stop.wait()


async def _start(broker: Broker | SwitchingBroker, plan: Plan) -> None:
    """Recover the store, showing the progress, and serve."""
    registration_timeout_ms = FIRST_REGISTRATION_MS if plan.namesrv is None else OWN_NAMESRV_MS
    progress = RecoveryProgress()
    try:
        await broker.start(
            progress,
            first_registration_ms=registration_timeout_ms,
            is_namesrv_local=plan.namesrv is not None,
        )
    except OSError as error:
        raise _unusable(plan.store_path, error) from error
    finally:
        progress.end()


def with_self_signed(plan: Plan, clock: Clock) -> tuple[Plan, Path | None]:
    """Return the plan with the self-signed certificate if it needs one, and the file for clients.

    If no certificate can be created, only plain connections are served, and the log has a warning.
    """
    transports = [plan.broker.transport, *([plan.namesrv.transport] if plan.namesrv else [])]
    if not any(transport.uses_self_signed for transport in transports):
        return plan, None
    own = _own_certificate(plan, clock).make()
    if own is None:
        return plan, None
    broker = replace(plan.broker, transport=with_certificate(plan.broker.transport, own))
    namesrv = plan.namesrv and replace(
        plan.namesrv, transport=with_certificate(plan.namesrv.transport, own)
    )
    return replace(plan, broker=broker, namesrv=namesrv), own.certificate


def _own_certificate(plan: Plan, clock: Clock) -> OwnCertificate:
    config = plan.broker
    hosts = [] if config.listen in WILDCARD_HOSTS else [config.listen]
    if config.advertise is not None:
        hosts.append(parse_address(config.advertise, config.port)[0])
    return OwnCertificate(plan.store_path.absolute() / TLS, hosts, clock)


def certificate_renewal(plan: Plan, clock: Clock) -> Callable[[], Coroutine[None, None, None]]:
    """Return a task that renews the certificate before it expires; ports detect the new file."""
    return _own_certificate(plan, clock).renew


def limit_gc_pauses() -> None:
    """Configure the garbage collector for short pauses; called after the start of a server.

    Objects that exist now live as long as the process, and are excluded from collections. Later
    objects that stay, such as connections and held pulls, are examined while they are young. With
    Python's default thresholds, all of them would be examined whenever their number has grown by a
    quarter: a pause of 0.1 s with 2,000 consumers and 40,000 held pulls. Rare full collections are
    sufficient because Kourou's connections leave no reference cycles; asyncio's transports leave
    some, uvloop's do not.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _OLD_COLLECTIONS)


def open_name_server(config: NamesrvConfig, runtime: Runtime, disk: OsDisk) -> NameServer:
    """Return the name server; its key-value configuration is on the disk.

    Raises:
        StoreUnusableError: it cannot be read.
    """
    try:
        return NameServer(config, runtime, disk)
    except OSError as error:
        raise _unusable(Path(disk.root), error) from error


def default_log_level() -> Level:
    """Return the default log level: WARNING on a terminal, next to the start screen, else INFO."""
    return Level.WARNING if sys.stderr.isatty() else Level.INFO


def stop_on_signals(stop: asyncio.Event, text: str) -> None:
    """Make the first signal set `stop`, and the second print `text` and end the process."""

    def on_signal() -> None:
        if stop.is_set():
            print_stderr(text)
            os._exit(INTERRUPTED)
        stop.set()

    handle_stop_signals(asyncio.get_running_loop(), on_signal)


def stop_at_stdin_end() -> None:
    """Stop this process when its stdin ends, by the first signal of `stop_on_signals`.

    A program that starts servers gives them the read end of a pipe as stdin. The pipe ends with
    that program, however it ends, on every system; a server that hangs is ended later.
    """

    def watch() -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:  # a closed stdin has ended, too
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(_STOP_S)
        print_stderr(f"stopped immediately: still running {_STOP_S:.0f} s after the end of stdin")
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, name="watch stdin", daemon=True).start()


def make_directory(path: Path) -> None:
    """Create the directory of a store if it is missing.

    Raises:
        StoreUnusableError: it cannot be created, read or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StoreUnusableError(str(path), "it is a file, not a directory") from error
    except OSError as error:
        raise _unusable(path, error) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StoreUnusableError(str(path), "no permission to read and write there")


def _unusable(path: Path, error: OSError) -> StoreUnusableError:
    reason = error.strerror or str(error)
    if error.filename and str(error.filename) != str(path):
        reason = f"{reason}: {error.filename}"
    return StoreUnusableError(str(path), reason)


def reachable_address(address: Address) -> Address:
    """Return an address for connections from this machine; loopback for a wildcard address."""
    host, port = address
    if host not in WILDCARD_HOSTS:
        return address
    return "::1" if host == "::" else "127.0.0.1", port


def _namesrv_for_others(plan: Plan, config: BrokerConfig) -> str | None:
    """Return the own name server's address for other machines if it listens on all addresses."""
    if plan.namesrv is None or plan.namesrv.listen not in WILDCARD_HOSTS:
        return None
    (own_address,) = config.namesrv_addr
    is_v6 = {"0.0.0.0": False, "::": True}.get(plan.namesrv.listen)  # noqa: S104  # compared
    for host in machine_addresses():
        if is_v6 in (None, ":" in host):
            return format_address((host, parse_address(own_address)[1]))
    return None


def _ready(
    plan: Plan,
    config: BrokerConfig,
    broker: Broker | SwitchingBroker,
    disk: OsDisk,
    *,
    is_new: bool,
) -> Ready:
    """Return the state of the running servers."""
    return Ready(
        pid=os.getpid(),
        namesrv=";".join(config.namesrv_addr),
        own_namesrv=plan.namesrv is not None,
        namesrv_for_others=_namesrv_for_others(plan, config),
        broker=format_address(broker.address),
        broker_name=config.broker_name,
        cluster=config.cluster_name,
        store=str(plan.store_path.absolute()),
        found="new" if is_new else recovery_text(broker.store.recovery),
        damaged=_damaged(broker.store.recovery, config.store.commitlog_segment_bytes),
        index_lag_bytes=broker.store.index_lag_bytes,
        kept_hours=config.store.retention.file_reserved_hours,
        expired_at=config.store.retention.delete_when,
        free_bytes=disk.free_bytes(),
        flush_disk_type=config.flush_disk_type.value,
        flush_interval_ms=config.flush_interval_ms,
        segment_bytes=config.store.commitlog_segment_bytes,
        profile=plan.profile,
        is_exposed=not is_loopback(config.listen),
    )


def recovery_text(recovery: RecoveryReport) -> str:
    """Return the result of opening the store as text."""
    if recovery.was_clean:
        return "closed cleanly when last used"
    cut = f", {recovery.truncated_bytes:,} torn bytes removed" if recovery.truncated_bytes else ""
    return f"recovered after a crash ({counted(recovery.records_scanned, 'message')} checked{cut})"


def _damaged(recovery: RecoveryReport, segment_bytes: int) -> tuple[Damage, ...]:
    """Return the damaged parts of the log that recovery skipped."""
    return tuple(
        Damage(
            f"{COMMITLOG}/{span.position - span.position % segment_bytes:020d}",
            span.position % segment_bytes,
            span.size,
            span.reason,
        )
        for span in recovery.damaged
    )

"""One process that serves: starts the name server and the broker, waits for a signal, stops them.

The first SIGINT or SIGTERM stops cleanly: what was acknowledged is on disk, the store is closed. A
second one ends the process at once, and leaves the store as a crash would.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.periodic_tasks import PeriodicTasks
from kourou.broker.server import FIRST_REGISTRATION_MS, Broker
from kourou.broker.writing.kernel_flusher import KernelFlusher
from kourou.cli.exits import INTERRUPTED, say
from kourou.cli.machine_addresses import machine_addresses
from kourou.cli.output import counted
from kourou.cli.ready import Damage, Ready
from kourou.cli.recovery_progress import RecoveryProgress
from kourou.clock import Clock
from kourou.console.server import Console
from kourou.disk import OsDisk
from kourou.errors import ConfigError, ListenFailedError, StoreUnusableError
from kourou.model.route import WILDCARD_HOSTS
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.remoting.network import Address, format_address, is_loopback, parse_address
from kourou.remoting.runtime import Runtime
from kourou.remoting.self_signed import SelfSignedCertificate, ensure_certificate
from kourou.remoting.transport_config import TransportConfig
from kourou.store.message_store import RecoveryReport
from kourou.store.paths import COMMITLOG, TLS

try:
    from uvloop import new_event_loop
except ImportError:  # the extra `fast`
    from asyncio import new_event_loop


log = logging.getLogger(__name__)

OWN_NAMESRV_MS: Final = 30_000
"""How long the start waits until the name server of this process has taken the broker in. That is
there, and on a busy machine only late; whoever came before would find no route."""

RENEWAL_INTERVAL_MS: Final = 12 * 3600 * 1000
"""How often to look whether the certificate expires soon."""

_YOUNG_OBJECTS: Final = 2_000
"""Made and not freed: then they are looked at. The requests of a turn of the loop make fewer."""
_YOUNG_COLLECTIONS: Final = 2
"""Then their survivors are looked at together, some 8,000 objects: 5 ms at most were seen."""
_OLD_COLLECTIONS: Final = 64
"""Of those; only then all that came since the start: half a million objects may be garbage."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one process serves.

    Attributes:
        namesrv: None joins the name servers that `broker` names.
        profile: for the start screen.
        console: where to listen for monitors; None not at all.
        is_console_asked: whether a port that is taken ends the start; else it is a warning.
    """

    broker: BrokerConfig
    namesrv: NamesrvConfig | None
    store_path: Path
    profile: str
    console: Address | None = None
    is_console_asked: bool = False


def run(plan: Plan, announce: Callable[[Ready], None]) -> None:
    """Serve until a signal; `announce` is called once, when clients can connect.

    Raises:
        ListenFailedError: a port is taken, or the address is not this machine's.
        StoreLockedError: another broker has the store.
        StoreUnusableError: the directory cannot be made, read or written.
        StoreError: the files in it do not fit together, or were made with other sizes.
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(plan, announce))


async def _serve(plan: Plan, announce: Callable[[Ready], None]) -> None:
    stop = asyncio.Event()
    _stop_on_signals(stop)
    _make_directory(plan.store_path)
    is_new = not (plan.store_path / COMMITLOG).exists()
    async with AsyncExitStack() as running:
        runtime = Runtime.system()
        plan, certificate = _with_own_certificate(plan, runtime.clock)
        config = plan.broker
        disk = OsDisk(plan.store_path)
        running.callback(disk.close)
        if plan.namesrv is not None:
            namesrv = _name_server(plan.namesrv, runtime, disk)
            address = await namesrv.start()
            running.push_async_callback(namesrv.stop)
            config = replace(config, namesrv_addr=(format_address(_reachable(address)),))
        broker = Broker(config, disk, runtime, KernelFlusher)
        patience_ms = FIRST_REGISTRATION_MS if plan.namesrv is None else OWN_NAMESRV_MS
        progress = RecoveryProgress()
        try:
            await broker.start(
                progress,
                first_registration_ms=patience_ms,
                is_namesrv_local=plan.namesrv is not None,
            )
        except OSError as error:
            raise _unusable(plan.store_path, error) from error
        finally:
            progress.end()
        running.push_async_callback(broker.stop)
        console = _console(plan, broker)
        if console is not None:
            running.push_async_callback(console.stop)
        ready = _ready(plan, config, broker, disk, is_new=is_new)
        if console is not None:
            ready = replace(ready, console=f"http://{format_address(console.address)}")
        if certificate is not None:
            ready = replace(ready, certificate=str(certificate))
            tasks = PeriodicTasks()
            running.push_async_callback(tasks.stop)
            tasks.start("renew the certificate", RENEWAL_INTERVAL_MS, _renewal(plan, runtime.clock))
        announce(ready)
        keep_collections_short()
        await stop.wait()


def _with_own_certificate(plan: Plan, clock: Clock) -> tuple[Plan, Path | None]:
    """Return the plan with a certificate of our own where it wants one, and the clients' file.

    Where none can be made, plain connections are served still, and the log says so.
    """
    transports = [plan.broker.transport, *([plan.namesrv.transport] if plan.namesrv else [])]
    if not any(transport.uses_self_signed for transport in transports):
        return plan, None
    try:
        own = _ensure_certificate(plan, clock)
    except (ConfigError, OSError) as error:
        log.warning("certificate.not_made tls=off reason=%r", str(error))
        return plan, None

    def given(transport: TransportConfig) -> TransportConfig:
        if not transport.uses_self_signed:
            return transport
        return replace(transport, tls_server_cert_path=own.pem, tls_server_key_path=own.pem)

    broker = replace(plan.broker, transport=given(plan.broker.transport))
    namesrv = plan.namesrv and replace(plan.namesrv, transport=given(plan.namesrv.transport))
    return replace(plan, broker=broker, namesrv=namesrv), own.certificate


def _ensure_certificate(plan: Plan, clock: Clock) -> SelfSignedCertificate:
    """Return the store's certificate, made anew where it has to be. Raises as that."""
    config = plan.broker
    hosts = [] if config.listen in WILDCARD_HOSTS else [config.listen]
    if config.advertise is not None:
        hosts.append(parse_address(config.advertise, config.port)[0])
    return ensure_certificate(plan.store_path.absolute() / TLS, hosts, clock.now_ms())


def _renewal(plan: Plan, clock: Clock) -> Callable[[], Coroutine[None, None, None]]:
    """Return what replaces the certificate before it expires; the ports notice by themselves."""

    async def renew() -> None:
        await asyncio.to_thread(_ensure_certificate, plan, clock)

    return renew


def keep_collections_short() -> None:
    """Let the garbage collector look at little at a time; called when a server has started.

    What exists then lives as long as the process, and is not looked at again. What comes later and
    stays, such as connections and held pulls, is looked at while it is young. By Python's own
    thresholds all of it would be, whenever it has grown by a quarter: a tenth of a second in which
    nothing else happens, where 2,000 consumers hold 40,000 pulls. It goes without the collector,
    since our connections leave no cycles; asyncio's transports do, uvloop's do not.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _OLD_COLLECTIONS)


def _console(plan: Plan, broker: Broker) -> Console | None:
    """Listen for monitors, if that is wanted; return None where it cannot be and need not be.

    Raises:
        ListenFailedError: the address cannot be listened on, and was asked for.
    """
    if plan.console is None:
        return None
    console = Console(broker.metrics, broker.unready_reasons)
    try:
        console.start(*plan.console)
    except ListenFailedError as error:
        if plan.is_console_asked:
            raise
        say(f"warning: no /metrics, /healthz and /readyz: {error}; --console-port takes another")
        return None
    return console


def _name_server(config: NamesrvConfig, runtime: Runtime, disk: OsDisk) -> NameServer:
    """Return the name server, whose configuration lies in the store's directory."""
    try:
        return NameServer(config, runtime, disk)
    except OSError as error:
        raise _unusable(Path(disk.root), error) from error


def _stop_on_signals(stop: asyncio.Event) -> None:
    """Make the first signal set `stop`, and the second end the process."""

    def on_signal() -> None:
        if stop.is_set():
            say("stopped at once; the next start recovers the store")
            os._exit(INTERRUPTED)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StoreUnusableError(str(path), "a file, not a directory") from error
    except OSError as error:
        raise _unusable(path, error) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StoreUnusableError(str(path), "no permission to read and write there")


def _unusable(path: Path, error: OSError) -> StoreUnusableError:
    reason = error.strerror or str(error)
    if error.filename and str(error.filename) != str(path):
        reason = f"{reason}: {error.filename}"
    return StoreUnusableError(str(path), reason)


def _reachable(address: Address) -> Address:
    """Return an address that this machine reaches where it listens on all of its addresses."""
    host, port = address
    if host not in WILDCARD_HOSTS:
        return address
    return "::1" if host == "::" else "127.0.0.1", port


def _namesrv_for_others(plan: Plan, config: BrokerConfig) -> str | None:
    """Return the own name server's address for other machines, where it listens on several."""
    if plan.namesrv is None or plan.namesrv.listen not in WILDCARD_HOSTS:
        return None
    (here,) = config.namesrv_addr
    is_v6 = {"0.0.0.0": False, "::": True}.get(plan.namesrv.listen)  # noqa: S104  # compared
    for host in machine_addresses():
        if is_v6 in (None, ":" in host):
            return format_address((host, parse_address(here)[1]))
    return None


def _ready(
    plan: Plan, config: BrokerConfig, broker: Broker, disk: OsDisk, *, is_new: bool
) -> Ready:
    """Return what there is to tell about the servers that run now."""
    return Ready(
        pid=os.getpid(),
        namesrv=";".join(config.namesrv_addr),
        own_namesrv=plan.namesrv is not None,
        namesrv_for_others=_namesrv_for_others(plan, config),
        broker=format_address(broker.address),
        broker_name=config.broker_name,
        cluster=config.cluster_name,
        store=str(plan.store_path.absolute()),
        found="new" if is_new else _found(broker.store.recovery),
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


def _found(recovery: RecoveryReport) -> str:
    """Return what opening the store found, for people."""
    if recovery.was_clean:
        return "closed cleanly when last used"
    cut = f", {recovery.truncated_bytes:,} torn bytes cut" if recovery.truncated_bytes else ""
    return f"recovered after a crash ({counted(recovery.records_scanned, 'message')} checked{cut})"


def _damaged(recovery: RecoveryReport, segment_bytes: int) -> tuple[Damage, ...]:
    """Return where the parts of the log are that recovery stepped over."""
    return tuple(
        Damage(
            f"{COMMITLOG}/{span.position - span.position % segment_bytes:020d}",
            span.position % segment_bytes,
            span.size,
            span.reason,
        )
        for span in recovery.damaged
    )

"""The name server: serves the route table on a port and expires brokers without heartbeats."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from kourou.disk import Disk
from kourou.errors import ClosedError, TransportError
from kourou.model.route import replace_wildcard_host
from kourou.namesrv.admin_handlers import NamesrvAdminHandlers
from kourou.namesrv.broker_identity import MinIdChange
from kourou.namesrv.config import LiveConfig, NamesrvConfig
from kourou.namesrv.handlers import NamesrvHandlers, log_values
from kourou.namesrv.kv_config import FILE_NAME, KvConfig, parse_kv_config
from kourou.namesrv.routes import RouteTable
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.routes import NotifyMinBrokerIdChangeRequestHeader
from kourou.remoting.connection import Connection
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.network import Address
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer
from kourou.remoting.steady_time import steady_ms
from kourou.store.state.config_file import ConfigFile

log = logging.getLogger(__name__)

_NOTICE_TIMEOUT_S: Final = 0.3


class NameServer:
    """One name server. Created inside a running event loop; started and stopped once.

    Name servers do not communicate with each other: brokers register with each of them.
    """

    def __init__(self, config: NamesrvConfig, runtime: Runtime, disk: Disk | None = None) -> None:
        """Create a name server that does not listen yet.

        Args:
            config: its options.
            runtime: network, and execution off the event loop.
            disk: holds the key-value configuration below `namesrv/`; None keeps it in memory only.
                The caller closes the disk, after `stop`.

        Raises:
            CorruptRecordError: neither the key-value file nor its backup parses.
            OSError: the key-value file cannot be read.
            ConfigError: a certificate or key cannot be used.
        """
        self._live = LiveConfig(config)
        self._config = config
        self._routes = RouteTable(
            config.broker_timeout_ms,
            config.brokers_max,
            config.topic_entries_max,
            self._on_min_id_changed,
        )
        file = None if disk is None else ConfigFile(disk, FILE_NAME, parse_kv_config, restores=True)
        kv = KvConfig(file, runtime.offload, bytes_max=config.kv_config_bytes_max)
        self._later = DeferredReplies()
        self._notices: set[asyncio.Task[None]] = set()
        handlers = NamesrvHandlers(
            self._routes,
            kv,
            self._live,
            steady_ms,
            offload=runtime.offload,
            later=self._later,
        )
        admin = NamesrvAdminHandlers(self._routes, kv, self._live, self._later)
        self._server = RemotingServer(
            runtime,
            {**handlers.table(), **admin.table()},
            config.limits,
            "namesrv",
            self._on_connection_closed,
            admission=config.transport.admission(config.limits),
        )
        self._scan_timer: asyncio.TimerHandle | None = None

    async def start(self) -> Address:
        """Listen, and return the address with the real port.

        Raises:
            AddressInUseError: another socket already listens on the address.
            ListenFailedError: the address is not one of this machine, or is not permitted.
        """
        address = await self._server.start((self._config.listen, self._config.port))
        self._schedule_scan()
        return address

    async def stop(self) -> None:
        """Stop serving; answers already written are sent within `drain_timeout_ms`."""
        self._stop_scanning()
        await self._later.close()
        await self._server.stop()
        self._cancel_notices()

    def abandon(self) -> None:
        """Stop like a killed process: at once, without notice to clients and brokers."""
        self._stop_scanning()
        self._later.abandon()
        self._server.abort()
        self._cancel_notices()

    def _schedule_scan(self) -> None:
        loop = asyncio.get_running_loop()
        self._scan_timer = loop.call_later(self._live.current.scan_interval_ms / 1000, self._scan)

    def _stop_scanning(self) -> None:
        if self._scan_timer is not None:
            self._scan_timer.cancel()
            self._scan_timer = None

    def _scan(self) -> None:
        """Remove the expired brokers, and close their connections."""
        # First, so that an error on one connection does not end the scans.
        self._schedule_scan()
        for identity, connection in self._routes.expire(steady_ms()):
            log.warning("broker.expired cluster=%s name=%s id=%d address=%s", *log_values(identity))
            assert isinstance(connection, Connection)
            connection.close("its broker fell silent")

    def _on_connection_closed(self, connection: Connection) -> None:
        for identity in self._routes.unregister_connection(connection):
            log.info(
                "broker.disconnected cluster=%s name=%s id=%d address=%s", *log_values(identity)
            )

    def _on_min_id_changed(self, change: MinIdChange) -> None:
        """Notify the brokers of a name which of them has the lowest id now (905)."""
        if not self._live.current.notify_min_broker_id_changed:
            return
        for connection in change.connections:
            assert isinstance(connection, Connection)
            header = _notice(change, connection.local_address[0])
            task = asyncio.get_running_loop().create_task(_notify(connection, header))
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)

    def _cancel_notices(self) -> None:
        for task in self._notices:
            task.cancel()


def _notice(change: MinIdChange, host: str) -> NotifyMinBrokerIdChangeRequestHeader:
    """Return the notice of a change for a broker that connected to the name server at `host`."""
    offline, ha = change.offline_address, change.ha_address
    return NotifyMinBrokerIdChangeRequestHeader(
        min_broker_id=change.min_id,
        min_broker_addr=replace_wildcard_host(change.min_address, host),
        offline_broker_addr=offline and replace_wildcard_host(offline, host),
        ha_broker_addr=ha and replace_wildcard_host(ha, host),
    )


async def _notify(connection: Connection, header: NotifyMinBrokerIdChangeRequestHeader) -> None:
    """Send one notice. Errors are only logged: brokers also query their group themselves (901)."""
    command = request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)
    try:
        await connection.oneway(command, _NOTICE_TIMEOUT_S)
    except (TransportError, ClosedError) as error:
        log.info("notice.not_sent broker=%s reason=%s", connection, error)

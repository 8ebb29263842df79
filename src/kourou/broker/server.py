"""One broker: puts the parts together, starts them in order, and stops them in order.

    start   open and recover the store, load the tables, set back offsets beyond the log, listen,
            deliver what became due, register
    stop    leave the routes, take no more messages, answer those accepted, close the connections,
            save the tables, close the store

Knows everyone and is known by none of them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final

from kourou.broker.admin_groups import GroupAdminHandlers
from kourou.broker.admin_topics import AdminTopicHandlers
from kourou.broker.client_handlers import ClientHandlers, ConsumerIdsNotifier
from kourou.broker.clients import Clients
from kourou.broker.config import BrokerConfig
from kourou.broker.delay import FILE_NAME as DELAY_FILE
from kourou.broker.delay import DelayDelivery, parse_delay_offsets
from kourou.broker.flusher import Flusher, ThreadFlusher
from kourou.broker.group_commit import GroupCommit
from kourou.broker.handlers import Handlers
from kourou.broker.later import LaterReplies
from kourou.broker.loops import Loops
from kourou.broker.offset_handlers import OffsetHandlers
from kourou.broker.pull import PullHandler
from kourou.broker.query import QueryHandlers
from kourou.broker.registration import Registration
from kourou.broker.retry import SendBackHandler
from kourou.broker.send import SendHandlers
from kourou.broker.send_checks import SendChecks
from kourou.broker.tables import Tables
from kourou.disk import Disk
from kourou.errors import ClosedError
from kourou.model.host import Host
from kourou.remoting.connection import Connection
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address, format_address, parse_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer
from kourou.store.config_file import ConfigFile
from kourou.store.message_store import Arrival, MessageStore

log = logging.getLogger(__name__)

FLUSH_INTERVAL_MS: Final = 1_000
"""How often consume queues and the checkpoint are written."""
CLIENT_SCAN_INTERVAL_MS: Final = 10_000
FIRST_REGISTRATION_MS: Final = 1_000
"""How long `start` waits for the name servers; those that answer later are told later."""

FlusherFactory = Callable[[asyncio.AbstractEventLoop], Flusher]


class Broker:
    """One broker. Started once and stopped once, in one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        runtime: Runtime,
        flusher_factory: FlusherFactory = ThreadFlusher,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Make a broker; nothing is opened yet.

        Args:
            config: its options.
            disk: its store's; closed by whoever made it, after `stop`.
            runtime: network, clock, randomness, and the way off the loop.
            flusher_factory: makes what syncs the commit log.
            limits: bounds of its connections.
        """
        self._config = config
        self._disk = disk
        self._runtime = runtime
        self._flusher_factory = flusher_factory
        self._limits = limits or ConnectionLimits()
        self._parts: _Parts | None = None
        self._address: Address | None = None
        self._is_ended = False

    @property
    def address(self) -> Address:
        """What it listens on, with the real port.

        Raises:
            ClosedError: it is not started.
        """
        if self._address is None:
            raise ClosedError("the broker is not started")
        return self._address

    @property
    def store(self) -> MessageStore:
        """Its store, to look at.

        Raises:
            ClosedError: it is not started.
        """
        if self._parts is None:
            raise ClosedError("the broker is not started")
        return self._parts.store

    async def start(self) -> Address:
        """Recover the store, serve, register, and return the address.

        Waits for the name servers for a second at most: the broker serves without them, and
        registers when they can be reached.

        Raises:
            StoreError: the store is in use, was made with other sizes, or is corrupt.
            OSError: a file of it cannot be read or written.
            AddressInUseError, ListenFailedError: the port cannot be listened on; the store is
                closed again.
        """
        clock = self._runtime.clock
        store = await self._runtime.offload(
            MessageStore.open,
            self._disk,
            self._config.store_config,
            clock.now_ms(),
            pid=os.getpid(),
        )
        flusher = self._flusher_factory(asyncio.get_running_loop())
        try:
            parts = _Parts(
                config=self._config,
                disk=self._disk,
                runtime=self._runtime,
                flusher=flusher,
                store=store,
                limits=self._limits,
            )
            self._address = await parts.start()
        except BaseException:
            flusher.close()
            store.close(clock.now_ms())
            raise
        self._parts = parts  # from here on, `stop` ends it
        log.info(
            "broker.started name=%s address=%s store=%s flush=%s",
            self._config.broker_name,
            format_address(self._address),
            self._disk.root,
            self._config.flush_disk_type.value,
        )
        await parts.registered()
        return self._address

    async def stop(self) -> None:
        """Stop cleanly: what was accepted is answered, all is saved, the store is closed.

        Ends within about two seconds, however slow clients and name servers are; a disk that does
        not answer is waited for. Stopping twice is harmless.
        """
        if self._parts is None or self._is_ended:
            return
        self._is_ended = True
        await self._parts.stop()
        log.info("broker.stopped name=%s", self._config.broker_name)

    def abandon(self) -> None:
        """End as a killed process ends: nobody is told, and nothing more is written."""
        if self._parts is None or self._is_ended:
            return
        self._is_ended = True
        self._parts.abandon()


class _Parts:
    """The parts of a broker whose store is open."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        disk: Disk,
        runtime: Runtime,
        flusher: Flusher,
        store: MessageStore,
        limits: ConnectionLimits,
    ) -> None:
        self.store = store
        self._config = config
        self._runtime = runtime
        self._flusher = flusher
        self._later = LaterReplies()
        self._loops = Loops()
        self._pool = ConnectionPool(runtime, {}, limits)
        self._registration: Registration | None = None
        self._tables = Tables(config, disk, runtime, store)
        self._clients = Clients(
            ConsumerIdsNotifier(self._tables.groups),
            clients_max=config.clients_max,
            expiry_ms=config.channel_expired_timeout_ms,
        )
        self._commit = GroupCommit(
            store, flusher, asyncio.get_running_loop(), config, self._on_arrivals
        )
        self._make_services(disk)
        self._server = RemotingServer(
            runtime, self._handlers().table(), limits, "broker", self._on_connection_closed
        )

    def _make_services(self, disk: Disk) -> None:
        """Make what acts by itself: held pulls and delayed delivery."""
        config, runtime = self._config, self._runtime
        self._pulls = PullHandler(
            config,
            topics=self._tables.topics,
            groups=self._tables.groups,
            clients=self._clients,
            offsets=self._tables.offsets,
            store=self.store,
            later=self._later,
            offload=runtime.offload,
        )
        self._delay = DelayDelivery(
            store=self.store,
            commit=self._commit,
            file=ConfigFile(disk, DELAY_FILE, parse_delay_offsets),
            offload=runtime.offload,
            clock=runtime.clock,
            delay_levels_ms=config.delay_levels_ms,
        )

    def _handlers(self) -> Handlers:
        """Make what serves requests."""
        tables, store, later = self._tables, self.store, self._later
        topics, groups, offsets = tables.topics, tables.groups, tables.offsets
        self._client_handlers = ClientHandlers(self._clients, groups, topics)
        return Handlers(
            sends=self._sends(),
            send_backs=self._send_backs(),
            pulls=self._pulls,
            clients=self._client_handlers,
            offsets=OffsetHandlers(
                groups=groups,
                topics=topics,
                offsets=offsets,
                store=store,
                resident_bytes=self._config.store.resident_bytes,
            ),
            queries=QueryHandlers(store, self._runtime.offload, later),
            topics=AdminTopicHandlers(
                config=self._config,
                topics=topics,
                offsets=offsets,
                store=store,
                commit=self._commit,
                later=later,
            ),
            groups=GroupAdminHandlers(
                broker_name=self._config.broker_name,
                topics=topics,
                groups=groups,
                clients=self._clients,
                offsets=offsets,
                store=store,
                later=later,
            ),
        )

    def _sends(self) -> SendHandlers:
        topics, groups = self._tables.topics, self._tables.groups
        return SendHandlers(
            config=self._config,
            topics=topics,
            checks=SendChecks(self._config, topics, groups),
            commit=self._commit,
            later=self._later,
            clock=self._runtime.clock,
            random=self._runtime.random,
            store_host=_store_host(self._config),
        )

    def _send_backs(self) -> SendBackHandler:
        return SendBackHandler(
            config=self._config,
            topics=self._tables.topics,
            groups=self._tables.groups,
            store=self.store,
            commit=self._commit,
            later=self._later,
            offload=self._runtime.offload,
            clock=self._runtime.clock,
            random=self._runtime.random,
            store_host=_store_host(self._config),
        )

    async def start(self) -> Address:
        """Listen, and begin everything that goes on by itself."""
        config, topics = self._config, self._tables.topics
        address = await self._server.start((config.listen, config.port))
        self._delay.start()
        self._start_loops()
        self._registration = Registration(config, topics, self._pool, address)
        topics.on_changed = self._registration.soon
        self._registration.start()
        return address

    async def registered(self) -> None:
        """Return when all name servers were tried once, or have had the time for it."""
        assert self._registration is not None, "it is started"
        try:
            async with asyncio.timeout(FIRST_REGISTRATION_MS / 1000):
                await self._registration.tried()
        except TimeoutError:
            log.warning("registration.delayed namesrv=%s", ";".join(self._config.namesrv_addr))

    def _start_loops(self) -> None:
        config, loops = self._config, self._loops
        loops.start("flush", FLUSH_INTERVAL_MS, self._flush)
        loops.start("save tables", config.consumer_offset_interval_ms, self._tables.persist)
        loops.start("save delay offsets", config.delay_offset_interval_ms, self._delay.persist)
        loops.start("scan clients", CLIENT_SCAN_INTERVAL_MS, self._expire_clients)

    async def stop(self) -> None:
        """Stop in the order that loses nothing."""
        await self._loops.stop()
        if self._registration is not None:
            await self._registration.stop()
        await self._pool.close()
        await self._delay.stop()
        self._pulls.close()
        await self._commit.close()
        await self._server.stop()
        await self._later.close()
        await _try("save tables", self._tables.persist)
        await _try("save delay offsets", self._delay.persist)
        await _try("close store", self._close_store)
        self._flusher.close()

    def abandon(self) -> None:
        """Stop as a killed process stops."""
        self._loops.abandon()
        if self._registration is not None:
            self._registration.abandon()
        self._pulls.close()
        self._delay.abandon()
        self._later.abandon()
        self._commit.abandon()
        self._server.abort()
        self._pool.abort()
        self._flusher.close()
        self.store.abandon()

    def _on_arrivals(self, arrivals: list[Arrival]) -> None:
        self._pulls.on_arrivals(arrivals)
        self._delay.on_arrivals(arrivals)

    def _on_connection_closed(self, connection: Connection) -> None:
        self._pulls.on_connection_closed(connection)
        self._clients.closed(connection)

    async def _flush(self) -> None:
        self._commit.flush(self._runtime.clock.now_ms())

    async def _expire_clients(self) -> None:
        self._client_handlers.expire()

    async def _close_store(self) -> None:
        await self._runtime.offload(self.store.close, self._runtime.clock.now_ms())


async def _try(what: str, action: Callable[[], Awaitable[object]]) -> None:
    """Take one step of stopping; if it fails, say so and let the others follow."""
    try:
        await action()
    except Exception:  # the steps after this one save more
        log.exception("broker.stop_failed step=%s", what)


def _store_host(config: BrokerConfig) -> Host | None:
    """Return the address in message ids, if it is known without asking a connection."""
    if config.advertise is None:
        return None
    host, port = parse_address(config.advertise, config.port)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None  # a message id holds an address, not a name
    return (host, port) if port else None

"""Registers the broker and its topics with each name server.

One task per name server registers at start, then every `register_interval_ms`, and soon after a
topic changed or the connection was lost, because a name server removes the broker when the
connection closes. A failed registration is retried after 1 s, and the time doubles with each
failure, up to the interval. A name server that cannot be reached delays no other.

Content of a registration:

    first one on a connection               all topics, with the version of the table
    after a change                          the changed topics, with the version of the table
    30 s after that, and each tenth time    all topics, which also repairs a name server's losses
    otherwise                               a query whether the name server has the newest version

Changes during a registration are sent together by the next one. A handler that creates a topic for
a client awaits `wait_announced` before it answers: the client asks a name server next, and if it
finds no route, it asks again only after 30 s.

A deleted topic stays in a name server until an administrator deletes it there.

Source: BrokerController.registerBrokerAll, BrokerOuterAPI.java, apache/rocketmq 5.5.0. Java sends
all topics each time by default (forceRegister). Here unchanged topics are not sent each time,
because 25,000 of them take a quarter of a second of the name server's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from kourou.broker.advertised import advertised_address
from kourou.broker.config import BrokerConfig
from kourou.broker.topics import Topics
from kourou.errors import ConfigError, KourouError, TransportError
from kourou.model.route import WILDCARD_HOSTS
from kourou.model.topic import PERM_READ, PERM_WRITE
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.data_version import DataVersion, encode_data_version
from kourou.protocol.hashing import crc32
from kourou.protocol.kv_config import decode_kv_table
from kourou.protocol.topic_table import (
    BrokerHeartbeatRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBody,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    TopicConfigTable,
    UnregisterBrokerRequestHeader,
    encode_register_body,
)
from kourou.remoting.connection import Connection
from kourou.remoting.network import Address, format_address, is_loopback, parse_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

_RETRY_FIRST_MS: Final = 1000
_PAUSE_MS: Final = 10
"""Pause between two registrations, so that one registration sends many changes. A client that
creates topics one after the other waits this long for each."""
_ANNOUNCE_TIMEOUT_MS: Final = 1000
"""Time-out of `wait_announced`, so that a hanging name server does not delay clients for long."""
_SKIPPED_MAX: Final = 9
"""Most queries in a row instead of registrations: five minutes with the default interval. For so
long a topic can be missing that was deleted at a name server by mistake."""
_BEAT_TIMEOUT_S: Final = 0.1
"""How long a heartbeat waits for a name server that does not read."""
_UNREGISTER_TIMEOUT_MS: Final = 1000
"""Short, because a name server removes the broker anyway when the connection closes."""


class Registration:
    """Keeps one broker registered with all its name servers."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        pool: ConnectionPool,
        listening: Address,
        offload: Offload,
        *,
        ha_port: int,
        on_master: Callable[[RegisterBrokerResponseHeader], None] | None = None,
        is_namesrv_local: bool = False,
    ) -> None:
        """Create a registration of `topics`; `start` begins it.

        Args:
            config: broker name, name servers, and the address to advertise.
            topics: the topics to register.
            pool: connects to the name servers; closed by its owner.
            listening: the address the broker listens on, with the real port.
            offload: runs the encoding of all topics off the event loop.
            ha_port: the port at which slaves copy the log, on the host of the address.
            on_master: of a slave: called with its master's addresses after each registration.
            is_namesrv_local: whether the name server runs in this process. It then gets a wildcard
                host unchanged, and answers each client with the address to which the client
                connected.
        """
        self._config = config
        self._is_namesrv_local = is_namesrv_local
        self._permission = config.broker_permission
        self._topics = topics
        self._pool = pool
        self._listening = listening
        self._offload = offload
        self._ha_port = ha_port
        self._on_master = on_master
        self._name_servers = {address: _NameServer() for address in config.namesrv_addr}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def was_registered(self) -> bool:
        """Whether the broker has been registered with a name server at least once."""
        return any(name_server.was_registered for name_server in self._name_servers.values())

    def start(self) -> None:
        """Start one task per name server."""
        for address, name_server in self._name_servers.items():
            task = asyncio.create_task(
                self._keep_registered(address, name_server), name=f"register {address}"
            )
            self._tasks.append(task)

    def schedule(self) -> None:
        """Register again as soon as possible, because topics changed."""
        for name_server in self._name_servers.values():
            name_server.due.set()

    def announce_permission(self, permission: int) -> None:
        """Register all topics again, restricted to a changed permission of the broker."""
        if permission == self._permission:
            return
        self._permission = permission
        self._topics.new_version()  # name servers ignore topics of a version that they have
        self.schedule()

    async def wait_first_attempts(self, timeout_ms: int) -> None:
        """Return when it was tried once with every name server, or after the time-out."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                for name_server in self._name_servers.values():
                    await name_server.attempted.wait()
        except TimeoutError:
            log.warning("registration.delayed namesrv=%s", ";".join(self._name_servers))

    def is_announced(self) -> bool:
        """Return whether all reachable name servers have the current topics."""
        change = self._topics.change_number
        return all(name_server.is_announced(change) for name_server in self._name_servers.values())

    async def wait_announced(self) -> None:
        """Return when the name servers have the current topics, after one second at most.

        Name servers whose last registration failed are not waited for.
        """
        change = self._topics.change_number
        try:
            async with asyncio.timeout(_ANNOUNCE_TIMEOUT_MS / 1000):
                for name_server in self._name_servers.values():
                    await name_server.wait_announced(change)
        except TimeoutError:
            log.info("registration.slow change=%d", change)

    async def beat(self) -> None:
        """Send a heartbeat to each name server that has the broker, without waiting for answers."""
        for name_server in self._name_servers.values():
            connection = name_server.connection
            if connection is not None and connection.is_open and name_server.is_registered:
                header = BrokerHeartbeatRequestHeader(
                    self._config.cluster_name,
                    self.address_for(connection),
                    self._config.broker_name,
                    self._config.broker_id,
                )
                command = request(RequestCode.BROKER_HEARTBEAT, header)
                with suppress(TransportError):  # the next registration reports it
                    await connection.oneway(command, _BEAT_TIMEOUT_S)

    async def stop(self) -> None:
        """End the tasks, and unregister from the name servers that can be reached."""
        await self._end_tasks()
        await asyncio.gather(
            *(
                self._unregister(address)
                for address, name_server in self._name_servers.items()
                if name_server.is_registered
            )
        )

    def abandon(self) -> None:
        """Stop like a killed process: cancel the tasks without unregistering."""
        for task in self._tasks:
            task.cancel()

    def address_for(self, connection: Connection) -> str:
        """Return the broker's address to register with the name server of the connection.

        Raises:
            ConfigError: the broker listens on a wildcard address and reaches the name server from
                a loopback address, to which other machines cannot connect.
        """
        host, port = self._listening
        if host in WILDCARD_HOSTS and self._config.advertise is None and not self._is_namesrv_local:
            host = connection.local_address[0]
            if is_loopback(host):
                raise ConfigError(
                    f"listen is {self._config.listen!r} and the name server is reached from "
                    f"{host}, an address to which clients on other machines cannot connect: set "
                    "advertise (brokerIP1) to one to which they can"
                )
        return advertised_address(self._config, (host, port))

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_registered(self, address: str, name_server: _NameServer) -> None:
        """Keep the broker registered with one name server; runs until cancelled."""
        retry_ms = _RETRY_FIRST_MS
        while True:
            name_server.due.clear()
            try:
                await self._register(address, name_server)
            except Exception as error:  # any kind: without this task the routes would expire
                if name_server.is_registered or not name_server.attempted.is_set():
                    is_internal = not isinstance(error, KourouError | OSError)
                    log.warning(
                        "registration.failed namesrv=%s reason=%s",
                        address,
                        error,
                        exc_info=is_internal,
                    )
                name_server.end_round(is_registered=False)
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(2 * retry_ms, self._config.register_interval_ms)
            else:
                if not name_server.is_registered:
                    log.info("registration.done namesrv=%s", address)
                name_server.end_round(is_registered=True)
                retry_ms = _RETRY_FIRST_MS
                await asyncio.sleep(_PAUSE_MS / 1000)
                await _wait(name_server.due, self._config.register_interval_ms)

    async def _register(self, address: str, name_server: _NameServer) -> None:
        """Bring one name server up to date, by a registration or a query.

        Raises:
            TransportError: the name server cannot be reached, or did not answer in time.
            RemoteError: it refused the registration.
        """
        connection = await self._pool.get(address)
        if connection is not name_server.connection:
            name_server.connection = connection
            name_server.sent_change = None
            connection.on_closed.append(lambda _: name_server.due.set())
        change = self._topics.change_number
        table = self._changes_for(name_server)
        if table is not None:
            name_server.sent_change = None  # if this fails, the next registration sends all topics
            if table.topics:
                await self._send(connection, encode_register_body(RegisterBody(table)))
            name_server.full_version = None
        elif self._may_skip(name_server) and await self._is_current(connection):
            name_server.skipped += 1
        else:
            name_server.sent_change = None
            version = self._topics.data_version
            await self._send(connection, await self._full_body())
            name_server.full_version, name_server.skipped = version, 0
        name_server.sent_change = change

    def _may_skip(self, name_server: _NameServer) -> bool:
        """Return whether a query is enough; not for a slave, which asks where its master is."""
        is_slave = self._on_master is not None
        return not is_slave and name_server.may_skip(self._topics.data_version)

    def _changes_for(self, name_server: _NameServer) -> TopicConfigTable | None:
        """Return the topics that changed since the name server's last registration.

        None if nothing changed or if all topics must be sent. The table is empty if the only
        changes are deletions, which a registration cannot express.
        """
        if name_server.sent_change is None or name_server.sent_change == self._topics.change_number:
            return None
        table = self._topics.changed_since(name_server.sent_change)
        return None if table is None else self._restricted(table)

    async def _full_body(self) -> bytes:
        """Return the registration body of all topics."""
        if self._is_unrestricted:
            return self._topics.encode_registration()
        table = self._restricted(self._topics.table())
        return await self._offload(encode_register_body, RegisterBody(table))

    async def _send(self, connection: Connection, body: bytes) -> None:
        """Send a registration, and mark the topics that the answer declares ordered."""
        address = self.address_for(connection)
        host, _ = parse_address(address)
        rules = self._config.replication
        may_act = rules.enable_slave_acting_master
        header = RegisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=address,
            cluster_name=self._config.cluster_name,
            ha_server_addr=format_address((host, self._ha_port)),
            broker_id=self._config.broker_id,
            heartbeat_timeout_millis=rules.broker_not_active_timeout_ms if may_act else None,
            enable_acting_master=may_act,
            compressed=False,
            body_crc32=crc32(body),
        )
        answer = await connection.request(
            request(RequestCode.REGISTER_BROKER, header, body),
            self._config.register_timeout_ms / 1000,
        )
        raise_for_response(answer)
        if self._on_master is not None:
            self._on_master(answer.header(RegisterBrokerResponseHeader))
        if answer.body:
            self._topics.mark_ordered(decode_kv_table(answer.body))

    async def _is_current(self, connection: Connection) -> bool:
        """Query whether the name server has the newest version; this renews the broker as well."""
        header = QueryDataVersionRequestHeader(
            self._config.broker_name,
            self.address_for(connection),
            self._config.cluster_name,
            self._config.broker_id,
        )
        body = encode_data_version(self._topics.data_version)
        answer = await connection.request(
            request(RequestCode.QUERY_DATA_VERSION, header, body),
            self._config.register_timeout_ms / 1000,
        )
        if answer.code != ResponseCode.SUCCESS:
            return False  # whatever the reason, a registration follows
        return not answer.header(QueryDataVersionResponseHeader).changed

    async def _unregister(self, address: str) -> None:
        try:
            connection = await self._pool.get(address)
            header = UnregisterBrokerRequestHeader(
                self._config.broker_name,
                self.address_for(connection),
                self._config.cluster_name,
                self._config.broker_id,
            )
            answer = await connection.request(
                request(RequestCode.UNREGISTER_BROKER, header), _UNREGISTER_TIMEOUT_MS / 1000
            )
            raise_for_response(answer)
        except (KourouError, OSError) as error:
            log.info("registration.not_removed namesrv=%s reason=%s", address, error)

    @property
    def _is_unrestricted(self) -> bool:
        return self._permission == PERM_READ | PERM_WRITE

    def _restricted(self, table: TopicConfigTable) -> TopicConfigTable:
        """Return the topics with their permissions restricted to the broker's permission."""
        allowed = self._permission
        if self._is_unrestricted:
            return table
        narrowed = {
            name: replace(topic, perm=topic.perm & allowed) for name, topic in table.topics.items()
        }
        return TopicConfigTable(narrowed, table.data_version)


class _NameServer:
    """State of the registration with one name server.

    Attributes:
        sent_change: number of the last change of topics that was sent; None: send all topics.
        full_version: version of the table when all topics were last sent; None if changed topics
            were sent since.
        skipped: queries since then that were answered "up to date".
        due: set when a registration should follow soon.
        attempted: set after the first registration, whether it succeeded or not.
        is_registered: whether the last registration succeeded.
        was_registered: whether any registration succeeded.
    """

    def __init__(self) -> None:
        self.sent_change: int | None = None
        self.full_version: DataVersion | None = None
        self.skipped = 0
        self.due = asyncio.Event()
        self.attempted = asyncio.Event()
        self.is_registered = self.was_registered = False
        self.connection: Connection | None = None
        self._round_ended = asyncio.Event()

    def end_round(self, *, is_registered: bool) -> None:
        """Record the result of a registration."""
        self.is_registered = is_registered
        self.was_registered |= is_registered
        self.attempted.set()
        self._round_ended.set()
        self._round_ended = asyncio.Event()  # for the next round

    def is_announced(self, change: int) -> bool:
        """Return whether the name server has this change, or its last registration failed."""
        if not self.is_registered:
            return True
        return self.sent_change is not None and self.sent_change >= change

    async def wait_announced(self, change: int) -> None:
        """Return when `is_announced` is true."""
        while not self.is_announced(change):
            await self._round_ended.wait()

    def may_skip(self, version: DataVersion) -> bool:
        """Return whether a query for this version may replace a registration."""
        has_all = self.sent_change is not None and self.full_version == version
        return has_all and self.skipped < _SKIPPED_MAX


async def _wait(event: asyncio.Event, timeout_ms: int) -> None:
    """Return when `event` is set or the time-out has passed."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        pass

"""Telling the name servers of this broker and its topics, each on its own.

With every name server one task registers at start, again each `register_interval_ms`, and soon
after a topic changed or the connection was lost, on which a name server forgets the broker. One
that cannot be reached is tried again, from 1 s apart to the interval, and delays nobody else.

What is sent:

    at first, on each new connection        all topics, with their version
    after a change                          the changed topics, with the version of all topics
    30 s after that, and each tenth time    all topics, which also mends what a name server lost
    else                                    a question: is the version that you know the newest?

Changes that come while a registration is under way share the next one. Who made a topic for a
client waits for `told` before it answers: the client asks a name server next, and one that finds
no route asks again after 30 s.

A deleted topic stays in a name server until an administrator deletes it there.

Source: BrokerController.registerBrokerAll, BrokerOuterAPI.java, apache/rocketmq 5.5.0. Unlike there
by default (forceRegister), topics that did not change are not sent each time: of 25,000 that is a
quarter of a second of the name server's only loop.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from kourou.broker.advertised import advertised_address
from kourou.broker.config import BrokerConfig
from kourou.broker.topics import Topics
from kourou.errors import ConfigError, KourouError
from kourou.model.route import WILDCARD_HOSTS
from kourou.model.topic import PERM_READ, PERM_WRITE
from kourou.protocol.bodies import (
    DataVersion,
    RegisterBody,
    TopicConfigTable,
    decode_kv_table,
    encode_data_version,
    encode_register_body,
)
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import request
from kourou.protocol.hashing import crc32
from kourou.protocol.headers_route import (
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    UnregisterBrokerRequestHeader,
)
from kourou.remoting.check import raise_for_response
from kourou.remoting.connection import Connection
from kourou.remoting.network import Address, format_address, is_loopback, parse_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

_RETRY_FIRST_MS: Final = 1000
_PAUSE_MS: Final = 10
"""Least time between two registrations, so that many changes share one. Who makes topics one after
the other waits so long for each."""
_TELL_MAX_MS: Final = 1000
"""Longest that `told` waits, so that a name server that hangs delays no client for long."""
_SKIPPED_MAX: Final = 9
"""Times in a row that a name server is only asked: five minutes, in which a topic that somebody
deleted there by mistake is missing."""
_UNREGISTER_TIMEOUT_MS: Final = 1000
"""Short, because the name server forgets a broker by itself when its connection ends."""


class Registration:
    """Keeps one broker registered."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        pool: ConnectionPool,
        listening: Address,
        offload: Offload,
        *,
        is_namesrv_here: bool = False,
    ) -> None:
        """Register what `topics` holds.

        Args:
            config: names of the broker, the name servers, and the address to advertise.
            topics: the table that is sent.
            pool: connects to the name servers; closed by its owner.
            listening: what the broker listens on, with the real port.
            offload: takes the encoding of all topics off the loop.
            is_namesrv_here: whether the name server runs in this process. It then gets a wildcard
                host as it is, and answers each client with the address by which that one came.
        """
        self._config = config
        self._is_namesrv_here = is_namesrv_here
        self._permission = config.broker_permission
        self._topics = topics
        self._pool = pool
        self._listening = listening
        self._offload = offload
        self._members = {address: _Member() for address in config.namesrv_addr}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def was_registered(self) -> bool:
        """Whether some name server has taken the broker in, so that clients could find it."""
        return any(member.was_registered for member in self._members.values())

    def start(self) -> None:
        """Begin to register with all name servers."""
        for address, member in self._members.items():
            task = asyncio.create_task(self._keep(address, member), name=f"register {address}")
            self._tasks.append(task)

    def soon(self) -> None:
        """Register again as soon as possible: topics changed."""
        for member in self._members.values():
            member.is_due.set()

    def announce_permission(self, permission: int) -> None:
        """Register all topics with what the broker allows from now on."""
        if permission == self._permission:
            return
        self._permission = permission
        self._topics.new_version()  # name servers take topics of a version that they know as known
        self.soon()

    async def tried(self) -> None:
        """Return when every name server has been tried once."""
        for member in self._members.values():
            await member.is_tried.wait()

    def is_told(self) -> bool:
        """Return whether the name servers that can be reached know the topics as they are now."""
        change = self._topics.change
        return all(member.is_told(change) for member in self._members.values())

    async def told(self) -> None:
        """Return when the name servers know the topics as they are now.

        One that could not be reached lately is not waited for, the others for a second at most.
        """
        change = self._topics.change
        try:
            async with asyncio.timeout(_TELL_MAX_MS / 1000):
                for member in self._members.values():
                    await member.told(change)
        except TimeoutError:
            log.info("registration.slow change=%d", change)

    async def stop(self) -> None:
        """End the tasks and take the broker out of the routes; a name server may not hear of it."""
        await self._end_tasks()
        await asyncio.gather(
            *(
                self._unregister(address)
                for address, member in self._members.items()
                if member.is_registered
            )
        )

    def abandon(self) -> None:
        """Stop as a killed process stops: nobody is told."""
        for task in self._tasks:
            task.cancel()

    def address_for(self, connection: Connection) -> str:
        """Return the address at which peers of the connection's other end reach this broker.

        Raises:
            ConfigError: the broker listens on all addresses, and the name server was reached by one
                that other machines do not reach.
        """
        host, port = self._listening
        if host in WILDCARD_HOSTS and self._config.advertise is None and not self._is_namesrv_here:
            host = connection.local_address[0]
            if is_loopback(host):
                raise ConfigError(
                    f"listen is {self._config.listen!r} and the name server is reached by {host}, "
                    "which it would tell clients on other machines: set advertise (brokerIP1) to "
                    "an address that they reach"
                )
        return advertised_address(self._config, (host, port))

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, address: str, member: _Member) -> None:
        """Register with one name server, again and again."""
        retry_ms = _RETRY_FIRST_MS
        while True:
            member.is_due.clear()
            try:
                await self._register(address, member)
            except Exception as error:  # of any kind: who gives up leaves the routes for good
                if member.is_registered or not member.is_tried.is_set():
                    is_ours = not isinstance(error, KourouError | OSError)
                    log.warning(
                        "registration.failed namesrv=%s reason=%s", address, error, exc_info=is_ours
                    )
                member.end_round(is_registered=False)
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(2 * retry_ms, self._config.register_interval_ms)
            else:
                if not member.is_registered:
                    log.info("registration.done namesrv=%s", address)
                member.end_round(is_registered=True)
                retry_ms = _RETRY_FIRST_MS
                await asyncio.sleep(_PAUSE_MS / 1000)
                await _wait(member.is_due, self._config.register_interval_ms)

    async def _register(self, address: str, member: _Member) -> None:
        """Bring one name server up to date.

        Raises:
            TransportError: the name server cannot be reached, or did not answer in time.
            RemoteError: it refused.
        """
        connection = await self._pool.get(address)
        if connection is not member.connection:
            member.connection = connection
            member.known_change = None
            connection.on_closed.append(lambda _: member.is_due.set())
        change = self._topics.change
        table = self._changes_for(member)
        if table is not None:
            member.known_change = None  # if anything goes wrong, it is told all
            if table.topics:
                await self._send(connection, encode_register_body(RegisterBody(table)))
            member.whole_version = None
        elif member.may_skip(self._topics.data_version) and await self._is_current(connection):
            member.skipped += 1
        else:
            member.known_change = None
            version = self._topics.data_version
            await self._send(connection, await self._whole_body())
            member.whole_version, member.skipped = version, 0
        member.known_change = change

    def _changes_for(self, member: _Member) -> TopicConfigTable | None:
        """Return what changed since the member was told; None if it must be told all, or nothing.

        Deleted topics leave an empty table: there is nothing to tell of them.
        """
        if member.known_change is None or member.known_change == self._topics.change:
            return None
        table = self._topics.changed_since(member.known_change)
        return None if table is None else self._announced(table)

    async def _whole_body(self) -> bytes:
        """Return the body of all topics."""
        if self._is_all_allowed:
            return self._topics.registration()
        table = self._announced(self._topics.table())
        return await self._offload(encode_register_body, RegisterBody(table))

    async def _send(self, connection: Connection, body: bytes) -> None:
        """Send a registration, and take up which topics are ordered."""
        mine = self.address_for(connection)
        host, port = parse_address(mine)
        header = RegisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=mine,
            cluster_name=self._config.cluster_name,
            ha_server_addr=format_address((host, port + 1)),  # by convention; nothing listens yet
            broker_id=self._config.broker_id,
            enable_acting_master=False,
            compressed=False,
            body_crc32=crc32(body),
        )
        answer = await connection.request(
            request(RequestCode.REGISTER_BROKER, header, body),
            self._config.register_timeout_ms / 1000,
        )
        raise_for_response(answer)
        if answer.body:
            self._topics.note_ordered(decode_kv_table(answer.body))

    async def _is_current(self, connection: Connection) -> bool:
        """Ask whether the name server knows the newest topics; that is a sign of life as well."""
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
            return False  # whatever it means by that, a registration will settle it
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
    def _is_all_allowed(self) -> bool:
        return self._permission == PERM_READ | PERM_WRITE

    def _announced(self, table: TopicConfigTable) -> TopicConfigTable:
        """Return the topics as routes are to show them: no more than the broker allows."""
        allowed = self._permission
        if self._is_all_allowed:
            return table
        narrowed = {
            name: replace(topic, perm=topic.perm & allowed) for name, topic in table.topics.items()
        }
        return TopicConfigTable(narrowed, table.data_version)


class _Member:
    """What is known of one name server.

    Attributes:
        known_change: number of the last change of topics that it was told; None: tell it all.
        whole_version: of all topics when it was last told them; None if single changes followed.
        skipped: times since then that it knew everything already.
    """

    def __init__(self) -> None:
        self.known_change: int | None = None
        self.whole_version: DataVersion | None = None
        self.skipped = 0
        self.is_due = asyncio.Event()
        self.is_tried = asyncio.Event()
        self.is_registered = self.was_registered = False
        self.connection: Connection | None = None
        self._round_ended = asyncio.Event()

    def end_round(self, *, is_registered: bool) -> None:
        """Note how a try to register ended."""
        self.is_registered = is_registered
        self.was_registered |= is_registered
        self.is_tried.set()
        self._round_ended.set()
        self._round_ended = asyncio.Event()  # of the next round

    def is_told(self, change: int) -> bool:
        """Return whether it knows that change of topics, or cannot be reached."""
        if not self.is_registered:
            return True
        return self.known_change is not None and self.known_change >= change

    async def told(self, change: int) -> None:
        """Return when `is_told`."""
        while not self.is_told(change):
            await self._round_ended.wait()

    def may_skip(self, version: DataVersion) -> bool:
        """Return whether asking is enough, if it says that it knows this version."""
        is_told = self.known_change is not None and self.whole_version == version
        return is_told and self.skipped < _SKIPPED_MAX


async def _wait(event: asyncio.Event, timeout_ms: int) -> None:
    """Return when `event` is set, or the time has passed."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        pass

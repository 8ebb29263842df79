"""Telling the name servers of this broker and its topics, each on its own.

With every name server one task registers at start, again each `register_interval_ms`, and soon
after a topic changed or the connection was lost, on which a name server forgets the broker. One
that cannot be reached is tried again, from 1 s apart to the interval, and delays nobody else.

Always the whole table is sent, with its version; changes that come while a registration is under
way share the next one.

Source: BrokerController.registerBrokerAll, BrokerOuterAPI.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.topics import Topics
from kourou.errors import KourouError
from kourou.model.topic import PERM_READ, PERM_WRITE
from kourou.protocol.bodies import RegisterBody, TopicConfigTable, encode_register_body
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.hashing import crc32
from kourou.protocol.headers_route import (
    RegisterBrokerRequestHeader,
    UnregisterBrokerRequestHeader,
)
from kourou.remoting.check import raise_for_response
from kourou.remoting.connection import Connection
from kourou.remoting.network import Address, format_address, parse_address
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
"""Listen addresses that stand for all of the machine's, and so are none that a peer can reach."""

_RETRY_FIRST_MS: Final = 1000
_PAUSE_MS: Final = 100
"""Least time between two registrations, so that many changes share one."""
_UNREGISTER_TIMEOUT_MS: Final = 1000
"""Short, because the name server forgets a broker by itself when its connection ends."""


class Registration:
    """Keeps one broker registered."""

    def __init__(
        self, config: BrokerConfig, topics: Topics, pool: ConnectionPool, listening: Address
    ) -> None:
        """Register what `topics` holds.

        Args:
            config: names of the broker, the name servers, and the address to advertise.
            topics: the table that is sent.
            pool: connects to the name servers; closed by its owner.
            listening: what the broker listens on, with the real port.
        """
        self._config = config
        self._topics = topics
        self._pool = pool
        self._listening = listening
        self._members = {address: _Member() for address in config.namesrv_addr}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to register with all name servers."""
        for address, member in self._members.items():
            task = asyncio.create_task(self._keep(address, member), name=f"register {address}")
            self._tasks.append(task)

    def soon(self) -> None:
        """Register again as soon as possible: something changed."""
        for member in self._members.values():
            member.is_due.set()

    async def tried(self) -> None:
        """Return when every name server has been tried once."""
        for member in self._members.values():
            await member.is_tried.wait()

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
        """Return the address at which peers of the connection's other end reach this broker."""
        host, port = self._listening
        if self._config.advertise is not None:
            return format_address(parse_address(self._config.advertise, port))
        if host in WILDCARDS:
            host = connection.local_address[0]
        return format_address((host, port))

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
                member.is_registered = False
                member.is_tried.set()
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(2 * retry_ms, self._config.register_interval_ms)
            else:
                if not member.is_registered:
                    log.info("registration.done namesrv=%s", address)
                member.is_registered = True
                member.is_tried.set()
                retry_ms = _RETRY_FIRST_MS
                await asyncio.sleep(_PAUSE_MS / 1000)
                await _wait(member.is_due, self._config.register_interval_ms)

    async def _register(self, address: str, member: _Member) -> None:
        """Send the whole table once.

        Raises:
            TransportError: the name server cannot be reached, or did not answer in time.
            RemoteError: it refused.
        """
        connection = await self._pool.get(address)
        if connection is not member.connection:
            member.connection = connection
            connection.on_closed.append(lambda _: member.is_due.set())
        mine = self.address_for(connection)
        host, port = parse_address(mine)
        body = encode_register_body(RegisterBody(self._announced_topics()))
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

    def _announced_topics(self) -> TopicConfigTable:
        """Return the topics as routes are to show them: no more than the broker allows."""
        table = self._topics.table()
        allowed = self._config.broker_permission
        if allowed == PERM_READ | PERM_WRITE:
            return table
        narrowed = {
            name: replace(topic, perm=topic.perm & allowed) for name, topic in table.topics.items()
        }
        return TopicConfigTable(narrowed, table.data_version)


class _Member:
    """What is known of one name server."""

    def __init__(self) -> None:
        self.is_due = asyncio.Event()
        self.is_tried = asyncio.Event()
        self.is_registered = False
        self.connection: Connection | None = None


async def _wait(event: asyncio.Event, timeout_ms: int) -> None:
    """Return when `event` is set, or the time has passed."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        pass

"""ClientInstance: what every client has, connections, routes, heartbeats and their loops.

Each client object has an instance of its own. RocketMQ shares one between all clients with one
client id; here nothing is shared, so that closing or blocking one client touches no other, and the
rule that one group must not be consumed twice under one id is held by `ConsumerGroups`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Final, TypeVar

from kourou.client import calls_consume
from kourou.client.background import BackgroundTasks
from kourou.client.companions import Companions
from kourou.client.config import ClientConfig
from kourou.client.name_servers import NameServers
from kourou.client.namespacing import within
from kourou.client.namesrv_addr import (
    NamesrvLookup,
    find_url,
    namesrv_addr_of_environment,
    parse_namesrv_addr,
)
from kourou.client.process_identity import ProcessGuard, local_ip
from kourou.client.retrying import Backoff, Deadline, try_until
from kourou.client.routes import Routes
from kourou.errors import ClosedError, KourouError, TransportError
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID
from kourou.protocol.bodies import ConsumerData, HeartbeatData
from kourou.remoting.connection import Connection, FastPath
from kourou.remoting.dispatch import Handler
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime

T = TypeVar("T")
log = logging.getLogger(__name__)

FIRST_HEARTBEAT_MS: Final = 1_000
"""When brokers hear of a producer that has not sent yet."""

UNREGISTER_TIMEOUT_MS: Final = 1_000
"""For telling all brokers at once that the client leaves; they would notice by themselves."""


class _State(Enum):
    NEW = auto()
    OPEN = auto()
    STOPPED = auto()
    """Refuses what users ask; what is under way goes on."""
    CLOSED = auto()


_OPEN: Final = _State.OPEN


class ClientInstance:
    """Connections, routes and heartbeats of one client.

    Args:
        namesrv_addr: `host:port`, or several joined by `;`, or a web address that tells them; None
            as `namesrv_addr_of_environment` says.
        config: its intervals and limits.
        runtime: the outside world; None for the real one.
        kind: what the client is, for error texts, such as "producer".
        producer_group: told to brokers by heartbeats, and so is `consumer`; with neither there are
            no heartbeats.
        consumer: told to brokers by heartbeats; returns None as long as it is no group's member.
        handlers: what brokers may ask of the client.
        auto_create_queue_nums: as in `Routes`.
        on_route_changed: as in `Routes`.
        on_registered: called with a broker's address when that broker first heard of the client on
            a connection.
        fast_path: as in `ConnectionPool`.

    Raises:
        ConfigError: `namesrv_addr` does not parse, or the environment names no form of headers.
    """

    def __init__(
        self,
        namesrv_addr: str | None,
        config: ClientConfig,
        runtime: Runtime | None,
        *,
        kind: str,
        producer_group: str | None = None,
        consumer: Callable[[], ConsumerData | None] | None = None,
        handlers: Mapping[int, Handler] | None = None,
        auto_create_queue_nums: int | None = None,
        on_route_changed: Callable[[str], None] | None = None,
        on_registered: Callable[[str], None] | None = None,
        fast_path: FastPath | None = None,
    ) -> None:
        if namesrv_addr is None:
            namesrv_addr = namesrv_addr_of_environment()
        self._namesrv_url = find_url(namesrv_addr)
        # What tells one set of name servers from another; a web address stands for what it tells.
        self.namesrv_addresses = (
            (self._namesrv_url,) if self._namesrv_url else parse_namesrv_addr(namesrv_addr)
        )
        self.runtime = runtime or Runtime.system()
        self.ip = config.client_ip or local_ip()
        unique = f"{os.getpid()}#{self.runtime.random.getrandbits(48):012x}"
        self.client_id = f"{self.ip}@{config.instance_name or unique}"
        self.backoff = Backoff(
            config.retry_backoff_min_ms, config.retry_backoff_max_ms, self.runtime.random
        )
        self._serialize_type = config.serialize_type_now()
        self._guard = ProcessGuard()
        self.config = config
        self._kind = kind
        self._producer_group = producer_group
        self._consumer = consumer
        self._handlers = within(config.namespace, handlers or {})
        self._auto_create_queue_nums = auto_create_queue_nums
        self._on_route_changed = on_route_changed
        self._on_registered = on_registered
        self._fast_path = fast_path
        self.companions = Companions()
        self._state = _State.NEW
        self._ended = asyncio.Event()
        self._registered: dict[str, Connection] = {}  # by address: where the last heartbeat went
        self._beating: set[str] = set()
        self._unheard: dict[str, str] = {}  # address -> what became of the last heartbeat

    @property
    def is_new(self) -> bool:
        """Whether it was never started nor closed."""
        return self._state is _State.NEW

    @property
    def is_open(self) -> bool:
        """Whether it was started and does what users ask."""
        return self._state is _State.OPEN

    @property
    def is_closed(self) -> bool:
        """Whether its connections are closed, or about to be: nothing can be sent any more."""
        return self._state is _State.CLOSED

    @property
    def request_timeout_s(self) -> float:
        return self.config.request_timeout_ms / 1000

    def check_open(self) -> None:
        """Refuse a call outside of the client's life.

        Raises:
            ClosedError: it is closed, or was never started.
            ForkedError: it belongs to the process from which this one was forked.
        """
        self._guard.check(self._kind)
        if self._state is _OPEN:  # as nearly always: not by way of the class, which costs a look-up
            return
        if self._state is _State.NEW:
            raise ClosedError(
                f"the {self._kind} is not started: use `async with` (blocking: `with`), or start() "
                "first"
            )
        raise ClosedError(f"the {self._kind} is closed")

    async def call_broker(
        self,
        queue: MessageQueue,
        timeout_ms: int,
        call: Callable[[str, Deadline], Awaitable[T]],
        *,
        broker_id: int | None = MASTER_ID,
    ) -> T:
        """Return what `call` returns, given the address of the queue's broker; tried until then.

        For requests that may be served twice without harm.

        Args:
            queue: whose broker to ask.
            timeout_ms: for all tries together.
            call: one try, which heeds the deadline.
            broker_id: as in `Routes.address`.

        Raises:
            ClosedError: the client is not open.
            TransportError, RemoteError: as `try_until`.
        """
        self.check_open()
        deadline = Deadline(timeout_ms)

        async def attempt() -> T:
            address = await self.routes.address(
                queue.topic, queue.broker_name, deadline.remaining_s(), broker_id
            )
            return await call(address, deadline)

        def on_failure(error: KourouError) -> None:
            if error.refresh_route:
                self.routes.refresh_soon(queue.topic)

        return await try_until(deadline, self.backoff, attempt, on_failure)

    def problems(self) -> list[str]:
        """Return what is known to be wrong, one sentence each; nothing is sent to find out.

        Raises:
            ForkedError: as `check_open`.
        """
        self._guard.check(self._kind)
        if self._state is not _State.OPEN:
            return [f"the {self._kind} is {'not started' if self.is_new else 'closed'}"]
        silent = [f"broker {address} {what}" for address, what in sorted(self._unheard.items())]
        failure = self.name_servers.failure
        return silent if failure is None else [failure, *silent]

    def start(self) -> None:
        """Start the loops; connections are made when first needed.

        Raises:
            ClosedError: it was started before.
            ForkedError: as `check_open`.
            ConfigError: a file that `tls` names cannot be used.
        """
        self._guard.check(self._kind)
        if self._state is not _State.NEW:
            raise ClosedError(f"the {self._kind} was started before; make a new one")
        config = self.config
        self.pool = ConnectionPool(
            self.runtime,
            self._handlers,
            config.limits,
            self._on_connected,
            tls=config.tls,
            serialize_type=self._serialize_type,
            fast_path=self._fast_path,
            hooks=config.all_request_hooks(),
            namespace=config.namespace,
        )
        self._state = _State.OPEN
        self.tasks = BackgroundTasks()
        self.name_servers = self._make_name_servers()
        self.routes = Routes(
            self.name_servers,
            config.request_timeout_ms,
            config.routes_max,
            self._auto_create_queue_nums,
            self._on_route_changed,
        )
        if self._namesrv_url is not None:
            self.tasks.start_periodic(
                self.name_servers.refresh,
                config.namesrv_lookup_interval_ms,
                "look-up of name servers",
            )
        self.tasks.start_periodic(
            self.routes.refresh_all, config.route_refresh_interval_ms, "route refresh"
        )
        if self._producer_group is not None or self._consumer is not None:
            self.tasks.start_periodic(
                self.heartbeat_all,
                config.heartbeat_interval_ms,
                "heartbeat to all brokers",
                first_ms=min(FIRST_HEARTBEAT_MS, config.heartbeat_interval_ms),
            )
        self.companions.start()

    def stop(self) -> bool:
        """Refuse what users ask from now on; return False unless it was open.

        Who gets True finishes what is under way and calls `close`; others call `wait_ended`.
        A forked child's copy is never open.
        """
        if self._state is not _State.OPEN or self._guard.is_forked:
            return False
        self._state = _State.STOPPED
        return True

    async def wait_ended(self) -> None:
        """Wait for the `close` that another caller has begun; end what was never started.

        Returns at once in a forked child, where nobody closes anything.
        """
        if self._guard.is_forked:
            return
        if self._state is _State.NEW:
            await self.close()
        await self._ended.wait()

    async def close(self) -> None:
        """End the loops, tell brokers that the client leaves, and close all connections.

        Takes at most a second when brokers do not answer. Closing twice is harmless, and so is
        closing what was never started: it cannot be started then.
        """
        if self._state is _State.CLOSED or self._guard.is_forked:
            return
        was_started = self._state is not _State.NEW
        self._state = _State.CLOSED
        if not was_started:
            self._ended.set()
            return
        try:
            await self.tasks.close()
            await asyncio.gather(self.companions.close(), *map(self._unregister, self._registered))
        finally:
            self.name_servers.close()
            self.routes.close()
            try:
                await self.pool.close()
            finally:
                self._ended.set()

    def abort(self) -> None:
        """End at once and tell nobody, as a killed process would."""
        if self._state in (_State.OPEN, _State.STOPPED):
            self._state = _State.CLOSED
            self.tasks.cancel()
            self.companions.abort()
            self.name_servers.close()
            self.routes.close()
            self.pool.abort()
            self._ended.set()

    async def heartbeat_all(self) -> None:
        """Tell all brokers of the routes known; a producer only masters. Failures are logged."""
        addresses = self._heartbeat_addresses()
        for gone in self._registered.keys() - set(addresses):
            del self._registered[gone]
        for gone in self._unheard.keys() - set(addresses):
            del self._unheard[gone]
        await asyncio.gather(*map(self.heartbeat, addresses))

    async def heartbeat(self, address: str) -> bool:
        """Tell one broker, and return whether it answered.

        A failure is not raised, but logged once until the broker answers again.
        """
        consumer = self._consumer() if self._consumer else None
        data = HeartbeatData(
            self.client_id,
            (self._producer_group,) if self._producer_group else (),
            (consumer,) if consumer else (),
        )
        self._beating.add(address)
        try:
            connection = await self.pool.get(address)
            await calls_consume.heartbeat(
                self.pool, address, data, timeout_s=self.request_timeout_s
            )
        except KourouError as error:
            is_told = address in self._unheard or self.is_closed
            level = logging.DEBUG if is_told else logging.WARNING
            is_silent = isinstance(error, TransportError)
            self._unheard[address] = (
                "does not answer heartbeats" if is_silent else f"takes no heartbeats: {error}"
            )
            log.log(level, "heartbeat.failed broker=%s reason=%s", address, error)
            return False
        finally:
            self._beating.discard(address)
        self._unheard.pop(address, None)
        if self._registered.get(address) is not connection:
            self._registered[address] = connection
            if self._on_registered is not None:
                self._on_registered(address)
        return True

    def is_registered(self, address: str) -> bool:
        """Return whether a broker heard of this client on the connection that is open now."""
        connection = self._registered.get(address)
        return connection is not None and connection.is_open

    def _make_name_servers(self) -> NameServers:
        random = self.runtime.random
        if self._namesrv_url is None:
            return NameServers(self.pool, self.namesrv_addresses, random)
        lookup = NamesrvLookup(self._namesrv_url, self.runtime.offload, self.request_timeout_s)
        return NameServers(self.pool, (), random, lookup)

    def _on_connected(self, address: str, _: Connection) -> None:
        """Register at once on a new connection to a broker: to it, this client is a new one."""
        if self.is_closed or address in self._beating:
            return
        if address in self._heartbeat_addresses():

            async def register() -> None:
                await self.heartbeat(address)

            self.tasks.start(register, f"heartbeat to {address}")

    def _heartbeat_addresses(self) -> list[str]:
        """Return the addresses of the brokers that must hear of this client, sorted."""
        is_consumer = self._consumer is not None and self._consumer() is not None
        if self._producer_group is None and not is_consumer:
            return []
        return self.routes.broker_addresses(masters_only=not is_consumer)

    async def _unregister(self, address: str) -> None:
        consumer = self._consumer() if self._consumer else None
        try:
            await calls_consume.unregister(
                self.pool,
                address,
                self.client_id,
                producer_group=self._producer_group,
                consumer_group=consumer.group if consumer else None,
                timeout_s=min(self.request_timeout_s, UNREGISTER_TIMEOUT_MS / 1000),
            )
        except KourouError as error:
            log.info("client.not_unregistered broker=%s reason=%s", address, error)

"""ClientInstance: the connections, routes, heartbeats and background tasks of one client.

Each client object has its own instance. RocketMQ shares an instance between all clients with the
same client id. Here nothing is shared, so that closing or blocking one client does not affect
another. `ConsumerGroups` enforces that one client id does not consume the same group twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Final, Protocol, TypeVar

from kourou.client import calls_consume
from kourou.client.background import BackgroundTasks
from kourou.client.config import ClientConfig
from kourou.client.name_servers import (
    NameServers,
    NamesrvLookup,
    namesrv_addr_of_environment,
)
from kourou.client.namespacing import plain_name_handlers
from kourou.client.namesrv_addr import as_url, parse_namesrv_addr
from kourou.client.process_identity import ProcessGuard, local_ip
from kourou.client.retrying import Backoff, Deadline, try_until
from kourou.client.routes import Routes
from kourou.errors import ClosedError, KourouError, TransportError
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID
from kourou.protocol.clients import ConsumerData, HeartbeatData
from kourou.remoting.connection import Connection, FastPath
from kourou.remoting.dispatch import Handler
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime

T = TypeVar("T")
log = logging.getLogger(__name__)

FIRST_HEARTBEAT_MS: Final = 1_000
"""Delay of the first heartbeat to all brokers, also those to which nothing was sent yet."""

UNREGISTER_TIMEOUT_MS: Final = 1_000
"""Timeout for unregistering from all brokers, which is done concurrently. It may fail: brokers
remove a client that is gone by themselves."""


class Companion(Protocol):
    """An object that starts with a client and closes after the client has finished its work."""

    def start(self) -> None:
        """Start. Called once, in the running event loop."""

    async def close(self) -> None:
        """Close within a few seconds, without raising."""

    def abort(self) -> None:
        """Stop at once, without notifying any server."""


class Companions:
    """The companions of one client."""

    def __init__(self) -> None:
        self._all: list[Companion] = []

    def add(self, companion: Companion) -> None:
        """Add a companion; must be called before `start`."""
        self._all.append(companion)

    def start(self) -> None:
        """Start all companions."""
        for companion in self._all:
            companion.start()

    async def close(self) -> None:
        """Close all companions concurrently."""
        await asyncio.gather(*(companion.close() for companion in self._all))

    def abort(self) -> None:
        """Abort all companions."""
        for companion in self._all:
            companion.abort()


class _State(Enum):
    NEW = auto()
    OPEN = auto()
    STOPPED = auto()
    """Calls of users are refused; operations in progress continue."""
    CLOSED = auto()


_OPEN: Final = _State.OPEN


class ClientInstance:
    """Connections, routes and heartbeats of one client.

    Args:
        namesrv_addr: `host:port`, or several joined by `;`, or a URL that returns them; None: the
            value of `namesrv_addr_of_environment`.
        config: intervals and limits.
        runtime: clock, network and randomness; None: those of the system.
        kind: the kind of client for error texts, such as "producer".
        producer_group: sent to brokers in heartbeats, as is `consumer`; without both there are no
            heartbeats.
        consumer: returns the group membership for heartbeats; None while there is none.
        handlers: handlers of requests from brokers, by request code.
        auto_create_queue_nums: as in `Routes`.
        on_route_changed: as in `Routes`.
        on_registered: called with a broker's address after the first heartbeat that the broker has
            accepted on a connection.
        fast_path: as in `ConnectionPool`.

    Raises:
        ConfigError: `namesrv_addr` does not parse, or the environment names an unknown header
            encoding.
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
        self._namesrv_url = as_url(namesrv_addr)
        # Identifies the set of name servers; a URL stands for the addresses that it returns.
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
        self._serialize_type = config.effective_serialize_type()
        self._guard = ProcessGuard()
        self.config = config
        self._kind = kind
        self._producer_group = producer_group
        self._consumer = consumer
        self._handlers = plain_name_handlers(config.namespace, handlers or {})
        self._auto_create_queue_nums = auto_create_queue_nums
        self._on_route_changed = on_route_changed
        self._on_registered = on_registered
        self._fast_path = fast_path
        self.companions = Companions()
        self._state = _State.NEW
        self._ended = asyncio.Event()
        self._registered: dict[str, Connection] = {}  # address -> connection of the last heartbeat
        self._heartbeats_in_progress: set[str] = set()  # addresses with a heartbeat in progress
        self._heartbeat_failures: dict[str, str] = {}  # address -> how the last heartbeat failed

    @property
    def is_new(self) -> bool:
        """Whether the client was neither started nor closed."""
        return self._state is _State.NEW

    @property
    def is_open(self) -> bool:
        """Whether the client is started and accepts calls."""
        return self._state is _State.OPEN

    @property
    def is_closed(self) -> bool:
        """Whether the connections are closed or closing, so that nothing can be sent any more."""
        return self._state is _State.CLOSED

    @property
    def request_timeout_s(self) -> float:
        return self.config.request_timeout_ms / 1000

    def check_open(self) -> None:
        """Raise unless the client is open.

        Raises:
            ClosedError: the client is closed, or was never started.
            ForkedError: the client was created by a parent of this process.
        """
        self._guard.check(self._kind)
        if self._state is _OPEN:  # the usual case; `_State.OPEN` would cost another look-up
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
        while_closing: bool = False,
    ) -> T:
        """Return the result of `call` with the broker's address; retry until `timeout_ms`.

        For idempotent requests only.

        Args:
            queue: a queue of the broker.
            timeout_ms: for all tries together.
            call: makes one try and must respect the deadline.
            broker_id: as in `Routes.address`.
            while_closing: the call may also be made between `stop` and `close`.

        Raises:
            ClosedError: the client is not open.
            TransportError, RemoteError: as `try_until`.
        """
        if not while_closing or self._state is not _State.STOPPED:
            self.check_open()
        deadline = Deadline(timeout_ms)

        async def attempt() -> T:
            address = await self.routes.address(
                queue.topic, queue.broker_name, deadline.remaining_s(), broker_id
            )
            return await call(address, deadline)

        def on_failure(error: KourouError) -> None:
            self.routes.on_failure(queue.topic, error)

        return await try_until(deadline, self.backoff, attempt, on_failure)

    def problems(self) -> list[str]:
        """Return descriptions of the current problems; no request is sent for it.

        Raises:
            ForkedError: as `check_open`.
        """
        self._guard.check(self._kind)
        if self._state is not _State.OPEN:
            return [f"the {self._kind} is {'not started' if self.is_new else 'closed'}"]
        problems = [
            f"broker {address} {what}" for address, what in sorted(self._heartbeat_failures.items())
        ]
        failure = self.name_servers.failure
        return problems if failure is None else [failure, *problems]

    def start(self) -> None:
        """Start the background tasks; connections are opened on first use.

        Raises:
            ClosedError: the client was started before.
            ForkedError: as `check_open`.
            ConfigError: a file named by the `tls` settings cannot be used.
        """
        self._guard.check(self._kind)
        if self._state is not _State.NEW:
            raise ClosedError(f"the {self._kind} was started before; create a new one")
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
        self.name_servers = self._create_name_servers()
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
        """Refuse further calls of users; return whether the client was open.

        A caller that gets True completes the operations in progress and calls `close`; one that
        gets False calls `wait_ended`. In a forked child the result is always False.
        """
        if self._state is not _State.OPEN or self._guard.is_forked:
            return False
        self._state = _State.STOPPED
        return True

    async def wait_ended(self) -> None:
        """Wait for a `close` begun by another caller; close a client that was never started.

        Returns at once in a forked child, where clients are never closed.
        """
        if self._guard.is_forked:
            return
        if self._state is _State.NEW:
            await self.close()
        await self._ended.wait()

    async def close(self) -> None:
        """Stop the background tasks, unregister from the brokers, and close all connections.

        Waits at most a second for brokers that do not answer. A second call has no effect. A client
        that was never started cannot be started afterwards.
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
        """Close at once without notifying any server, as a killed process would."""
        if self._state in (_State.OPEN, _State.STOPPED):
            self._state = _State.CLOSED
            self.tasks.cancel()
            self.companions.abort()
            self.name_servers.close()
            self.routes.close()
            self.pool.abort()
            self._ended.set()

    async def heartbeat_all(self) -> None:
        """Send a heartbeat to all brokers of the cached routes; from a producer only to masters.

        Failures are logged.
        """
        addresses = self._heartbeat_addresses()
        for gone in self._registered.keys() - set(addresses):
            del self._registered[gone]
        for gone in self._heartbeat_failures.keys() - set(addresses):
            del self._heartbeat_failures[gone]
        await asyncio.gather(*map(self.heartbeat, addresses))

    async def heartbeat(self, address: str) -> bool:
        """Send a heartbeat to one broker and return whether it succeeded.

        A failure is not raised. It is logged once at WARNING level until the next success.
        """
        consumer = self._consumer() if self._consumer else None
        data = HeartbeatData(
            self.client_id,
            (self._producer_group,) if self._producer_group else (),
            (consumer,) if consumer else (),
        )
        self._heartbeats_in_progress.add(address)
        try:
            connection = await self.pool.get(address)
            await calls_consume.heartbeat(
                self.pool, address, data, timeout_s=self.request_timeout_s
            )
        except KourouError as error:
            is_logged = address in self._heartbeat_failures or self.is_closed
            level = logging.DEBUG if is_logged else logging.WARNING
            is_silent = isinstance(error, TransportError)
            self._heartbeat_failures[address] = (
                "does not answer heartbeats" if is_silent else f"rejects heartbeats: {error}"
            )
            log.log(level, "heartbeat.failed broker=%s reason=%s", address, error)
            return False
        finally:
            self._heartbeats_in_progress.discard(address)
        self._heartbeat_failures.pop(address, None)
        if self._registered.get(address) is not connection:
            self._registered[address] = connection
            if self._on_registered is not None:
                self._on_registered(address)
        return True

    @property
    def registered_addresses(self) -> list[str]:
        """The addresses of brokers that accepted a heartbeat."""
        return list(self._registered)

    def is_registered(self, address: str) -> bool:
        """Return whether a heartbeat has succeeded on the broker's current connection."""
        connection = self._registered.get(address)
        return connection is not None and connection.is_open

    def _create_name_servers(self) -> NameServers:
        random = self.runtime.random
        if self._namesrv_url is None:
            return NameServers(self.pool, self.namesrv_addresses, random)
        lookup = NamesrvLookup(self._namesrv_url, self.runtime.offload, self.request_timeout_s)
        return NameServers(self.pool, (), random, lookup)

    def _on_connected(self, address: str, _: Connection) -> None:
        """Send a heartbeat at once: a broker knows clients by connection, and this one is new."""
        if self.is_closed or address in self._heartbeats_in_progress:
            return
        if address in self._heartbeat_addresses():

            async def register() -> None:
                await self.heartbeat(address)

            self.tasks.start(register, f"heartbeat to {address}")

    def _heartbeat_addresses(self) -> list[str]:
        """Return the addresses of the brokers that need heartbeats, sorted."""
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

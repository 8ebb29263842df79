"""The broker process: starts the components in order, and stops them in order.

    start   open and recover the store, load the tables, clamp offsets to the log, listen,
            start delivering delayed and scheduled messages, and reviving popped ones, register
    stop    unregister, redirect clients, accept no more messages, answer those accepted,
            close the connections, save the tables, close the store

`components.py` builds the components, `wiring.py` the request handlers. No component imports this
module.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from kourou.broker.administration.broker_metrics import read_metrics
from kourou.broker.administration.unused_groups import UNUSED_CHECK_INTERVAL_MS
from kourou.broker.components import Components
from kourou.broker.config import BrokerConfig
from kourou.broker.controlled_broker import ControlledBroker
from kourou.broker.periodic_tasks import PeriodicTasks
from kourou.broker.popping.pop_config import find_kv_store
from kourou.broker.ports import BrokerPorts
from kourou.broker.pulling.slow_consumers import SLOW_CHECK_INTERVAL_MS
from kourou.broker.registration import Registration
from kourou.broker.replication.controlled_replica import ControlledReplica
from kourou.broker.replication.controlled_role import (
    ControlledRole,
    ControllerPort,
    config_for_role,
)
from kourou.broker.sending.local_sends import LocalSends
from kourou.broker.wiring import (
    build_fast_paths,
    build_handlers,
    build_local_sends,
    build_pre_online,
    build_slow_consumers,
    build_unused_groups,
    handlers_by_code,
)
from kourou.broker.writing.flusher import Flusher
from kourou.broker.writing.kernel_flusher import KernelFlusher
from kourou.disk import Disk
from kourou.errors import ClosedError
from kourou.metrics import Family
from kourou.remoting.connection import Connection
from kourou.remoting.network import Address, format_address
from kourou.remoting.runtime import Runtime
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import MessageStore, Progress

log = logging.getLogger(__name__)

FLUSH_INTERVAL_MS: Final = 1_000
"""How often consume queues, the checkpoint, and the mark of a replica's acks are written."""
FLUSH_PAUSE_MS: Final = 10
"""Pause between two steps of that, when many queues are new."""
STATS_INTERVAL_MS: Final = 1_000
"""How often statistics are sampled; rates over 10 s and more are computed from the samples."""
CLIENT_SCAN_INTERVAL_MS: Final = 10_000
FILTER_SAVE_INTERVAL_MS: Final = 10_000
IDS_CHANGED_INTERVAL_MS: Final = 15_000
ORDER_EXPIRY_INTERVAL_MS: Final = 60_000
"""How often consumers are notified of changes in their group, if not notified at once."""
FIRST_REGISTRATION_MS: Final = 1_000
"""How long `start` waits for name servers. Registration continues in the background with those
that cannot be reached within it."""

FlusherFactory = Callable[[asyncio.AbstractEventLoop], Flusher]


class Broker(ControlledBroker):
    """One broker. Started once and stopped once, in one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        runtime: Runtime,
        flusher_factory: FlusherFactory = KernelFlusher,
        *,
        role: ControlledRole | None = None,
        controller: ControllerPort | None = None,
    ) -> None:
        """Create a broker; nothing is opened yet.

        Args:
            config: its options.
            disk: holds the store; closed by its owner after `stop`.
            runtime: network, clock, randomness, and the executor of blocking calls.
            flusher_factory: creates the flusher, which syncs the commit log.
            role: the decision of the controller for this run, which replaces broker id and role
                of the options; None without a controller.
            controller: asks it for other in-sync sets; given with `role`.

        Raises:
            ConfigError: the id or the address of the role is out of its range, or an option needs
                a controller.
        """
        if role is None:
            config.replication.check_without_controller()
        assert (role is None) == (controller is None), "both belong to controller mode"
        super().__init__(role)
        self._config = config if role is None else config_for_role(config, role)
        self._controller = controller
        self._disk = disk
        self._runtime = runtime
        self._flusher_factory = flusher_factory
        self._running: _RunningBroker | None = None
        self._address: Address | None = None
        self._is_ended = False

    @property
    def address(self) -> Address:
        """The address it listens on, with the real port.

        Raises:
            ClosedError: the broker is not started.
        """
        if self._address is None:
            raise ClosedError("the broker is not started")
        return self._address

    @property
    def store(self) -> MessageStore:
        """The broker's store, for inspection.

        Raises:
            ClosedError: the broker is not started.
        """
        return self.components.context.store

    @property
    def components(self) -> Components:
        """The tables, store and handlers of the running broker, for inspection.

        Raises:
            ClosedError: the broker is not started.
        """
        return self._started.components

    def create_connection(self) -> Connection:
        """Return the broker's side of a connection within this process.

        Raises:
            ClosedError: the broker is not started.
        """
        return self._started.ports.create_connection()

    def create_local_sends(self, born_host: Address, address: Address) -> LocalSends | None:
        """Return a path of sends from this process without a connection; see `build_local_sends`.

        Raises:
            ClosedError: the broker is not started.
        """
        return build_local_sends(self.components, born_host, address)

    @property
    def _started(self) -> _RunningBroker:
        if self._running is None:
            raise ClosedError("the broker is not started")
        return self._running

    def next_config(self) -> BrokerConfig:
        """Return the options of the next broker of this process: changed ones stay."""
        assert self._running is not None, "it has started"
        return self._running.ports.without_taken(self.components.context.live_config.current)

    async def metrics(self) -> list[Family]:
        """Return all metrics as they are now; an empty list if the broker does not run."""
        if self._running is None or self._is_ended:
            return []
        return await read_metrics(self.components)

    def unready_reasons(self) -> list[str]:
        """Return the reasons why the broker is not ready to serve; an empty list if it is."""
        if self._running is None:
            return ["the broker is not started"]
        return ["the broker is stopping"] if self._is_ended else self._running.unready_reasons()

    async def start(
        self,
        progress: Progress | None = None,
        *,
        first_registration_ms: int = FIRST_REGISTRATION_MS,
        is_namesrv_local: bool = False,
    ) -> Address:
        """Recover the store, serve, register, and return the address.

        Waits at most `first_registration_ms` for the name servers. The broker serves without them,
        and registers when they can be reached.

        Args:
            progress: called periodically with (bytes of the log read, bytes to read) while the
                store is recovered, off the event loop.
            first_registration_ms: how long to wait for the name servers.
            is_namesrv_local: whether the name server runs in this process, see `Registration`.

        Raises:
            StoreError: the store is in use, was created with other sizes, or is corrupt.
            OSError: a file of the store cannot be read or written.
            EpochError: the epoch of a master's role is not newer than those of its log.
            AddressInUseError, ListenFailedError: the port cannot be opened; the store is closed
                again.
        """
        clock = self._runtime.clock
        store = await self._runtime.offload(
            MessageStore.open,
            self._disk,
            self._config.store_config,
            clock.now_ms(),
            pid=os.getpid(),
            progress=progress,
            is_replica=self._config.replication.is_slave,
        )
        kv_store = find_kv_store(self._disk)
        if kv_store is not None:
            log.warning("pop_store.not_read reason=%s", kv_store)
        flusher = self._flusher_factory(asyncio.get_running_loop())
        try:
            components = Components(
                self._config,
                disk=self._disk,
                runtime=self._runtime,
                flusher=flusher,
                store=store,
                replica=await self._begin_replica(store),
            )
            running = _RunningBroker(components)
            self._address = await running.start(is_namesrv_local=is_namesrv_local)
        except BaseException:
            flusher.close()
            store.close(clock.now_ms())
            raise
        self._running = running  # from here on `stop` works
        log.info(
            "broker.started name=%s address=%s store=%s flush=%s",
            self._config.broker_name,
            format_address(self._address),
            self._disk.root,
            self._config.flush_disk_type.value,
        )
        await running.wait_registered(first_registration_ms)
        return self._address

    async def _begin_replica(self, store: MessageStore) -> ControlledReplica | None:
        if self.role is None or self._controller is None:
            return None
        begin, damaged = ControlledReplica.begin, store.recovery.damaged
        arguments = self._disk, store.reader, self.role, self._controller, damaged
        return await self._runtime.offload(begin, *arguments)

    async def stop(self) -> None:
        """Stop cleanly: answer the accepted requests, save all tables, close the store.

        Returns within about two seconds, however slow clients and name servers are, but waits for a
        disk that does not respond. Stopping twice is harmless.
        """
        if self._running is None or self._is_ended:
            return
        self._is_ended = True
        await self._running.stop()
        log.info("broker.stopped name=%s", self._config.broker_name)

    def abandon(self) -> None:
        """Stop like a killed process: no peer is notified, and nothing more is written."""
        if self._running is None or self._is_ended:
            return
        self._is_ended = True
        self._running.abandon()


class _RunningBroker:
    """A broker whose store is open; starts and stops its components in an order that is safe."""

    def __init__(self, components: Components) -> None:
        self.components = components
        self._context = components.context
        self._handlers = build_handlers(components)
        self._periodic_tasks = PeriodicTasks()
        self._registration: Registration | None = None
        self.ports = BrokerPorts(
            components.context.config,
            components.runtime,
            handlers_by_code(components, self._handlers),
            self._on_connection_closed,
            build_fast_paths(components),
        )

    async def start(self, *, is_namesrv_local: bool) -> Address:
        """Listen, and start the background tasks."""
        config, topics = self._context.config, self._context.topics
        slave = self.components.slave
        await self.components.recover_tables()
        if config.replication.has_pre_online and config.namesrv_addr:
            await build_pre_online(self.components).run()
        address, ha_port = await (self._open_ports() if slave else self._start_deliveries())
        self.components.index.start()
        self._start_periodic_tasks()
        if slave is not None:
            self.components.start_slave()
            metadata = self.components.metadata
            self._periodic_tasks.start("copy metadata", metadata.interval_ms, metadata.copy)
        else:
            self._start_delivery_tasks()
        watch = self.components.watch
        registration = Registration(
            config,
            topics,
            self.components.pool,
            address,
            self._context.offload,
            ha_port=ha_port,
            on_master=None if watch is None else self.components.learn_master,
            is_namesrv_local=is_namesrv_local,
        )
        self._registration = registration
        topics.on_changed = registration.schedule
        topics.is_announced, topics.wait_announced = (
            registration.is_announced,
            registration.wait_announced,
        )
        self._context.live_config.on_changed.append(
            lambda now: registration.announce_permission(now.broker_permission)
        )
        registration.start()
        if watch is not None and config.namesrv_addr:
            watch.register = registration.schedule
            interval_ms = config.replication.sync_broker_member_group_period_ms
            self._periodic_tasks.start("watch master", interval_ms, watch.check, watch.due)
        if config.replication.enable_slave_acting_master:
            interval_ms = config.replication.broker_heartbeat_interval_ms
            self._periodic_tasks.start("heartbeat", interval_ms, registration.beat)
        return address

    async def _start_deliveries(self) -> tuple[Address, int]:
        """Start what a master delivers by itself, and open the ports; return as `_open_ports`."""
        timers, popping = self.components.timers, self.components.popping
        if self.components.replica is None:
            await timers.start()
        try:
            await popping.recover()
            opened = await self._open_ports()
            if self.components.replica is not None:
                timers.start_later(popping.recovery.note_early_acks)
        except BaseException:
            await timers.stop()  # before the store is closed again
            raise
        self.components.delay.start()
        popping.start()
        self.components.transactions.start()
        return opened

    async def _open_ports(self) -> tuple[Address, int]:
        """Listen; return the address, and the port for slaves to register."""
        address = await self.ports.start()
        try:
            return address, await self._start_master(address)
        except BaseException:
            self.ports.abort()
            raise

    async def _start_master(self, address: Address) -> int:
        """Open the port for slaves, if configured; return the port to register."""
        master, asked = self.components.master, self._context.config.replication.ha_listen_port
        host, port = address[0], asked or address[1] + 1
        if master is None:
            return port
        if not self._context.config.port and not asked:
            port = 0  # a free one, like the broker's own
        return (await master.start((host, port)))[1]

    async def wait_registered(self, timeout_ms: int) -> None:
        """Return when registration was tried once with all name servers, or after the time-out."""
        assert self._registration is not None, "the broker is started"
        await self._registration.wait_first_attempts(timeout_ms)

    def _start_periodic_tasks(self) -> None:
        config, tasks = self._context.config, self._periodic_tasks
        tasks.start("flush", FLUSH_INTERVAL_MS, self._flush)
        tasks.start("sample statistics", STATS_INTERVAL_MS, self._sample)
        tasks.start(
            "save tables", config.consumer_offset_interval_ms, self.components.tables.persist
        )
        repair = self.components.repair
        tasks.start("repair records", repair.interval_ms, repair.run)
        tasks.start("save filters", FILTER_SAVE_INTERVAL_MS, self.components.tables.filters.persist)
        tasks.start("scan clients", CLIENT_SCAN_INTERVAL_MS, self._expire_clients)
        tasks.start("notify consumer ids", IDS_CHANGED_INTERVAL_MS, self._notify_ids_changed)
        clean_interval_ms = config.store.retention.clean_interval_ms
        tasks.start("remove expired messages", clean_interval_ms, self.components.retention.run)

    def _start_delivery_tasks(self) -> None:
        """Start the periodic tasks that only a master runs."""
        config, tasks, parts = self._context.config, self._periodic_tasks, self.components
        tasks.start("save delay offsets", config.delay_offset_interval_ms, parts.delay.persist)
        expire = parts.tables.expire_order_infos
        tasks.start("expire order infos", ORDER_EXPIRY_INTERVAL_MS, expire)
        rules, transactions = config.transactions, parts.transactions
        tasks.start("check transactions", rules.check_interval_ms, transactions.check)
        persist_counts = transactions.persist_counts
        tasks.start("save transaction counts", rules.metric_flush_interval_ms, persist_counts)
        check_slow = build_slow_consumers(parts).check
        tasks.start("check slow consumers", SLOW_CHECK_INTERVAL_MS, check_slow)
        check_unused = build_unused_groups(parts).check
        tasks.start("remove unused groups", UNUSED_CHECK_INTERVAL_MS, check_unused)
        flush_interval_ms = config.timer.timer_flush_interval_ms
        tasks.start("save timers", flush_interval_ms, parts.timers.storage.flush)

    def unready_reasons(self) -> list[str]:
        """Return the reasons why messages are refused or clients cannot find the broker.

        A name server that is lost after the first registration is not one: clients keep their
        routes.
        """
        unwritable_reason = self._context.store.writer.unwritable_reason
        reasons = [unwritable_reason] if unwritable_reason else []
        names = self._context.config.namesrv_addr
        if names and self._registration is not None and not self._registration.was_registered:
            reasons.append(
                f"the broker has not been registered with any name server: {'; '.join(names)}"
            )
        return reasons

    async def stop(self) -> None:
        """Stop the components in an order that loses no accepted request."""
        await self._periodic_tasks.stop()
        if self._registration is not None:
            await self._registration.stop()
        self.ports.go_away()
        if self.components.acting is not None:
            await self.components.acting.stop()
        await self.components.pool.close()
        if self.components.slave is not None:
            await self.components.slave.stop()
        else:
            await self._stop_deliveries()
        await self.components.index.stop()
        self.components.subscriptions.close()
        self.components.held_pulls.close()
        if self.components.slave is None:
            self.components.transactions.stop()
        await self.components.stop_tables()
        await self._context.commit.close()
        if self.components.master is not None:
            await self.components.master.stop()
        await self.ports.stop()
        await self._context.later.close()
        await _run_stop_step("save tables", self.components.tables.persist)
        await _run_stop_step("save filters", self.components.tables.filters.persist)
        if self.components.slave is None:
            await self._save_deliveries()
        await _run_stop_step("mark acknowledged", self.components.mark_acknowledged)
        await _run_stop_step("close store", self._close_store)
        self.components.flusher.close()

    async def _stop_deliveries(self) -> None:
        self._context.commit.drain()
        await self.components.popping.stop()
        await self.components.delay.stop()
        await self.components.timers.stop()

    async def _save_deliveries(self) -> None:
        await _run_stop_step("save delay offsets", self.components.delay.persist)
        await _run_stop_step("save transaction counts", self.components.transactions.persist_counts)
        await _run_stop_step("save timers", self.components.timers.storage.close)

    def abandon(self) -> None:
        """Stop like a killed process."""
        self._periodic_tasks.abandon()
        if self.components.slave is not None:
            self.components.slave.abort()
        if self.components.acting is not None:
            self.components.acting.abandon()
        if self.components.bridge is not None:
            self.components.bridge.abandon()
        self.components.abandon_tables()
        if self._registration is not None:
            self._registration.abandon()
        self.components.subscriptions.close()
        self.components.held_pulls.close()
        self.components.popping.abandon()
        self.components.delay.abandon()
        self.components.timers.abandon()
        self.components.transactions.abandon()
        self.components.index.abandon()
        self._context.later.abandon()
        self.components.tables.order_infos.abandon()
        self._context.commit.abandon()
        if self.components.master is not None:
            self.components.master.abort()
        self.ports.abort()
        self.components.pool.abort()
        self.components.flusher.close()
        self._context.store.abandon()

    def _on_connection_closed(self, connection: Connection) -> None:
        self.components.held_pulls.on_connection_closed(connection)
        self.components.popping.on_connection_closed(connection)
        self._context.clients.remove_connection(connection)
        self._context.stats.on_connection_closed()

    async def _flush(self) -> None:
        """Write consume queues, checkpoint and marks, in steps that do not block the loop long."""
        clock, commit = self._context.clock, self._context.commit
        while not commit.flush(clock.now_ms()):  # noqa: ASYNC110 - each call does a step of it
            await asyncio.sleep(FLUSH_PAUSE_MS / 1000)
        await self.components.mark_acknowledged()

    async def _sample(self) -> None:
        now_s = self._context.clock.now_ms() / 1000
        self._context.stats.store.set_day(datetime.fromtimestamp(now_s).astimezone().date())
        self._context.stats.sample(steady_ms())

    async def _expire_clients(self) -> None:
        self._handlers.clients.expire()
        self._handlers.locks.expire()

    async def _notify_ids_changed(self) -> None:
        self.components.ids_notifier.flush()

    async def _close_store(self) -> None:
        self._context.commit.dispatch_rest()
        await self._context.offload(self._context.store.close, self._context.clock.now_ms())


async def _run_stop_step(what: str, action: Callable[[], Awaitable[object]]) -> None:
    """Run one step of stopping; log a failure, so that the next steps follow."""
    try:
        await action()
    except Exception:  # the steps after this one save more
        log.exception("broker.stop_failed step=%s", what)

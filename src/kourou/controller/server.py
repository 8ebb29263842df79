"""The controller: serves brokers and tools on a port, scans for dead masters, notifies brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Final

from kourou.clock import suspended_s
from kourou.controller.broker_set import BrokerSet
from kourou.controller.config import ControllerConfig, LiveConfig
from kourou.controller.elections import Elections
from kourou.controller.handlers import ControllerHandlers
from kourou.controller.replica_sets import Alive
from kourou.controller.state_store import Member, StateStore
from kourou.errors import ClosedError, ConfigError, ProtocolError, TransportError
from kourou.metrics import Family, Kind, Sample
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.controller.headers import NotifyBrokerRoleChangedRequestHeader
from kourou.protocol.json_records import encode_record
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.network import Address, format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer
from kourou.remoting.steady_time import steady_ms

log = logging.getLogger(__name__)

_NOTICE_TIMEOUT_S: Final = 3.0


def lease_clock_ms() -> int:
    """Return a time in ms that advances also while the machine is suspended."""
    return steady_ms() + int(suspended_s() * 1000)


class Controller:
    """One controller. Created inside a running event loop; started and stopped once."""

    def __init__(self, config: ControllerConfig, runtime: Runtime, store: StateStore) -> None:
        """Create a controller that does not listen yet.

        Args:
            config: its options.
            runtime: the network.
            store: the state; closed by `stop`.

        Raises:
            ConfigError: a certificate or key cannot be used.
        """
        self._config = config
        self._live = LiveConfig(config)
        self._store = store
        self._elections = Elections(store, self._live, lease_clock_ms, self._notify)
        self._later = DeferredReplies()
        self._tasks: set[asyncio.Task[None]] = set()
        handlers = ControllerHandlers(
            self._elections, store, self._live, self._later, lambda: self.member
        )
        self._server = RemotingServer(
            runtime,
            handlers.table(),
            config.limits,
            "controller",
            admission=config.transport.admission(config.limits),
        )
        self._pool = ConnectionPool(runtime, {}, config.limits, tls=config.transport.tls_client())
        self._member: Member | None = None
        self._leading: asyncio.Task[None] | None = None

    @property
    def member(self) -> Member:
        """This controller, as others see it; only after `start`."""
        assert self._member is not None
        return self._member

    async def start(self) -> Address:
        """Listen, begin to compete for the leadership, and return the address.

        Raises:
            AddressInUseError: another socket already listens on the address.
            ListenFailedError: the address is not one of this machine, or is not permitted.
        """
        address = await self._server.start((self._config.listen, self._config.port))
        reachable = self._config.advertise or format_address(address)
        member_id = self._config.controller_id or reachable.replace(":", "-")
        self._member = Member(member_id, reachable)
        self._leading = self._run(self._elections.run(self._member), "lead")
        self._run(self._scan(), "scan for dead masters")
        return address

    async def stop(self) -> None:
        """Give up the leadership and stop serving."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._later.close()
        await self._store.close()
        await self._server.stop()
        await self._pool.close()

    def unready_reasons(self) -> list[str]:
        """Return why brokers cannot rely on this controller; empty if they can."""
        problems = [self._elections.failure, self._store.problem]
        if self._leading is not None and self._leading.done() and problems[0] is None:
            problems[0] = "the task that competes for the leadership has failed: see the log"
        return [*(one for one in problems if one is not None), *self._elections.refusals]

    def metrics(self) -> list[Family]:
        """Return the metrics, with the names of Java's controller where it has them."""
        labels = {"address": self.member.address, "group": self._config.controller_group}
        elections = self._elections

        def family(name: str, kind: Kind, text: str, value: float) -> Family:
            return Family(f"rocketmq_controller_{name}", kind, text, [Sample(labels, value)])

        return [
            family("role", Kind.GAUGE, "3 while it leads, else 2.", 3 if elections.leads else 2),
            family(
                "active_broker_num", Kind.GAUGE, "Number of brokers that send heartbeats.",
                elections.alive_count,
            ),
            family(
                "election_total", Kind.COUNTER, "Elections with a new master.",
                elections.elected_count,
            ),
            family(
                "refused_broker_sets", Kind.GAUGE, "Broker sets whose stored state is too old.",
                len(elections.refusals),
            ),
        ]  # fmt: skip

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self._live.current.scan_interval_ms / 1000)
            await self._elections.scan()

    def _notify(self, broker_set: BrokerSet, alive: Alive) -> None:
        """Send the new master to the replicas that are alive (1008)."""
        header = NotifyBrokerRoleChangedRequestHeader(
            broker_set.master_address,
            broker_set.master_epoch,
            broker_set.sync_state_set_epoch,
            broker_set.master_broker_id,
        )
        body = encode_record(broker_set.in_sync)
        for replica in broker_set.replicas:
            if replica.broker_id in alive:
                self._run(self._notify_one(replica.address, header, body), "notify a broker")

    async def _notify_one(
        self, address: str, header: NotifyBrokerRoleChangedRequestHeader, body: bytes
    ) -> None:
        """Send one notice. Errors are only logged: brokers also query their set (1004)."""
        command = request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header, body, oneway=True)
        try:
            await self._pool.oneway(address, command, _NOTICE_TIMEOUT_S)
        except (ClosedError, ConfigError, ProtocolError, TransportError) as error:
            log.info("notice.not_sent broker=%s reason=%s", address, error)

    def _run(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task.failed name=%s", task.get_name(), exc_info=task.exception())

"""A broker in controller mode: one `Broker` after the other on the same store, each in one role.

    start         read or obtain the id, and start as a replica that knows no master
    each second   register once, then ask who is master; decide (`role_decisions.py`)
    each 0.5 s    a heartbeat to the leading controller; its answer renews the lease of a master
    change        stop the current broker, and start another one in the new role: becoming master
                  does what a start does
    lease ends    the master refuses and acknowledges nothing until it is confirmed again

A replica whose disk is full, has failed or does not end a sync sends no heartbeats, if the set has
other members: the controllers then elect one of these, or do not elect this one. Nor does one whose
log may lack what it has acknowledged; it does not become master, even if it was elected before the
controller took it for lost. `confirmation.py` has the heartbeats, the lease and the fence.

Source: ReplicasManager.java, apache/rocketmq 5.5.0, which has no lease and changes roles in place.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final

from kourou.broker.advertised import advertised_address
from kourou.broker.components import Components
from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.controlling.confirmation import Confirmation
from kourou.broker.controlling.controllers import Controllers, Identity, ReplicaSet
from kourou.broker.controlling.identity import obtain_identity
from kourou.broker.controlling.role_decisions import (
    Decision,
    decide,
    is_complete_again,
    loss_by_restore,
)
from kourou.broker.periodic_tasks import wait_woken
from kourou.broker.replication.acknowledged import Acknowledged, note_start
from kourou.broker.replication.controlled_replica import ControlledReplica
from kourou.broker.replication.controlled_role import ControlledRole, InSyncSet, MasterClaim
from kourou.broker.server import FIRST_REGISTRATION_MS, Broker, FlusherFactory
from kourou.broker.writing.kernel_flusher import KernelFlusher
from kourou.disk import Disk
from kourou.errors import (
    ClosedError,
    ConfigError,
    KourouError,
    RemoteError,
    TransportError,
)
from kourou.metrics import Family
from kourou.model.route import WILDCARD_HOSTS
from kourou.protocol.codes import ResponseCode
from kourou.protocol.controller.headers import register_check_code
from kourou.remoting.connection import Connection
from kourou.remoting.network import Address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.store.message_store import MessageStore, Progress
from kourou.store.tools.truncate import truncate_replica

log = logging.getLogger(__name__)

NO_MASTER: Final = 0
"""`ControlledRole.master_id` of a replica that knows no master; ids begin at 1."""
_ASKED_PER_LEASE: Final = 8
"""How often within its lease a master asks the members of its set, while no controller answers."""
_EARLY_ASKS: Final = 10
_EARLY_ASK_MS: Final = 100
"""A slave asks a new master so often, until it serves slaves: it may need the slave's copy to
acknowledge anything. Then each `syncBrokerMetadataPeriod`."""


class SwitchingBroker:
    """A broker whose role controllers decide. Started once and stopped once, in one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        runtime: Runtime,
        flusher_factory: FlusherFactory = KernelFlusher,
    ) -> None:
        """Create the broker; nothing is opened yet. Arguments: as for `Broker`.

        Raises:
            ConfigError: the address for clients is not known before the start.
        """
        if not config.port:
            raise ConfigError("port is 0; in controller mode the controllers need the real port")
        if config.advertise is None and config.listen in WILDCARD_HOSTS:
            raise ConfigError(
                f"listen is {config.listen!r}; in controller mode set advertise (brokerIP1) to the "
                "address at which the other replicas reach this broker"
            )
        self._config = config
        self._disk = disk
        self._runtime = runtime
        self._flusher_factory = flusher_factory
        self._pool = ConnectionPool(runtime, {}, config.limits, tls=config.transport.tls_client())
        self._controllers = Controllers(
            config.controller.controller_addr, self._pool, runtime.clock.now_ms
        )
        self._address = advertised_address(config, (config.listen, config.port))
        self._identity: Identity | None = None
        self._role: ControlledRole | None = None
        self._broker: Broker | None = None
        self._is_namesrv_local = False
        self._poll_due = asyncio.Event()
        self._beat_due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._confirmation = Confirmation(
            config.controller,
            self._controllers,
            self._address,
            disk,
            runtime.offload,
            self.ask_role,
        )
        self._handover: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()
        self._is_silent = False  # waits until the controller takes the broker for lost
        self._others: frozenset[int] = frozenset()  # in sync, by the last answer
        self._unfit_reason = ""  # why it leaves the role of the master to others
        self._learned: tuple[int, str] | None = None  # epoch and address of the slave's master
        self._unlearned = 0  # how often that could not be asked
        self._last_failure = ""
        self._is_ended = False

    # As of `Broker`

    @property
    def address(self) -> Address:
        """The address it listens on."""
        return self._current.address

    @property
    def store(self) -> MessageStore:
        """The store of the current broker, for inspection."""
        return self._current.store

    @property
    def components(self) -> Components:
        """The components of the current broker, for inspection."""
        return self._current.components

    @property
    def role(self) -> ControlledRole | None:
        """The current role; None before the controllers have decided one."""
        return self._role

    def in_sync(self) -> InSyncSet:
        """Return the in-sync set; for a master, the last one that was confirmed."""
        return self._current.in_sync()

    def create_connection(self) -> Connection:
        """Return the current broker's side of a connection within this process."""
        return self._current.create_connection()

    async def metrics(self) -> list[Family]:
        """Return all metrics as they are now; an empty list during a change of role."""
        return [] if self._broker is None else await self._broker.metrics()

    def unready_reasons(self) -> list[str]:
        """Return the reasons why the broker is not ready to serve."""
        if self._broker is None:
            return ["the broker is changing its role"]
        if self._role is None:
            return [f"no controller has decided the broker's role: {self._last_failure}"]
        return self._broker.unready_reasons()

    @property
    def _current(self) -> Broker:
        if self._broker is None:
            raise ClosedError("the broker is not started, or is changing its role")
        return self._broker

    async def start(
        self,
        progress: Progress | None = None,
        *,
        first_registration_ms: int = FIRST_REGISTRATION_MS,
        is_namesrv_local: bool = False,
    ) -> Address:
        """Obtain an id if there is none, start as a replica, and return the address.

        Without an id, this waits until a controller assigns one. Arguments and errors: as of
        `Broker.start`.
        """
        self._is_namesrv_local = is_namesrv_local
        self._note_start()
        self._confirmation.failsafe.start()
        await self.obtain_id()
        await self._begin(None, progress, first_registration_ms)
        self._tasks = [
            asyncio.create_task(self._repeat(self._poll, self._wait_poll), name="ask for the role"),
            asyncio.create_task(
                self._repeat(self._beat, self._wait_beat), name="heartbeats to controllers"
            ),
        ]
        if self._config.controller.controller_failsafe:
            asking = self._repeat(self._ask_members, self._wait_ask)
            self._tasks.append(asyncio.create_task(asking, name="ask members"))
        return self._current.address

    def _note_start(self) -> None:
        """Note whether the closed store may lack what it had before its last end."""
        loses_unsynced = self._config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        note_start(self._disk, self._runtime.boot_id(), loses_unsynced=loses_unsynced)

    async def stop(self) -> None:
        """Stop cleanly, as `Broker.stop`."""
        if self._is_ended:
            return
        async with self._changing:  # not in the middle of a change of role
            await self._end_tasks()
            if self._broker is not None:
                await self._broker.stop()
            await self._pool.close()

    def abandon(self) -> None:
        """Stop like a killed process."""
        self._is_ended = True
        self._cancel()
        if self._broker is not None:
            self._broker.abandon()
        self._pool.abort()

    async def _end_tasks(self) -> None:
        self._is_ended = True
        await asyncio.gather(*self._cancel(), return_exceptions=True)

    def _cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all tasks, and return them."""
        tasks = self._tasks if self._handover is None else [*self._tasks, self._handover]
        for task in tasks:
            task.cancel()
        self._confirmation.end(keeps_log=False)
        return tasks

    @property
    def last_failure(self) -> str:
        """The reason of the last request that failed; empty after one that did not."""
        return self._last_failure

    async def obtain_id(self) -> None:
        """Read the saved id, or apply for one until a controller assigns it; called by `start`.

        May be cancelled: the next call repeats the application.

        Raises:
            ConfigError: the store belongs to another broker name.
            CorruptRecordError, OSError: the file of the id cannot be read or written.
        """
        if self._identity is None:
            self._identity = await obtain_identity(
                self._disk,
                self._controllers,
                (self._config.cluster_name, self._config.broker_name),
                lambda: register_check_code(self._address, self._runtime.clock.now_ms()),
                self._on_failure,
            )

    # Roles

    @property
    def _me(self) -> Identity:
        assert self._identity is not None, "the broker is started"
        return self._identity

    async def _begin(
        self,
        role: ControlledRole | None,
        progress: Progress | None = None,
        first_registration_ms: int = 0,
    ) -> None:
        """Start a broker in a role; None: that of a replica that knows no master."""
        as_role = role or ControlledRole(
            self._me.broker_id, NO_MASTER, 0, "", InSyncSet(frozenset(), 0)
        )
        broker = Broker(
            self._config,
            self._disk,
            self._runtime,
            self._flusher_factory,
            role=as_role,
            controller=self,
        )
        await broker.start(
            progress,
            first_registration_ms=first_registration_ms,
            is_namesrv_local=self._is_namesrv_local,
        )
        self._broker, self._role, self._learned, self._unlearned = broker, role, None, 0
        self._confirmation.begin(broker, role)
        broker.truncation_needed().add_done_callback(lambda _: self._poll_due.set())

    async def _change_role(self, role: ControlledRole, cut_at: int | None = None) -> None:
        """Stop the current broker, truncate the log if necessary, and start one in a new role.

        If the start fails, the next poll starts a replica that knows no master.
        """
        log.info(
            "controller.role_changed id=%d master=%d epoch=%d in_sync=%s",
            role.broker_id,
            role.master_id,
            role.master_epoch,
            sorted(role.in_sync.members),
        )
        async with self._changing:
            end = -1
            if self._broker is not None:
                end = self._broker.log_state().max_offset
                broker, self._broker, self._role = self._broker, None, None
                self._config = broker.next_config()
                self._confirmation.end(keeps_log=cut_at is None)
                broker.fence("the broker is changing its role")
                await broker.stop()
            if cut_at is not None:
                log.warning("replication.truncated position=%d end=%d", cut_at, end)
                now_ms, pid = self._runtime.clock.now_ms(), os.getpid()
                await self._runtime.offload(truncate_replica, self._disk, cut_at, now_ms, pid=pid)
            self._note_start()
            if role.is_master and Acknowledged.load(self._disk).loss:
                await self._begin(None)
                return
            await self._begin(role)
            if role.is_master:
                self._confirmation.confirm_elected()
                self._poll_due.set()  # at once, if the lease is not held

    # Questions to the controllers

    async def _poll(self) -> bool:
        """Ask who is master, and do what follows from the answer; return True."""
        await self._repair()
        asked_at_s = self._loop.time()
        found = await self._controllers.own_set(self._me, self._address)
        if not self._confirmation.is_answered:
            self._confirmation.is_answered = True
            self._beat_due.set()
        self._confirmation.failsafe.learn_epoch(found.master_epoch)
        self._others = found.in_sync.members - {self._me.broker_id}
        await self._compare_mark(found)
        decision = self._decide(found)
        self._is_silent = self._is_silent and decision is Decision.ELECT and bool(found.master_id)
        may_lead = not self._lacks_acknowledged and not self._check_fitness()
        if decision is Decision.ELECT and may_lead:
            found = await self._elect()
            decision = self._decide(found)
        if decision is Decision.CHANGE_ROLE and not self._must_not_lead(found):
            await self._change_role(self._role_of(found))
        elif decision is Decision.KEEP and self._role is not None:
            self._current.adopt_in_sync(found.in_sync, asked_at_s)
            await self._report_newer_set(found)
        await self._learn_master(found)
        is_master = self._role is not None and self._role.is_master
        await self._confirmation.failsafe.update(self._me, is_master=is_master)
        return True

    async def _report_newer_set(self, found: ReplicaSet) -> None:
        """Let the controller see that its state lacks a set which it had confirmed.

        It then elects nobody: a member of the older set may lack messages.

        Raises:
            RemoteError, TransportError: as `Controllers.propose`; a refusal names the reason.
        """
        role, own = self._role, self._current.in_sync()
        if role is None or not role.is_master or found.in_sync.epoch >= own.epoch:
            return
        if found.master_epoch == role.master_epoch:
            try:
                await self._controllers.propose(self._me, role.master_epoch, *own)
            except RemoteError as error:
                # The set is as it was: this answer was only older than the master's last proposal.
                if error.code != ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED:
                    raise

    def _decide(self, found: ReplicaSet) -> Decision:
        newest_seen = self._replica.epochs.newest_seen
        return decide(self._me.broker_id, self._role, newest_seen, found)

    @property
    def _replica(self) -> ControlledReplica:
        replica = self._current.components.replica
        assert replica is not None, "the broker runs in controller mode"
        return replica

    async def _repair(self) -> None:
        """Start again after a failed change of role; truncate the log if the master lacks its end.

        Raises:
            StoreError, OSError: the store cannot be truncated or opened.
        """
        if self._broker is None:
            async with self._changing:
                await self._begin(None)
            return
        truncation = self._broker.truncation_needed()
        if truncation.done() and self._role is not None:
            await self._change_role(self._role, cut_at=truncation.result())

    async def _compare_mark(self, found: ReplicaSet) -> None:
        """Compare an answer with the mark of what was acknowledged; see `role_decisions.py`."""
        acknowledged, me = self._replica.acknowledged, self._me.broker_id
        loss = loss_by_restore(me, acknowledged.role_epoch, found)
        if loss:
            await self._runtime.offload(acknowledged.note_loss, loss)
        if not acknowledged.loss:
            return
        is_slave = self._role is not None and self._role.master_epoch == found.master_epoch
        has_all = is_slave and self._current.has_confirmed
        if is_complete_again(me, self._replica.epochs.newest_seen, found, has_all=has_all):
            if found.master_id == me:
                log.error("controller.elected_unclean epoch=%d", found.master_epoch)
            stored = self._current.components.context.commit.stored_position
            await self._runtime.offload(acknowledged.rejoin, stored, self._replica.epochs.epochs)

    def _must_not_lead(self, found: ReplicaSet) -> bool:
        """Return whether this replica, which an answer names as master, must not become it.

        It lacks something, or has promised not to.
        """
        is_free = self._confirmation.failsafe.may_lead and not self._lacks_acknowledged
        return found.master_id == self._me.broker_id and not is_free

    @property
    def _lacks_acknowledged(self) -> bool:
        """Whether another replica must be elected; not for damage, if none is complete."""
        acknowledged = self._replica.acknowledged
        return bool(acknowledged.loss) or bool(acknowledged.damaged and self._others)

    async def _elect(self) -> ReplicaSet:
        try:
            found = await self._controllers.elect(self._me)
        except RemoteError as error:
            # Java's controller gives a master that has restarted no other epoch before it has taken
            # it for lost.
            self._is_silent = error.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
            raise
        self._is_silent = False
        self._confirmation.failsafe.learn_epoch(found.master_epoch)
        return found

    async def _learn_master(self, found: ReplicaSet) -> None:
        """Ask the master of a slave, once, where slaves copy its log."""
        role = self._role
        if role is None or role.is_master or found.master_id != role.master_id:
            return
        learned = (role.master_epoch, found.master_address)
        if learned != self._learned:
            self._unlearned += 1
            addresses = await self._controllers.ask_master(found.master_address)
            self._current.components.learn_master(addresses)
            self._learned, self._unlearned = learned, 0

    def _role_of(self, found: ReplicaSet) -> ControlledRole:
        assert found.master_id is not None, "the caller has checked it"
        return ControlledRole(
            self._me.broker_id, found.master_id, found.master_epoch, "", found.in_sync
        )

    async def propose(self, members: frozenset[int]) -> InSyncSet:
        """Ask the controllers for another in-sync set; see `ControllerPort`."""
        if self._role is None:
            raise TransportError("the broker is changing its role, and asks nothing meanwhile")
        epoch = self._current.in_sync().epoch
        return await self._controllers.propose(self._me, self._role.master_epoch, members, epoch)

    async def confirm_master(self, claim: MasterClaim) -> bool:
        """Answer a master of which this broker is a member; see `ControllerPort`."""
        return await self._confirmation.failsafe.confirm(self._me, claim)

    async def _ask_members(self) -> bool:
        await self._confirmation.ask_members(self._me)
        return False

    def ask_role(self) -> None:
        """Ask the controllers soon who is master."""
        self._poll_due.set()

    def offer_role(self, silent: frozenset[int], needed: int) -> None:
        """Let a member be elected that this master does not reach; see `ControllerPort`."""
        if self._handover is None or self._handover.done():
            self._handover = asyncio.create_task(self._hand_over(silent, needed), name="hand over")

    async def _hand_over(self, silent: frozenset[int], needed: int) -> None:
        try:
            await self._confirmation.hand_over(self._me, silent, needed)
        except (RemoteError, TransportError) as error:
            self._on_failure(error)
        self._poll_due.set()

    async def _beat(self) -> bool:
        """Send a heartbeat, unless another replica should be elected; return whether."""
        if not self._controllers.is_registered or self._is_silent:
            return False
        is_fit = self._broker is None or not (self._lacks_acknowledged or self._check_fitness())
        return is_fit and await self._confirmation.beat(self._me)

    def _check_fitness(self) -> str:
        """Return why other members of the in-sync set should be elected; empty if not."""
        reason = self._current.unfit_reason() if self._others else ""
        if reason and not self._unfit_reason:
            log.warning("controller.left_to_others reason=%s", reason)
        self._unfit_reason = reason
        return reason

    # Loops

    async def _repeat(
        self, step: Callable[[], Awaitable[bool]], wait: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a step again and again; a failure is logged once.

        Args:
            step: returns whether a controller has answered.
            wait: is called after each step.
        """
        while True:
            try:
                if await step():
                    self._last_failure = ""
            except Exception as error:  # the broker must not stop to ask for its role
                self._on_failure(error)
                if not isinstance(error, KourouError | OSError):
                    log.exception("controller.step_failed")
            await wait()

    async def _wait_poll(self) -> None:
        is_early = 0 < self._unlearned <= _EARLY_ASKS
        period_ms = self._config.controller.sync_broker_metadata_period_ms
        await wait_woken(self._poll_due, _EARLY_ASK_MS if is_early else period_ms)

    async def _wait_beat(self) -> None:
        await wait_woken(self._beat_due, self._config.controller.controller_heartbeat_interval_ms)

    async def _wait_ask(self) -> None:
        await asyncio.sleep(self._config.controller.controller_lease_ms / 1000 / _ASKED_PER_LEASE)

    def _on_failure(self, error: Exception) -> None:
        if str(error) != self._last_failure:
            log.warning("controller.request_failed reason=%s", error)
        self._last_failure = str(error) or repr(error)

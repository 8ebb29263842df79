"""The slave's service: stays connected to its master and copies the master's log.

The master's address is configured or comes from a name server. After an end of the connection the
slave connects again, at once if the last connection copied something, otherwise after a pause that
doubles. A master whose log does not match is refused by name, and asked again after the longest
pause. In controller mode a slave whose log has an end that its master lacks stops to copy, until
its owner has truncated the log.

Source: DefaultHAClient.run, BrokerController.registerBrokerAll, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from kourou.broker.periodic_tasks import wait_woken
from kourou.broker.replication.controlled_replica import ControlledReplica
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.replication.slave_connection import SlaveConnection
from kourou.broker.replication.slave_dialects import (
    ClassicSlaveDialect,
    EpochSlaveDialect,
    SlaveDialect,
)
from kourou.broker.replication.slave_transfer import (
    COMPARED_BYTES,
    COMPARED_BYTES_CONTROLLED,
    SlaveTransfer,
    compared_from,
)
from kourou.broker.writing.group_commit import GroupCommit
from kourou.errors import ConfigError, TransportError
from kourou.model.epochs import EpochEntry
from kourou.protocol.brokers import HAClientRuntimeInfo, HARuntimeInfo
from kourou.protocol.epoch_replication import SlaveHandshake
from kourou.remoting.network import parse_address
from kourou.remoting.runtime import Runtime
from kourou.store.message_store import MessageStore
from kourou.store.replica_writer import ReplicaWriter

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S: Final = 5.0
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0
"""Pause after a failed connection; Java always pauses this long."""
_PAUSE_MAX_CONTROLLED_S: Final = 0.5
"""The same in controller mode: the master may be about to start, and may need a second copy."""


class ReplicationSlave:
    """Copies the log of one master. Created inside a running loop; started and stopped once.

    Attributes:
        confirmed: in controller mode, the position up to which the in-sync set has the log.
        truncation: done when the log must be truncated; its result is the new end.
        on_confirmed: called when `confirmed` has increased.
    """

    truncation: asyncio.Future[int]

    def __init__(
        self,
        config: ReplicationConfig,
        store: MessageStore,
        commit: GroupCommit,
        runtime: Runtime,
        segment_bytes: int,
        replica: ControlledReplica | None = None,
    ) -> None:
        """Create the service.

        Args:
            config: the options.
            store: the store, opened as a replica.
            commit: writes and syncs its log.
            runtime: provides the network and the clock.
            segment_bytes: size of the log's files.
            replica: the role and the epochs in controller mode; None speaks the classic protocol.
        """
        assert isinstance(store.writer, ReplicaWriter), "the store is opened as a replica"
        self._config = config
        self._reader = store.reader
        self._writer: ReplicaWriter = store.writer
        self._commit = commit
        self._segment_bytes = segment_bytes
        self._network = runtime.network
        self._clock = runtime.clock
        self._offload = runtime.offload
        self._learned = ""
        self._woken = asyncio.Event()
        self._connection: SlaveConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_reason = ""  # of an interruption, as logged; "" once bytes were copied
        self._is_connection_logged = False  # after the last logged interruption
        self._replica = replica
        self.confirmed = 0
        self.on_confirmed: Callable[[], None] = lambda: None
        self._started_at = store.reader.visible_position
        self.truncation = asyncio.get_running_loop().create_future()
        if replica is not None:
            commit.confirmed_position = lambda stored: min(stored, self.confirmed)

    @property
    def master_address(self) -> str:
        """The address of the master's port for slaves; empty if it is not known."""
        return self._config.ha_master_address or self._learned

    def unconfirmed_reason(self) -> str:
        """Return why no message may be read; empty if messages may be.

        A start makes all records visible, also those that the log may be truncated by.
        """
        if self.confirmed >= self._started_at:
            return ""
        return (
            "the slave does not know yet that the in-sync set has the messages up to log position "
            f"{self._started_at}, with which it has started: read from the master"
        )

    def status(self) -> HARuntimeInfo:
        """Return the state of the connection to the master, as for `mqadmin haStatus`."""
        read_at_ms = sent_at_ms = 0
        if self._connection is not None:
            now_ms = self._clock.now_ms()
            read_s, sent_s = self._connection.silences_s
            read_at_ms, sent_at_ms = now_ms - int(read_s * 1000), now_ms - int(sent_s * 1000)
        client = HAClientRuntimeInfo(
            master_addr=self.master_address,
            max_offset=self._writer.appended_position,
            last_read_timestamp=read_at_ms,
            last_write_timestamp=sent_at_ms,
            master_flush_offset=self._writer.master_flushed_offset,
        )
        return HARuntimeInfo(ha_client_runtime_info=client)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the master."""
        return self._connection is not None

    def learn_address(self, address: str) -> None:
        """Note the address that a name server has for the master; empty if it has none."""
        if address and address != self._learned:
            self._learned = address
            self._woken.set()

    def wake(self) -> None:
        """End the pause before the next connection."""
        self._woken.set()

    def start(self) -> None:
        """Start to copy, in a task."""
        self._task = asyncio.create_task(self._run(), name="copy the master's log")

    async def stop(self) -> None:
        """Close the connection, and return when the task has ended."""
        self.abort()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def abort(self) -> None:
        """Stop at once."""
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.close("the slave is stopping")

    async def _run(self) -> None:
        pause_s = _PAUSE_FIRST_S
        pause_max_s = _PAUSE_MAX_S if self._replica is None else _PAUSE_MAX_CONTROLLED_S
        while not self.truncation.done():
            while not self.master_address:
                await wait_woken(self._woken, None)
            before = self._writer.appended_position
            try:
                reason = await self._copy()
            except Exception as error:  # the slave must not stop to copy for ever
                reason = repr(error)
                if reason != self._last_reason:
                    log.exception("replication.broken master=%s", self.master_address)
            self._writer.drop_received()
            pause_s = min(2 * pause_s, pause_max_s)
            if self._writer.appended_position > before:
                pause_s, self._last_reason = _PAUSE_FIRST_S, ""
            if reason != self._last_reason:  # a master that is down, or refuses, is logged once
                self._last_reason, self._is_connection_logged = reason, False
                log.warning(
                    "replication.interrupted master=%s position=%d reason=%s",
                    self.master_address,
                    self._writer.appended_position,
                    reason,
                )
            await wait_woken(self._woken, int(pause_s * 1000))

    async def _copy(self) -> str:
        """Connect, and copy until the connection ends; return the reason of the end."""
        try:
            dialect = await self._create_dialect()
            address = parse_address(self.master_address)
            connected = await self._network.connect(
                address,
                lambda: SlaveConnection(
                    self._config,
                    self._writer,
                    self._commit,
                    dialect,
                    self._note_epoch,
                    self._on_confirmed,
                ),
                _CONNECT_TIMEOUT_S,
            )
        except (TransportError, ConfigError, OSError) as error:
            return str(error)
        self._connection = cast(SlaveConnection, connected)
        if not self._is_connection_logged:
            self._is_connection_logged = True
            log.info(
                "replication.connected master=%s position=%d",
                self.master_address,
                self._writer.appended_position,
            )
        try:
            return await self._connection.ended
        finally:
            self._connection.close("the slave is stopping")
            self._connection = None
            if isinstance(dialect, EpochSlaveDialect) and dialect.truncate_to is not None:
                self.truncation.set_result(dialect.truncate_to)

    async def _create_dialect(self) -> SlaveDialect:
        end = 0 if self._writer.is_empty else self._writer.appended_position
        if self._replica is not None:
            role, epochs = self._replica.role, self._replica.epochs
            await self._offload(epochs.cut, self._reader.min_position, end)
            handshake = SlaveHandshake(
                role.broker_id, self._config.sync_from_last_file, self._config.async_learner
            )
            return EpochSlaveDialect(
                handshake, epochs, end, self._tail_before, master_epoch=role.master_epoch
            )
        tail = await self._offload(self._tail_before, end, COMPARED_BYTES)
        return ClassicSlaveDialect(SlaveTransfer(end, tail))

    def _tail_before(self, position: int, size: int = COMPARED_BYTES_CONTROLLED) -> bytes:
        """Return the bytes before a position that are compared with the master's, at most `size`.

        Raises:
            OSError: they cannot be read.
        """
        start = compared_from(position, self._segment_bytes, size)
        start = max(start, self._reader.min_position)
        return self._reader.written_bytes(start, position - start) if start < position else b""

    async def _note_epoch(self, entry: EpochEntry) -> None:
        assert self._replica is not None, "only then a master has epochs"
        await self._offload(self._replica.epochs.note, entry)

    def _on_confirmed(self, position: int) -> None:
        if position > self.confirmed:
            self.confirmed = position
            self._commit.on_copied()
            self.on_confirmed()

"""The master's service for slaves: accepts their connections and sends each of them the log.

    bytes of the log    leave only when they are synced, so that no slave can have more than the
                        master has after a power cut. In controller mode they leave when they are
                        written: a slave truncates what its master has lost
    addresses           those of `haAllowedAddresses`, if set; others are closed before they cost
                        a place
    limits              connections, bytes sent ahead of a report, output of a slow reader, silence
    copies              counted by host, by the highest position that one of its connections reports

The classic protocol does not say which broker a slave is. So two slaves on one host count as one
copy, and a connection that a slave has lost without the master's notice does not count beside its
successor. In controller mode slaves have ids, by which `in_sync_keeper.py` counts them.

Source: DefaultHAService.java, apache/rocketmq 5.5.0, which counts connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kourou.broker.replication.in_sync_keeper import InSyncKeeper
from kourou.broker.replication.master_connection import LogSource, MasterConnection
from kourou.broker.replication.master_dialects import ClassicDialect, EpochDialect, MasterDialect
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.replication.slave_progress import UNKNOWN
from kourou.model.epochs import POSITION_MAX
from kourou.protocol.brokers import HAConnectionRuntimeInfo, HARuntimeInfo
from kourou.protocol.epoch_replication import SlaveHandshake
from kourou.remoting.log_rate import LogRate
from kourou.remoting.network import Address, Listener, format_address
from kourou.remoting.runtime import Runtime

log = logging.getLogger(__name__)

GAP_IN_SYNC_BYTES: Final = 256 * 1024 * 1024
"""Without a controller, a slave that is less than this behind is in sync: it is shown so, and
counts for `enableAutoInSyncReplicas`."""
_CHECKS_PER_HEARTBEAT: Final = 5
_DRAIN_S: Final = 1.0
"""How long `stop` waits for slaves to report the last bytes."""


class ReplicationMaster:
    """Serves the slaves of one broker. Created inside a running loop; started and stopped once.

    Attributes:
        config: the options.
        source: the log.
        segment_bytes: size of the log's files.
        offload: runs reads that wait for the device.
        on_slaves_changed: called when a slave has reported a position or has left, and each second
            while there are connections.
    """

    def __init__(
        self,
        config: ReplicationConfig,
        source: LogSource,
        runtime: Runtime,
        segment_bytes: int,
        keeper: InSyncKeeper | None = None,
    ) -> None:
        """Create the service; `start` opens the port.

        Args:
            config: the options.
            source: the log.
            runtime: network and executor.
            segment_bytes: size of the log's files.
            keeper: keeps the in-sync set in controller mode; None speaks the classic protocol.
        """
        self.keeper = keeper
        self.config = config
        self.source = source
        self.segment_bytes = segment_bytes
        self.offload = runtime.offload
        self.on_slaves_changed: Callable[[], None] = lambda: None
        self._network = runtime.network
        self._loop = asyncio.get_running_loop()
        self._listener: Listener | None = None
        self._connections: dict[MasterConnection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._allowed = config.allowed_slaves()
        self._warnings = LogRate()
        self._acknowledged = asyncio.Event()

    async def start(self, address: Address) -> Address:
        """Accept slaves, and return the address with its real port.

        Raises:
            AddressInUseError, ListenFailedError: the port cannot be opened.
        """
        self._listener = await self._network.listen(address, lambda: MasterConnection(self))
        if self.keeper is not None:
            self.keeper.start()
        log.info("replication.started address=%s", format_address(self._listener.address))
        return self._listener.address

    @property
    def port(self) -> int | None:
        """The port for slaves; None while it is not open."""
        return None if self._listener is None else self._listener.address[1]

    @property
    def slaves(self) -> list[MasterConnection]:
        """The connections that have reported a position, oldest first."""
        return [slave for slave in self._connections if slave.progress.sent != UNKNOWN]

    @property
    def is_started(self) -> bool:
        """Whether slaves may connect."""
        return self._listener is not None

    @property
    def in_sync_brokers(self) -> int:
        """Number of brokers that are nearly as far as this one, itself included; slaves by host."""
        far_below = self.source.written_position - GAP_IN_SYNC_BYTES
        near = (one for one in self.slaves if one.progress.acknowledged > far_below)
        return 1 + len({one.remote_address[0] for one in near})

    @property
    def has_slave_at_end(self) -> bool:
        """Whether a slave has been sent what is synced, nearly."""
        far_below = self.source.synced_position - self.config.ha_ahead_bytes
        return any(slave.progress.sent > far_below for slave in self.slaves)

    def copied_position(self, slaves: int) -> int:
        """Return the log position up to which this many slaves have reported the log.

        `UNKNOWN` if there are fewer. How slaves are counted: see the module's docstring.
        """
        if not slaves:
            return POSITION_MAX
        best: dict[str, int] = {}
        for connection in self._connections:
            host, position = connection.remote_address[0], connection.progress.acknowledged
            best[host] = max(best.get(host, UNKNOWN), position)
        positions = sorted(best.values(), reverse=True)
        return positions[slaves - 1] if len(positions) >= slaves else UNKNOWN

    def status(self) -> HARuntimeInfo:
        """Return the positions of all slaves, as for `mqadmin haStatus`."""
        end = self.source.written_position
        connections = tuple(
            HAConnectionRuntimeInfo(
                addr=format_address(slave.remote_address),
                slave_ack_offset=slave.progress.acknowledged,
                diff=end - slave.progress.acknowledged,
                in_sync=self._is_in_sync(slave, end),
                transferred_byte_in_second=slave.bytes_per_s,
                transfer_from_where=slave.progress.sent,
            )
            for slave in self.slaves
        )
        in_sync = sum(connection.in_sync for connection in connections)
        is_failsafe = self.keeper is not None and self.keeper.is_failsafe
        return HARuntimeInfo(True, end, in_sync, connections, kourou_failsafe=is_failsafe or None)

    def _is_in_sync(self, slave: MasterConnection, end: int) -> bool:
        if self.keeper is not None:
            return slave.broker_id in self.keeper.in_sync.members
        return end - slave.progress.acknowledged < GAP_IN_SYNC_BYTES

    @property
    def sendable_position(self) -> int:
        """The end of the bytes that may leave.

        In controller mode a master that may have lost bytes in a power cut begins a new epoch where
        its log ends, by which slaves that have more are truncated; and consumers see what the
        master itself has stored only.
        """
        return self.source.synced_position if self.keeper is None else self.source.written_position

    def send(self) -> None:
        """Send what may leave."""
        for slave in list(self._connections):
            slave.send()

    def tell_confirmed(self) -> None:
        """Tell the slaves what is confirmed, as far as no transfer is about to tell it."""
        for slave in list(self._connections):
            slave.tell_confirmed()

    async def stop(self) -> None:
        """Accept no more slaves; close the connections when they have reported the whole log.

        Waits for that for a second at most.
        """
        if self._listener is not None:
            self._listener.close()
        self.send()
        try:
            async with asyncio.timeout(_DRAIN_S):
                while any(
                    slave.progress.acknowledged < self.sendable_position for slave in self.slaves
                ):
                    self._acknowledged.clear()
                    await self._acknowledged.wait()
        except TimeoutError:
            log.info("replication.stopped_early slaves=%d", len(self._connections))
        self.abort()

    def abort(self) -> None:
        """Close the port and all connections at once."""
        if self.keeper is not None:
            self.keeper.stop()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for slave in list(self._connections):
            slave.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Called by the connections

    def on_connected(self, connection: MasterConnection) -> bool:
        """Accept a connection, or return False."""
        if self._listener is None:
            return False
        if self._allowed is not None and not self._allowed.contain(connection.remote_address[0]):
            reason = "its address is not among those of haAllowedAddresses"
            self.warn_refused(connection, reason)
            return False
        if len(self._connections) >= self.config.ha_slaves_max and not self._evict_one():
            limit = self.config.ha_slaves_max
            reason = f"{len(self._connections)} slaves are connected, limit {limit} (haSlavesMax)"
            self.warn_refused(connection, reason)
            return False
        self._connections[connection] = None
        self._schedule_check()
        return True

    def create_dialect(self) -> MasterDialect:
        """Return the protocol of a new connection."""
        return ClassicDialect() if self.keeper is None else EpochDialect(self.keeper)

    def on_handshake(self, connection: MasterConnection, handshake: SlaveHandshake) -> None:
        """Let a connection take the place of the slave's earlier one."""
        assert self.keeper is not None, "there are handshakes in controller mode only"
        for other in list(self._connections):
            if other is not connection and other.broker_id == handshake.broker_id:
                other.broker_id = UNKNOWN  # its end is not that of the slave's connection
                other.refuse("the slave has connected again")
        self.keeper.on_connected(handshake.broker_id, is_learner=handshake.is_learner)

    def on_sent(self, connection: MasterConnection) -> None:
        """Note that bytes of the log were sent."""
        if self.keeper is not None and connection.broker_id != UNKNOWN:
            self.keeper.on_sent(connection.broker_id)

    def on_reported(self, connection: MasterConnection) -> None:
        """Note that a slave has reported a position."""
        if self.keeper is not None and connection.broker_id != UNKNOWN:
            self.keeper.on_reported(connection.broker_id, connection.progress.acknowledged)
        self._acknowledged.set()
        self.on_slaves_changed()

    def on_closed(self, connection: MasterConnection) -> None:
        """Forget a connection."""
        if self.keeper is not None and connection.broker_id != UNKNOWN:
            self.keeper.on_closed(connection.broker_id)
        if self._connections.pop(connection, 0) is None and connection.progress.sent != UNKNOWN:
            log.info(
                "replication.slave_left slave=%s position=%d",
                format_address(connection.remote_address),
                connection.progress.acknowledged,
            )
        self._acknowledged.set()
        self.on_slaves_changed()

    def warn_refused(self, connection: MasterConnection, reason: str) -> None:
        """Log why a slave was refused, at a limited rate."""
        suppressed = self._warnings.take(self._loop.time())
        if suppressed is not None:
            log.warning(
                "replication.slave_refused slave=%s reason=%s suppressed=%d",
                format_address(connection.remote_address),
                reason,
                suppressed,
            )

    def _evict_one(self) -> bool:
        """Close the oldest connection that has reported nothing; return whether there was one."""
        for connection in self._connections:
            if connection.progress.sent == UNKNOWN:
                connection.refuse("it has reported nothing yet, and others want to connect")
                self._connections.pop(connection, None)
                return True
        return False

    def _schedule_check(self) -> None:
        if self._timer is None:
            pause_s = self.config.ha_send_heartbeat_interval_ms / 1000 / _CHECKS_PER_HEARTBEAT
            self._timer = self._loop.call_later(pause_s, self._check_times)

    def _check_times(self) -> None:
        self._timer = None
        for connection in list(self._connections):
            connection.check_times()
        self.on_slaves_changed()
        if self._connections:
            self._schedule_check()

"""Services that a slave runs while it acts for its master, and stops when that returns.

It delivers messages of delay levels and scheduled messages, and sends open half messages, by other
brokers, which also store the checkpoints of its pops. Those of the master's pops are left to it.

`replication/acting_master.py` decides when.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from kourou.broker.config import BrokerConfig
from kourou.broker.context import BrokerContext
from kourou.broker.delays.delay import DelayDelivery
from kourou.broker.periodic_tasks import PeriodicTasks
from kourou.broker.popping.popping import Popping
from kourou.broker.pulling.held_pulls import HeldPulls
from kourou.broker.replication.acting_master import ActingMaster
from kourou.broker.replication.metadata_copy import MetadataCopy
from kourou.broker.replication.slave import ReplicationSlave
from kourou.broker.timer.timers import Timers
from kourou.broker.transactions.escaped_halves import EscapedHalves
from kourou.protocol.brokers import ExchangeHAInfoRequestHeader, KeptAck, TimerCheckPoint

log = logging.getLogger(__name__)


class EscapedDeliveries:
    """Delivers what is due by the masters of other broker names."""

    def __init__(
        self,
        config: BrokerConfig,
        delay: DelayDelivery,
        build_timers: Callable[[], Timers],
        halves: EscapedHalves,
        popping: Popping,
    ) -> None:
        """Deliver nothing yet.

        Args:
            config: how often the progress is saved.
            delay: delivers the messages of delay levels.
            build_timers: builds what delivers scheduled messages, for each time anew.
            halves: sends open half messages.
            popping: serves pops.
        """
        self._popping = popping
        self._halves = halves
        self._config = config
        self._delay = delay
        self._build_timers = build_timers
        self._timers: Timers | None = None
        self._tasks = PeriodicTasks()

    async def begin(self) -> None:
        """Begin to deliver; what the master has delivered already is found in the log."""
        await self._popping.begin_acting()
        self._halves.start()
        self._delay.start(has_files_as_left=False)
        interval_ms = self._config.delay_offset_interval_ms
        self._tasks.start("save delay offsets", interval_ms, self._delay.persist)
        self._timers = timers = self._build_timers()
        timers.handover.is_acting = timers.storage.is_acting = True
        timers.start_later()  # a master that returns does not wait until the files are rebuilt
        interval_ms = self._config.timer.timer_flush_interval_ms
        self._tasks.start("save timers", interval_ms, timers.storage.flush)

    async def end(self) -> None:
        """Stop, and save the progress."""
        await self._popping.end_acting()
        await self._tasks.stop()
        await self._halves.stop()
        await self._delay.stop()
        if self._timers is not None:
            await self._timers.stop()
        try:
            await self._delay.persist()
            if self._timers is not None:
                await self._timers.storage.close()
        except OSError:
            log.exception("acting_progress.not_saved")

    def abandon(self) -> None:
        """Stop like a killed process."""
        self._tasks.abandon()
        self._halves.abandon()
        self._delay.abandon()
        if self._timers is not None:
            self._timers.abandon()

    def kept_acks(self) -> list[KeptAck]:
        """Return acks of the master's pops that the slave has accepted."""
        return self._popping.elsewhere.kept()

    def check_point(self) -> TimerCheckPoint:
        """Return the progress of scheduled messages; that of the last time if it has ended.

        In whole seconds, as Java's: a master that returns repeats up to a second of messages.
        """
        if self._timers is None:
            return TimerCheckPoint()
        at_ms, offset = self._timers.progress()
        return replace(
            self._timers.storage.check_point(),
            last_read_time_ms=at_ms,
            last_timer_queue_offset=offset,
            master_timer_queue_offset=offset,
        )


class ActingServices:
    """The services of one slave.

    Attributes:
        master: decides when the slave acts.
    """

    def __init__(
        self,
        context: BrokerContext,
        slave: ReplicationSlave,
        metadata: MetadataCopy,
        held_pulls: HeldPulls,
        deliveries: EscapedDeliveries | None,
    ) -> None:
        """Begin nothing yet.

        Args:
            context: the broker's state and services.
            slave: copies the log of the master.
            metadata: copies its tables.
            held_pulls: the pulls that wait for messages.
            deliveries: what it delivers elsewhere; None if that is off.
        """
        self._rules = context.config.replication
        self._writer = context.store.writer
        self._slave = slave
        self._metadata = metadata
        self._held_pulls = held_pulls
        self._deliveries = deliveries
        self.master = ActingMaster(context.config.broker_id, slave, self._begin, self._end)

    async def _begin(self) -> None:
        self._metadata.forget_address()  # what is changed here is newer than the master's tables
        if self._deliveries is not None:
            await self._deliveries.begin()

    async def _end(self) -> None:
        if self._deliveries is not None:
            await self._deliveries.end()
        self._held_pulls.serve_all()  # the clients continue at the master

    def timer_check_point(self) -> TimerCheckPoint:
        """Return the progress of scheduled messages that the slave has delivered."""
        return TimerCheckPoint() if self._deliveries is None else self._deliveries.check_point()

    def pop_refusal(self) -> str:
        """Return why pops are not served; empty if they are."""
        if self._deliveries is None:
            return "enableRemoteEscape is off"
        return "" if self.master.is_acting else "it does not act for its master"

    def kept_acks(self) -> list[KeptAck]:
        """Return acks of the master's pops that the slave has accepted."""
        return [] if self._deliveries is None else self._deliveries.kept_acks()

    async def stop(self) -> None:
        """End to act, as the broker stops."""
        await self.master.stop()

    def abandon(self) -> None:
        """Stop like a killed process."""
        if self._deliveries is not None:
            self._deliveries.abandon()

    async def meet_master(self, header: ExchangeHAInfoRequestHeader) -> None:
        """End to act for a master that returns, and copy from it."""
        await self.master.make_way()
        takes_position = self._rules.sync_master_flush_offset_when_startup
        if takes_position and not self._writer.master_flushed_offset:
            self._writer.set_master_flushed_offset(header.master_flush_offset or 0)
        self._slave.learn_address(header.master_ha_address or "")
        self._slave.wake()

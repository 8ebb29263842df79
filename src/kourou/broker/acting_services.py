"""Services that a slave runs while it acts for its master, and stops when that returns.

`replication/acting_master.py` decides when.
"""

from __future__ import annotations

from kourou.broker.context import BrokerContext
from kourou.broker.delays.delay import DelayDelivery
from kourou.broker.periodic_tasks import PeriodicTasks
from kourou.broker.pulling.held_pulls import HeldPulls
from kourou.broker.replication.acting_master import ActingMaster
from kourou.broker.replication.metadata_copy import MetadataCopy
from kourou.broker.replication.slave import ReplicationSlave
from kourou.protocol.brokers import ExchangeHAInfoRequestHeader


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
        delay: DelayDelivery | None,
    ) -> None:
        """Begin nothing yet.

        Args:
            context: the broker's state and services.
            slave: copies the log of the master.
            metadata: copies its tables.
            held_pulls: the pulls that wait for messages.
            delay: delivers messages of delay levels elsewhere; None if that is off.
        """
        self._rules = context.config.replication
        self._writer = context.store.writer
        self._slave = slave
        self._metadata = metadata
        self._held_pulls = held_pulls
        self._delay = delay
        self._interval_ms = context.config.delay_offset_interval_ms
        self._tasks = PeriodicTasks()
        self.master = ActingMaster(context.config.broker_id, slave, self._begin, self._end)

    async def _begin(self) -> None:
        self._metadata.forget_address()  # what is changed here is newer than the master's tables
        if self._delay is not None:
            self._delay.start(has_files_as_left=False)
            self._tasks.start("save delay offsets", self._interval_ms, self._delay.persist)

    async def _end(self) -> None:
        await self._tasks.stop()
        if self._delay is not None:
            await self._delay.stop()
            await self._delay.persist()
        self._held_pulls.serve_all()  # the clients continue at the master

    async def stop(self) -> None:
        """End to act, as the broker stops."""
        await self.master.stop()

    def abandon(self) -> None:
        """Stop like a killed process."""
        self._tasks.abandon()

    async def meet_master(self, header: ExchangeHAInfoRequestHeader) -> None:
        """End to act for a master that returns, and copy from it."""
        await self.master.make_way()
        takes_position = self._rules.sync_master_flush_offset_when_startup
        if takes_position and not self._writer.master_flushed_offset:
            self._writer.set_master_flushed_offset(header.master_flush_offset or 0)
        self._slave.learn_address(header.master_ha_address or "")
        self._slave.wake()

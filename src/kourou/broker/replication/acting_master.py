"""A slave that acts for its master while that is away.

It acts while it has the smallest id of the brokers that name servers know, and has no connection to
its master. So a master that only lost its name servers is not acted for.

Source: BrokerController.syncBrokerMemberGroup, updateMinBroker, apache/rocketmq 5.5.0, which looks
at the name servers alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from kourou.broker.replication.slave import ReplicationSlave

log = logging.getLogger(__name__)

_MASTER_START_S: Final = 15.0
"""How long a master that returns may take to start, before the slave acts again."""
Step = Callable[[], Awaitable[None]]


class ActingMaster:
    """The decision of one slave, with what follows from it.

    Attributes:
        is_acting: whether it acts now.
    """

    def __init__(self, broker_id: int, slave: ReplicationSlave, begin: Step, end: Step) -> None:
        """Do not act yet.

        Args:
            broker_id: of the slave.
            slave: its connection to the master.
            begin: starts what an acting master does; `is_acting` is True already.
            end: stops it; `is_acting` is False already.

        Both are called one after the other.
        """
        self._broker_id = broker_id
        self._slave = slave
        self._begin, self._end = begin, end
        self._changing = asyncio.Lock()
        self._not_before_s = 0.0
        self.is_acting = False

    async def update(self, members: Mapping[int, str]) -> None:
        """Begin or end to act, by the brokers that are registered now."""
        is_smallest = min(members, default=None) == self._broker_id
        is_due = is_smallest and not self._slave.is_connected and not self._makes_way
        if is_due and not self.is_acting:
            await self._change(is_acting=True)
        elif self.is_acting and not is_due:
            await self._change(is_acting=False)

    async def make_way(self) -> None:
        """End to act for a master that is starting; return when all that was begun has stopped.

        It is registered, or connected, some seconds later. Reads are served until then.
        """
        self._not_before_s = asyncio.get_running_loop().time() + _MASTER_START_S
        await self._change(is_acting=False)

    async def stop(self) -> None:
        """End to act for good, and return when all that was begun has stopped."""
        self._not_before_s = float("inf")
        await self._change(is_acting=False)

    @property
    def serves_reads(self) -> bool:
        """Whether clients may read although the broker is a slave."""
        return self.is_acting or (self._makes_way and not self._slave.is_connected)

    @property
    def _makes_way(self) -> bool:
        return asyncio.get_running_loop().time() < self._not_before_s

    async def _change(self, *, is_acting: bool) -> None:
        async with self._changing:
            if is_acting == self.is_acting:
                return
            self.is_acting = is_acting
            log.warning("acting_master.changed id=%d acting=%s", self._broker_id, is_acting)
            await (self._begin() if is_acting else self._end())

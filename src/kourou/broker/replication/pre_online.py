"""Changes that a master that returns takes back from its slaves, before it delivers or registers.

One of them may have acted for it: clients have committed offsets there, and it has delivered
messages. Each slave that a name server knows is asked in the order of the ids:

    906    names the master, so that the slave ends to act before it answers; a slave of Kourou
           answers with the acks of the master's pops that it has accepted
    43     offsets of groups: the larger of the two counts for each queue
    45     progress of the delay levels: likewise
    60     progress of scheduled messages: those are not delivered again that the slave had in its
           wheel, and whose time was over

Java compares the versions of whole tables instead, and takes a newer one with offsets that are as
old as the last copy of the slave, 10 s at most.

A slave that does not answer is asked again each second. After 15 s name servers have removed a dead
one. If that lasts for a minute, the master starts without the rest, and says so.

Source: BrokerPreOnlineService.java, apache/rocketmq 5.5.0, which also waits until the slave copies
the log, and makes slaves wait for that as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.broker.advertised import advertised_address
from kourou.broker.config import BrokerConfig
from kourou.broker.replication.member_group import MemberGroup
from kourou.errors import KourouError
from kourou.protocol.brokers import (
    ExchangeHAInfoRequestHeader,
    KeptAck,
    KeptAcks,
    TimerCheckPoint,
    decode_timer_check_point,
)
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.json_records import decode_record
from kourou.protocol.offset_table import (
    decode_consumer_offset_table,
    decode_delay_offset_table,
)
from kourou.remoting.network import format_address, parse_address
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 3.0
_RETRY_S: Final = 1.0
_GIVE_UP_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Receivers of the state of a slave.

    Attributes:
        offsets: takes `topic@group` -> queue id -> offset.
        delays: takes delay level -> queue offset.
        timers: takes the time, and the queue offset of the timer topic, before which scheduled
            messages are delivered.
        acks: takes acks of the master's pops.
    """

    offsets: Callable[[Mapping[str, Mapping[int, int]]], None]
    delays: Callable[[Mapping[int, int]], None]
    timers: Callable[[int, int], None]
    acks: Callable[[Sequence[KeptAck]], None]


class PreOnline:
    """Asks the slaves of one master, at its start."""

    def __init__(
        self,
        config: BrokerConfig,
        members: MemberGroup,
        pool: ConnectionPool,
        flushed_position: int,
        taken: TakenBack,
    ) -> None:
        """Ask the slaves that `members` finds by connections of `pool`.

        Args:
            config: addresses of the master.
            members: finds the slaves.
            pool: connections to them.
            flushed_position: the synced end of the master's log.
            taken: called with what each has.
        """
        self._config = config
        self._members = members
        self._pool = pool
        self._flushed_position = flushed_position
        self._taken = taken
        self._done = {config.broker_id}

    async def run(self) -> None:
        """Return when all living slaves have answered, or after a minute."""
        loop, reason = asyncio.get_running_loop(), ""
        give_up_at_s = loop.time() + _GIVE_UP_S
        while failure := await self._ask_slaves():
            if failure != reason:
                log.warning("pre_online.delayed reason=%s", failure)
            reason = failure
            if loop.time() > give_up_at_s:
                log.error("pre_online.given_up reason=%s", reason)
                return
            await asyncio.sleep(_RETRY_S)

    async def _ask_slaves(self) -> str:
        """Ask those that have not answered yet; return why that failed, empty if it did not."""
        members = await self._members.ask()
        if members is None:
            return "no name server answers"
        for broker_id in sorted(members.keys() - self._done):
            failure = await self._ask_slave(members[broker_id])
            if failure:
                return failure
            log.info("pre_online.done id=%d", broker_id)
            self._done.add(broker_id)
        return ""

    async def _ask_slave(self, address: str) -> str:
        """Take what a slave has; return why that failed, empty if it did not."""
        try:
            connection = await self._pool.get(address)
            header = self._own_addresses(connection.local_address[0])
            command = request(RequestCode.EXCHANGE_BROKER_HA_INFO, header)
            answer = await self._ask(address, command)
            kept = decode_record(KeptAcks, answer.body) if answer.body else KeptAcks()
            answer = await self._ask(address, RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET))
            offsets = decode_consumer_offset_table(answer.body).offsets
            answer = await self._ask(address, RemotingCommand(RequestCode.GET_ALL_DELAY_OFFSET))
            delays = decode_delay_offset_table(answer.body).offsets if answer.body else {}
            answer = await self._ask(address, RemotingCommand(RequestCode.GET_TIMER_CHECK_POINT))
            timers = decode_timer_check_point(answer.body) if answer.body else TimerCheckPoint()
        except (KourouError, OSError) as error:
            return f"{address}: {error}"
        self._taken.acks(kept.kourou_acks)
        self._taken.offsets(offsets)
        self._taken.delays(delays)
        self._taken.timers(timers.last_read_time_ms, timers.last_timer_queue_offset)
        return ""

    def _own_addresses(self, host: str) -> ExchangeHAInfoRequestHeader:
        """Return the master's addresses as they are from a slave's point of view."""
        config = self._config
        if not config.port:  # a free port is not chosen yet: the slave learns it by name servers
            return ExchangeHAInfoRequestHeader()
        address = advertised_address(config, (host, config.port))
        ha_port = config.replication.ha_listen_port or config.port + 1
        return ExchangeHAInfoRequestHeader(
            master_ha_address=format_address((parse_address(address)[0], ha_port)),
            master_flush_offset=self._flushed_position,
            master_address=address,
        )

    async def _ask(self, address: str, command: RemotingCommand) -> RemotingCommand:
        answer = await self._pool.request(address, command, _TIMEOUT_S)
        raise_for_response(answer)
        return answer

"""The brokers of one broker name, as name servers know them.

A slave that has no connection to its master asks for them at intervals; one that may act for its
master always asks. When the master has registered, or has another address, the slave registers and
connects again at once: only the answer to a registration contains the master's port for slaves.

Source: BrokerOuterAPI.syncBrokerMemberGroup, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.replication.acting_master import ActingMaster
from kourou.broker.replication.slave import ReplicationSlave
from kourou.errors import ProtocolError, RemoteError, TransportError
from kourou.model.route import MASTER_ID
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.json_records import decode_record
from kourou.protocol.routes import GetBrokerMemberGroupRequestHeader, GetBrokerMemberGroupResponse
from kourou.remoting.pool import ConnectionPool

_TIMEOUT_S: Final = 1.0


class MemberGroup:
    """Asks for the brokers of the broker's own name."""

    def __init__(self, config: BrokerConfig, pool: ConnectionPool) -> None:
        """Ask the name servers of the options by connections of `pool`."""
        self._addresses = config.namesrv_addr
        self._header = GetBrokerMemberGroupRequestHeader(config.cluster_name, config.broker_name)
        self._pool = pool

    async def ask(self) -> dict[int, str] | None:
        """Return broker id -> address of all that a name server knows; None if none answers.

        All name servers are asked at once. A broker that cannot reach one of them is registered
        with the others, so a broker is missing only if all that answered lack it.
        """
        asked = [self._ask_one(address) for address in self._addresses]
        answers = [answer for answer in await asyncio.gather(*asked) if answer is not None]
        members = dict[int, str]()
        for answer in reversed(answers):  # the first name server's addresses count
            members |= answer
        return members if answers else None

    async def _ask_one(self, address: str) -> dict[int, str] | None:
        command = request(RequestCode.GET_BROKER_MEMBER_GROUP, self._header)
        try:
            answer = await self._pool.request(address, command, _TIMEOUT_S)
            raise_for_response(answer)
            found = decode_record(GetBrokerMemberGroupResponse, answer.body)
        except (TransportError, RemoteError, ProtocolError):
            return None
        group = found.broker_member_group
        return {} if group is None else dict(group.broker_addrs)


class MasterWatch:
    """Observes whether the master of a slave is registered.

    Attributes:
        acting: what the slave does while it acts for its master; None if it never does.
        register: called when a registration would find the master.
        due: set to have `check` called soon.
    """

    def __init__(
        self, members: MemberGroup, slave: ReplicationSlave, acting: ActingMaster | None
    ) -> None:
        """Observe for `slave`."""
        self._members = members
        self._slave = slave
        self.acting: Final = acting
        self._seen: str | None = ""
        self.register: Callable[[], None] = lambda: None
        self.due = asyncio.Event()

    async def check(self) -> None:
        """Ask once; called at intervals."""
        if self.acting is None and self._slave.is_connected:
            return
        members = await self._members.ask()
        if members is None:
            return
        master = members.get(MASTER_ID)
        if master is not None and master != self._seen:
            self.register()
            self._slave.wake()
        self._seen = master
        if self.acting is not None:
            await self.acting.update(members)

"""AdminClient: the producers and consumers that are connected.

Each broker tells of its own connections; a client is connected to all brokers of its topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kourou.client.administration import calls_admin_clients
from kourou.client.administration.admin_calls import AdminCalls, Server, ask_all
from kourou.errors import ConsumerNotOnlineError, RemoteSystemError
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.topic import check_group
from kourou.protocol.bodies import (
    Connection,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerInfo,
)
from kourou.protocol.codes import ResponseCode
from kourou.remoting.network import format_address


class ClientAdmin(AdminCalls):
    """Describes connected clients, and asks consumers."""

    async def consumer_connection(self, group: str) -> ConsumerConnection:
        """Return the live members of a group, sorted by client id, and what they want.

        A member is told once, as the first broker by name sees it.

        Raises:
            InvalidGroupError: the name is not valid.
            ConsumerNotOnlineError: it has no live member.
        """
        check_group(group)
        parts = list((await _live_consumers(await self._masters(), group)).values())
        if not parts:
            raise ConsumerNotOnlineError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"group {group} has no live member"
            )
        return ConsumerConnection(
            _merged(one for part in parts for one in part.connections),
            parts[0].consume_type,
            parts[0].message_model,
            parts[0].consume_from_where,
            {
                topic: wanted
                for part in reversed(parts)
                for topic, wanted in sorted(part.subscriptions.items())
            },
            tuple(dict.fromkeys(text for part in parts for text in part.differences)),
        )

    async def running_info(
        self, group: str, client_id: str, *, stack: bool = False
    ) -> ConsumerRunningInfo:
        """Return what a consumer tells of itself: its settings, queues and rates.

        Args:
            group: the consumer's.
            client_id: one of its live members.
            stack: with the stacks of the consumer's threads.

        Raises:
            InvalidGroupError: the name is not valid.
            ConsumerNotOnlineError: no broker knows the member.
            ConsumeTimeoutError: the consumer did not answer its broker.
        """
        server = await self._server_of(group, client_id)
        return await calls_admin_clients.running_info(server, group, client_id, stack=stack)

    async def consume_directly(
        self, group: str, client_id: str, msg_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Let the listener of one consumer have one message now, and return what came of it.

        No offset moves, and a failure is not retried: what the listener does has its effect again.

        Args:
            group: the consumer's.
            client_id: one of its live members.
            msg_id: the message's offset id, which names the broker that stores it.

        Raises:
            InvalidGroupError: the name is not valid.
            InvalidMessageError: `msg_id` is no offset id.
            ConnectFailedError: nothing answers at the address in it, as for a unique id.
            ConsumeTimeoutError: the listener took longer than the broker waits, 10 s. It goes on.
            RemoteSystemError: no such message, or the consumer is not connected to that broker.
        """
        self._instance.check_open()
        check_group(group)
        address, _ = decode_offset_msg_id(msg_id)
        server = self._server(format_address(address))
        return await calls_admin_clients.consume_directly(server, group, client_id, msg_id)

    async def producer_connection(self, group: str, topic: str | None = None) -> list[Connection]:
        """Return the live producers of a group, sorted by client id; none is an empty list.

        Args:
            group: its name.
            topic: ask only the brokers of this topic.

        Raises:
            InvalidGroupError: the name is not valid.
            TopicNotFoundError: no name server knows the topic.
        """
        check_group(group)
        servers = await (self._masters() if topic is None else self._topic_masters(topic))
        found = await ask_all(servers, lambda server: _producers_or_none(server, group))
        return _merged(one for part in found.values() for one in part)

    async def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        """Return the producers connected to the broker at `host:port`, by group, both sorted."""
        self._instance.check_open()
        found = await calls_admin_clients.producers(self._server(address))
        return {
            group: sorted(members, key=lambda one: one.client_id)
            for group, members in sorted(found.items())
        }

    async def _server_of(self, group: str, client_id: str) -> Server:
        """Return a broker that the group's member is connected to.

        Raises:
            ConsumerNotOnlineError: there is none.
        """
        check_group(group)
        masters = await self._masters()
        live = await _live_consumers(masters, group)
        for name, part in live.items():
            if any(one.client_id == client_id for one in part.connections):
                return masters[name]
        members = _merged(one for part in live.values() for one in part.connections)
        known = ", ".join(one.client_id for one in members) or "none"
        raise ConsumerNotOnlineError(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"group {group} has no live member {client_id}; its live members are: {known}",
        )


async def _live_consumers(
    servers: Mapping[str, Server], group: str
) -> dict[str, ConsumerConnection]:
    """Return the group's connections by broker name; brokers that have none are left out."""
    parts = await ask_all(servers, lambda server: _connection_or_none(server, group))
    return {name: part for name, part in parts.items() if part is not None}


def _merged(connections: Iterable[Connection]) -> list[Connection]:
    """Return each client once, sorted by id."""
    by_id: dict[str, Connection] = {}
    for one in connections:
        by_id.setdefault(one.client_id, one)
    return [by_id[client_id] for client_id in sorted(by_id)]


async def _connection_or_none(server: Server, group: str) -> ConsumerConnection | None:
    try:
        return await calls_admin_clients.consumer_connection(server, group)
    except ConsumerNotOnlineError:
        return None


async def _producers_or_none(server: Server, group: str) -> list[Connection]:
    try:
        return await calls_admin_clients.producer_connection(server, group)
    except RemoteSystemError:
        return []  # how brokers say that nobody is there

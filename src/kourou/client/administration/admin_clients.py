"""AdminClient methods for connected producers and consumers.

A broker reports only its own connections. A client is connected to all brokers of its topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kourou.client.administration.admin_calls import AdminCalls, Server, call_all
from kourou.client.administration.plain_names import own_entries, with_plain_names, with_plain_texts
from kourou.errors import ConsumerNotOnlineError, RemoteSystemError
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.topic import check_group
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.connections import (
    Connection,
    ConsumerConnection,
    GetAllProducerInfoRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    ProducerInfo,
    decode_consumer_connection,
    decode_producer_connection,
    decode_producer_table,
)
from kourou.protocol.running_info import (
    ConsumeMessageDirectlyResult,
    ConsumeMessageDirectlyResultRequestHeader,
    ConsumerRunningInfo,
    GetConsumerRunningInfoRequestHeader,
    decode_consume_directly_result,
    decode_consumer_running_info,
)
from kourou.remoting.network import format_address


class ClientAdmin(AdminCalls):
    """Describes connected clients, and sends requests to consumers."""

    async def consumer_connection(self, group: str) -> ConsumerConnection:
        """Return the live members of a group, sorted by client id, and their subscriptions.

        A member that is connected to several brokers is listed once, with the data of the first
        broker by name.

        Raises:
            InvalidGroupError: the name is not valid.
            ConsumerNotOnlineError: the group has no live member.
        """
        check_group(group)
        found = await live_connection(await self._masters(), group)
        if found is None:
            raise ConsumerNotOnlineError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"group {group} has no live member"
            )
        return found

    async def running_info(
        self, group: str, client_id: str, *, stack: bool = False
    ) -> ConsumerRunningInfo:
        """Return the settings, queues and rates of a consumer, requested from the consumer itself.

        Args:
            group: the consumer group.
            client_id: the client id of a live member.
            stack: include the stacks of the consumer's threads.

        Raises:
            InvalidGroupError: the name is not valid.
            ConsumerNotOnlineError: the member is not connected to any broker.
            ConsumeTimeoutError: the consumer did not answer its broker.
        """
        server = await self._server_of(group, client_id)
        return await running_info(server, group, client_id, stack=stack)

    async def consume_directly(
        self, group: str, client_id: str, msg_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Deliver one stored message to the listener of one consumer, and return the result.

        No offset is committed, and a failure is not retried. The effects of the listener are real,
        also for a message that was consumed before.

        Args:
            group: the consumer group.
            client_id: the client id of a live member.
            msg_id: the offset id of the message, which contains the broker's address.

        Raises:
            InvalidGroupError: the name is not valid.
            InvalidMessageError: `msg_id` is not an offset id.
            ConnectFailedError: no server answers at the address in the id, as for a unique id.
            ConsumeTimeoutError: the listener took longer than the broker's limit of 10 s; it keeps
                running.
            RemoteSystemError: there is no such message, or the consumer is not connected to that
                broker.
        """
        self._instance.check_open()
        check_group(group)
        address, _ = decode_offset_msg_id(msg_id)
        server = self._server(format_address(address))
        return await consume_directly(server, group, client_id, msg_id)

    async def producer_connection(self, group: str, topic: str | None = None) -> list[Connection]:
        """Return the live producers of a group, sorted by client id; the list may be empty.

        Args:
            group: the producer group.
            topic: only at the brokers of this topic.

        Raises:
            InvalidGroupError: the name is not valid.
            TopicNotFoundError: the name servers do not have the topic.
        """
        check_group(group)
        servers = await (self._masters() if topic is None else self._topic_masters(topic))
        found = await call_all(servers, lambda server: _producers_or_none(server, group))
        return _merged(one for part in found.values() for one in part)

    async def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        """Return the producers connected to the broker at `host:port`, by group, both sorted."""
        self._instance.check_open()
        found = await producers(self._server(address))
        return {
            group: sorted(members, key=lambda one: one.client_id)
            for group, members in sorted(found.items())
        }

    async def _server_of(self, group: str, client_id: str) -> Server:
        """Return a broker to which the member of the group is connected.

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


async def live_connection(servers: Mapping[str, Server], group: str) -> ConsumerConnection | None:
    """Return the live members of a group at all brokers; None if there are none."""
    parts = list((await _live_consumers(servers, group)).values())
    if not parts:
        return None
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


async def _live_consumers(
    servers: Mapping[str, Server], group: str
) -> dict[str, ConsumerConnection]:
    """Return the group's connections by broker name, without brokers that have none."""
    parts = await call_all(servers, lambda server: _connection_or_none(server, group))
    return {name: part for name, part in parts.items() if part is not None}


def _merged(connections: Iterable[Connection]) -> list[Connection]:
    """Return the connections without duplicate clients, sorted by client id."""
    by_id: dict[str, Connection] = {}
    for one in connections:
        by_id.setdefault(one.client_id, one)
    return [by_id[client_id] for client_id in sorted(by_id)]


async def _connection_or_none(server: Server, group: str) -> ConsumerConnection | None:
    try:
        return await consumer_connection(server, group)
    except ConsumerNotOnlineError:
        return None


async def _producers_or_none(server: Server, group: str) -> list[Connection]:
    try:
        return await producer_connection(server, group)
    except RemoteSystemError:
        return []  # brokers answer with this error if the group has no live producer


# Requests to one server, without retries. They raise TransportError if no answer arrives, and
# RemoteError if the server refuses.


async def consumer_connection(broker: Server, group: str) -> ConsumerConnection:
    """Return the members of a group connected to the broker; if none, it answers with code 206."""
    header = GetConsumerConnectionListRequestHeader(group)
    body = await broker.request_body(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
    connection = with_plain_names(broker.pool.namespace, decode_consumer_connection(body))
    return replace(
        connection, differences=with_plain_texts(broker.pool.namespace, connection.differences)
    )


async def running_info(
    broker: Server, group: str, client_id: str, *, stack: bool
) -> ConsumerRunningInfo:
    """Return the settings, queues and rates of a consumer, requested through a broker."""
    header = GetConsumerRunningInfoRequestHeader(group, client_id, jstack_enable=stack)
    body = await broker.request_body(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    return with_plain_names(broker.pool.namespace, decode_consumer_running_info(body))


async def consume_directly(
    broker: Server, group: str, client_id: str, msg_id: str
) -> ConsumeMessageDirectlyResult:
    """Deliver one message that the broker stores to a consumer's listener, once."""
    header = ConsumeMessageDirectlyResultRequestHeader(group, client_id, msg_id)
    body = await broker.request_body(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    return decode_consume_directly_result(body)


async def producer_connection(broker: Server, group: str) -> list[Connection]:
    """Return the producers of a group connected to the broker; if none, it answers with code 1."""
    header = GetProducerConnectionListRequestHeader(group)
    body = await broker.request_body(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
    return decode_producer_connection(body)


async def producers(broker: Server) -> dict[str, list[ProducerInfo]]:
    """Return all producers connected to the broker, by group."""
    header = GetAllProducerInfoRequestHeader()
    body = await broker.request_body(RequestCode.GET_ALL_PRODUCER_INFO, header)
    return own_entries(broker.pool.namespace, decode_producer_table(body))

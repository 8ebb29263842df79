"""The remoting port of a proxy in cluster mode: clients of RocketMQ's remoting protocol.

For its clients the proxy is name server and broker in one: routes name it as the address of all
brokers, and requests are forwarded to the broker that they name (`bname`). The requests are
those of RocketMQ's proxy, and BATCH_ACK_MESSAGE and NOTIFICATION of Kourou's clients.

Source: RemotingProtocolServer.java and org.apache.rocketmq.proxy.remoting.activity, apache/rocketmq
5.5.0.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from kourou.decimals import decimal_or
from kourou.errors import CallRefusedError, MalformedHeaderError, NoRouteError, TransportError
from kourou.model import properties as names
from kourou.model.host import Host
from kourou.model.properties import decode_properties
from kourou.model.route import TopicRoute
from kourou.protocol.clients import (
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
    decode_consumer_list,
    decode_heartbeat,
    encode_consumer_list,
)
from kourou.protocol.codes import VERSION_STANDARD_JSON, RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.connections import (
    ConsumerConnection,
    GetConsumerConnectionListRequestHeader,
    decode_consumer_connection,
    encode_consumer_connection,
)
from kourou.protocol.json_records import decode_record
from kourou.protocol.popping.headers import BatchAckMessages
from kourou.protocol.popping.receipt_handles import decode_receipt_handle
from kourou.protocol.queue_assignment import decode_lock_batch
from kourou.protocol.routes import GetRouteInfoRequestHeader, encode_topic_route
from kourou.proxy.checks import accepts_all_types, check_type
from kourou.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from kourou.proxy.convert import type_of
from kourou.proxy.member_messages import REGISTER, UNREGISTER
from kourou.proxy.member_sync import MemberSync
from kourou.proxy.remoting_session import BROKER_NAME, RemotingSession, relayed
from kourou.remoting.admission import Admission
from kourou.remoting.connection import Connection, Request
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address, format_address
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer

Serve = Callable[[RemotingSession, Request], Awaitable[RemotingCommand | None]]

HELD_MAX: Final = 100_000
"""Requests of all clients that may wait for brokers."""
HELD_EACH_MAX: Final = 10_000
"""Those of one connection, so that few clients cannot keep out all others. A consumer holds one
pull for each of its queues."""
STOP_S: Final = 1.0
"""Seconds in which requests may be answered when the port stops."""
_HELD_EXTRA_S: Final = 10.0
"""Time for the answer of a held request, beyond the time for which the broker holds it."""
_SHORT_SENDS: Final = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_PLAIN: Final = (
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)
"""Requests that are forwarded as they are."""
_HELD: Final = {
    RequestCode.PULL_MESSAGE: "suspendTimeoutMillis",
    RequestCode.LITE_PULL_MESSAGE: "suspendTimeoutMillis",
    RequestCode.POP_MESSAGE: "pollTime",
    RequestCode.NOTIFICATION: "pollTime",
}
"""Requests that brokers hold, and the field with the time in ms."""


class RemotingPort:
    """Serves remoting clients. Created inside a running loop; started and stopped once.

    Attributes:
        address: on which it listens, once it is started.
        members: the exchange with other proxies, once it is started.
    """

    def __init__(
        self,
        runtime: Runtime,
        cluster: Cluster,
        *,
        name: str = "",
        limits: ConnectionLimits | None = None,
        advertised: Host | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Create a port that is not open yet.

        Args:
            runtime: network and timer.
            cluster: the brokers.
            name: distinguishes the proxy from others, beside its ports: its host and gRPC port, as
                `ip%port`.
            limits: of connections; None: the defaults.
            advertised: the address in routes; None: that to which each connection came.
            admission: what may precede the first frame, such as TLS; None: nothing.
        """
        self._cluster = cluster
        self._name = name
        self.members: MemberSync | None = None
        self._advertised = advertised
        self._sessions: dict[Connection, RemotingSession] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._later = DeferredReplies(HELD_MAX)
        limits = limits or ConnectionLimits()
        self._server = RemotingServer(
            runtime,
            {code: functools.partial(self._answer, serve) for code, serve in self._table().items()},
            replace(
                limits,
                unanswered_requests_max=min(limits.unanswered_requests_max, HELD_EACH_MAX),
            ),
            "remoting proxy",
            self._on_closed,
            admission=admission,
        )
        self.address: Address = ("", 0)

    async def start(self, address: Address) -> Address:
        """Serve, and return the address, with the port given when 0 was asked.

        Raises:
            AddressInUseError: another socket listens there already.
            ListenFailedError: the address is not this machine's, or is not permitted.
        """
        self.address = await self._server.start(address)
        host, _, grpc_port = self._name.partition("%")
        proxy_id = f"{host or self.address[0]}%{self.address[1]}%{grpc_port or 0}"
        self.members = MemberSync(self._cluster, proxy_id, self._on_members_changed)
        self.members.start()
        return self.address

    async def stop(self) -> None:
        """Stop accepting, answer requests in progress, and close the connections.

        Clients are redirected (GO_AWAY), and brokers unregister them. Requests that brokers hold
        stay unanswered.
        """
        if self.members is not None:
            self._server.go_away()
        try:
            async with asyncio.timeout(STOP_S):
                await self._later.close()
        except TimeoutError:
            self._later.abandon()
        for session in self._sessions.values():
            self._publish(UNREGISTER, session)
        if self.members is not None:
            await self.members.stop()
        await self._server.stop()
        await asyncio.gather(*(session.close() for session in self._sessions.values()))
        self._sessions.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    def _table(self) -> dict[int, Serve]:
        return {
            RequestCode.SEND_MESSAGE: self._send,
            **dict.fromkeys(_SHORT_SENDS, self._send),
            **dict.fromkeys(_PLAIN, self._forward),
            **dict.fromkeys(_HELD, self._forward_held),
            RequestCode.BATCH_ACK_MESSAGE: self._forward_batch_ack,
            RequestCode.RECALL_MESSAGE: self._recall,
            RequestCode.END_TRANSACTION: self._end_transaction,
            RequestCode.LOCK_BATCH_MQ: self._forward_lock,
            RequestCode.UNLOCK_BATCH_MQ: self._forward_lock,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self._check_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
        }

    def _answer(self, serve: Serve, asked: Request) -> None:
        session = self._sessions.get(asked.connection)
        if session is None:
            session = RemotingSession(asked.connection, self._cluster)
            self._sessions[asked.connection] = session
        self._later.answer(asked, functools.partial(_served, serve, session, asked))

    def _on_closed(self, connection: Connection) -> None:
        session = self._sessions.pop(connection, None)
        if session is not None:
            self._publish(UNREGISTER, session)
            task = asyncio.create_task(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _publish(self, kind: str, session: RemotingSession) -> None:
        """Tell the other proxies of the client in its groups."""
        if self.members is not None:
            for member in session.members.values():
                self.members.publish(kind, member)

    def _on_members_changed(self, group: str) -> None:
        for session in self._sessions.values():
            session.notify(group)

    # Requests for one broker

    async def _forward(
        self, session: RemotingSession, asked: Request, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> RemotingCommand | None:
        command = asked.command
        name = _broker_name(command)
        if not name:
            text = f"Request doesn't have field {BROKER_NAME}"
            return response(command, ResponseCode.VERSION_NOT_SUPPORTED, text)
        return await session.forward(name, command, timeout_s)

    async def _forward_held(
        self, session: RemotingSession, asked: Request
    ) -> RemotingCommand | None:
        text = asked.command.ext_fields.get(_HELD[RequestCode(asked.command.code)], "0")
        held_s = decimal_or(text, 0) / 1000
        return await self._forward(session, asked, held_s + _HELD_EXTRA_S)

    async def _forward_batch_ack(
        self, session: RemotingSession, asked: Request
    ) -> RemotingCommand | None:
        name = decode_record(BatchAckMessages, asked.command.body).broker_name or ""
        return await session.forward(name, asked.command, REQUEST_TIMEOUT_S)

    async def _forward_lock(
        self, session: RemotingSession, asked: Request
    ) -> RemotingCommand | None:
        command = asked.command
        queues = decode_lock_batch(command.body).queues
        if not queues:
            return response(command, remark="MessageQueue set is empty", body=command.body)
        # Clients send one request for each broker.
        return await session.forward(queues[0].broker_name, command, REQUEST_TIMEOUT_S)

    async def _send(self, session: RemotingSession, asked: Request) -> RemotingCommand | None:
        """Forward a send, unless the topic does not accept messages of this type."""
        fields = asked.command.ext_fields
        is_short = asked.command.code in _SHORT_SENDS
        topic = fields.get("b" if is_short else "topic", "")
        properties = decode_properties(fields.get("i" if is_short else "properties", "").encode())
        if names.TRANSFER_FLAG not in properties and not accepts_all_types(topic):
            check_type(await self._cluster.metadata.topic_type(topic), type_of(properties))
        return await self._forward(session, asked)

    async def _recall(self, session: RemotingSession, asked: Request) -> RemotingCommand | None:
        topic = asked.command.ext_fields.get("topic", "")
        check_type(await self._cluster.metadata.topic_type(topic), "DELAY")
        return await self._forward(session, asked)

    async def _end_transaction(
        self, session: RemotingSession, asked: Request
    ) -> RemotingCommand | None:
        """Forward the end of a transaction; if its broker is unknown, it will check it."""
        fields = asked.command.ext_fields
        name = fields.get(BROKER_NAME) or session.broker_of(fields.get("transactionId"))
        if not name:
            return response(asked.command)
        return await session.forward(name, asked.command, REQUEST_TIMEOUT_S)

    # Clients and their groups

    async def _heartbeat(self, session: RemotingSession, asked: Request) -> RemotingCommand:
        answer = await session.register(asked.command, decode_heartbeat(asked.command.body))
        self._publish(REGISTER, session)
        return answer

    async def _unregister(self, session: RemotingSession, asked: Request) -> RemotingCommand:
        await session.ask(asked.command, list(session.addresses))
        group = asked.command.header(UnregisterClientRequestHeader).consumer_group
        member = session.members.pop(group or "", None)
        if member is not None and self.members is not None:
            self.members.publish(UNREGISTER, member)
        return response(asked.command, remark="")

    async def _check_config(self, _: RemotingSession, asked: Request) -> RemotingCommand:
        return response(asked.command, remark="")

    async def _members(self, session: RemotingSession, asked: Request) -> RemotingCommand:
        """Return the members of a group at all brokers that the client uses, and other proxies."""
        answers = await session.ask(asked.command, self._any_of(session))
        found: dict[str, None] = {}
        for answer in answers:
            if answer.code == ResponseCode.SUCCESS:
                found |= dict.fromkeys(decode_consumer_list(answer.body))
        if self.members is not None:
            group = asked.command.header(GetConsumerListByGroupRequestHeader).consumer_group
            found |= dict.fromkeys(self.members.of(group))
        if found:
            return response(asked.command, body=encode_consumer_list(list(found)))
        # Not an empty list: a member would give up all its queues.
        return relayed(asked.command, answers[0]) if answers else _unanswered(asked.command)

    async def _connections(self, session: RemotingSession, asked: Request) -> RemotingCommand:
        """Return the connections of a group at the first broker that has it, and other proxies."""
        answers = await session.ask(asked.command, self._any_of(session))
        known = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
        group = asked.command.header(GetConsumerConnectionListRequestHeader).consumer_group
        remote = None if self.members is None else self.members.connection(group)
        if remote is not None:
            local = decode_consumer_connection(known[0].body) if known else None
            return response(asked.command, body=encode_consumer_connection(_both(local, remote)))
        if not answers:
            return _unanswered(asked.command)
        return relayed(asked.command, (known or answers)[0])

    def _any_of(self, session: RemotingSession) -> list[str]:
        """Return the brokers to ask about a group."""
        known = [address for _, address in self._cluster.routes.masters().values()]
        return list(session.addresses) or known

    # Routes

    async def _route(self, _: RemotingSession, asked: Request) -> RemotingCommand:
        """Return the route of a topic, with the proxy in place of all brokers."""
        command = asked.command
        header = command.header(GetRouteInfoRequestHeader)
        try:
            route = await self._cluster.route(header.topic)
        except NoRouteError:
            text = f"No topic route info in name server for the topic: {header.topic}"
            return response(command, ResponseCode.TOPIC_NOT_EXIST, text)
        is_standard = bool(
            command.version >= VERSION_STANDARD_JSON or header.accept_standard_json_only
        )
        address = self._advertised or asked.connection.local_address
        return response(
            command, body=encode_topic_route(through(route, address), standard=is_standard)
        )


async def _served(serve: Serve, session: RemotingSession, asked: Request) -> RemotingCommand | None:
    """Return the response to a request; refusals and failures of brokers become responses."""
    try:
        return await serve(session, asked)
    except CallRefusedError as error:
        return response(asked.command, ResponseCode.MESSAGE_ILLEGAL, str(error))
    except TransportError as error:
        return response(asked.command, ResponseCode.SYSTEM_ERROR, str(error))


def _unanswered(command: RemotingCommand) -> RemotingCommand:
    """Return the response to a question about a group that no broker has answered."""
    return response(command, ResponseCode.SYSTEM_ERROR, "no broker answered")


def _both(local: ConsumerConnection | None, remote: ConsumerConnection) -> ConsumerConnection:
    """Return the members at brokers and at other proxies."""
    if local is None:
        return remote
    ids = {one.client_id for one in local.connections}
    others = [one for one in remote.connections if one.client_id not in ids]
    return replace(
        local,
        connections=[*local.connections, *others],
        subscriptions={**remote.subscriptions, **local.subscriptions},
    )


def through(route: TopicRoute, address: Address) -> TopicRoute:
    """Return the route with one address for all brokers."""
    text = format_address(address)
    brokers = [
        replace(broker, broker_addrs=dict.fromkeys(broker.broker_addrs, text))
        for broker in route.broker_datas
    ]
    return replace(route, broker_datas=brokers)


def _broker_name(command: RemotingCommand) -> str:
    """Return the broker that a request names; empty if it names none."""
    fields = command.ext_fields
    name = fields.get("n" if command.code in _SHORT_SENDS else BROKER_NAME, "")
    if name or "extraInfo" not in fields:
        return name
    try:
        return decode_receipt_handle(fields["extraInfo"]).broker_name
    except MalformedHeaderError:
        return ""

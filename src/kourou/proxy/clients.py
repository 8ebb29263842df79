"""The clients of a proxy: their settings, streams and registrations at brokers.

A client is known from its first settings until it terminates, or makes no call for
`CLIENT_EXPIRY_S`. It is registered at the brokers of its topics by heartbeats on connections of its
own, as any client of RocketMQ is: producers under the names of their topics, by which brokers find
them for checks of transactions.

Source: GrpcClientSettingsManager.java, GrpcChannelManager.java, ClientActivity.java,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

from google.protobuf.json_format import MessageToJson, SerializeToJsonError

from kourou.errors import CallRefusedError, KourouError, TransportError
from kourou.http2.calls import Call
from kourou.model.group import ConsumeFromWhere, ConsumeType, SubscriptionGroup
from kourou.model.subscription import SubscriptionData
from kourou.protocol.clients import (
    ConsumerData,
    HeartbeatData,
    HeartbeatRequestHeader,
    UnregisterClientRequestHeader,
    encode_heartbeat,
)
from kourou.protocol.codes import RequestCode, version_ordinal
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.proxy.checks import check_group, check_topic
from kourou.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from kourou.proxy.filters import subscription_of
from kourou.proxy.held_pops import HeldPops
from kourou.proxy.member_messages import LocalMember
from kourou.proxy.metadata import CallContext, required_language
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import ClientType, Code
from kourou.proxy.plain_acks import complete_acks
from kourou.remoting.connection import Connection
from kourou.remoting.dispatch import Handler
from kourou.remoting.network import Address, format_address
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

CLIENT_EXPIRY_S: Final = 120.0
"""Seconds without a call after which a client is forgotten."""
SETTINGS_WAIT_S: Final = 0.5
"""Wait of a receive for the client's first settings: Java refuses it at once."""
CLIENT_LOST_S: Final = 15.0
"""Seconds without a call and a stream after which the messages that a client holds are released.
Clients open a lost stream again within 5 s, and send heartbeats every 10 s."""
_LOOK_UPS_S: Final = 1.0
"""Time for the look-ups of a client's topics at its heartbeats, for the same reason. It is also
what a client with many topics that do not exist may cost."""
_REGISTER_S: Final = 1.0
"""Wait for a broker's answer to a heartbeat: SDKs wait 3 s for the answer to their settings, which
brokers that are down must not take. A slow broker registers the client all the same."""
_CONSUMERS: Final = {
    ClientType.PUSH_CONSUMER: ConsumeType.PASSIVELY,
    ClientType.SIMPLE_CONSUMER: ConsumeType.ACTIVELY,
}


class ProxyClient:
    """One client.

    Attributes:
        id: its id.
        language: of its program.
        version: of its SDK, such as 5.1.2; empty if unknown.
        began_at_ms: time of its first settings, epoch milliseconds.
        settings: as it sent them, with the defaults of a consumer.
        telemetry: its stream; None while it has none.
        seen_s: time of the loop of its last call.
        pool: its connections to brokers, by which they know it.
        pops: what brokers hold for it.
        holding_groups: groups of messages that are renewed for it.
        is_settled: its settings were accepted once.
        is_gone: it is forgotten.
        announced: the member that other proxies know; None: they know none.
    """

    def __init__(
        self,
        context: CallContext,
        address: Address,
        settings: v2.Settings,
        cluster: Cluster,
        handlers: Callable[[ProxyClient], Mapping[int, Handler]],
    ) -> None:
        """Connect to nothing yet; `handlers` returns those of brokers' requests, by code."""
        self.id = context.client_id
        self.language = required_language(context)
        self.version = context.client_version
        self.began_at_ms = cluster.now_ms()
        self.settings = settings
        self.telemetry: Call | None = None
        self.seen_s = asyncio.get_running_loop().time()
        self.pool: ConnectionPool = cluster.create_pool(
            address,
            {
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda _: None,  # no queues to share out
                **handlers(self),
            },
            complete_acks,
        )
        self.pops = HeldPops(cluster.create_pool(address, {}))
        self.holding_groups: set[str] = set()
        self.is_settled = False
        self.is_gone = False
        self._version = version_ordinal(self.version)
        self._cluster = cluster
        self._registered: set[str] = set()
        self._next_look_up = 0
        self.announced: LocalMember | None = None

    @property
    def group(self) -> str:
        """The consumer group; empty for a producer."""
        return self.settings.subscription.group.name

    @property
    def consume_type(self) -> ConsumeType:
        """Whether the client is a push or a simple consumer; only of a consumer."""
        return _CONSUMERS[ClientType(self.settings.client_type)]

    def member(self) -> LocalMember | None:
        """Return the client as a member of its group, for other proxies; None for a producer."""
        call = self.telemetry
        if not self.group or call is None:
            return None
        (consumer,) = self._heartbeat().consumers
        return LocalMember(
            self.id, self.language, self._version or 0, consumer,
            format_address(call.connection.remote_address),
            format_address(call.connection.local_address),
            json_of(self.settings),
        )  # fmt: skip

    def command(self, command: RemotingCommand) -> RemotingCommand:
        """Return a request to a broker with the language and version of the client."""
        command.language = self.language
        if self._version is not None:
            command.version = self._version
        return command

    async def register(self) -> None:
        """Register at the brokers of all topics of the settings.

        A broker that does not answer is asked again by the next heartbeat of the client.

        Raises:
            KourouError: a broker refused.
        """
        body = encode_heartbeat(self._heartbeat())
        addresses = await self._addresses()
        self._registered.update(addresses)
        await asyncio.gather(*(self._register_at(address, body) for address in addresses))

    async def _register_at(self, address: str, body: bytes) -> None:
        command = self.command(request(RequestCode.HEART_BEAT, HeartbeatRequestHeader(), body))
        try:
            answer = await self.pool.request(address, command, _REGISTER_S)
        except TransportError as error:
            log.info("client.not_registered id=%s broker=%s reason=%s", self.id, address, error)
            return
        raise_for_response(answer)

    async def close(self) -> None:
        """Unregister at all brokers, and close the connections."""
        topics = [topic.name for topic in self.settings.publishing.topics]
        await asyncio.gather(*(self._unregister_at(one, topics) for one in self._registered))
        await self.pool.close()
        await self.pops.pool.close()

    async def _unregister_at(self, address: str, topics: list[str]) -> None:
        if self.pool.existing(address) is None:
            return  # the broker has unregistered the client with its connection
        for producer, consumer in [*((one, None) for one in topics), (None, self.group)]:
            if not (producer or consumer):
                continue
            header = UnregisterClientRequestHeader(self.id, producer, consumer)
            command = self.command(request(RequestCode.UNREGISTER_CLIENT, header))
            try:
                await self.pool.request(address, command, REQUEST_TIMEOUT_S)
            except KourouError as error:
                log.info("client.not_unregistered broker=%s reason=%s", address, error)
                break

    def _heartbeat(self) -> HeartbeatData:
        settings = self.settings
        if settings.WhichOneof("pub_sub") == "publishing":
            names = tuple(topic.name for topic in settings.publishing.topics)
            return HeartbeatData(self.id, names)
        consumer = ConsumerData(
            self.group,
            self.consume_type,
            consume_from_where=ConsumeFromWhere.LAST_OFFSET,
            subscriptions=self.subscriptions(),
        )
        return HeartbeatData(self.id, consumers=(consumer,))

    def subscriptions(self) -> list[SubscriptionData]:
        """Return the subscriptions of the settings."""
        now_ms = self._cluster.now_ms()
        return [
            subscription_of(entry.topic.name, entry.expression, now_ms)
            for entry in self.settings.subscription.subscriptions
        ]

    async def _addresses(self) -> list[str]:
        """Return the masters of the topics; topics that do not exist have none."""
        settings, known_route = self.settings, self._cluster.known_route
        topics = [topic.name for topic in settings.publishing.topics]
        topics += [entry.topic.name for entry in settings.subscription.subscriptions]
        await self._look_up([topic for topic in topics if known_route(topic) is None])
        routes = [route for route in map(known_route, topics) if route is not None]
        found = {
            route.master_address(one.broker_name): None
            for route in routes
            for one in route.queue_datas
        }
        return [address for address in found if address is not None]

    async def _look_up(self, topics: Sequence[str]) -> None:
        """Look up routes, as many as the time allows; the next call goes on after the last one."""
        first = self._next_look_up % max(len(topics), 1)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_UPS_S):
                for topic in (*topics[first:], *topics[:first]):
                    self._next_look_up += 1
                    try:
                        await self._cluster.cached_route(topic)
                    except KourouError as error:
                        log.debug("client.topic_without_route topic=%s reason=%s", topic, error)


def json_of(settings: v2.Settings) -> str:
    """Return settings as JSON; without fields if one is out of the range of its type."""
    try:
        text: str = MessageToJson(settings)
    except (SerializeToJsonError, ValueError) as error:
        log.info("client.settings_without_json reason=%s", error)
        return "{}"
    return text


def check_settings(settings: v2.Settings) -> None:
    """Refuse settings with invalid names, or of an unknown kind of client.

    Raises:
        CallRefusedError: with the code of the first invalid value.
    """
    for topic in settings.publishing.topics:
        check_topic(topic.name)
    if settings.WhichOneof("pub_sub") == "subscription":
        check_group(settings.subscription.group.name)
        if settings.client_type not in _CONSUMERS:
            raise CallRefusedError(
                Code.INTERNAL_SERVER_ERROR,
                f"client type {settings.client_type} of a consumer is not supported: use "
                "PUSH_CONSUMER or SIMPLE_CONSUMER",
            )


def check_known_group(group: SubscriptionGroup | None, name: str) -> SubscriptionGroup:
    """Return the group of a consumer.

    Raises:
        CallRefusedError: CONSUMER_GROUP_NOT_FOUND; there is none.
    """
    if group is None:
        raise CallRefusedError(
            Code.CONSUMER_GROUP_NOT_FOUND,
            f"group not found: {name}; create it by `kourou group create {name}`, or let the "
            "broker create groups (autoCreateSubscriptionGroup)",
        )
    return group


class ClientTable:
    """The known clients by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, ProxyClient] = {}
        # Events of clients that calls wait for, as long as one does.
        self._awaited: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    def __iter__(self) -> Iterator[ProxyClient]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, client_id: str) -> ProxyClient | None:
        """Return the client, which has just made a call; None if it is unknown."""
        client = self.find(client_id)
        if client is not None:
            client.seen_s = asyncio.get_running_loop().time()
        return client

    def find(self, client_id: str) -> ProxyClient | None:
        """Return the client, whose last call may be long ago; None if it is unknown."""
        return self._by_id.get(client_id)

    def connection(self, client_id: str, address: str) -> Connection | None:
        """Return a client's connection to a broker; None if it has none, or is unknown.

        The client has just made a call.
        """
        client = self.get(client_id)
        return None if client is None else client.pool.existing(address)

    def put(self, client: ProxyClient) -> None:
        """Add a client."""
        self._by_id[client.id] = client
        if (awaited := self._awaited.pop(client.id, None)) is not None:
            awaited.set()

    async def await_settings(self, client_id: str) -> None:
        """Wait until a client is known, for `SETTINGS_WAIT_S` at most.

        The official client of Python begins to receive when it has written its first settings, and
        a receive may arrive before them: they take different ways, and settings have a task.
        """
        if client_id in self._by_id or not client_id:
            return
        known = self._awaited.setdefault(client_id, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTINGS_WAIT_S):
                await known.wait()

    def remove(self, client: ProxyClient) -> None:
        """Remove the client, unless another one has its id by now."""
        if self._by_id.get(client.id) is client:
            del self._by_id[client.id]

    def expired(self, now_s: float) -> list[ProxyClient]:
        """Return the clients that made no call for too long."""
        return [client for client in self if now_s - client.seen_s > CLIENT_EXPIRY_S]

    def lost(self, now_s: float) -> list[ProxyClient]:
        """Return the clients without a stream that made no call for `CLIENT_LOST_S`."""
        return [
            client
            for client in self
            if client.telemetry is None and now_s - client.seen_s > CLIENT_LOST_S
        ]


def required_client(clients: ClientTable, context: CallContext) -> ProxyClient:
    """Return the client of a call that needs its settings.

    Raises:
        CallRefusedError: INTERNAL_SERVER_ERROR; it has sent none.
    """
    client = clients.get(context.client_id)
    if client is None:
        raise CallRefusedError(
            Code.INTERNAL_SERVER_ERROR,
            f"client {context.client_id} has sent no settings: open its Telemetry stream first",
        )
    return client

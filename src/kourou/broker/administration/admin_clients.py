"""Handlers that list connections, groups and subscriptions: 203, 204, 328, 300, 343 and 345.

An answer covers this broker only; an administrator asks each broker.

Source: AdminBrokerProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kourou.broker.advertised import advertised_address
from kourou.broker.clients import ConsumerGroup, Member
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.popped_filters import PoppedFilters
from kourou.errors import ConsumerNotOnlineError, RemoteSystemError
from kourou.protocol.codes import ResponseCode, language_of
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.connections import (
    Connection,
    ConsumerConnection,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    GroupSubscription,
    ProducerInfo,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    encode_consumer_connection,
    encode_group_list,
    encode_group_subscription,
    encode_producer_connection,
    encode_producer_table,
)
from kourou.protocol.topics import encode_topic_list
from kourou.remoting.connection import Request
from kourou.remoting.network import format_address
from kourou.remoting.steady_time import steady_ms


class ClientAdminHandlers:
    """Serves the requests from the tables of clients and of committed offsets."""

    def __init__(
        self, context: BrokerContext, offsets: ConsumerOffsets, popped_filters: PoppedFilters
    ) -> None:
        """Create the handlers.

        Args:
            context: the broker's state and services.
            offsets: source of the groups that committed in a topic, and of a group's topics.
            popped_filters: the filters of clients that pop.
        """
        self._config = context.config
        self._clients = context.clients
        self._offsets = offsets
        self._popped_filters = popped_filters
        self._clock = context.clock

    def on_get_consumer_connection_list(self, request: Request) -> RemotingCommand:
        """Return the connected consumers of the group, and its subscriptions (203)."""
        group = request.command.header(GetConsumerConnectionListRequestHeader).consumer_group
        live = self._clients.consumer_group(group)
        if live is None:
            raise ConsumerNotOnlineError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        popped = self._popped_filters.differences(group, self._clock.now_ms())
        connection = _connection_of(live, popped)
        return response(request.command, body=encode_consumer_connection(connection))

    def on_get_producer_connection_list(self, request: Request) -> RemotingCommand:
        """Return the connected producers of the group (204)."""
        group = request.command.header(GetProducerConnectionListRequestHeader).producer_group
        members = self._clients.producers(group)
        if not members:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist"
            )
        return response(request.command, body=encode_producer_connection(_connections(members)))

    def on_get_all_producer_info(self, request: Request) -> RemotingCommand:
        """Return all connected producers, by group (328)."""
        now_ms, steady = self._clock.now_ms(), steady_ms()
        table = {
            group: [
                ProducerInfo(
                    member.client_id,
                    # With a slash, as Java formats an address whose host name was not resolved.
                    f"/{format_address(member.peer.remote_address)}",
                    language_of(member.language),
                    member.version,
                    now_ms - (steady - member.seen_at_ms),
                )
                for member in self._clients.producers(group)
            ]
            for group in self._clients.producer_groups()
        }
        return response(request.command, body=encode_producer_table(table))

    def on_query_topic_consume_by_who(self, request: Request) -> RemotingCommand:
        """Return the groups that subscribe to the topic now or committed an offset in it (300)."""
        topic = request.command.header(QueryTopicConsumeByWhoRequestHeader).topic
        groups = self._clients.subscribers(topic) + self._offsets.groups_of(topic)
        return response(request.command, body=encode_group_list(list(dict.fromkeys(groups))))

    def on_query_topics_by_consumer(self, request: Request) -> RemotingCommand:
        """Return the topics in which the group committed an offset (343)."""
        group = request.command.header(QueryTopicsByConsumerRequestHeader).group
        body = encode_topic_list(
            self._offsets.topics_of(group),
            broker_addr=advertised_address(self._config, request.connection.local_address),
        )
        return response(request.command, body=body)

    def on_query_subscription_by_consumer(self, request: Request) -> RemotingCommand:
        """Return the connected group's subscription to the topic, or none (345)."""
        header = request.command.header(QuerySubscriptionByConsumerRequestHeader)
        subscription = self._clients.subscription(header.group, header.topic or "")
        body = encode_group_subscription(
            GroupSubscription(header.group, header.topic, subscription)
        )
        return response(request.command, body=body)


def _connection_of(live: ConsumerGroup, popped: Mapping[str, str]) -> ConsumerConnection:
    """Return the connections of a group; `popped` are the differences of pops, by topic."""
    differences = live.member_subscriptions.differences()
    named = {text.partition(":")[0] for text in differences}
    return ConsumerConnection(
        _connections(live.members.values()),
        live.consume_type,
        live.message_model,
        live.consume_from_where,
        live.subscriptions,
        [*differences, *(text for topic, text in popped.items() if topic not in named)],
    )


def _connections(members: Iterable[Member]) -> list[Connection]:
    return [
        Connection(
            member.client_id,
            format_address(member.peer.remote_address),
            language_of(member.language),
            member.version,
        )
        for member in members
    ]

"""Administration of consumer groups: make, read, delete, and where each stands.

Requests 200, 201, 203, 207, 208 and 352. A change is answered when it is durable.

Source: AdminBrokerProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, Protocol

from kourou.broker.clients import Clients, ConsumerGroup
from kourou.broker.consumer_offsets import ConsumerOffsets
from kourou.broker.groups import Groups
from kourou.broker.later import LaterReplies
from kourou.broker.retry_topics import TopicTable
from kourou.broker.stats import BrokerStats
from kourou.errors import (
    ConsumerNotOnlineError,
    GroupNotFoundError,
    InvalidGroupError,
    InvalidParameterError,
    RemoteSystemError,
)
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.protocol.bodies import (
    ConsumeOffset,
    ConsumeStats,
    decode_subscription_group,
    encode_consume_stats,
    encode_subscription_group,
    encode_subscription_group_table,
    subscription_to_json,
)
from kourou.protocol.codes import LanguageCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.fastjson import dumps
from kourou.protocol.headers_admin import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
    GetConsumeStatsRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from kourou.protocol.headers_consume import GetConsumerListByGroupRequestHeader
from kourou.remoting.connection import Request
from kourou.remoting.network import format_address

PAGE_GROUPS_MAX: Final = 2000
"""Groups in one page of an answer to 201."""
RETRY_QUEUES_MAX: Final = 1024
"""Queues that a group's retry topic may be asked to have."""


class QueueTimes(Protocol):
    """What is asked of the store here, see `kourou.store.message_store.MessageStore`."""

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    def store_time(self, topic: str, queue_id: int, offset: int) -> int: ...


class GroupAdminHandlers:
    """Serves the requests."""

    def __init__(
        self,
        *,
        broker_name: str,
        topics: TopicTable,
        groups: Groups,
        clients: Clients,
        offsets: ConsumerOffsets,
        store: QueueTimes,
        later: LaterReplies,
        stats: BrokerStats,
    ) -> None:
        self._broker_name = broker_name
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._store = store
        self._later = later
        self._stats = stats

    def on_update_and_create_subscription_group(self, request: Request) -> None:
        """Make the group of the body, or replace it (200)."""
        group = decode_subscription_group(request.command.body)
        _check_served(group)
        try:
            self._groups.put(group)
        except InvalidGroupError as error:
            raise InvalidParameterError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        self._later.answer(request, partial(self._saved, request))

    def on_delete_subscription_group(self, request: Request) -> None:
        """Forget the group, with its offsets if that is asked (207). An unknown one is no error."""
        header = request.command.header(DeleteSubscriptionGroupRequestHeader)
        self._groups.delete(header.group_name)
        self._stats.on_group_deleted(header.group_name)
        if header.clean_offset:
            self._offsets.remove_group(header.group_name)
        self._later.answer(request, partial(self._saved, request))

    def on_get_subscription_group_config(self, request: Request) -> RemotingCommand:
        """Return one group (352), made now where groups are made on their first use."""
        header = request.command.header(GetSubscriptionGroupConfigRequestHeader)
        group = self._groups.get_or_create(header.group)
        if group is None:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {header.group} does not exist",
            )
        return response(request.command, body=encode_subscription_group(group))

    def on_get_all_subscription_group_config(self, request: Request) -> RemotingCommand:
        """Return all groups, or the page that is asked for (201)."""
        header = request.command.header(GetAllSubscriptionGroupRequestHeader)
        names = self._groups.names()
        total = GetAllSubscriptionGroupResponseHeader(len(names))
        asked = (header.group_seq, header.max_group_num, header.data_version)
        if any(value is not None for value in asked):
            first = max(0, header.group_seq or 0)
            count = PAGE_GROUPS_MAX if header.max_group_num is None else header.max_group_num
            names = names[first : first + max(0, min(count, PAGE_GROUPS_MAX))]
        body = encode_subscription_group_table(self._groups.table(names))
        return response(request.command, header=total, body=body)

    def on_get_consumer_connection_list(self, request: Request) -> RemotingCommand:
        """Return who of the group is connected, and what they subscribed to (203)."""
        # The header has the one field that 38 has too.
        group = request.command.header(GetConsumerListByGroupRequestHeader).consumer_group
        live = self._clients.consumer_group(group)
        if live is None:
            raise ConsumerNotOnlineError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of group {group} is connected"
            )
        return response(request.command, body=encode_consumer_connection(live))

    def on_get_consume_stats(self, request: Request) -> RemotingCommand:
        """Return where the group stands in each queue (208).

        Of the topics that are named, or else of those that it committed in. Topics that it does
        not subscribe to any more are left out while it has members, unless listed by name.
        """
        header = request.command.header(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        listed = [name for name in (header.topic_list or "").split(";") if name]
        names = listed or ([header.topic] if header.topic else self._offsets.topics_of(group))
        live = self._clients.consumer_group(group)
        offsets: dict[MessageQueue, ConsumeOffset] = {}
        tps = 0.0
        for name in dict.fromkeys(names):
            if not listed and live and live.subscriptions and name not in live.subscriptions:
                continue
            offsets.update(self._standing(group, name))
            tps += self._stats.get_tps(group, name)
        return response(request.command, body=encode_consume_stats(ConsumeStats(offsets, tps)))

    def _standing(self, group: str, topic: str) -> Iterator[tuple[MessageQueue, ConsumeOffset]]:
        """Yield where the group stands in each queue of the topic; nothing if there is none."""
        config = self._topics.get(topic)
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            consumed = self._offsets.query(group, topic, queue_id) or 0
            pulled = self._offsets.pulled(group, topic, queue_id) or 0
            stored_at_ms = 0
            if consumed > 0:
                stored_at_ms = self._store.store_time(topic, queue_id, consumed - 1)
            yield (
                MessageQueue(topic, self._broker_name, queue_id),
                ConsumeOffset(
                    self._store.max_offset(topic, queue_id),
                    consumed,
                    max(consumed, pulled),
                    max(0, stored_at_ms),
                ),
            )

    async def _saved(self, request: Request) -> RemotingCommand:
        """Return success once the tables are on the disk."""
        try:
            await self._groups.persist()
            await self._offsets.persist()
        except OSError as error:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"the change holds until the broker stops, but could not be saved: {error}",
            ) from error
        return response(request.command)


def encode_consumer_connection(live: ConsumerGroup) -> bytes:
    """Return the body that answers GET_CONSUMER_CONNECTION_LIST (203)."""
    return dumps(
        {
            "connectionSet": [
                {
                    "clientAddr": format_address(member.peer.remote_address),
                    "clientId": member.client_id,
                    "language": LanguageCode(member.language).name,
                    "version": member.version,
                }
                for member in live.members.values()
            ],
            "consumeFromWhere": live.consume_from_where.value,
            "consumeType": live.consume_type.value,
            "messageModel": live.message_model.value,
            "subscriptionTable": {
                topic: subscription_to_json(subscription)
                for topic, subscription in live.subscriptions.items()
            },
        }
    )


def _check_served(group: SubscriptionGroup) -> None:
    """Refuse what no group can have, and what is not built yet.

    Raises:
        InvalidParameterError: the number of retry queues.
        RemoteSystemError: it has attributes: those there are belong to parts not built yet.
    """
    if not 0 <= group.retry_queue_nums <= RETRY_QUEUES_MAX:
        raise InvalidParameterError(
            ResponseCode.INVALID_PARAMETER,
            f"retryQueueNums is {group.retry_queue_nums}; it must be 0 to {RETRY_QUEUES_MAX}",
        )
    if group.attributes:
        names = ", ".join(sorted(group.attributes))
        raise RemoteSystemError(
            ResponseCode.SYSTEM_ERROR, f"group attributes are not supported: {names}"
        )

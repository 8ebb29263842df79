"""Broker-side assignment of queues: QUERY_ASSIGNMENT (400), and modes of groups (401, 402).

Queues are assigned by the members that this broker knows. The members of a group may ask different
brokers, because every broker gets the heartbeats of all members.

    mode PULL                             the strategy's share of all queues
    mode POP, share number not positive   every broker of the topic as one queue -1: all members
      or at least the other members'      pop all of its queues
      count
    mode POP, members <= queues           the member's share and those of the next members, in a
                                          ring
    mode POP, members > queues            one queue, by the member's index

The answer without assignments differs from an empty list: the member then keeps its queues.

Source: QueryAssignmentProcessor.java, AdminBrokerProcessor.getAllMessageRequestMode,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kourou.broker.clients import ConsumerGroup
from kourou.broker.consuming.assignment_modes import RequestModes
from kourou.broker.consuming.assignment_routes import AssignmentRoutes
from kourou.broker.context import BrokerContext
from kourou.errors import GroupNotFoundError, NoPermissionError, TopicNotFoundError
from kourou.model.allocation import Allocate, allocate_averagely, allocate_by_circle
from kourou.model.group import MessageModel
from kourou.model.queue import MessageQueue
from kourou.model.topic import is_retry_topic
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.queue_assignment import (
    Assignments,
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignment,
    SetMessageRequestMode,
    decode_message_request_mode,
    decode_query_assignment,
    encode_assignments,
)
from kourou.remoting.connection import Request

log = logging.getLogger(__name__)

STRATEGIES: Final[Mapping[str, Allocate]] = MappingProxyType(
    {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}
)
"""Strategies that a member may name; the broker does not know any others."""

ALL_QUEUES: Final = -1
"""The queue id that stands for all queues of a broker."""


def assign(
    queues: Sequence[MessageQueue],
    consumer_ids: Sequence[str],
    self_id: str,
    strategy: Allocate,
    mode: SetMessageRequestMode,
) -> list[MessageQueue]:
    """Return the queues of one member, sorted and unique; none if it is not among the ids.

    Args:
        queues: queues of the topic on all brokers, sorted; at least one.
        consumer_ids: client ids of the group's members that this broker knows, sorted.
        self_id: client id of the member.
        strategy: allocates the queues to members.
        mode: how the group reads the topic.
    """
    if mode.mode is MessageRequestMode.PULL:
        found = strategy(queues, consumer_ids, self_id)
    elif not 0 < mode.pop_share_queue_num < len(consumer_ids) - 1:
        found = [MessageQueue(one.topic, one.broker_name, ALL_QUEUES) for one in queues]
    elif self_id not in consumer_ids:
        found = []
    elif len(consumer_ids) <= len(queues):
        index, count = consumer_ids.index(self_id), len(consumer_ids)
        found = [
            queue
            for step in range(mode.pop_share_queue_num + 1)
            for queue in strategy(queues, consumer_ids, consumer_ids[(index + step) % count])
        ]
    else:
        found = [queues[consumer_ids.index(self_id) % len(queues)]]
    return sorted(set(found))


LMQ_PREFIX: Final = "%LMQ%"
"""Prefix of the topic of a light queue, which has one queue, on this broker."""


class AssignmentHandlers:
    """Serves the requests 400, 401 and 402.

    Args:
        config: whether the broker assigns queues, and the mode of groups without one.
        broker_name: broker of the light queues.
        topics: topics of this broker.
        groups: groups of this broker.
        clients: the members of the groups.
        modes: the modes set by 401.
        routes: the queues of topics on all brokers.
        notify: has the members of a group ask for their queues.
        later: answers requests that wait for a name server or the disk.
    """

    def __init__(
        self,
        context: BrokerContext,
        modes: RequestModes,
        routes: AssignmentRoutes,
        notify: Callable[[ConsumerGroup], None],
    ) -> None:
        self._config = context.live_config
        self._broker_name = context.config.broker_name
        self._topics = context.topics
        self._groups = context.groups
        self._clients = context.clients
        self._modes = modes
        self._routes = routes
        self._notify = notify
        self._later = context.later

    def on_query_assignment(self, request: Request) -> RemotingCommand | None:
        """Return a member's queues of one topic (400).

        The answer lacks `messageQueueAssignments` if queues or members are unknown; the member then
        keeps its queues.
        """
        query = decode_query_assignment(request.command.body)
        if query.topic.startswith(LMQ_PREFIX):
            queues: list[MessageQueue] | None = [MessageQueue(query.topic, self._broker_name, 0)]
        else:
            queues = self._routes.cached_queues(query.topic)
        if queues is not None:
            return self._answer(request.command, query, queues)

        async def serve() -> RemotingCommand:
            return self._answer(request.command, query, await self._routes.look_up(query.topic))

        self._later.answer(request, serve)
        return None

    def on_set_message_request_mode(self, request: Request) -> None:
        """Set how a group reads a topic (401); answered when the change is durable.

        The members are notified at once. In Java they learn of it at their next rebalance, up to 20
        s apart, and until then pull what others pop.

        Raises:
            NoPermissionError: it is a retry topic, which is always pulled.
            TopicNotFoundError, GroupNotFoundError: the topic or group does not exist here.
        """
        mode = decode_message_request_mode(request.command.body)
        if is_retry_topic(mode.topic):
            raise NoPermissionError(
                ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"
            )
        if self._topics.get(mode.topic) is None:
            raise TopicNotFoundError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
        host = request.remote_address[0]
        if self._groups.get_or_create(mode.consumer_group, host) is None:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                self._groups.missing_reason(mode.consumer_group, host),
            )
        self._modes.put(mode)

        async def serve() -> RemotingCommand:
            await self._modes.persist()
            live = self._clients.consumer_group(mode.consumer_group)
            if live is not None:
                self._notify(live)
            return response(request.command)

        self._later.answer(request, serve)

    def on_get_all_message_request_mode(self, request: Request) -> RemotingCommand:
        """Return all modes set by 401 (402)."""
        return response(request.command, body=self._modes.body())

    def _answer(
        self,
        command: RemotingCommand,
        query: QueryAssignment,
        queues: Sequence[MessageQueue] | None,
    ) -> RemotingCommand:
        mode = self._mode(query)
        share = None if queues is None else self._assign(query, queues, mode)
        assignments = None
        if share is not None:
            assignments = tuple(MessageQueueAssignment(queue, mode.mode) for queue in share)
        return response(command, body=encode_assignments(Assignments(assignments)))

    def _mode(self, query: QueryAssignment) -> SetMessageRequestMode:
        mode = self._modes.get(query.topic, query.consumer_group)
        if mode is not None:
            return mode
        config = self._config.current
        default_mode = MessageRequestMode(config.default_message_request_mode)
        kind = MessageRequestMode.PULL if is_retry_topic(query.topic) else default_mode
        share = config.default_pop_share_queue_num if kind is MessageRequestMode.POP else 0
        return SetMessageRequestMode(query.topic, query.consumer_group, kind, share)

    def _assign(
        self, query: QueryAssignment, queues: Sequence[MessageQueue], mode: SetMessageRequestMode
    ) -> Sequence[MessageQueue] | None:
        """Return the member's queues; None if queues, members or the strategy are unknown."""
        is_broadcast = query.message_model is MessageModel.BROADCASTING
        if is_broadcast or not self._config.current.server_load_balancer_enable:
            return queues
        strategy = STRATEGIES.get(query.strategy_name or "")
        live = self._clients.consumer_group(query.consumer_group)
        if strategy is None or live is None or not queues:
            log.debug(
                "assignment.unknown group=%s topic=%s strategy=%s",
                query.consumer_group,
                query.topic,
                query.strategy_name,
            )
            return None
        return assign(queues, sorted(live.client_ids()), query.client_id, strategy, mode)

"""Permission checks of pulls, and the choice of a pull's subscription and filter.

The checks run in Java's order, each with Java's response code:

    16  the broker is not readable (forbiddenType 1)
    16  the group or the topic is reserved for the broker (3); not in Java, see `reserved.py`
    26  the group does not exist and may not be created
    16  the group may not consume (2)
    17  the topic does not exist
    16  the topic is not readable (3)
    29  the queue does not exist
    23  the pull carries a subscription of its own, which does not parse
    24  it carries none, and no member of the group is connected or subscribes to the topic
    16  the group is broadcasting, which it may not (4), or may not read this topic (5)
    25  the broker's subscription is older than the client's
    27  it filters by properties, and its group's filter does not compile or is not registered
    28  the registered filter is older than the client's
    1   it filters by properties, which is off (`enablePropertyFilter`)

Source: PullMessageProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kourou.broker.clients import Clients
from kourou.broker.consuming.retry_topics import TopicTable
from kourou.broker.groups import Groups
from kourou.broker.live_config import LiveConfig
from kourou.broker.pulling.consumer_filters import ConsumerFilters, compile_expression
from kourou.broker.pulling.message_filters import (
    CompiledExpression,
    FilterBits,
    MessageFilter,
    filters_off_remark,
    is_tag_expression,
)
from kourou.broker.reserved import reserved_reason
from kourou.errors import FilterSyntaxError
from kourou.filter.tags import parse_tags
from kourou.model.group import MessageModel, SubscriptionGroup
from kourou.model.subscription import SubscriptionData
from kourou.model.sysflag import PULL_SUBSCRIPTION
from kourou.model.topic import TopicConfig, retry_topic
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.remoting.connection import Request
from kourou.remoting.network import format_address


@dataclass(slots=True)
class Pull:
    """A permitted pull, with the objects needed to serve it.

    Attributes:
        filter: filter by properties; None if tags are sufficient.
    """

    request: Request
    header: PullMessageRequestHeader
    topic: TopicConfig
    group: SubscriptionGroup
    subscription: SubscriptionData
    filter: MessageFilter | None = None


class PlainPull(NamedTuple):
    """A pull's request without its offset: the same for successive pulls of a queue.

    Attributes:
        max_messages: as requested.
        suspend_ms: time for which it may be held if it finds nothing; 0 for none.
        is_committing: it commits an offset.
        has_subscription: it carries a subscription, used instead of that of its group's heartbeats.
        wants_all: its own subscription accepts all messages.
    """

    group: str
    topic: str
    queue_id: int
    max_messages: int
    sub_version: int
    suspend_ms: int
    is_committing: bool
    has_subscription: bool
    wants_all: bool


class PermittedPull(NamedTuple):
    """Topic and group of a permitted pull."""

    topic: TopicConfig
    group: SubscriptionGroup


class PullChecks:
    """Decides on pulls by the tables of the broker."""

    def __init__(
        self,
        config: LiveConfig,
        topics: TopicTable,
        groups: Groups,
        clients: Clients,
        filters: ConsumerFilters,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._filters = filters

    def check(self, request: Request, header: PullMessageRequestHeader) -> Pull | RemotingCommand:
        """Return the permitted pull, or the answer that refuses it."""
        command = request.command
        host = request.remote_address[0]
        group = self._group(command, header, host)
        if isinstance(group, RemotingCommand):
            return group
        topic = self._topics.get(header.topic)
        if topic is None:
            text = f"topic {header.topic} does not exist"
            return _refuse(command, ResponseCode.TOPIC_NOT_EXIST, text)
        if not topic.is_readable:
            text = f"topic {topic.name} may not be read"
            return _refuse(command, ResponseCode.NO_PERMISSION, text, 3)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            text = (
                f"queue {header.queue_id} of topic {topic.name} does not exist: it has "
                f"{topic.read_queue_nums} readable queues; requested by "
                f"{format_address(request.remote_address)}"
            )
            return _refuse(command, ResponseCode.INVALID_PARAMETER, text)
        subscription = self._subscription(command, header, group)
        if isinstance(subscription, RemotingCommand):
            return subscription
        message_filter = None
        if not is_tag_expression(subscription.expression_type):
            found = self._filter(command, header, subscription)
            if isinstance(found, RemotingCommand):
                return found
            message_filter = found
        self._groups.get_or_create(group.group_name, host)  # only after all checks have passed
        return Pull(request, header, topic, group, subscription, message_filter)

    def permit(self, plain_pull: PlainPull) -> PermittedPull | None:
        """Return topic and group of a pull that `check` would permit without a filter.

        None if `check` must decide. This takes about 1 us. The caller has made sure that neither
        the group nor the topic is reserved.
        """
        group = self._groups.get(plain_pull.group)
        topic = self._topics.get(plain_pull.topic)
        if (
            group is None
            or topic is None
            or not group.consume_enable
            or not topic.is_readable
            or not self._config.current.is_readable
            or not 0 <= plain_pull.queue_id < topic.read_queue_nums
        ):
            return None
        if plain_pull.has_subscription:
            return PermittedPull(topic, group) if plain_pull.wants_all else None
        live = self._clients.consumer_group(plain_pull.group)
        if live is None or self._groups.is_read_forbidden(plain_pull.group, plain_pull.topic):
            return None
        if live.message_model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
            return None
        subscription = live.subscriptions.get(plain_pull.topic)
        if (
            subscription is None
            or subscription.sub_version < plain_pull.sub_version
            or subscription.code_set
            or not is_tag_expression(subscription.expression_type)
        ):
            return None
        return PermittedPull(topic, group)

    def _group(
        self, command: RemotingCommand, header: PullMessageRequestHeader, host: str
    ) -> SubscriptionGroup | RemotingCommand:
        """Return the group of the pull, which may not exist yet, or the refusal."""
        if not self._config.current.is_readable:
            return _refuse(command, ResponseCode.NO_PERMISSION, "the broker is not readable", 1)
        reserved = reserved_reason(header.consumer_group, header.topic)
        if reserved is not None:
            return _refuse(command, ResponseCode.NO_PERMISSION, reserved, 3)
        group = self._groups.find(header.consumer_group, host)
        if group is None:
            text = self._groups.missing_reason(header.consumer_group, host)
            return _refuse(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        if not group.consume_enable:
            text = f"consumer group {group.group_name} may not consume"
            return _refuse(command, ResponseCode.NO_PERMISSION, text, 2)
        return group

    def _filter(
        self,
        command: RemotingCommand,
        header: PullMessageRequestHeader,
        subscription: SubscriptionData,
    ) -> MessageFilter | RemotingCommand:
        """Return the pull's filter by properties, or the refusal."""
        has_own = header.sys_flag & PULL_SUBSCRIPTION
        registered = None if has_own else self._filters.get(header.topic, header.consumer_group)
        if not has_own and registered is None:
            text = (
                f"no filter of group {header.consumer_group} for topic {header.topic} is "
                f"registered: {subscription.sub_string!r} may be invalid"
            )
            return _refuse(command, ResponseCode.FILTER_DATA_NOT_EXIST, text)
        if registered is not None and registered.client_version < header.sub_version:
            text = (
                f"the registered filter of group {header.consumer_group} has version "
                f"{registered.client_version}, older than the client's {header.sub_version}"
            )
            return _refuse(command, ResponseCode.FILTER_DATA_NOT_LATEST, text)
        if not self._config.current.enable_property_filter:
            text = filters_off_remark(subscription.expression_type)
            return _refuse(command, ResponseCode.SYSTEM_ERROR, text)
        expression_for = self._expression_for(header)
        if registered is not None:
            bits = FilterBits(self._filters.bloom, registered.positions, registered.born_at_ms)
            return MessageFilter(registered.compiled, bits, expression_for)
        try:
            own_filter = compile_expression(subscription.expression_type, subscription.sub_string)
        except FilterSyntaxError as error:
            # Java delivers all messages then.
            return _refuse(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
        return MessageFilter(own_filter, None, expression_for)

    def _expression_for(
        self, header: PullMessageRequestHeader
    ) -> Callable[[str], CompiledExpression | None] | None:
        """Return a function from a retried message's first topic to its filter, if that is on."""
        group = header.consumer_group
        if not self._config.current.filter_support_retry or header.topic != retry_topic(group):
            return None

        def expression_for(topic: str) -> CompiledExpression | None:
            registered = self._filters.get(topic, group)
            return None if registered is None else registered.compiled

        return expression_for

    def _subscription(
        self, command: RemotingCommand, header: PullMessageRequestHeader, group: SubscriptionGroup
    ) -> SubscriptionData | RemotingCommand:
        """Return the group's subscription to the topic, or the refusal."""
        if header.sys_flag & PULL_SUBSCRIPTION:
            return _own_subscription(command, header)
        name = group.group_name
        live = self._clients.consumer_group(name)
        if live is None:
            text = f"no consumer of group {name} is connected"
            return _refuse(command, ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        if live.message_model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
            text = f"consumer group {name} may not consume in broadcasting mode"
            return _refuse(command, ResponseCode.NO_PERMISSION, text, 4)
        if self._groups.is_read_forbidden(name, header.topic):
            text = f"consumer group {name} may not read topic {header.topic}"
            return _refuse(command, ResponseCode.NO_PERMISSION, text, 5)
        subscription = live.subscriptions.get(header.topic)
        if subscription is None:
            text = f"consumer group {name} did not subscribe to topic {header.topic}"
            return _refuse(command, ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        if subscription.sub_version < header.sub_version:
            text = (
                f"the registered subscription of group {name} has version "
                f"{subscription.sub_version}, older than the client's {header.sub_version}"
            )
            return _refuse(command, ResponseCode.SUBSCRIPTION_NOT_LATEST, text)
        return subscription


def _own_subscription(
    command: RemotingCommand, header: PullMessageRequestHeader
) -> SubscriptionData | RemotingCommand:
    """Return the subscription that the request carries, or the refusal."""
    if not is_tag_expression(header.expression_type):
        if not header.subscription:
            text = f"the {header.expression_type} expression is empty"
            return _refuse(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
        return SubscriptionData(
            header.topic, header.subscription, expression_type=str(header.expression_type)
        )
    try:
        return parse_tags(header.topic, header.subscription, header.sub_version)
    except FilterSyntaxError as error:
        return _refuse(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))


def _refuse(
    command: RemotingCommand, code: ResponseCode, text: str, forbidden_type: int | None = None
) -> RemotingCommand:
    """Return a refusal; `forbidden_type` is RocketMQ's number for the reason of a code 16."""
    refusal = response(command, code, text)
    if forbidden_type is not None:
        refusal.ext_fields["forbiddenType"] = str(forbidden_type)
    return refusal

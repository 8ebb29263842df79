"""The facts for verdicts on pulls, and the verdict of the general path on one request.

The rules are in `verdicts.py`. This module reads the tables that they depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kourou.broker.context import BrokerContext
from kourou.broker.pulling.consumer_filters import ConsumerFilters
from kourou.broker.pulling.message_filters import (
    CompiledExpression,
    FilterBits,
    MessageFilter,
    is_tag_expression,
)
from kourou.broker.pulling.verdicts import (
    PermittedPull,
    PullFacts,
    PullSpec,
    Refusal,
    judge_pull,
    pull_spec,
)
from kourou.model.group import SubscriptionGroup
from kourou.model.subscription import SubscriptionData
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
    spec: PullSpec
    topic: TopicConfig
    group: SubscriptionGroup
    subscription: SubscriptionData
    filter: MessageFilter | None = None


class PullChecks:
    """Decides on pulls by the tables of the broker."""

    def __init__(self, context: BrokerContext, filters: ConsumerFilters) -> None:
        self._config = context.live_config
        self._topics = context.topics
        self._groups = context.groups
        self._clients = context.clients
        self._filters = filters

    def check(self, request: Request, header: PullMessageRequestHeader) -> Pull | RemotingCommand:
        """Return the permitted pull, or the answer that refuses it."""
        spec = pull_spec(header)
        host = request.remote_address[0]
        verdict = judge_pull(spec, facts := self.facts(spec))
        if isinstance(verdict, Refusal) and _lacks_group(verdict):
            # It may exist once all other rules have passed.
            verdict = judge_pull(spec, facts._replace(group=self._groups.find(spec.group, host)))
        if isinstance(verdict, Refusal):
            return self._refuse(request, spec, verdict)
        message_filter = self._filter(spec, verdict) if verdict.is_filtered else None
        self._groups.get_or_create(spec.group, host)
        return Pull(
            request, header, spec, verdict.topic, verdict.group, verdict.subscription,
            message_filter,
        )  # fmt: skip

    def facts(self, spec: PullSpec) -> PullFacts:
        """Return the facts for a verdict on the pull. Takes about 1 us."""
        name, topic = spec.group, spec.topic
        config, topic_config = self._config.current, self._topics.get(topic)
        group = self._groups.get(name)
        if spec.has_subscription:
            return PullFacts(config, group, topic_config)
        live = self._clients.consumer_group(name)
        if live is None:
            return PullFacts(config, group, topic_config)
        subscription = live.subscriptions.get(topic)
        facts = PullFacts(
            config,
            group,
            topic_config,
            live.message_model,
            subscription,
            self._groups.is_read_forbidden(name, topic),
        )
        if subscription is None or is_tag_expression(subscription.expression_type):
            return facts
        registered = self._filters.get(topic, name)
        version = 0 if registered is None else registered.client_version
        return facts._replace(filter=registered, filter_version=version)

    def _filter(self, spec: PullSpec, permitted: PermittedPull) -> MessageFilter:
        """Return the filter by properties of a permitted pull."""
        registered, bits = permitted.registered, None
        if registered is not None:
            bits = FilterBits(self._filters.bloom, registered.positions, registered.born_at_ms)
        return MessageFilter(permitted.expression, bits, self._expression_for(spec))

    def _expression_for(self, spec: PullSpec) -> Callable[[str], CompiledExpression | None] | None:
        """Return a function from a retried message's first topic to its filter, if that is on."""
        group = spec.group
        if not self._config.current.filter_support_retry or spec.topic != retry_topic(group):
            return None

        def expression_for(topic: str) -> CompiledExpression | None:
            registered = self._filters.get(topic, group)
            return None if registered is None else registered.compiled

        return expression_for

    def _refuse(self, request: Request, spec: PullSpec, refusal: Refusal) -> RemotingCommand:
        """Return the answer to a refused pull."""
        text = refusal.text
        if _lacks_group(refusal):
            text = self._groups.missing_reason(spec.group, request.remote_address[0])
        elif refusal.code is ResponseCode.INVALID_PARAMETER:
            text += f"; requested by {format_address(request.remote_address)}"
        answer = response(request.command, refusal.code, text)
        if refusal.forbidden_type is not None:
            answer.ext_fields["forbiddenType"] = str(refusal.forbidden_type)
        return answer


def _lacks_group(refusal: Refusal) -> bool:
    return refusal.code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

"""Subscriptions of a consumer: as requested by the program, and as sent to brokers."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import UserDict
from collections.abc import Iterable

from kourou.client import calls_consume
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline, try_until
from kourou.errors import NoRouteError, RemoteError, TransportError, UsageError
from kourou.filter.sql92 import check_sql
from kourou.filter.tags import parse_tags
from kourou.model.subscription import SQL92_EXPRESSION, SUB_ALL, TAG_EXPRESSION, SubscriptionData
from kourou.model.topic import check_topic, retry_topic

log = logging.getLogger(__name__)


def needing_check(subscriptions: Iterable[SubscriptionData]) -> list[SubscriptionData]:
    """Return the subscriptions that filter by properties, which brokers must check."""
    return [one for one in subscriptions if one.expression_type != TAG_EXPRESSION]


async def look_up_and_check(
    instance: ClientInstance, group: str, subscriptions: Iterable[SubscriptionData], timeout_ms: int
) -> None:
    """Look up the brokers of each topic filtered by properties, then run `check_filters`.

    Topics without a route and unreachable name servers are skipped with a warning.

    Raises:
        RemoteError: as `check_filters`.
    """
    checked, deadline = needing_check(subscriptions), Deadline(timeout_ms)
    for one in checked:
        try:
            await instance.routes.get(one.topic, deadline.remaining_s())
        except TransportError as error:
            log.warning("filter.not_checked topic=%s reason=%s", one.topic, error)
    await check_filters(instance, group, checked, deadline)


async def check_filters(
    instance: ClientInstance,
    group: str,
    subscriptions: Iterable[SubscriptionData],
    deadline: Deadline,
) -> None:
    """Have all brokers in the client's routes check each filter by properties.

    Brokers may have such filters disabled, and brokers before 4.1 interpret the expression as tags.
    A consumer that joined nevertheless would never receive messages.

    A broker that does not answer is skipped with a warning: its pulls will fail instead.

    Raises:
        SubscriptionParseError: a broker cannot parse an expression.
        RequestNotSupportedError: a broker has filters by properties disabled, or is too old for
            them.

    Source: MQClientInstance.checkClientInBroker, apache/rocketmq 5.5.0, which asks one broker of
    each topic.
    """
    checked = needing_check(subscriptions)
    if not checked:
        return
    addresses = instance.routes.broker_addresses(masters_only=True)

    async def ask(address: str, subscription: SubscriptionData) -> None:
        try:
            await calls_consume.check_client(
                instance.pool,
                address,
                instance.client_id,
                group,
                subscription,
                timeout_s=deadline.remaining_s(),
            )
        except TransportError as error:
            log.warning("filter.not_checked broker=%s reason=%s", address, error)

    await asyncio.gather(*(ask(address, one) for address in addresses for one in checked))


def subscription_of(
    topic: str, tags: str | None, sql: str | None, sub_version: int = 0
) -> SubscriptionData:
    """Return a subscription by tags or by an SQL92 expression.

    Args:
        topic: a valid name.
        tags: `*` or None for all, or tags joined by `||`.
        sql: an SQL92 expression over properties; None: filter by tags.
        sub_version: epoch milliseconds.

    Raises:
        FilterSyntaxError: the expression does not parse; carries the position.
        UsageError: both are given, or `tags` is not a str.
    """
    if not isinstance(tags, str | None):
        raise UsageError(f"tags is {type(tags).__name__}: expected one str such as 'eu || us'")
    if sql is None:
        return parse_tags(topic, tags, sub_version)
    if tags not in (None, SUB_ALL):
        raise UsageError(
            f"tags={tags!r} and sql={sql!r}: pass only one; in SQL, tags are the property TAGS"
        )
    check_sql(sql)
    return SubscriptionData(topic, sql, sub_version=sub_version, expression_type=SQL92_EXPRESSION)


class Subscriptions(UserDict[str, SubscriptionData]):
    """Subscriptions by topic, retry topic included; empty before `activate_all`.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.

    Attributes:
        requested: subscriptions that the program requested, by topic; without version.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group
        self.requested: dict[str, SubscriptionData] = {}

    def request(self, topic: str, tags: str | None, sql: str | None = None) -> None:
        """Record a subscription that the program requests.

        Raises:
            InvalidTopicError: the topic is no valid name.
            FilterSyntaxError, UsageError: as `subscription_of`.
        """
        check_topic(topic)
        self.requested[topic] = subscription_of(topic, tags, sql)

    async def activate(self, topic: str, timeout_ms: int) -> bool:
        """Activate the requested subscription of a topic, once brokers have checked its filter.

        Returns:
            False if the topic is not requested, a broker refused the filter, or the program changed
            the subscription meanwhile.
        """
        requested = self.requested.get(topic)
        if requested is None:
            return False
        try:
            await look_up_and_check(self._instance, self._group, (requested,), timeout_ms)
        except RemoteError as error:
            log.warning(
                "subscription.refused group=%s topic=%s reason=%s", self._group, topic, error
            )
            return False
        if self.requested.get(topic) is not requested:
            return False
        current, now_ms = self.data.get(topic), self._instance.runtime.clock.now_ms()
        version = now_ms if current is None else max(now_ms, current.sub_version + 1)
        self.data[topic] = dataclasses.replace(requested, sub_version=version)
        return True

    def remove(self, topic: str) -> bool:
        """Remove a topic; return whether its subscription was active, that is, sent to brokers."""
        self.requested.pop(topic, None)
        return self.data.pop(topic, None) is not None

    def activate_all(self, *, is_retrying: bool) -> None:
        """Activate all requested subscriptions and, if `is_retrying`, the group's retry topic."""
        now_ms = self._instance.runtime.clock.now_ms()
        requested = dict(self.requested)
        if is_retrying:
            topic = retry_topic(self._group)
            requested[topic] = SubscriptionData(topic)
        for topic, subscription in requested.items():
            self.data[topic] = dataclasses.replace(subscription, sub_version=now_ms)

    async def look_up_routes(self, timeout_ms: int) -> None:
        """Look up the topics' brokers, and have them check filters by properties.

        A topic without a route is logged and skipped: it may not exist yet.

        Raises:
            ConnectFailedError: no name server answered within `timeout_ms`.
            RemoteError: as `check_filters`.
        """
        deadline = Deadline(timeout_ms)
        for topic in list(self.requested):

            async def look_up(topic: str = topic) -> None:
                try:
                    await self._instance.routes.get(topic, deadline.remaining_s())
                except NoRouteError as error:
                    log.warning("topic.unknown group=%s reason=%s", self._group, error)

            await try_until(deadline, self._instance.backoff, look_up, lambda _: None)
        await check_filters(self._instance, self._group, self.values(), deadline)

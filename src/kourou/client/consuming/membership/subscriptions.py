"""Subscriptions of a consumer: as requested by the program, and as sent to brokers."""

from __future__ import annotations

import dataclasses
import logging
from collections import UserDict

from kourou.client.consuming.membership.filter_check import check_filters, look_up_and_check
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline, try_until
from kourou.errors import NoRouteError, RemoteError, UsageError
from kourou.filter.sql92 import check_sql
from kourou.filter.tags import parse_tags
from kourou.model.subscription import SQL92_EXPRESSION, SUB_ALL, SubscriptionData
from kourou.model.topic import check_topic, retry_topic

log = logging.getLogger(__name__)


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

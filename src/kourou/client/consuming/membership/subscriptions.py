"""What consumers subscribe: expressions before the start, what brokers are told after it."""

from __future__ import annotations

import dataclasses
import logging
from collections import UserDict

from kourou.client.consuming.membership.filter_check import check_filters, find_and_check
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
    """Return the subscription of one expression or the other.

    Args:
        topic: a valid name.
        tags: `*` or None for all, or tags joined by `||`.
        sql: an SQL92 expression over properties; None for tags.
        sub_version: epoch milliseconds.

    Raises:
        FilterSyntaxError: the expression does not parse, with the position.
        UsageError: both are given, or `tags` is no text.
    """
    if not isinstance(tags, str | None):
        raise UsageError(f"tags is one str, as 'eu || us', not {type(tags).__name__}")
    if sql is None:
        return parse_tags(topic, tags, sub_version)
    if tags not in (None, SUB_ALL):
        raise UsageError(
            f"tags={tags!r} and sql={sql!r}: give one; in SQL, tags are the property TAGS"
        )
    check_sql(sql)
    return SubscriptionData(topic, sql, sub_version=sub_version, expression_type=SQL92_EXPRESSION)


class Subscriptions(UserDict[str, SubscriptionData]):
    """Subscriptions by topic, that of retries included; empty before `fix`.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.

    Attributes:
        wanted: what the program asked for, by topic; without version.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group
        self.wanted: dict[str, SubscriptionData] = {}

    def want(self, topic: str, tags: str | None, sql: str | None = None) -> None:
        """Note what the program wants.

        Raises:
            InvalidTopicError: the topic is no valid name.
            FilterSyntaxError, UsageError: as `subscription_of`.
        """
        check_topic(topic)
        self.wanted[topic] = subscription_of(topic, tags, sql)

    async def renew(self, topic: str, timeout_ms: int) -> bool:
        """Subscribe what is wanted of one topic, if brokers can filter so; return whether it is.

        Not if the program has thought better of it meanwhile.
        """
        wanted = self.wanted.get(topic)
        if wanted is None:
            return False
        try:
            await find_and_check(self._instance, self._group, (wanted,), timeout_ms)
        except RemoteError as error:
            log.warning(
                "subscription.refused group=%s topic=%s reason=%s", self._group, topic, error
            )
            return False
        if self.wanted.get(topic) is not wanted:
            return False
        known, now_ms = self.data.get(topic), self._instance.runtime.clock.now_ms()
        version = now_ms if known is None else max(now_ms, known.sub_version + 1)
        self.data[topic] = dataclasses.replace(wanted, sub_version=version)
        return True

    def leave(self, topic: str) -> bool:
        """Forget a topic; return whether brokers were told of it."""
        self.wanted.pop(topic, None)
        return self.data.pop(topic, None) is not None

    def fix(self, *, is_retrying: bool) -> None:
        """Subscribe what is wanted, as of now, and the group's retry topic unless it has none."""
        now_ms = self._instance.runtime.clock.now_ms()
        wanted = dict(self.wanted)
        if is_retrying:
            topic = retry_topic(self._group)
            wanted[topic] = SubscriptionData(topic)
        for topic, subscription in wanted.items():
            self.data[topic] = dataclasses.replace(subscription, sub_version=now_ms)

    async def look_up_routes(self, timeout_ms: int) -> None:
        """Find the brokers to join; a topic may be new. Have them check filters by properties.

        Raises:
            ConnectFailedError: no name server answered within `timeout_ms`.
            RemoteError: as `check_filters`.
        """
        deadline = Deadline(timeout_ms)
        for topic in list(self.wanted):

            async def look_up(topic: str = topic) -> None:
                try:
                    await self._instance.routes.get(topic, deadline.remaining_s())
                except NoRouteError as error:
                    log.warning("topic.unknown group=%s reason=%s", self._group, error)

            await try_until(deadline, self._instance.backoff, look_up, lambda _: None)
        await check_filters(self._instance, self._group, self.values(), deadline)

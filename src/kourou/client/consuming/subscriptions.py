"""What a push consumer subscribes: expressions before the start, what brokers are told after it."""

from __future__ import annotations

import logging
from collections import UserDict

from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline, try_until
from kourou.errors import NoRouteError
from kourou.filter.tags import parse_tags
from kourou.model.subscription import SUB_ALL, SubscriptionData
from kourou.model.topic import check_topic, retry_topic

log = logging.getLogger(__name__)


class Subscriptions(UserDict[str, SubscriptionData]):
    """Subscriptions by topic, that of retries included; empty before `fix`.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.

    Attributes:
        wanted: the expressions of the program, by topic.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group
        self.wanted: dict[str, str | None] = {}

    def want(self, topic: str, tags: str | None) -> None:
        """Note what the program wants.

        Raises:
            InvalidTopicError: the topic is no valid name.
            FilterSyntaxError: `tags` does not parse.
        """
        check_topic(topic)
        parse_tags(topic, tags)
        self.wanted[topic] = tags

    def leave(self, topic: str) -> bool:
        """Forget a topic; return whether brokers were told of it."""
        self.wanted.pop(topic, None)
        return self.data.pop(topic, None) is not None

    def fix(self, *, is_retrying: bool) -> None:
        """Subscribe what is wanted, as of now, and the group's retry topic unless it has none."""
        now_ms = self._instance.runtime.clock.now_ms()
        expressions = dict(self.wanted)
        if is_retrying:
            expressions[retry_topic(self._group)] = SUB_ALL
        for topic, tags in expressions.items():
            self.data[topic] = parse_tags(topic, tags, now_ms)

    async def look_up_routes(self, timeout_ms: int) -> None:
        """Find the brokers to join; a topic may be new.

        Raises:
            ConnectFailedError: no name server answered within `timeout_ms`.
        """
        deadline = Deadline(timeout_ms)
        for topic in list(self.wanted):

            async def look_up(topic: str = topic) -> None:
                try:
                    await self._instance.routes.get(topic, deadline.remaining_s())
                except NoRouteError as error:
                    log.warning("topic.unknown group=%s reason=%s", self._group, error)

            await try_until(deadline, self._instance.backoff, look_up, lambda _: None)

"""Pop retry topics, which a member reads as long as it pulls their topic.

Messages that the group failed to consume while it popped a topic are in `%RETRY%group_topic`, or in
`%RETRY%group+topic` if the broker has `enableRetryTopicV2`. Pops read these topics by themselves;
members that pull must subscribe to them, or the messages are stranded when the group changes its
mode. They exist only after a redelivery, so they are looked for from time to time.

Source: RebalanceImpl.updateMessageQueueAssignment, apache/rocketmq 5.5.0. Java's members subscribe
to the first name only, and only if a broker has said that the topic is pulled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import Final

from kourou.client.instance import ClientInstance
from kourou.errors import KourouError
from kourou.filter.tags import parse_tags
from kourou.model.namespace import with_namespace
from kourou.model.subscription import SUB_ALL, SubscriptionData
from kourou.model.topic import is_retry_topic
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2

log = logging.getLogger(__name__)

LOOK_INTERVAL_MS: Final = 60_000
"""Time in ms between two looks for pop retry topics that do not exist yet."""


class PopRetryTopics:
    """Subscribes to the pop retry topics of pulled topics.

    Args:
        instance: the client's routes.
        group: the consumer group.
        subscriptions: by topic; the retry topics are added to it.
        on_changed: called when topics were added.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: MutableMapping[str, SubscriptionData],
        on_changed: Callable[[], None],
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._on_changed = on_changed
        self._added: dict[str, str] = {}  # retry topic -> its topic
        self._popped: set[str] = set()

    def set_mode(self, topic: str, *, is_popped: bool) -> None:
        """Record whether the topic is popped. If it is, its retry topics are not pulled."""
        if is_popped:
            self._popped.add(topic)
            self._remove(topic)
        elif topic in self._popped:
            self._popped.discard(topic)
            self._instance.tasks.start(lambda: self._look_for(topic), f"retry topics of {topic}")

    def remove_unsubscribed(self) -> None:
        """Remove the retry topics of topics that are not subscribed any more."""
        for topic in set(self._added.values()) - self._subscriptions.keys():
            self._remove(topic)
        self._popped &= self._subscriptions.keys()

    async def look(self) -> None:
        """Subscribe to those that exist by now; to be called every `LOOK_INTERVAL_MS`."""
        for topic in sorted(self._subscriptions):
            if not is_retry_topic(topic) and topic not in self._popped:
                await self._look_for(topic)

    async def _look_for(self, topic: str) -> None:
        # The names on brokers are made of qualified names.
        name = with_namespace(self._instance.config.namespace, topic)
        candidates = (retry_topic_v1(self._group, name), retry_topic_v2(self._group, name))
        found = [
            one for one in candidates if one not in self._subscriptions and await self._exists(one)
        ]
        if topic not in self._subscriptions or topic in self._popped:
            return  # it has changed meanwhile
        now_ms = self._instance.runtime.clock.now_ms()
        for retries in found:
            self._subscriptions[retries] = parse_tags(retries, SUB_ALL, now_ms)
            self._added[retries] = topic
        if found:
            await self._instance.heartbeat_all()
            self._on_changed()

    async def _exists(self, topic: str) -> bool:
        try:
            await self._instance.routes.get(topic, self._instance.request_timeout_s)
        except KourouError as error:
            log.debug("retry_topic.not_found topic=%s reason=%s", topic, error)
            return False
        return True

    def _remove(self, topic: str) -> None:
        for retries in [one for one, of in self._added.items() if of == topic]:
            del self._added[retries]
            self._subscriptions.pop(retries, None)

"""Notifies a program when the queues of a topic change.

Source: DefaultLitePullConsumerImpl.fetchTopicMessageQueuesAndCompare.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kourou.client.instance import ClientInstance
from kourou.client.user_functions import PROGRAM_ENDS
from kourou.errors import KourouError
from kourou.model.queue import MessageQueue
from kourou.model.route import subscribe_queues

log = logging.getLogger(__name__)

TopicQueuesChanged = Callable[[str, list[MessageQueue]], object]
"""Called with a topic and all its readable queues, sorted."""


class TopicWatch:
    """The topics that a program watches. The client's own loop refreshes their routes."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._listeners: dict[str, list[TopicQueuesChanged]] = {}
        self._queues: dict[str, list[MessageQueue]] = {}

    def add(self, topic: str, listener: TopicQueuesChanged) -> None:
        """Call `listener` whenever the topic's queues change; not for its current queues."""
        self._listeners.setdefault(topic, []).append(listener)

    async def look_up(self) -> None:
        """Look up the queues of all watched topics, as the basis for detecting changes."""
        for topic in list(self._listeners):
            try:
                await self._compare(topic)
            except KourouError as error:
                log.info("topic.unknown reason=%s", error)

    def on_route_changed(self, topic: str) -> None:
        """Compare the queues of a topic after its route has changed."""
        if topic in self._listeners:
            self._instance.tasks.start(lambda: self._compare(topic), f"queues of {topic}")

    async def _compare(self, topic: str) -> None:
        route = await self._instance.routes.get(topic, self._instance.request_timeout_s)
        queues = subscribe_queues(topic, route)
        previous = self._queues.get(topic)
        self._queues[topic] = queues
        if previous is None or queues == previous:
            return
        for listener in self._listeners[topic]:
            try:
                listener(topic, queues)
            except PROGRAM_ENDS:
                raise
            except BaseException:
                # One user callback must not prevent the others from being called.
                log.exception("listener.broken event=topic_queues_changed topic=%s", topic)

"""Popped messages that a program has not settled, for reports to administrators.

Each is known by its queue and offset, so that a message that the program drops can be freed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from kourou.client.calls_pop import ALL_QUEUES
from kourou.client.pop_result import PoppedMessage, popped_offset
from kourou.model.queue import MessageQueue
from kourou.protocol.running_info import PopProcessQueueInfo

_Key = tuple[str, int, int]
"""Kind of the topic, queue id and queue offset of a message."""

_PRUNED_MIN: Final = 1_024


@dataclass(slots=True)
class _Source:
    """Pops of one topic from one broker.

    Attributes:
        visible_at_s: by message: the time at which it becomes visible again.
        prune_at: number of messages at which those that are visible again are removed.
    """

    last_pop_at_ms: int = 0
    visible_at_s: dict[_Key, float] = field(default_factory=dict)
    prune_at: int = _PRUNED_MIN

    def prune(self, now_s: float) -> None:
        """Remove the messages that are visible again."""
        left = {key: at_s for key, at_s in self.visible_at_s.items() if at_s > now_s}
        self.visible_at_s = left
        self.prune_at = max(_PRUNED_MIN, 2 * len(left))


class UnsettledMessages:
    """The messages that were popped, and neither settled nor became visible again."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str], _Source] = {}

    def popped(
        self,
        topic: str,
        broker_name: str,
        messages: Iterable[PoppedMessage],
        *,
        now_ms: int,
        now_s: float,
    ) -> None:
        """Add the messages of one pop.

        Args:
            topic: the subscribed topic.
            broker_name: the broker that was asked.
            messages: those that it returned, if any.
            now_ms: wall-clock time in epoch milliseconds.
            now_s: time on the event loop's clock.
        """
        source = self._sources.setdefault((topic, broker_name), _Source())
        source.last_pop_at_ms = now_ms
        visible_at_s = source.visible_at_s
        for message in messages:
            visible_at_s[_key(message)] = message.visible_at_s
        if len(visible_at_s) > source.prune_at:
            source.prune(now_s)

    def settled(self, message: PoppedMessage) -> None:
        """Remove a message that is acknowledged or stored as a dead letter."""
        source = self._sources.get((message.topic, message.checkpoint.broker_name))
        if source is not None:
            source.visible_at_s.pop(_key(message), None)

    def changed(self, message: PoppedMessage) -> None:
        """Note the new time at which a message becomes visible again."""
        source = self._sources.get((message.topic, message.checkpoint.broker_name))
        if source is not None:
            key = _key(message)
            if key in source.visible_at_s:
                source.visible_at_s[key] = message.visible_at_s

    def infos(
        self, topics: Collection[str], now_s: float
    ) -> dict[MessageQueue, PopProcessQueueInfo]:
        """Return the state of each source that was popped, in the form reported to administrators.

        A pop asks for all queues of a topic and broker: their queue id is -1.

        Args:
            topics: sources of other topics are left out.
            now_s: time on the event loop's clock.
        """
        infos: dict[MessageQueue, PopProcessQueueInfo] = {}
        for (topic, broker_name), source in sorted(self._sources.items()):
            if topic in topics:
                source.prune(now_s)
                infos[MessageQueue(topic, broker_name, ALL_QUEUES)] = PopProcessQueueInfo(
                    wait_ack_count=len(source.visible_at_s),
                    last_pop_timestamp=source.last_pop_at_ms,
                )
        return infos


def _key(message: PoppedMessage) -> _Key:
    # Without its receipt, which is built when it is read: this runs twice for each message.
    checkpoint = message.checkpoint
    return checkpoint.kind, checkpoint.queue_id, popped_offset(message)

"""Single pops, and the removal of messages that the program must not get."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from kourou.client import calls_pop
from kourou.client.consuming.popping.pop_sources import PopSource
from kourou.client.consuming.popping.receipts import Receipts
from kourou.client.consuming.watching.consume_stats import ConsumerStats
from kourou.client.instance import ClientInstance
from kourou.client.pop_result import PoppedMessage, PopResult
from kourou.errors import KourouError
from kourou.model.group import ConsumeFromWhere
from kourou.model.subscription import SubscriptionData

NOTHING: Final = PopResult([], [], [])
"""The result of a pop that failed."""


_reconsume_times: Final = attrgetter("reconsume_times")


class PopTerms(NamedTuple):
    """Most messages of one pop, and the time in ms for which they are invisible to others."""

    max_messages: int
    invisible_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PopRules:
    """Rules of a consumer's pops.

    Attributes:
        start: start position of a new group in a queue. Brokers know the oldest message and the
            end only; a time means the oldest message, as in Java.
        is_ordered: a queue's next messages are delivered only after the earlier ones are settled.
        max_reconsume_times: redeliveries before a message is stored as a dead letter; None: no
            limit.
    """

    start: ConsumeFromWhere
    is_ordered: bool
    max_reconsume_times: int | None


class SourcePops:
    """Pops messages of one source at a time, on behalf of one consumer.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        rules: start position, order, and limit of deliveries.
        receipts: settles messages that the program must not get.
        stats: counts the pops.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        rules: PopRules,
        *,
        receipts: Receipts,
        stats: ConsumerStats,
    ) -> None:
        self._instance = instance
        self._group = group
        self._rules = rules
        self._receipts = receipts
        self._stats = stats
        self._init_mode = int(rules.start is ConsumeFromWhere.LAST_OFFSET)

    async def pop(
        self, source: PopSource, subscription: SubscriptionData, terms: PopTerms, wait_s: float
    ) -> PopResult:
        """Pop once, and record the outcome in the source; a failure has no messages."""
        was_announced, began_s = source.may_have_messages, _now_s()
        attempt_id = self._take_attempt_id(source) if self._rules.is_ordered else None
        try:
            result = await calls_pop.pop(
                self._instance.pool,
                await self.address(source),
                self._group,
                source.broker_name,
                queue_id=source.queue_id,
                subscription=subscription,
                max_messages=terms.max_messages,
                invisible_ms=terms.invisible_ms,
                wait_ms=int(wait_s * 1000),
                init_mode=self._init_mode,
                attempt_id=attempt_id,
                timeout_s=wait_s + self._instance.request_timeout_s,
            )
        except KourouError as error:
            source.unanswered_attempt_id = attempt_id
            self.failed(source, error)
            return NOTHING
        now_s = _now_s()
        if result.is_empty:
            was_announced = was_announced and source.announcement is None and not wait_s
            delays = was_announced or result.is_refused
            source.found_nothing(now_s, delays_next=delays)
            return result
        source.found()
        self._stats.count_pulled(source.topic, len(result.messages), (now_s - began_s) * 1000)
        return self._settled(result)

    async def address(self, source: PopSource) -> str:
        """Return the address of the source's broker.

        Raises:
            TransportError, RemoteError: as `Routes.address`.
        """
        return await self._instance.routes.address(
            source.topic, source.broker_name, self._instance.request_timeout_s
        )

    def failed(self, source: PopSource, error: KourouError) -> None:
        """Record a failed request in the source."""
        source.failed(error, _now_s(), self._instance.backoff)
        self._instance.routes.on_failure(source.topic, error)

    def _take_attempt_id(self, source: PopSource) -> str:
        """Return the id of a failed pop, whose answer may be repeated; else a new id."""
        unanswered, source.unanswered_attempt_id = source.unanswered_attempt_id, None
        return unanswered or f"{self._instance.runtime.random.getrandbits(128):032x}"

    def _settled(self, result: PopResult) -> PopResult:
        """Return the result without the messages that the program must not get."""
        if result.unmatched:
            self._receipts.ack_soon(result.unmatched)
        for message, reason in result.unreadable:
            self._receipts.dead_letter_soon(message, reason)
        spent = self._spent(result.messages)
        if not spent:
            return result
        for message in spent:
            reason = (
                f"delivered {message.reconsume_times} times, max_reconsume_times is "
                f"{self._rules.max_reconsume_times}"
            )
            self._receipts.dead_letter_soon(message, reason)
        ids = set(map(id, spent))
        return result._replace(messages=[one for one in result.messages if id(one) not in ids])

    def _spent(self, messages: list[PoppedMessage]) -> list[PoppedMessage]:
        """Return the messages that were delivered too often.

        An ordered pop counts a delivery for each message of a queue, although a program that failed
        on the first never saw the others. So only the first of each queue is taken.
        """
        limit = self._rules.max_reconsume_times
        if limit is None or max(map(_reconsume_times, messages), default=0) <= limit:
            return []
        if not self._rules.is_ordered:
            return [one for one in messages if one.reconsume_times > limit]
        firsts: dict[tuple[str, int], PoppedMessage] = {}
        for message in messages:
            receipt = message.checkpoint
            firsts.setdefault((receipt.kind, receipt.queue_id), message)
        return [one for one in firsts.values() if one.reconsume_times > limit]


def _now_s() -> float:
    return asyncio.get_running_loop().time()

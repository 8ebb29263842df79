"""Receives messages from all brokers of the subscribed topics.

If there is one source, its broker holds the pop until a message arrives. With several, a held pop
would leave the others unread, and two held pops could return messages of which the caller wants one
part only. So pops are sent without a wait to the sources in turn, and while all are empty, each
broker holds one request that announces messages without delivering any (NOTIFICATION).

A pop is never abandoned: messages that arrive after their caller was cancelled are returned by the
next call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

from kourou.client import calls_pop
from kourou.client.consuming.consumer_config import SimpleConsumerConfig
from kourou.client.consuming.popping.pop_sources import PopSource, PopSources
from kourou.client.consuming.popping.receipts import Receipts
from kourou.client.consuming.popping.source_pops import PopRules, PopTerms, SourcePops
from kourou.client.consuming.popping.unsettled import UnsettledMessages
from kourou.client.consuming.watching.consume_stats import ConsumerStats
from kourou.client.instance import ClientInstance
from kourou.client.pop_result import PoppedMessage, PopResult
from kourou.client.retrying import Deadline
from kourou.errors import ClosedError, KourouError
from kourou.model.subscription import SubscriptionData

SLOW_POP_S: Final = 0.5
"""Seconds after which the next source is tried, if a pop without a wait has no answer."""

_RECHECK_MAX_S: Final = 1.0
"""Longest time between two looks at the sources while no broker announces anything."""

_AGAIN_MIN_S: Final = 0.1
"""Time that must be left for another held pop: brokers answer a little before its end."""


class Receiver:
    """Receives on behalf of one consumer; calls may run at the same time.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        config: the consumer's settings.
        subscriptions: the subscriptions by topic; a live view.
        receipts: settles messages that the program must not get.
        unsettled: gets the messages that the program does.
        stats: counts the pops.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: SimpleConsumerConfig,
        *,
        subscriptions: Mapping[str, SubscriptionData],
        receipts: Receipts,
        unsettled: UnsettledMessages,
        stats: ConsumerStats,
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._subscriptions = subscriptions
        rules = PopRules(
            start=config.consume_from_where,
            is_ordered=config.ordered,
            max_reconsume_times=config.max_reconsume_times,
        )
        self._single = SourcePops(instance, group, rules, receipts=receipts, stats=stats)
        self._unsettled = unsettled
        self._sources = PopSources(instance, subscriptions)
        self._late: deque[PoppedMessage] = deque()
        self._pops: set[asyncio.Task[PopResult]] = set()
        self._changed = asyncio.Event()

    @property
    def late_messages(self) -> int:
        """Number of messages that arrived after their caller was gone."""
        return len(self._late)

    def problems(self) -> list[str]:
        """Return descriptions of the brokers that fail."""
        return self._sources.problems()

    def wake(self) -> None:
        """Have waiting calls look at routes and subscriptions again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def receive(self, terms: PopTerms, wait_ms: int) -> list[PoppedMessage]:
        """Return messages of one source, or none after `wait_ms`.

        Raises:
            ClosedError: the consumer closed.
            TransportError, RemoteError: the last request to each source failed, and no time is
                left; or no later one can succeed.
        """
        deadline = Deadline(wait_ms)
        tried: set[PopSource] = set()
        while True:
            if late := self._take_late(terms):
                return late
            changed = self._changed
            sources, failure = await self._look_up()
            source = self._sources.choose(sources, tried, _now_s())
            if source is not None:
                tried.add(source)
                is_only = len(sources) == 1
                wait_s = deadline.remaining_s() if is_only else 0.0
                if messages := await self._pop_and_wait(source, terms, wait_s, is_only=is_only):
                    return messages
                continue
            failure = failure or _common_failure(sources)
            remaining_s = deadline.remaining_s()
            if failure is not None and not (failure.retriable or failure.refresh_route):
                raise failure
            if remaining_s <= 0:
                if failure is not None:
                    raise failure
                return []
            await self._wait(sources, changed, remaining_s)
            self._instance.check_open()
            if len(sources) == 1 and deadline.remaining_s() > _AGAIN_MIN_S:
                tried.clear()

    async def _look_up(self) -> tuple[list[PopSource], KourouError | None]:
        self._instance.check_open()
        try:
            return await self._sources.look_up(self._instance.request_timeout_s), None
        except KourouError as error:
            return [], error

    async def _wait(
        self, sources: list[PopSource], changed: asyncio.Event, remaining_s: float
    ) -> None:
        """Wait until a source may have messages, or may be tried again."""
        now_s = _now_s()
        if len(sources) > 1:
            for source in sources:
                if source.announcement is None and source.retry_at_s <= now_s:
                    self._announce(source)
        next_s = min(
            (one.retry_at_s - now_s for one in sources if one.retry_at_s > now_s),
            default=_RECHECK_MAX_S,
        )
        try:
            async with asyncio.timeout(min(remaining_s, next_s, _RECHECK_MAX_S)):
                await changed.wait()
        except TimeoutError:
            pass

    def _announce(self, source: PopSource) -> None:
        """Have the broker announce messages; the request outlives the call that waits."""
        subscription = self._subscriptions[source.topic]

        async def ask() -> None:
            try:
                source.may_have_messages = await self._announced(source, subscription)
            except KourouError as error:
                self._single.failed(source, error)
            finally:
                source.announcement = None
                self.wake()

        source.announcement = self._instance.tasks.start(ask, f"messages of {source.topic}")

    async def _announced(self, source: PopSource, subscription: SubscriptionData) -> bool:
        wait_ms, timeout_s = self._config.wait_ms, self._instance.request_timeout_s
        return await calls_pop.wait_for_messages(
            self._instance.pool,
            await self._single.address(source),
            self._group,
            source.broker_name,
            subscription=subscription,
            wait_ms=wait_ms,
            is_ordered=self._config.ordered,
            timeout_s=wait_ms / 1000 + timeout_s,
        )

    async def _pop_and_wait(
        self, source: PopSource, terms: PopTerms, wait_s: float, *, is_only: bool
    ) -> list[PoppedMessage]:
        """Return the messages of a pop; if it is slow or this call is cancelled, `_late` has them.

        Its failure is in the source's `error`.
        """
        subscription = self._subscriptions[source.topic]
        task = asyncio.create_task(self._pop(source, subscription, terms, wait_s))
        self._pops.add(task)
        task.add_done_callback(self._pops.discard)
        try:
            await asyncio.wait({task}, timeout=None if is_only else SLOW_POP_S)
        finally:
            if not task.done():
                source.late_pops += 1
                task.add_done_callback(lambda done: self._keep_late(source, done))
        if not task.done():
            return []
        if task.cancelled():
            raise ClosedError("the simple consumer closed while it received")
        return task.result().messages

    async def _pop(
        self, source: PopSource, subscription: SubscriptionData, terms: PopTerms, wait_s: float
    ) -> PopResult:
        result = await self._single.pop(source, subscription, terms, wait_s)
        self._unsettled.popped(
            source.topic,
            source.broker_name,
            result.messages,
            now_ms=self._instance.runtime.clock.now_ms(),
            now_s=_now_s(),
        )
        return result

    def _keep_late(self, source: PopSource, task: asyncio.Task[PopResult]) -> None:
        source.late_pops -= 1
        if not task.cancelled() and task.exception() is None:
            self._late.extend(task.result().messages)
        self.wake()

    def _take_late(self, terms: PopTerms) -> list[PoppedMessage]:
        """Return late messages of which half the invisible time is left; drop the others.

        The dropped ones become visible again by themselves.
        """
        taken: list[PoppedMessage] = []
        now_s = _now_s()
        while self._late and len(taken) < terms.max_messages:
            message = self._late.popleft()
            if message.visible_at_s - now_s >= message.checkpoint.invisible_ms / 2000:
                taken.append(message)
        return taken

    def close(self) -> list[PoppedMessage]:
        """End all pops; return the messages that no call has returned."""
        for task in self._pops:
            task.cancel()
        self.wake()
        late = list(self._late)
        self._late.clear()
        return late


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _common_failure(sources: list[PopSource]) -> KourouError | None:
    """Return the error of the first source if all fail; a temporary one if there is any."""
    errors = [one.error for one in sources if one.error is not None]
    if not errors or len(errors) < len(sources):
        return None
    return next((one for one in errors if one.retriable or one.refresh_route), errors[0])

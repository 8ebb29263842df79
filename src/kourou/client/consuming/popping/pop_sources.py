"""Pop sources: the brokers of the subscribed topics, and what is known of each."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kourou.client.calls_pop import ALL_QUEUES
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Backoff
from kourou.errors import KourouError, NoRouteError
from kourou.model.route import TopicRoute, subscribe_queues
from kourou.model.subscription import SubscriptionData

_IDLE_MIN_S: Final = 0.01
_IDLE_MAX_S: Final = 1.0
_DOUBLINGS_MAX: Final = 10


@dataclass(slots=True, eq=False)
class PopSource:
    """One topic on one broker.

    Attributes:
        queue_id: the queue; `ALL_QUEUES` for all of them.
        may_have_messages: the last pop found some, or the broker has announced some since.
        retry_at_s: no request before this time, on the event loop's clock.
        announcement: the held request that announces messages; at most one.
        late_pops: pops whose caller did not wait for them; no further pop is sent meanwhile.
        error: why the last request failed; None after a success.
        unanswered_attempt_id: that of an ordered pop without an answer.
    """

    topic: str
    broker_name: str
    queue_id: int = ALL_QUEUES
    may_have_messages: bool = True
    retry_at_s: float = 0.0
    announcement: asyncio.Task[None] | None = None
    late_pops: int = 0
    error: KourouError | None = None
    unanswered_attempt_id: str | None = None
    failures: int = 0
    empty_pops: int = 0

    def found(self) -> None:
        """Record a pop that found messages."""
        self.may_have_messages = True
        self.error = None
        self.failures = self.empty_pops = 0

    def found_nothing(self, now_s: float, *, delays_next: bool) -> None:
        """Record an empty pop. Repeated announcements without messages must not cause a spin."""
        self.may_have_messages = False
        self.error = None
        self.failures = 0
        if delays_next:
            doublings = min(self.empty_pops, _DOUBLINGS_MAX)
            self.retry_at_s = now_s + min(_IDLE_MIN_S * (1 << doublings), _IDLE_MAX_S)
            self.empty_pops += 1

    def failed(self, error: KourouError, now_s: float, backoff: Backoff) -> None:
        """Record a failed request."""
        self.may_have_messages = False
        self.failures += 1
        self.error = error
        self.retry_at_s = now_s + backoff.delay_s(self.failures)


class PopSources:
    """The sources of the subscribed topics, in turn.

    Args:
        instance: the client's routes.
        subscriptions: the subscriptions by topic; a live view.
    """

    def __init__(
        self, instance: ClientInstance, subscriptions: Mapping[str, SubscriptionData]
    ) -> None:
        self._instance = instance
        self._subscriptions = subscriptions
        self._routes: dict[str, tuple[TopicRoute, list[str]]] = {}
        self._all: dict[tuple[str, str], PopSource] = {}
        self._last: PopSource | None = None

    async def look_up(self, timeout_s: float) -> list[PopSource]:
        """Return the sources, from the one behind the last chosen on.

        Raises:
            NoRouteError: no subscribed topic has a broker to read from.
            ConnectFailedError, RequestTimeoutError, RemoteError: as `Routes.get`, if no topic is
                known.
        """
        failure: KourouError | None = None
        keys: list[tuple[str, str]] = []
        for topic in sorted(self._subscriptions):
            try:
                route = await self._instance.routes.get(topic, timeout_s)
            except KourouError as error:
                failure = failure or error
                continue
            keys += [(topic, name) for name in self._brokers(topic, route)]
        if not keys:
            raise failure or NoRouteError(
                f"no broker of {', '.join(sorted(self._subscriptions))} permits reading: check the "
                "permission of the topic"
            )
        for gone in self._all.keys() - keys:
            self._forget(self._all.pop(gone))
        sources = [self._all.setdefault(key, PopSource(*key)) for key in keys]
        first = sources.index(self._last) + 1 if self._last in sources else 0
        return sources[first:] + sources[:first]

    def choose(
        self, sources: Iterable[PopSource], tried: Collection[PopSource], now_s: float
    ) -> PopSource | None:
        """Return the source to pop from next: one with messages, else one not tried yet."""
        ready = [one for one in sources if one.retry_at_s <= now_s and not one.late_pops]
        chosen = next((one for one in ready if one.may_have_messages), None) or next(
            (one for one in ready if one not in tried), None
        )
        if chosen is not None:
            self._last = chosen
        return chosen

    def problems(self) -> list[str]:
        """Return descriptions of the sources that fail."""
        return [
            f"broker {name} does not answer pops of {topic}: {source.error}"
            for (topic, name), source in sorted(self._all.items())
            if source.error is not None
        ]

    def _brokers(self, topic: str, route: TopicRoute) -> list[str]:
        known = self._routes.get(topic)
        if known is None or known[0] is not route:
            names = sorted({queue.broker_name for queue in subscribe_queues(topic, route)})
            known = self._routes[topic] = (route, names)
        return known[1]

    def _forget(self, source: PopSource) -> None:
        if source.announcement is not None:
            source.announcement.cancel()

"""Held pops and notifications: requests that found nothing and wait for messages.

A held request has a key: topic, group, and a queue id, or -1 for all queues, or -2 for none. A
message wakes one request for its queue and one for all queues of each group: the request that
expires first, or, of notifications, the one that expires last. A request whose peer has left or
does not read, or whose filter does not match, is passed over, and the next one is woken instead.
The handler wakes one more request if messages are left after an answer (`wake`).

A message of a retry topic wakes the requests of its group for the topic that it was first sent to.

A held request costs memory, but no task and no timer. An arrival costs 0.2 us while no request is
held for its topic.

Source: PopLongPollingService.java, apache/rocketmq 5.5.0. There a wake-up that meets a closed
connection or a filter that does not match is lost.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import islice
from typing import Final, Protocol, TypeVar

from kourou.broker.pulling.long_polling import EVALUATION_COST_MAX, Arrived, ArrivedMessage
from kourou.protocol.command import RemotingCommand
from kourou.remoting.connection import Connection, Request
from kourou.remoting.dispatch import reply_with
from kourou.remoting.steady_time import steady_ms

ALL_QUEUES: Final = -1
"""The queue id of a request for all queues."""
NO_QUEUE: Final = -2
"""The queue id of a request that no message wakes: it can get none."""
TICK_MS: Final = 20
"""Requests that expire within the same tick are answered together, at its end."""
HOLD_MAX_MS: Final = 600_000
"""Limit on the time that a request is held, whatever it asks for."""
SERVED_MAX: Final = 64
"""Limit on woken requests that are served in one iteration of the event loop."""
SERVED_MS: Final = 5
"""Time after which one iteration serves no further request: each may read a thousand queues."""
EXPIRED_MAX: Final = 16
"""Limit on requests that expire in one iteration of the event loop. Unless they are plain, they are
read and answered on the general path, at five times the cost of a woken one."""


class HoldResult(Enum):
    """Result of an attempt to hold a request."""

    HELD = auto()
    NOT_ASKED = auto()
    """The request does not ask to be held."""
    LATE = auto()
    """Its time is over already."""
    FULL = auto()
    """Too many requests are held, of its key or in all."""


class HeldRequest(Protocol):
    """A request that can be held."""

    @property
    def connection(self) -> Connection: ...

    def serve_again(self) -> None:
        """Serve the request, and hold it again if it finds nothing; never raises."""


class HandledRequest:
    """A request that its handler holds; see `HeldRequest`."""

    __slots__ = ("_request", "_serve")

    def __init__(self, request: Request, serve: Callable[[], RemotingCommand | None]) -> None:
        """Hold `request`; `serve` returns its answer, or None if the request is held again."""
        self._request = request
        self._serve = serve

    @property
    def connection(self) -> Connection:
        return self._request.connection

    def serve_again(self) -> None:
        reply_with(self._request, self._serve)


class WakeFilter(Protocol):
    """Decides whether a new message wakes a request; equal for requests with equal filters."""

    @property
    def cost(self) -> int:
        """Approximate cost of `matches`; see `MessageFilter.cost`."""

    def matches(self, message: ArrivedMessage) -> bool: ...


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """Limits on held requests.

    Attributes:
        per_key_max: requests of one key that may be held before another one is held.
        all_max: held requests of all keys.
    """

    per_key_max: int
    all_max: int


@dataclass(slots=True, eq=False)
class Hold:
    """One held request.

    Attributes:
        deadline_ms: time at which it is served without a message, on the steady clock.
        number: of the requests with equal deadlines, the one held first has the lowest.
        filter: None if all messages wake it.
    """

    request: HeldRequest
    topic: str
    group: str
    queue_id: int
    deadline_ms: int
    number: int
    filter: WakeFilter | None

    @property
    def order(self) -> tuple[int, int]:
        """The order within a key."""
        return self.deadline_ms, self.number


_Entry = tuple[int, int, Hold]
_Queues = dict[int, list[_Entry]]


@dataclass(slots=True)
class _Table:
    """The indexes of all holds.

    Attributes:
        by_topic: topic -> group -> queue id -> holds in the order of their deadlines.
        by_retry_topic: retry topic -> (topic, group) of holds that its messages wake.
    """

    by_topic: dict[str, dict[str, _Queues]] = field(default_factory=dict)
    by_retry_topic: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    by_tick: dict[int, dict[Hold, None]] = field(default_factory=dict)
    by_owner: dict[Connection, dict[Hold, None]] = field(default_factory=dict)


class PopHolds:
    """The held requests of one kind, on the running event loop."""

    def __init__(
        self,
        limits: Callable[[], HoldLimits],
        retry_topics: Callable[[str, str], Iterable[str]],
        *,
        wakes_latest: bool = False,
    ) -> None:
        """Create an empty table.

        Args:
            limits: returns the present limits.
            retry_topics: returns the names of the retry topics of a topic and a group.
            wakes_latest: whether a message wakes the request that expires last.
        """
        self._limits = limits
        self._retry_topics = retry_topics
        self._wakes_latest = wakes_latest
        self._table = _Table()
        self._count = 0
        self._number = 0
        self._ticks: list[int] = []  # a heap; what has no requests leaves it at the top
        self._known_ticks: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0
        self._due: deque[Hold] = deque()
        self._next: asyncio.Handle | None = None
        self._passed: dict[Connection, set[tuple[str, str, int]]] = {}
        self._cost_left = 0

    def __len__(self) -> int:
        return self._count

    def count_of(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of requests held for exactly this key."""
        return len(self._queues(topic, group).get(queue_id, ()))

    # Holding

    def hold(
        self,
        request: HeldRequest,
        key: tuple[str, str, int],
        wait_ms: int,
        wake_filter: WakeFilter | None,
    ) -> HoldResult:
        """Hold the request for at most `wait_ms`, if there is room.

        Args:
            request: served again when it is woken, and at the end of its time.
            key: topic, group and queue id, or `ALL_QUEUES`, or `NO_QUEUE`.
            wait_ms: remaining time of the request.
            wake_filter: decides which messages wake it; None for all.
        """
        limits = self._limits()
        if self._count >= limits.all_max:
            return HoldResult.FULL
        if wait_ms <= 0:
            return HoldResult.LATE
        topic, group, queue_id = key
        if self.count_of(topic, group, queue_id) > limits.per_key_max:
            return HoldResult.FULL
        self._number += 1
        deadline_ms = steady_ms() + min(wait_ms, HOLD_MAX_MS)
        held = Hold(request, topic, group, queue_id, deadline_ms, self._number, wake_filter)
        self._add(held)
        tick = _tick(deadline_ms)
        if self._timer is None or tick < self._timer_tick:
            self._set_timer()
        return HoldResult.HELD

    # Waking

    def on_arrivals(self, arrivals: Iterable[Arrived]) -> None:
        """Serve the requests that new messages concern; called once per loop iteration."""
        table = self._table
        if not self._count:
            return
        self._cost_left = EVALUATION_COST_MAX
        for arrival in arrivals:
            groups = table.by_topic.get(arrival.topic)
            if groups is not None:
                for group in list(groups):
                    self._wake_key(arrival.topic, group, ALL_QUEUES, arrival)
                    self._wake_key(arrival.topic, group, arrival.queue_id, arrival)
            for topic, group in list(table.by_retry_topic.get(arrival.topic, ())):
                self._wake_group(topic, group)
        if self._due and self._next is None:
            self._serve_due()  # in this iteration: a third of the latency of a held pop

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """Serve one request for the queue and one for all queues, in a later loop iteration.

        Args:
            topic: the topic that the requests name, not its retry topic.
            group: of the requests.
            queue_id: a queue with messages; `ALL_QUEUES` for any, also of a retry topic.
        """
        if not self._count or not self._queues(topic, group):
            return
        if queue_id == ALL_QUEUES:
            self._wake_group(topic, group)
        else:
            self._wake_key(topic, group, ALL_QUEUES, None)
            self._wake_key(topic, group, queue_id, None)
        self._serve_soon()

    def serve_topic(self, topic: str) -> None:
        """Serve all requests for a topic: it was deleted or has other queues."""
        self._take_all(one for one in self._holds() if one.topic == topic)

    def serve_group(self, group: str) -> None:
        """Serve all requests of a group: it was deleted, stopped or reset."""
        self._take_all(one for one in self._holds() if one.group == group)

    def on_connection_closed(self, connection: Connection) -> None:
        """Drop the requests of a closed connection."""
        self._passed.pop(connection, None)
        for held in list(self._table.by_owner.get(connection, ())):
            self._remove(held)

    def close(self) -> None:
        """Stop serving; held requests are no longer answered."""
        for handle in (self._timer, self._next):
            if handle is not None:
                handle.cancel()
        self._timer = self._next = None
        self._due.clear()

    def _wake_group(self, topic: str, group: str) -> None:
        """Wake one request of each key: the messages are in a retry topic, or in any queue."""
        for queue_id in list(self._queues(topic, group)):
            if queue_id != NO_QUEUE:
                self._wake_key(topic, group, queue_id, None)

    def _wake_key(self, topic: str, group: str, queue_id: int, arrival: Arrived | None) -> None:
        """Take the first request of the key that its peer can receive and its filter matches."""
        entries = self._queues(topic, group).get(queue_id)
        if entries is None:
            return
        refused: set[WakeFilter] = set()
        for _, _, held in reversed(entries) if self._wakes_latest else entries:
            connection = held.request.connection
            if connection.is_paused:
                self._pass_over(connection, (topic, group, queue_id))
                continue
            if not connection.is_open or held.filter in refused:
                continue
            if arrival is None or self._matches(held.filter, arrival):
                self._remove(held)
                self._due.append(held)
                return
            assert held.filter is not None, "only a filter refuses"
            refused.add(held.filter)

    def _matches(self, wake_filter: WakeFilter | None, arrival: Arrived) -> bool:
        if wake_filter is None:
            return True
        for message in arrival.records():
            if self._cost_left <= 0:
                return True  # the request filters by itself
            self._cost_left -= wake_filter.cost
            if wake_filter.matches(message):
                return True
        return False

    def _pass_over(self, connection: Connection, key: tuple[str, str, int]) -> None:
        """Note a wake-up that a request could not receive, for the time when its peer reads."""
        passed = self._passed.get(connection)
        if passed is not None:
            passed.add(key)
            return
        self._passed[connection] = {key}
        before = connection.on_resumed

        def resumed(connection: Connection) -> None:
            if before is not None:
                before(connection)
            for topic, group, queue_id in self._passed.pop(connection, ()):
                self._wake_key(topic, group, queue_id, None)
            self._serve_soon()

        connection.on_resumed = resumed

    # Serving

    def _take_all(self, holds: Iterable[Hold]) -> None:
        for held in list(holds):
            self._remove(held)
            self._due.append(held)
        self._serve_soon()

    def _serve_soon(self) -> None:
        if self._due and self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._serve_due)

    def _serve_due(self) -> None:
        """Serve woken requests, as many as one iteration may."""
        self._next = None
        due, end_ms = self._due, steady_ms() + SERVED_MS
        for number in range(min(SERVED_MAX, len(due))):
            if number and steady_ms() >= end_ms:
                break
            held = due.popleft()
            if held.request.connection.is_open:
                held.request.serve_again()
            else:  # the wake-up goes to the next request
                self.wake(held.topic, held.group, held.queue_id)
        self._serve_soon()

    def _set_timer(self) -> None:
        """Set the timer for the next tick at which a request expires; it may be over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tick = self._first_tick()
        if tick is not None:
            self._timer_tick = tick
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(tick * TICK_MS / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ms, by_tick = steady_ms(), self._table.by_tick
        left = EXPIRED_MAX
        while left and (tick := self._first_tick()) is not None and tick * TICK_MS <= now_ms:
            expired = list(islice(by_tick[tick], left))
            left -= len(expired)
            self._take_all(expired)
        self._set_timer()

    def _first_tick(self) -> int | None:
        """Return the first tick at which a request expires; None if none is held."""
        ticks, by_tick = self._ticks, self._table.by_tick
        while ticks and ticks[0] not in by_tick:
            self._known_ticks.discard(heappop(ticks))
        return ticks[0] if ticks else None

    # Table

    def _queues(self, topic: str, group: str) -> _Queues:
        return self._table.by_topic.get(topic, {}).get(group, {})

    def _holds(self) -> Iterator[Hold]:
        for groups in self._table.by_topic.values():
            for queues in groups.values():
                for entries in queues.values():
                    yield from (held for _, _, held in entries)

    def _add(self, held: Hold) -> None:
        table, topic, group = self._table, held.topic, held.group
        groups = table.by_topic.setdefault(topic, {})
        queues = groups.get(group)
        if queues is None:
            queues = groups[group] = {}
            for name in self._retry_topics(topic, group):
                table.by_retry_topic.setdefault(name, []).append((topic, group))
        insort(queues.setdefault(held.queue_id, []), (*held.order, held))
        tick = _tick(held.deadline_ms)
        if tick not in self._known_ticks:
            self._known_ticks.add(tick)
            heappush(self._ticks, tick)
        table.by_tick.setdefault(tick, {})[held] = None
        table.by_owner.setdefault(held.request.connection, {})[held] = None
        self._count += 1

    def _remove(self, held: Hold) -> None:
        table, topic, group = self._table, held.topic, held.group
        groups = table.by_topic[topic]
        queues = groups[group]
        entries = queues[held.queue_id]
        del entries[bisect_left(entries, held.order, key=_order)]
        if not entries:
            del queues[held.queue_id]
        if not queues:
            del groups[group]
            for name in self._retry_topics(topic, group):
                pairs = table.by_retry_topic[name]
                pairs.remove((topic, group))
                if not pairs:
                    del table.by_retry_topic[name]
        if not groups:
            del table.by_topic[topic]
        _discard(table.by_tick, _tick(held.deadline_ms), held)
        _discard(table.by_owner, held.request.connection, held)
        self._count -= 1


def _order(entry: _Entry) -> tuple[int, int]:
    return entry[:2]


def _tick(deadline_ms: int) -> int:
    """Return the first tick that is not before the deadline."""
    return -(-deadline_ms // TICK_MS)


KeyT = TypeVar("KeyT", bound=Hashable)


def _discard(table: dict[KeyT, dict[Hold, None]], key: KeyT, held: Hold) -> None:
    holds = table[key]
    del holds[held]
    if not holds:
        del table[key]

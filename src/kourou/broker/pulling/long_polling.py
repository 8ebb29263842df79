"""Table of held pulls, and the choice of those that a new message or the time wakes.

The table is keyed by topic and queue id. A held pull costs memory, but no task and no timer:
`held_pulls.py` asks once per loop iteration for the pulls that new messages wake, and at deadlines
for those whose time is over.

Source: PullRequestHoldService.java, apache/rocketmq 5.5.0, which looks for expired pulls every 5 s.
A tick of 100 ms is cheap here, because only pulls that are due are examined.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from kourou.filter.tags import matches_code
from kourou.model.subscription import SubscriptionData

TICK_MS: Final = 100
"""Pulls with deadlines within the same tick are answered together, at its end."""


EVALUATION_COST_MAX: Final = 100_000
"""Limit on the filtering cost for held pulls in one loop iteration, in units of
`MessageFilter.cost`: about 12 ms. Pulls beyond it are woken, and filter by themselves."""

HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit on header texts of held pulls, in bytes; a typical pull has about 200."""


class ArrivedMessage(Protocol):
    """One message of an arrival."""

    @property
    def queue_offset(self) -> int: ...

    @property
    def tags_code(self) -> int: ...

    @property
    def physical_offset(self) -> int: ...

    @property
    def size(self) -> int: ...


class Arrived(Protocol):
    """New messages of one queue; see `kourou.store.message_store.Arrival`."""

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...

    def records(self) -> Iterable[ArrivedMessage]:
        """Return the messages; called only if a pull is held for the queue."""


PullT = TypeVar("PullT")


@dataclass(slots=True, eq=False)
class Held(Generic[PullT]):
    """A held pull.

    Attributes:
        pull: data that the caller needs to answer it.
        owner: its connection; compared by identity.
        queue_offset: offset that it reads from.
        subscription: tags of messages that wake it.
        deadline_ms: time at which it is answered even without a message, on the caller's clock.
        size_bytes: approximate memory that it takes beyond the minimum of a pull.
        is_wanted: decides for a message with such tags whether it wakes the pull; None for always.
        wanted_cost: approximate cost of that decision.
    """

    pull: PullT
    owner: Hashable
    topic: str
    queue_id: int
    queue_offset: int
    subscription: SubscriptionData
    deadline_ms: int
    size_bytes: int = 0
    is_wanted: Callable[[ArrivedMessage], bool] | None = None
    wanted_cost: int = 0


class LongPolling(Generic[PullT]):
    """Table of the held pulls."""

    def __init__(
        self,
        *,
        held_max: int = 100_000,
        held_per_owner_max: int = 10_000,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        """Create an empty table.

        Args:
            held_max: limit on held pulls of all connections.
            held_per_owner_max: limit for one connection, so that a client cannot use up the table.
            held_bytes_max: limit on the sum of the sizes.
        """
        self._held_max = held_max
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        self._held_per_owner_max = held_per_owner_max
        # Dictionaries serve as ordered sets: pulls held longest are woken first.
        self._by_queue: dict[tuple[str, int], dict[Held[PullT], None]] = {}
        self._by_tick: dict[int, dict[Held[PullT], None]] = {}
        self._by_owner: dict[Hashable, dict[Held[PullT], None]] = {}
        self._count = 0
        self._cost_left = 0  # of filtering in this turn

    def __len__(self) -> int:
        return self._count

    @property
    def index_count(self) -> int:
        """Number of queues, ticks and owners that the table has entries for."""
        return len(self._by_queue) + len(self._by_tick) + len(self._by_owner)

    def hold(self, held: Held[PullT]) -> bool:
        """Add the pull and return True; False if the table is full."""
        held_bytes = self._held_bytes + held.size_bytes
        if self._count >= self._held_max or held_bytes > self._held_bytes_max:
            return False
        of_owner = self._by_owner.setdefault(held.owner, {})
        if len(of_owner) >= self._held_per_owner_max:
            return False
        of_owner[held] = None
        self._by_queue.setdefault((held.topic, held.queue_id), {})[held] = None
        self._by_tick.setdefault(_tick(held.deadline_ms), {})[held] = None
        self._count += 1
        self._held_bytes = held_bytes
        return True

    def take_woken(self, arrivals: Iterable[Arrived]) -> list[Held[PullT]]:
        """Remove and return the pulls that the new messages concern, each once.

        A pull whose tags match none of them stays: a read would find nothing.
        """
        by_queue = self._by_queue
        if not by_queue:
            return []
        by_held_queue: dict[tuple[str, int], list[Arrived]] = {}
        for arrival in arrivals:
            key = (arrival.topic, arrival.queue_id)
            if key in by_queue:
                by_held_queue.setdefault(key, []).append(arrival)
        self._cost_left = EVALUATION_COST_MAX
        woken: list[Held[PullT]] = []
        for key, arrived in by_held_queue.items():
            messages = [message for arrival in arrived for message in arrival.records()]
            woken += [held for held in by_queue[key] if self._wakes(held, messages)]
        for held in woken:
            self._remove(held)
        return woken

    def of_queue(self, topic: str, queue_id: int) -> list[Held[PullT]]:
        """Return the pulls held for the queue."""
        return list(self._by_queue.get((topic, queue_id), ()))

    def remove(self, held: Held[PullT]) -> None:
        """Remove a held pull."""
        self._remove(held)

    def take_expired(self, now_ms: int) -> list[Held[PullT]]:
        """Remove and return the pulls whose deadline has passed, at most a tick late."""
        due = [tick for tick in self._by_tick if tick * TICK_MS <= now_ms]
        expired = [held for tick in sorted(due) for held in self._by_tick[tick]]
        for held in expired:
            self._remove(held)
        return expired

    def next_due_ms(self) -> int | None:
        """Return when `take_expired` will next find a pull; None if nothing is held."""
        return min(self._by_tick) * TICK_MS if self._by_tick else None

    def remove_owner(self, owner: Hashable) -> int:
        """Remove the pulls of a closed connection; return their number."""
        pulls = list(self._by_owner.get(owner, ()))
        for held in pulls:
            self._remove(held)
        return len(pulls)

    def _wakes(self, held: Held[PullT], messages: Sequence[ArrivedMessage]) -> bool:
        is_wanted = held.is_wanted
        for message in messages:
            if message.queue_offset < held.queue_offset:
                continue
            if not matches_code(held.subscription, message.tags_code):
                continue
            if is_wanted is None or self._cost_left <= 0:
                return True
            self._cost_left -= held.wanted_cost
            if is_wanted(message):
                return True
        return False

    def _remove(self, held: Held[PullT]) -> None:
        _discard(self._by_queue, (held.topic, held.queue_id), held)
        _discard(self._by_tick, _tick(held.deadline_ms), held)
        _discard(self._by_owner, held.owner, held)
        self._count -= 1
        self._held_bytes -= held.size_bytes


KeyT = TypeVar("KeyT", bound=Hashable)


def _tick(deadline_ms: int) -> int:
    """Return the first tick that is not before the deadline."""
    return -(-deadline_ms // TICK_MS)


def _discard(table: dict[KeyT, dict[Held[PullT], None]], key: KeyT, held: Held[PullT]) -> None:
    """Remove the pull from one index, and the key with its last pull."""
    pulls = table[key]
    del pulls[held]
    if not pulls:
        del table[key]

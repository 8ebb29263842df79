"""Held pulls: pulls that found nothing and wait until a message arrives or their time is over.

`long_polling.py` keeps the table of held pulls. A woken pull is served by the module that held it:
`pull.py`, or the fast path of pulls (`fast_pull.py`).

A woken pull is not served while its peer does not read what it was sent, because the answer would
only take memory. It is served when the peer has read, or dropped with the connection, which is
closed after its `idle_timeout_ms` without traffic.

Source: PullRequestHoldService.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from kourou.broker.live_config import LiveConfig
from kourou.broker.pulling.long_polling import Arrived, ArrivedMessage, Held, LongPolling
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import TopicConfig
from kourou.remoting.connection import Connection
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import FastGetResult

SUSPEND_MAX_MS: Final = 60_000
"""Limit on the time that a request is held, whatever it asks for; clients ask for 15 to 20 s. A
connection without traffic for 120 s is closed."""


ITERATION_BYTES: Final = 4 * 1024 * 1024
"""Approximate size of the answers to woken pulls that one loop iteration builds. The rest follows
in the next iterations, so that other clients are served in between, and answers are sent before
more are built."""

_NEVER_MS: Final = 2**62
_DEFERRED_ANSWER_BYTES: Final = 64 * 1024
"""Size counted for an answer that the pull sends by itself later."""


SharedReads = dict[tuple[str, int, int, int], FastGetResult]
"""Reads by topic, queue id, offset and count; one read serves all groups waiting for a message."""


class HeldPull(Protocol):
    """A pull that can be held."""

    @property
    def group(self) -> str: ...

    @property
    def connection(self) -> Connection: ...

    def serve_again(self, reads: SharedReads) -> bytes | None:
        """Serve the pull, without holding it again; never raises.

        Args:
            reads: reads of the pulls woken together with this one; new ones are added.

        Returns:
            The frame of the answer, to be sent; None if it is sent in another way.
        """


class HeldPulls:
    """The held pulls of one broker, on the running event loop."""

    def __init__(self, config: LiveConfig) -> None:
        self._config = config
        self._held: LongPolling[HeldPull] = LongPolling(held_max=config.current.held_pulls_max)
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0  # when the timer ends
        self._due: deque[Held[HeldPull]] = deque()  # woken, and not served yet
        self._due_by_connection: Counter[Connection] = Counter()  # number of those
        self._next: asyncio.Handle | None = None  # next `_serve_due`
        self._paused: dict[Connection, list[Held[HeldPull]]] = {}  # woken, by connection

    def __len__(self) -> int:
        return len(self._held) + len(self._due) + sum(map(len, self._paused.values()))

    def hold(
        self,
        pull: HeldPull,
        where: tuple[str, int, int],
        subscription: SubscriptionData,
        timeout_ms: int,
        size_bytes: int,
        is_wanted: Callable[[ArrivedMessage], bool] | None = None,
        wanted_cost: int = 0,
    ) -> bool:
        """Hold the pull if there is room; return whether it is held.

        Args:
            pull: served again when it is woken.
            where: topic, queue id, and the offset that it reads from.
            subscription: tags of messages that wake it.
            timeout_ms: requested time to be held.
            size_bytes: approximate memory that it takes.
            is_wanted: decides for a message with such tags whether it wakes the pull.
            wanted_cost: approximate cost of that decision; see `MessageFilter.cost`.
        """
        now = self._config.current
        timeout_ms = min(timeout_ms, SUSPEND_MAX_MS)
        if not now.long_polling_enable:
            timeout_ms = min(timeout_ms, now.short_polling_time_ms)
        if timeout_ms <= 0:
            return False
        deadline_ms = steady_ms() + timeout_ms
        held = Held(
            pull, pull.connection, *where, subscription, deadline_ms, size_bytes, is_wanted,
            wanted_cost,
        )  # fmt: skip
        if not self._held.hold(held):
            return False
        if self._timer is None or deadline_ms < self._due_ms:
            self._set_timer()
        return True

    def on_arrivals(self, arrivals: Iterable[Arrived]) -> None:
        """Serve the pulls that new messages concern; called once per loop iteration.

        A single pull is answered at once: in the next iteration it would be 10 us later.
        """
        woken = self._held.take_woken(arrivals)
        if len(woken) == 1 and not woken[0].pull.connection.is_paused:
            answer = woken[0].pull.serve_again({})
            if answer is not None:
                woken[0].pull.connection.send_now(answer)
            return
        self._serve_again(woken)

    def serve_all(self) -> None:
        """Serve all held pulls again now, and answer them."""
        self._serve_again(self._held.take_expired(_NEVER_MS))

    def on_offset_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Answer the pulls of a group whose offset in the queue was reset."""
        self._answer_group(group, topic, range(queue_id, queue_id + 1))

    def on_subscription_changed(self, group: str, topic: TopicConfig) -> None:
        """Answer the pulls of a group whose subscription changed; they wait by the old one.

        Java re-evaluates all held pulls every 5 s with their groups' current subscriptions.
        """
        self._answer_group(group, topic.name, range(topic.read_queue_nums))

    def _answer_group(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        waiting = [one for number in queue_ids for one in self._held.of_queue(topic, number)]
        of_group = [one for one in waiting if one.pull.group == group]
        for held in of_group:
            self._held.remove(held)
        self._serve_again(of_group)

    def on_topic_deleted(self, topic: TopicConfig) -> None:
        """Answer all pulls of a deleted topic: a topic of the same name may be created again."""
        queues = range(max(topic.read_queue_nums, topic.write_queue_nums))
        of_topic = [one for number in queues for one in self._held.of_queue(topic.name, number)]
        for held in of_topic:
            self._held.remove(held)
        self._serve_again(of_topic)

    def on_connection_closed(self, connection: Connection) -> None:
        """Drop the pulls of a closed connection."""
        self._held.remove_owner(connection)
        self._paused.pop(connection, None)

    def close(self) -> None:
        """Stop serving; held pulls are no longer answered."""
        self._stop_timer()
        if self._next is not None:
            self._next.cancel()
        self._due.clear()
        self._due_by_connection.clear()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        """Set the timer for the next deadline of a held pull."""
        self._stop_timer()
        due_ms = self._held.next_due_ms()
        if due_ms is not None:
            self._due_ms = due_ms
            self._timer = asyncio.get_running_loop().call_at(due_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._serve_again(self._held.take_expired(steady_ms()))
        self._set_timer()

    def _serve_again(self, woken: Iterable[Held[HeldPull]]) -> None:
        """Answer woken pulls, in this loop iteration and the next ones."""
        for held in woken:
            self._due.append(held)
            self._due_by_connection[held.pull.connection] += 1
        if self._next is None:
            self._serve_due()

    def _serve_due(self) -> None:
        """Answer as many pulls as one iteration may; those of a connection share one write."""
        self._next = None
        due, left_bytes = self._due, ITERATION_BYTES
        reads: SharedReads = {}
        while due:
            if left_bytes <= 0:
                self._next = asyncio.get_running_loop().call_soon(self._serve_due)
                return
            held = due.popleft()
            connection = held.pull.connection
            is_last = self._due_by_connection[connection] == 1
            if is_last:
                del self._due_by_connection[connection]
            else:
                self._due_by_connection[connection] -= 1
            if connection.is_paused:
                self._paused.setdefault(connection, []).append(held)
                connection.on_resumed = self._on_resumed
            elif connection.is_open:
                answer = held.pull.serve_again(reads)
                if answer is None:
                    left_bytes -= _DEFERRED_ANSWER_BYTES
                else:
                    left_bytes -= len(answer)
                    if is_last:
                        connection.send_now(answer)
                    else:  # sent in one write with the connection's last answer
                        connection.send_frames(answer)

    def _on_resumed(self, connection: Connection) -> None:
        """Serve the pulls that were woken while the peer did not read, as long as it reads."""
        self._serve_again(self._paused.pop(connection, ()))

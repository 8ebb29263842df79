"""Pulls that found nothing and asked to be held: kept until a message comes, or their time is over.

Who is held tells `long_polling.py`. What becomes of one that is woken is its own business: it was
held by `pull.py`, or by the path of plain pulls (`fast_pull.py`).

A pull of a connection whose peer does not read what it was sent is not served when it is woken: its
answer would only wait in memory. It is served when the peer has read, or forgotten with the
connection, which ends when nothing happens on it for its `idle_timeout_ms`.

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
from kourou.store.message_store import PlainFound

SUSPEND_MAX_MS: Final = 60_000
"""Longest time that a request is held, whatever it asks for; clients ask for 15 to 20 s. A
connection that hears nothing for 120 s is closed."""


TURN_BYTES: Final = 4 * 1024 * 1024
"""Answers to woken pulls that one turn of the loop makes, about: the rest follows in the next ones,
so that other clients are served in between, and what was made is sent before more is."""

_LATER_ANSWER_BYTES: Final = 64 * 1024
"""What counts for an answer that is not returned by the pull that it answers."""


SharedReads = dict[tuple[str, int, int, int], PlainFound]
"""Reads by topic, queue id, offset and count: one serves all groups that wait for a message."""


class HeldPull(Protocol):
    """A pull that waits."""

    @property
    def group(self) -> str: ...

    @property
    def connection(self) -> Connection: ...

    def serve_again(self, reads: SharedReads) -> bytes | None:
        """Serve it, not to be held again; never raises.

        Args:
            reads: what pulls that were woken with this one have read; added to.

        Returns:
            The frame of the answer, to be sent; None if that was or will be sent otherwise.
        """


class HeldPulls:
    """The held pulls of one broker, on the running loop."""

    def __init__(self, config: LiveConfig) -> None:
        self._config = config
        self._held: LongPolling[HeldPull] = LongPolling(held_max=config.now.held_pulls_max)
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0  # when the timer ends
        self._due: deque[Held[HeldPull]] = deque()  # woken, and not served yet
        self._due_of: Counter[Connection] = Counter()  # how many of them a connection has
        self._next: asyncio.Handle | None = None  # serves more of them
        self._unread: dict[Connection, list[Held[HeldPull]]] = {}  # woken, by who must read first

    def __len__(self) -> int:
        return len(self._held) + len(self._due) + sum(map(len, self._unread.values()))

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
        """Hold the pull if there is room, and return whether it is held.

        Args:
            pull: served again when it is woken.
            where: topic, queue id, and the offset that it reads on from.
            subscription: which tags wake it.
            timeout_ms: how long it asks to be held.
            size_bytes: about what it keeps in memory.
            is_wanted: tells of a message with such a tag whether it wakes it.
            wanted_cost: about what that costs for a message, see `MessageFilter.cost`.
        """
        now = self._config.now
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
        """Serve the pulls that new messages concern; called once a turn of the loop.

        One alone is answered at once: a turn of the loop later it would be 10 us later.
        """
        woken = self._held.woken(arrivals)
        if len(woken) == 1 and not woken[0].pull.connection.is_paused:
            answer = woken[0].pull.serve_again({})
            if answer is not None:
                woken[0].pull.connection.send_now(answer)
            return
        self._serve_again(woken)

    def on_offset_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Answer the pulls of the group, whose offset in the queue was reset."""
        self._answer_group(group, topic, range(queue_id, queue_id + 1))

    def on_subscription_changed(self, group: str, topic: TopicConfig) -> None:
        """Answer the pulls of the group, which wait for what it wanted before.

        Java looks at all held pulls every 5 s, by what their groups want then.
        """
        self._answer_group(group, topic.name, range(topic.read_queue_nums))

    def _answer_group(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        waiting = [one for number in queue_ids for one in self._held.of_queue(topic, number)]
        of_group = [one for one in waiting if one.pull.group == group]
        for held in of_group:
            self._held.taken(held)
        self._serve_again(of_group)

    def on_topic_deleted(self, topic: TopicConfig) -> None:
        """Answer all pulls of a topic that is gone: one of its name could be made meanwhile."""
        queues = range(max(topic.read_queue_nums, topic.write_queue_nums))
        of_topic = [one for number in queues for one in self._held.of_queue(topic.name, number)]
        for held in of_topic:
            self._held.taken(held)
        self._serve_again(of_topic)

    def on_connection_closed(self, connection: Connection) -> None:
        """Forget the pulls of a connection that has ended."""
        self._held.dropped(connection)
        self._unread.pop(connection, None)

    def close(self) -> None:
        """Stop serving; what is held is not answered any more."""
        self._stop_timer()
        if self._next is not None:
            self._next.cancel()
        self._due.clear()
        self._due_of.clear()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        """See to it that `_expire` runs when the next pull is due."""
        self._stop_timer()
        due_ms = self._held.next_due_ms()
        if due_ms is not None:
            self._due_ms = due_ms
            self._timer = asyncio.get_running_loop().call_at(due_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._serve_again(self._held.expired(steady_ms()))
        self._set_timer()

    def _serve_again(self, woken: Iterable[Held[HeldPull]]) -> None:
        """Answer pulls that were held, in this turn and the next ones."""
        for held in woken:
            self._due.append(held)
            self._due_of[held.pull.connection] += 1
        if self._next is None:
            self._serve_due()

    def _serve_due(self) -> None:
        """Answer so many pulls as one turn may; those of one connection leave together."""
        self._next = None
        due, left_bytes = self._due, TURN_BYTES
        reads: SharedReads = {}
        while due:
            if left_bytes <= 0:
                self._next = asyncio.get_running_loop().call_soon(self._serve_due)
                return
            held = due.popleft()
            connection = held.pull.connection
            is_last = self._due_of[connection] == 1
            if is_last:
                del self._due_of[connection]
            else:
                self._due_of[connection] -= 1
            if connection.is_paused:
                self._unread.setdefault(connection, []).append(held)
                connection.on_resumed = self._on_resumed
            elif connection.is_open:
                answer = held.pull.serve_again(reads)
                if answer is None:
                    left_bytes -= _LATER_ANSWER_BYTES
                else:
                    left_bytes -= len(answer)
                    if is_last:
                        connection.send_now(answer)
                    else:  # they leave in one write
                        connection.send_frames(answer)

    def _on_resumed(self, connection: Connection) -> None:
        """Serve the pulls that were woken while the peer did not read, as far as it reads."""
        self._serve_again(self._unread.pop(connection, ()))

"""The queues that are assigned to a consumer, each with its buffer and its fetching task."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from kourou.client.background import failure_of
from kourou.client.config import MIB
from kourou.client.consuming.membership.queue_locks import QueueLocks
from kourou.client.consuming.membership.rebalance import QueueChanges
from kourou.client.consuming.offsets.start_offset import find_offset_in_bounds, find_start_offset
from kourou.client.consuming.pulling.queue_fetcher import Buffer, FetchContext, QueueFetcher
from kourou.client.health import QueueState
from kourou.model.queue import MessageQueue
from kourou.protocol.running_info import ProcessQueueInfo

log = logging.getLogger(__name__)


class BufferState(NamedTuple):
    """State of a buffer, for health checks and administrators.

    Attributes:
        held: number of messages held.
        size_bytes: total size of their bodies.
        lowest: the lowest queue offset held; None when empty.
        highest: the highest queue offset held; None when empty.
        done_offset: the queue offset below which all messages are done; None if not known yet.
        used_at_ms: when a message was last taken, in epoch milliseconds; 0: never.
    """

    held: int
    size_bytes: int
    lowest: int | None
    highest: int | None
    done_offset: int | None
    used_at_ms: int


class AssignedBuffer(Buffer, Protocol):
    """The buffer of an assigned queue."""

    def state(self) -> BufferState:
        """Return the state, for health checks and administrators."""

    def committable(self) -> int | None:
        """Return the queue offset to commit; None: nothing may be committed, or is new."""

    async def drain(self, timeout_s: float) -> bool:
        """Deliver no more messages, and wait until those delivered are done.

        Returns:
            Whether they were done within `timeout_s`.
        """

    def drop(self) -> None:
        """Drop all messages; nothing is committed any more."""


BufferT = TypeVar("BufferT", bound=AssignedBuffer)


@dataclass(slots=True, eq=False)
class Assigned(Generic[BufferT]):
    """An assigned queue."""

    buffer: BufferT
    fetcher: QueueFetcher
    task: asyncio.Task[None]
    is_ended: bool = False

    @property
    def problem(self) -> str | None:
        """Why the queue is not pulled, if for another reason than its broker's failure."""
        reason = failure_of(self.task)
        if reason is not None:
            return f"its pulls have stopped: {reason}; restart the consumer"
        return self.fetcher.problem


class AssignedQueues(ABC, Generic[BufferT]):
    """Starts and releases queues, and commits their offsets.

    A queue that is released is drained first: no more of its messages are delivered, and those that
    were delivered get a moment to be done. Then its buffer is dropped, so that nothing more of it
    is committed, and its offset is persisted. The next owner starts at that offset, with the
    messages that were not done.

    A locked queue stays locked until no listener call has its messages. Until then it is leaving:
    neither this member nor another starts it.

    Args:
        context: the objects and settings of the consumer.
        drain_s: seconds that delivered messages have to be done when their queue is released.
        leaving_max_s: seconds after which a leaving queue is released in any case.
        is_auto_commit: start offsets, and offsets of released queues, are committed.

    Attributes:
        request_pass: called when a queue was dropped and must be started by a rebalance pass.
        locks: set if queues must be locked before they are started.
    """

    def __init__(
        self,
        context: FetchContext,
        drain_s: float,
        *,
        leaving_max_s: float = 0.0,
        is_auto_commit: bool = True,
    ) -> None:
        self._context = context
        self._instance = context.instance
        self._group = context.group
        self._offsets = context.offsets
        self._drain_s = drain_s
        self._leaving_max_s = leaving_max_s
        self._is_auto_commit = is_auto_commit
        self._held: dict[MessageQueue, Assigned[BufferT]] = {}
        self._leaving: dict[MessageQueue, Assigned[BufferT]] = {}  # being released
        self._change_lock = asyncio.Lock()  # a queue must be released before it is restarted
        self.request_pass: Callable[[], None] | None = None
        self.locks: QueueLocks | None = None

    @property
    def queues(self) -> list[MessageQueue]:
        """All queues held, sorted."""
        return sorted(self._held)

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the queues held of one topic."""
        return [queue for queue in self._held if queue.topic == topic]

    def topics(self) -> set[str]:
        """Return the topics of the queues held."""
        return {queue.topic for queue in self._held}

    def uses(self, topic: str) -> bool:
        """Return whether queues of the topic are held, or not released yet."""
        return any(queue.topic == topic for queue in (*self._held, *self._leaving))

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the done offset of each of the topic's queues; may be ahead of the committed."""
        done = {q: self._held[q].buffer.state().done_offset for q in sorted(self.of_topic(topic))}
        return {queue: offset for queue, offset in done.items() if offset is not None}

    def states(self) -> dict[MessageQueue, QueueState]:
        """Return the state of each queue held."""
        states = {}
        for queue, held in self._held.items():
            state = held.buffer.state()
            states[queue] = QueueState(
                state.held,
                state.size_bytes,
                state.done_offset,
                held.buffer.max_offset,
                held.fetcher.is_failing,
                held.problem,
            )
        return states

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Return the state of each queue in the form reported to administrators."""
        return {queue: self._info(queue, held) for queue, held in sorted(self._held.items())}

    def _info(self, queue: MessageQueue, held: Assigned[BufferT]) -> ProcessQueueInfo:
        state, locks = held.buffer.state(), self.locks
        lock_age_s = None if locks is None else locks.age_s(queue)
        now_ms = self._instance.runtime.clock.now_ms()
        return ProcessQueueInfo(
            commit_offset=state.done_offset or 0,
            cached_msg_min_offset=state.lowest or 0,
            cached_msg_max_offset=state.highest or 0,
            cached_msg_count=state.held,
            cached_msg_size_in_mib=state.size_bytes // MIB,
            dropped=held.buffer.is_dropped,
            locked=locks is not None and locks.is_held(queue),
            last_lock_timestamp=0 if lock_age_s is None else now_ms - int(lock_age_s * 1000),
            last_pull_timestamp=held.fetcher.last_pull_at_ms,
            last_consume_timestamp=state.used_at_ms,
        )

    async def apply(self, changes: QueueChanges) -> bool:
        """Release queues and start others.

        Returns:
            Whether all could be started. A queue that is leaving, locked by another member or still
            delayed must be tried again.

        Raises:
            TransportError, RemoteError: a start offset could not be determined. That queue is not
                started; the others are.
        """
        async with self._change_lock:
            released, is_whole = await asyncio.gather(
                asyncio.gather(*map(self._release, changes.released)),
                self._start(changes.added, is_shared=changes.is_shared),
                return_exceptions=True,
            )
        for outcome in (released, is_whole):
            if isinstance(outcome, BaseException):
                raise outcome
        return is_whole is True

    @abstractmethod
    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the held ones of these queues at other offsets, lower or higher."""

    async def persist(self) -> None:
        """Commit the offsets of all queues held. Failures are logged."""
        await self._offsets.persist(self._note_committable(self._held.values()))

    @abstractmethod
    async def _start(self, queues: Sequence[MessageQueue], *, is_shared: bool) -> bool:
        """Start queues; return whether all could be started now.

        Raises:
            TransportError, RemoteError: as `apply`.
        """

    def _fetch(
        self,
        buffer: BufferT,
        run: Callable[[QueueFetcher], Awaitable[None]] = QueueFetcher.run,
    ) -> None:
        """Hold a queue, and start the task `run` with its fetcher."""
        fetcher = QueueFetcher(self._context, buffer)

        async def fetch() -> None:
            await run(fetcher)

        task = asyncio.create_task(fetch(), name=f"pull {buffer.queue}")
        self._held[buffer.queue] = Assigned(buffer, fetcher, task)

    async def _find_start(
        self, queue: MessageQueue, *, is_in_bounds: bool = False
    ) -> tuple[int, bool]:
        """Return the start offset of a queue, and whether it is the group's committed offset.

        If it is not, it is committed immediately: after a crash before the first message, the group
        must not start behind messages that arrived meanwhile.

        Args:
            queue: the queue.
            is_in_bounds: the queue ended before this member's offset.

        Raises:
            TransportError, RemoteError: the offset could not be determined.
        """
        find = find_offset_in_bounds if is_in_bounds else find_start_offset
        offset, is_committed = await find(
            self._instance, self._offsets, queue, self._context.config
        )
        if not is_committed and self._is_auto_commit:
            self._offsets.update(queue, offset)
            await self._offsets.persist((queue,))
        return offset, is_committed

    def _note_committable(self, some: Iterable[Assigned[BufferT]]) -> list[MessageQueue]:
        """Record the offsets to commit; return their queues, whose brokers answer pulls."""
        chosen = []
        for held in some:
            offset = None if held.fetcher.is_failing else held.buffer.committable()
            if offset is not None:
                self._offsets.overwrite(held.buffer.queue, offset)
                chosen.append(held.buffer.queue)
        return chosen

    async def _stop(self, some: Collection[Assigned[BufferT]]) -> None:
        """Stop the tasks of these queues; messages in their buffers stay there."""
        for held in some:
            held.task.cancel()
        await asyncio.gather(*(held.task for held in some), return_exceptions=True)

    async def _release(
        self, queue: MessageQueue, *, timeout_s: float | None = None, is_last: bool = False
    ) -> None:
        """Release a queue; with `is_last`, even if listener calls still run."""
        held = self._held.pop(queue, None)
        if held is None:
            return
        self._leaving[queue] = held
        await self._stop([held])
        is_idle = await held.buffer.drain(self._drain_s if timeout_s is None else timeout_s)
        if is_idle or is_last or self.locks is None:
            await self._finish_release(queue, held, is_idle=is_idle)
            return
        # Another member would be a second owner: the lock is kept until the listener call ends.
        log.info("queue.leaving group=%s queue=%s", self._group, queue)
        self._instance.tasks.start(
            lambda: self._finish_leaving(queue, held, self._leaving_max_s), f"leave {queue}"
        )

    async def _finish_leaving(
        self, queue: MessageQueue, held: Assigned[BufferT], timeout_s: float
    ) -> None:
        """Finish a leaving queue when its listener call has ended, or after `timeout_s`."""
        is_idle = await held.buffer.drain(timeout_s)
        if not is_idle:
            log.warning("listener.abandoned queue=%s", queue)
        await self._finish_release(queue, held, is_idle=is_idle)
        if self.request_pass is not None:
            self.request_pass()

    async def _finish_release(
        self, queue: MessageQueue, held: Assigned[BufferT], *, is_idle: bool
    ) -> None:
        """Drop the queue, commit its offset, and unlock it."""
        if held.is_ended:
            return  # a concurrent call does the rest
        held.is_ended = True
        chosen = self._note_committable([held]) if self._is_auto_commit else []
        held.buffer.drop()
        await self._offsets.persist(chosen)
        if self.locks is not None and is_idle:
            await self.locks.unlock((queue,))
        elif self.locks is not None:
            self.locks.drop(queue)
        log.info(
            "queue.released group=%s queue=%s offset=%s",
            self._group,
            queue,
            self._offsets.get(queue),
        )
        self._offsets.forget(queue)
        del self._leaving[queue]

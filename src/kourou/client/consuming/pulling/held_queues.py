"""The queues that a member holds, each with its process queue and its pulling task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from kourou.client.background import failure_of
from kourou.client.config import MIB
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.membership.handover_delays import HandoverDelays
from kourou.client.consuming.membership.queue_locks import QueueLocks
from kourou.client.consuming.membership.rebalance import QueueChanges
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.consuming.offsets.start_offset import find_offset_in_bounds, find_start_offset
from kourou.client.consuming.pulling.delivery import Consumption
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.client.consuming.pulling.pull_flow import PullFlow
from kourou.client.consuming.pulling.pulled_messages import OnPulled, StoreDeadLetter
from kourou.client.consuming.pulling.queue_puller import QueuePuller
from kourou.client.consuming.watching.queue_state import QueueState
from kourou.client.instance import ClientInstance
from kourou.client.pull_result import PullResult
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.protocol.running_info import ProcessQueueInfo

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Held:
    process_queue: ProcessQueue
    puller: QueuePuller
    pulling: asyncio.Task[None]
    start: int
    is_ended: bool = False


class HeldQueues:
    """Starts and releases queues.

    A queue that is released is drained first: no more of its messages are delivered, and running
    listener calls get a moment to end. Then its process queue is dropped, so that nothing more of
    it is committed, and its offset is persisted. The next owner starts at that offset, with the
    messages that were not done. Without locks, if the group has other members, an assigned queue is
    started only after the handover delay, `handover_ms`, so that its previous owner can do this.

    A locked queue stays locked until no listener call has its messages. Until then it is leaving:
    neither this member nor another starts it.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        config: start position, limits and delays.
        subscriptions: by topic.
        consumption: receives pulled messages; may be replaced before the first queue starts.
        offsets: offset store of the held queues.
        on_pulled: counts pulls that found messages.
        store_dead_letter: stores unreadable messages as dead letters.

    Attributes:
        request_pass: called when a queue was dropped and must be started by a rebalance pass.
        consumption: as given, or its replacement.
        flow: flow control of the pulls.
        locks: set if queues must be locked before they are started.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PushConsumerConfig,
        *,
        subscriptions: Mapping[str, SubscriptionData],
        consumption: Consumption,
        offsets: Offsets,
        on_pulled: OnPulled,
        store_dead_letter: StoreDeadLetter,
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self.flow = PullFlow(config)
        self._subscriptions = subscriptions
        self.consumption = consumption
        self.locks: QueueLocks | None = None
        self._offsets = offsets
        self._on_pulled = on_pulled
        self._store_dead_letter = store_dead_letter
        self._held: dict[MessageQueue, _Held] = {}
        self._leaving: dict[MessageQueue, _Held] = {}  # being released
        self._handover_delays = HandoverDelays(config.handover_ms / 1000)
        self._truncated: set[MessageQueue] = set()  # queues that ended before this member's offset
        self._change_lock = asyncio.Lock()  # a queue must be released before it is restarted
        self.request_pass: Callable[[], None] | None = None

    @property
    def queues(self) -> list[MessageQueue]:
        """All queues held, sorted."""
        return sorted(self._held)

    @property
    def process_queues(self) -> Collection[ProcessQueue]:
        """The process queue of each queue held."""
        return [held.process_queue for held in self._held.values()]

    def states(self) -> dict[MessageQueue, QueueState]:
        """Return the state of each queue held."""
        return {
            queue: QueueState(
                len(held.process_queue),
                held.process_queue.size_bytes,
                self._done_offset(queue, held),
                held.puller.max_offset,
                held.puller.is_failing,
                held.puller.problem or _why_not_pulled(held.pulling),
            )
            for queue, held in self._held.items()
        }

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Return the state of each queue in the form reported to administrators."""
        return {
            queue: ProcessQueueInfo(
                commit_offset=self._done_offset(queue, held),
                cached_msg_min_offset=held.process_queue.lowest or 0,
                cached_msg_max_offset=held.process_queue.highest or 0,
                cached_msg_count=len(held.process_queue),
                cached_msg_size_in_mib=held.process_queue.size_bytes // MIB,
                dropped=held.process_queue.is_dropped,
                locked=self.locks is not None and self.locks.is_held(queue),
                last_lock_timestamp=self._locked_at_ms(queue),
                last_pull_timestamp=held.puller.last_pull_at_ms,
                last_consume_timestamp=held.process_queue.last_consumed_at_ms,
            )
            for queue, held in sorted(self._held.items())
        }

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the done offset of each of the topic's queues; may be ahead of the committed."""
        return {q: self._done_offset(q, self._held[q]) for q in sorted(self.of_topic(topic))}

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the queues held of one topic."""
        return [queue for queue in self._held if queue.topic == topic]

    def topics(self) -> set[str]:
        """Return the topics of the queues held."""
        return {queue.topic for queue in self._held}

    def note_assigned(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Cancel the handover delay of the topic's other queues: they are assigned elsewhere."""
        self._handover_delays.note_assigned(topic, queues)

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
            _, (is_whole, *outcomes) = await asyncio.gather(
                asyncio.gather(*map(self._release, changes.released)),
                self._start(changes.added, is_shared=changes.is_shared),
            )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return is_whole is True

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the held ones of these queues at other offsets, lower or higher.

        Their process queues are dropped first, so that deliveries in progress no longer move the
        offset. A message that a listener is processing may be delivered again at the same time.
        """
        async with self._change_lock:
            queues = [queue for queue in offsets if queue in self._held]
            for queue in queues:
                self._held[queue].process_queue.drop()
                self._offsets.overwrite(queue, offsets[queue])
                log.info("offset.reset group=%s queue=%s to=%d", self._group, queue, offsets[queue])
            await asyncio.gather(*map(self._release, queues))
        if queues and self.request_pass is not None:
            self.request_pass()

    async def persist(self) -> None:
        """Commit the offsets of all held queues whose broker answers and whose lock is valid."""
        await self._offsets.persist(
            [queue for queue, held in self._held.items() if self._may_commit(queue, held)]
        )

    async def stop_pulling(self) -> None:
        """Stop all pulls; held messages stay held and can be acknowledged."""
        pulls = [held.pulling for held in self._held.values()]
        for pulling in pulls:
            pulling.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)

    async def release_all(self) -> None:
        """Release all queues, leaving ones too, without waiting for listeners."""
        releases = [self._release(queue, timeout_s=0, is_last=True) for queue in self.queues]
        leaving = [self._finish_leaving(queue, held, 0) for queue, held in self._leaving.items()]
        await asyncio.gather(*releases, *leaving)
        if self.locks is not None:
            await self.locks.close()

    def drop_all(self) -> None:
        """Drop all queues without committing or unlocking."""
        for held in [*self._held.values(), *self._leaving.values()]:
            held.process_queue.drop()
            held.pulling.cancel()
        self._held.clear()
        self._leaving.clear()

    def drop_lost(self, queue: MessageQueue) -> None:
        """Drop a queue that another member may have consumed meanwhile, without committing.

        Results of running listener calls are ignored.
        """
        held = self._held.get(queue)
        if held is None:
            return
        held.process_queue.drop()
        self._offsets.forget(queue)  # the other member's offset is newer
        self._start_over(queue, held)

    def _done_offset(self, queue: MessageQueue, held: _Held) -> int:
        """Return the queue offset below which all messages are done."""
        offset = self._offsets.get(queue)
        return held.start if offset is None else offset

    def _may_commit(self, queue: MessageQueue, held: _Held) -> bool:
        """Return whether the offset in memory may replace the broker's."""
        return not held.puller.is_failing and self._is_exclusive(queue)

    def _is_exclusive(self, queue: MessageQueue) -> bool:
        """Return whether no other member can have consumed the queue since it was started."""
        return self.locks is None or self.locks.is_held(queue)

    def _locked_at_ms(self, queue: MessageQueue) -> int:
        age_s = None if self.locks is None else self.locks.age_s(queue)
        if age_s is None:
            return 0
        return self._instance.runtime.clock.now_ms() - int(age_s * 1000)

    async def _start(
        self, queues: Sequence[MessageQueue], *, is_shared: bool
    ) -> list[bool | BaseException | None]:
        """Start queues; return whether all were attempted, and the outcome of each attempt."""
        free = [queue for queue in queues if queue not in self._leaving]
        if self.locks is not None and free:
            granted = await self.locks.lock(free)
            free = [queue for queue in free if queue in granted]
        elif is_shared:
            free = [queue for queue in free if self._is_handover_over(queue)]
        try:
            outcomes = await asyncio.gather(*map(self._add, free), return_exceptions=True)
        finally:
            if self.locks is not None:
                await self.locks.unlock([queue for queue in free if queue not in self._held])
        return [len(free) == len(queues), *outcomes]

    def _is_handover_over(self, queue: MessageQueue) -> bool:
        """Return whether the queue's handover delay is over; if not, request a pass at its end.

        The current pass does not wait for it, because it must release other queues.
        """
        loop = asyncio.get_running_loop()
        remaining_s = self._handover_delays.remaining_s(queue, loop.time())
        if remaining_s and self.request_pass is not None:
            loop.call_later(remaining_s, self.request_pass)
        return not remaining_s

    async def _add(self, queue: MessageQueue) -> None:
        self._offsets.forget(queue)  # another member may have committed since
        find = find_offset_in_bounds if queue in self._truncated else find_start_offset
        offset, is_committed = await find(self._instance, self._offsets, queue, self._config)
        self._truncated.discard(queue)
        if not is_committed:
            # Committed immediately: after a crash before the first message, the group must not
            # start behind messages that arrived meanwhile.
            self._offsets.update(queue, offset)
            await self._offsets.persist((queue,))
        if queue.topic not in self._subscriptions:
            return  # the topic was unsubscribed meanwhile
        process_queue = ProcessQueue(queue)
        puller = QueuePuller(
            self._instance,
            self._group,
            self.flow,
            subscriptions=self._subscriptions,
            process_queue=process_queue,
            offset=offset,
            consumption=self.consumption,
            offsets=self._offsets,
            is_exclusive=self._is_exclusive,
            on_offset_illegal=self._restart,
            on_pulled=self._on_pulled,
            store_dead_letter=self._store_dead_letter,
        )
        pulling = asyncio.create_task(puller.run(), name=f"pull {queue}")
        self._held[queue] = _Held(process_queue, puller, pulling, offset)
        log.info("queue.acquired group=%s queue=%s offset=%d", self._group, queue, offset)

    async def _release(
        self, queue: MessageQueue, *, timeout_s: float | None = None, is_last: bool = False
    ) -> None:
        """Release a queue; with `is_last`, even if listener calls still run."""
        held = self._held.pop(queue, None)
        if held is None:
            return
        self._leaving[queue] = held
        held.pulling.cancel()
        await asyncio.gather(held.pulling, return_exceptions=True)
        if timeout_s is None:
            timeout_s = self._config.handover_ms / 4000
        is_idle = await self.consumption.drain(held.process_queue, timeout_s)
        if is_idle or is_last or self.locks is None:
            await self._finish_release(queue, held, is_idle=is_idle)
            return
        # Another member would be a second owner: the lock is kept until the listener call ends.
        log.info("queue.leaving group=%s queue=%s", self._group, queue)
        timeout_s = self._config.consume_timeout_ms / 1000
        self._instance.tasks.start(
            lambda: self._finish_leaving(queue, held, timeout_s), f"leave {queue}"
        )

    async def _finish_leaving(self, queue: MessageQueue, held: _Held, timeout_s: float) -> None:
        """Finish a leaving queue when its listener call has ended, or after `timeout_s`."""
        is_idle = await self.consumption.drain(held.process_queue, timeout_s)
        if not is_idle:
            log.warning("listener.abandoned queue=%s", queue)
        await self._finish_release(queue, held, is_idle=is_idle)
        if self.request_pass is not None:
            self.request_pass()

    async def _finish_release(self, queue: MessageQueue, held: _Held, *, is_idle: bool) -> None:
        """Drop the queue, commit its offset, and unlock it."""
        held.process_queue.drop()
        if held.is_ended:
            return  # a concurrent call does the rest
        held.is_ended = True
        if self._may_commit(queue, held):
            await self._offsets.persist((queue,))
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

    def _restart(
        self, process_queue: ProcessQueue, answer: PullResult, requested_offset: int
    ) -> None:
        """Restart a queue whose broker does not have the offset `requested_offset`.

        Deliveries in progress must not move the offset any more: they belong to the old bounds. If
        the queue ends before our offset, `find_offset_in_bounds` determines the next offset.
        """
        queue = process_queue.queue
        process_queue.drop()
        if requested_offset > answer.max_offset:
            self._offsets.forget(queue)
            self._truncated.add(queue)
        else:
            self._offsets.overwrite(queue, answer.next_offset)
        held = self._held.get(queue)
        if held is not None and held.process_queue is process_queue:
            self._start_over(queue, held)

    def _start_over(self, queue: MessageQueue, held: _Held) -> None:
        """Release a dropped queue, and request a rebalance pass to start it again."""

        async def restart() -> None:
            async with self._change_lock:
                if self._held.get(queue) is held:
                    await self._release(queue)
            if self.request_pass is not None:
                self.request_pass()

        self._instance.tasks.start(restart, f"restart {queue}")


def _why_not_pulled(pulling: asyncio.Task[None]) -> str | None:
    reason = failure_of(pulling)
    return None if reason is None else f"its pulls have stopped: {reason}; restart the consumer"

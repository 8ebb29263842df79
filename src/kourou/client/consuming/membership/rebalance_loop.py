"""The rebalance loop of a consumer.

For each topic, a pass compares the assigned queues with the held queues, then releases and starts
the difference. A pass runs at start, every `rebalance_interval_ms`, and when members or queues may
have changed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from kourou.client import calls_consume
from kourou.client.background import failure_of
from kourou.client.calls_pop import ALL_QUEUES
from kourou.client.consuming.consumer_config import ConsumerConfig
from kourou.client.consuming.membership.mode_changes import (
    NONE,
    ModeChanges,
    left_over,
    mode_changes,
    next_step,
)
from kourou.client.consuming.membership.pop_retry_topics import PopRetryTopics
from kourou.client.consuming.membership.rebalance import (
    QueueChanges,
    java_order,
    plan_changes,
    queue_changes,
)
from kourou.client.consuming.membership.server_assignment import ServerAssignment
from kourou.client.consuming.strategies import find_strategy
from kourou.client.instance import ClientInstance
from kourou.client.user_functions import PROGRAM_ENDS
from kourou.errors import ClosedError, KourouError, NoRouteError, RemoteSystemError, UsageError
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID, TopicRoute, subscribe_queues
from kourou.model.topic import is_retry_topic

log = logging.getLogger(__name__)

QueuesChanged = Callable[[str, list[MessageQueue], list[MessageQueue]], None]
"""Called with a topic, all its queues and the queues that this member now holds, both sorted."""


class QueueHolder(Protocol):
    """Holds a member's queues, and starts and releases them for a pass.

    Attributes:
        request_pass: set by the loop; called when a queue was dropped and must be started again.
    """

    request_pass: Callable[[], None] | None

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the queues held of one topic."""

    def topics(self) -> set[str]:
        """Return the topics of the queues held."""

    def uses(self, topic: str) -> bool:
        """Return whether queues of the topic are held, or not released yet."""

    def note_assigned(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Record the assigned queues of the topic that are not held; called in each pass."""

    async def apply(self, changes: QueueChanges) -> bool:
        """Release queues and start others.

        Returns:
            Whether all could be started now; if False, another pass should run soon.

        Raises:
            TransportError, RemoteError: a queue could not be started; the others are.
        """


class RebalanceLoop:
    """Runs the passes, one at a time.

    Args:
        instance: the client's connections, routes and id.
        group: the consumer group.
        config: intervals and strategy.
        subscriptions: the topics, retry topic included; may change between passes. The queues of a
            removed topic are released.
        held: holds this member's queues.
        is_broadcasting: all queues are assigned to this member, regardless of other members.
        assignment: queries the assignment from brokers; None: it is computed here.

    Attributes:
        assignment: as given.
        popped: holds the queues that are popped; None: none can be.
        is_popping: all topics except retry topics are popped, whatever brokers say.
        retry_topics: is told the mode of each topic.
        on_queues_changed: called after this member's queues of a topic have changed.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: ConsumerConfig,
        *,
        subscriptions: Mapping[str, object],
        held: QueueHolder,
        is_broadcasting: bool = False,
        assignment: ServerAssignment | None = None,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._config = config
        self._allocate = find_strategy(config.allocation)
        self._queues: dict[str, tuple[TopicRoute, tuple[MessageQueue, ...]]] = {}  # by topic
        self._held = held
        held.request_pass = self.wake
        self._is_broadcasting = is_broadcasting
        self.assignment = assignment
        self.popped: QueueHolder | None = None
        self.is_popping = False
        self.retry_topics: PopRetryTopics | None = None
        self.on_queues_changed: QueuesChanged | None = None
        self._woken = asyncio.Event()
        self._first_pass_done = asyncio.Event()
        self._failures: dict[str, KourouError] = {}  # by topic: the last pass's error
        self._running: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_waiting = False  # for queues that other members have not released yet

    def wake(self) -> None:
        """Request a pass now; several calls before it begins cause one pass."""
        self._woken.set()

    def problems(self) -> list[str]:
        """Return the reasons why rebalancing fails that the user must fix."""
        ended = failure_of(self._running)
        problems = [] if ended is None else [f"rebalancing has stopped: {ended}"]
        problems += [
            f"{topic}: {error}"
            for topic, error in sorted(self._failures.items())
            if isinstance(error, UsageError) and not isinstance(error, ClosedError)
        ]
        return problems

    async def wait_first_pass(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until the first pass has ended, successfully or not."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._first_pass_done.wait()
        except TimeoutError:
            log.warning("rebalance.slow group=%s waited_s=%g", self._group, timeout_s)

    def start(self) -> None:
        """Start the loop with the first pass."""
        self._running = self._instance.tasks.start(self._run, f"rebalance {self._group}")

    async def stop(self) -> None:
        """Start no more passes, and let the one in progress finish.

        Waits at most for one request's timeout; then the pass is cancelled.
        """
        self._is_stopped = True
        self.wake()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=self._instance.request_timeout_s)
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        config = self._config
        retry_ms = config.rebalance_retry_min_ms
        while not self._is_stopped:
            self._woken.clear()
            self._is_waiting = False
            is_settled = await self._pass()
            if not self._is_waiting:
                self._first_pass_done.set()
            # After a change, other members may move too; a failure may be temporary: retry soon.
            delay_ms = config.rebalance_interval_ms if is_settled else retry_ms
            retry_ms = config.rebalance_retry_min_ms if is_settled else retry_ms * 2
            retry_ms = min(retry_ms, config.rebalance_interval_ms)
            if self._is_waiting:
                delay_ms = retry_ms = config.rebalance_retry_min_ms
            await self._wait(delay_ms)

    async def _wait(self, delay_ms: int) -> None:
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _pass(self) -> bool:
        """Rebalance all topics; return whether nothing changed or failed."""
        is_settled = True
        if self.retry_topics is not None:
            self.retry_topics.remove_unsubscribed()
        held = self._held.topics() | (set() if self.popped is None else self.popped.topics())
        for topic in sorted(held | self._subscriptions.keys()):
            try:
                if topic in self._subscriptions:
                    is_settled &= await self._rebalance(topic)
                else:
                    self._queues.pop(topic, None)
                    nothing = queue_changes(self._held.of_topic(topic), ())
                    await self._change(topic, [], self._in_modes(topic, nothing))
                self._failures.pop(topic, None)
            except KourouError as error:
                is_settled = False
                if not self._is_stopped:
                    self._log_failure(topic, error)
            except Exception:
                # An error in one pass must not end the loop: nothing would be consumed any more.
                is_settled = False
                log.exception("rebalance.broken group=%s topic=%s", self._group, topic)
        return is_settled

    def _log_failure(self, topic: str, error: KourouError) -> None:
        """Log a topic's failure, at DEBUG if the last pass failed in the same way.

        A missing route is logged at INFO: the topic may not exist yet.
        """
        is_repeated = type(self._failures.get(topic)) is type(error)
        self._failures[topic] = error
        usual = logging.INFO if isinstance(error, NoRouteError) else logging.WARNING
        level = logging.DEBUG if is_repeated else usual
        log.log(level, "rebalance.failed group=%s topic=%s reason=%s", self._group, topic, error)

    async def _rebalance(self, topic: str) -> bool:
        """Rebalance one topic; return whether the assignment was known and needed no change."""
        timeout_s = self._instance.request_timeout_s
        route = await self._instance.routes.get(topic, timeout_s)
        queues = self._queues_of(topic, route)
        changes = await self._plan(topic, route, queues) if queues else None
        self._held.note_assigned(topic, () if changes is None else changes.pulled.added)
        if changes is None:
            return False
        if changes.is_empty:
            return True
        log.info(
            "rebalance.changed group=%s topic=%s queues=%d released=%d added=%d",
            self._group,
            topic,
            len(queues),
            len(changes.pulled.released) + len(changes.popped.released),
            len(changes.pulled.added) + len(changes.popped.added),
        )
        await self._change(topic, queues, changes)
        return False

    async def _plan(
        self, topic: str, route: TopicRoute, queues: Sequence[MessageQueue]
    ) -> ModeChanges | None:
        """Return the changes; None if no broker could tell the members or the assignment."""
        held = self._held.of_topic(topic)
        if self._is_broadcasting:
            return ModeChanges(queue_changes(held, queues, is_shared=False))
        if self.is_popping and not is_retry_topic(topic):
            brokers = {queue.broker_name for queue in queues}
            return self._in_modes(
                topic, NONE, [MessageQueue(topic, b, ALL_QUEUES) for b in brokers]
            )
        if self.assignment is not None:
            return await self._plan_by_broker(topic, self._some_broker(topic, route))
        ids = await self._consumer_ids(topic, route)
        if not ids:
            return None
        own_id = self._instance.client_id
        changes = plan_changes(held, queues, java_order(ids), own_id, self._allocate)
        # A restarted broker may not have received other members' heartbeats yet. So a member that
        # sees itself alone trusts that only in its first pass.
        is_shared = changes.is_shared or self._first_pass_done.is_set()
        return self._in_modes(topic, dataclasses.replace(changes, is_shared=is_shared))

    async def _plan_by_broker(self, topic: str, address: str) -> ModeChanges | None:
        """Return the changes by a broker's assignment; None if the broker has no assignment.

        A broker that revokes all queues may not know this member yet: it is sent a heartbeat and
        queried again.
        """
        assert self.assignment is not None, "the assignment comes from brokers"
        held = self._own(topic)
        assigned = await self.assignment.assigned_queues(topic, address)
        is_revoked = bool(held) and assigned is not None and not assigned.queues
        if is_revoked and await self._instance.heartbeat(address):
            assigned = await self.assignment.assigned_queues(topic, address)
        if assigned is None:
            return None
        if assigned.is_popped:
            return self._in_modes(topic, NONE, assigned.queues)
        return self._in_modes(topic, queue_changes(self._held.of_topic(topic), assigned.queues))

    def _in_modes(
        self, topic: str, changes: QueueChanges, wanted_popped: Collection[MessageQueue] = ()
    ) -> ModeChanges:
        """Return the changes of pulled and popped queues; the topic is popped if any are wanted."""
        if self.popped is None:
            return ModeChanges(changes)
        if self.retry_topics is not None:
            self.retry_topics.set_mode(topic, is_popped=bool(wanted_popped))
        pulled, popped = self._held.of_topic(topic), self.popped.of_topic(topic)
        return mode_changes(pulled, popped, changes, wanted_popped)

    def _own(self, topic: str) -> list[MessageQueue]:
        """Return the pulled and popped queues of a topic."""
        return self._held.of_topic(topic) + (
            [] if self.popped is None else self.popped.of_topic(topic)
        )

    def _queues_of(self, topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
        """Return the topic's queues; the list is cached for as long as the route is the same."""
        cached = self._queues.get(topic)
        if cached is None or cached[0] is not route:
            cached = self._queues[topic] = (route, tuple(subscribe_queues(topic, route)))
        return cached[1]

    async def _change(
        self, topic: str, queues: Collection[MessageQueue], changes: ModeChanges
    ) -> None:
        """Release and start queues, then call `on_queues_changed`, even if some did not start."""
        before = set(self._own(topic))
        try:
            left = await self._apply(topic, changes)
            if not left.is_empty:  # the other mode was in use, and may not be any more
                left = await self._apply(topic, left)
            if not left.is_empty:
                self._is_waiting = True
        finally:
            held = sorted(self._own(topic))
            if self.on_queues_changed is not None and before.symmetric_difference(held):
                try:
                    self.on_queues_changed(topic, sorted(queues), held)
                except PROGRAM_ENDS:
                    raise
                except BaseException:
                    # The user's callback must not end the rebalance loop.
                    log.exception("listener.broken event=queues_changed topic=%s", topic)

    async def _apply(self, topic: str, changes: ModeChanges) -> ModeChanges:
        """Make the changes that may be made now; return those that are left."""
        held, popped = self._held, self.popped
        uses_pops = popped is not None and popped.uses(topic)
        step = next_step(changes, uses_pulls=held.uses(topic), uses_pops=uses_pops)
        if not step.pulled.is_empty and not await held.apply(step.pulled):
            self._is_waiting = True
        if popped is not None and not step.popped.is_empty:
            await popped.apply(step.popped)
        return left_over(changes, step)

    async def _consumer_ids(self, topic: str, route: TopicRoute) -> list[str]:
        """Return the members' ids from one broker of the topic; empty if it knows no member.

        A broker that does not list this member is sent a heartbeat and queried again. Otherwise,
        after a broker's restart, the last member to send a heartbeat would briefly release its
        queues.
        """
        address = self._some_broker(topic, route)
        ids = await self._query_members(topic, address)
        if self._instance.client_id not in ids and await self._instance.heartbeat(address):
            ids = await self._query_members(topic, address)
        return ids

    def _some_broker(self, topic: str, route: TopicRoute) -> str:
        addresses = _addresses(route)
        if not addresses:
            raise NoRouteError(f"no broker of topic {topic} has an address")
        return self._instance.runtime.random.choice(addresses)

    async def _query_members(self, topic: str, address: str) -> list[str]:
        try:
            return await calls_consume.consumer_ids(
                self._instance.pool,
                address,
                self._group,
                timeout_s=self._instance.request_timeout_s,
            )
        except RemoteSystemError:
            return []  # brokers answer so for a group without members
        except KourouError as error:
            self._instance.routes.on_failure(topic, error)
            raise


def _addresses(route: TopicRoute) -> list[str]:
    """Return one address of each broker, its master's if it has one."""
    return [
        broker.broker_addrs.get(MASTER_ID) or broker.broker_addrs[min(broker.broker_addrs)]
        for broker in route.broker_datas
        if broker.broker_addrs
    ]

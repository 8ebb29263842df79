"""The loop that keeps a member's share of the queues right.

A pass compares, for each topic, the share that `rebalance` computes with the queues held, and has
the difference released and added. It runs at start, every `rebalance_interval_ms`, and whenever
something says that members or queues may have changed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from kourou.client import calls_consume
from kourou.client.background import why_ended
from kourou.client.consuming.consumer_config import ConsumerConfig
from kourou.client.consuming.membership.rebalance import (
    QueueChanges,
    java_order,
    plan_changes,
    plan_share,
)
from kourou.client.consuming.membership.server_assignment import ServerAssignment
from kourou.client.consuming.strategies import find_strategy
from kourou.client.instance import ClientInstance
from kourou.client.user_functions import PROGRAM_ENDS
from kourou.errors import ClosedError, KourouError, NoRouteError, RemoteSystemError, UsageError
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID, TopicRoute, subscribe_queues

log = logging.getLogger(__name__)

QueuesChanged = Callable[[str, list[MessageQueue], list[MessageQueue]], None]
"""Called with a topic, all its queues and those that this member has now, both sorted."""


class QueueHolder(Protocol):
    """Who has the queues that a pass gives and takes.

    Attributes:
        on_lost: set by the loop; called when a queue was given up that a pass must start anew.
    """

    on_lost: Callable[[], None] | None

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the queues held of one topic."""

    def topics(self) -> set[str]:
        """Return the topics of the queues held."""

    def note_wanted(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Note which queues of the topic this pass gives that are not held; told each pass."""

    async def apply(self, changes: QueueChanges) -> bool:
        """Release queues and start others.

        Returns:
            Whether all could be started now; else the others are to be tried again soon.

        Raises:
            TransportError, RemoteError: a queue could not be started; the others are.
        """


class RebalanceLoop:
    """Runs the passes, one at a time.

    Args:
        instance: the client's connections, routes and id.
        group: the consumer group.
        config: intervals and strategy.
        subscriptions: the topics, that of retries included; may change between passes, and the
            queues of a topic that left are released.
        held: the queues that this member has.
        is_alone: every queue is this member's, whoever else there is.
        assignment: tells this member's share; None: it is computed here.

    Attributes:
        on_queues_changed: called after a topic's queues of this member have changed.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: ConsumerConfig,
        *,
        subscriptions: Mapping[str, object],
        held: QueueHolder,
        is_alone: bool = False,
        assignment: ServerAssignment | None = None,
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._config = config
        self._allocate = find_strategy(config.allocation)
        self._queues: dict[str, tuple[TopicRoute, tuple[MessageQueue, ...]]] = {}  # of routes held
        self._held = held
        held.on_lost = self.wake
        self._is_alone = is_alone
        self._assignment = assignment
        self.on_queues_changed: QueuesChanged | None = None
        self._woken = asyncio.Event()
        self._first_pass_done = asyncio.Event()
        self._failures: dict[str, KourouError] = {}  # by topic: how the last pass failed
        self._running: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_waiting = False  # for queues that others have not let go of yet

    def wake(self) -> None:
        """Ask for a pass now; several calls before it begins are one."""
        self._woken.set()

    def problems(self) -> list[str]:
        """Return why queues are not shared out, where that is for the user to change."""
        ended = why_ended(self._running)
        problems = [] if ended is None else [f"queues are not shared out any more, by {ended}"]
        problems += [
            f"{topic}: {error}"
            for topic, error in sorted(self._failures.items())
            if isinstance(error, UsageError) and not isinstance(error, ClosedError)
        ]
        return problems

    async def wait_first_pass(self, timeout_s: float) -> None:
        """Wait until the first pass has ended, well or badly, but not longer than that."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._first_pass_done.wait()
        except TimeoutError:
            log.warning("rebalance.slow group=%s waited_s=%g", self._group, timeout_s)

    def start(self) -> None:
        """Begin with the first pass."""
        self._running = self._instance.tasks.start(self._run, f"rebalance {self._group}")

    async def stop(self) -> None:
        """Begin no more passes, and wait for the one under way, so that it ends what it does.

        Waits no longer than one request may take; then the pass is cancelled.
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
            # A change may still move others; a failure may pass; both deserve an early look.
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
        """Rebalance all topics; return whether none changed and none failed."""
        is_settled = True
        for topic in sorted(self._held.topics() | self._subscriptions.keys()):
            try:
                if topic in self._subscriptions:
                    is_settled &= await self._rebalance(topic)
                else:
                    self._queues.pop(topic, None)
                    released = tuple(self._held.of_topic(topic))
                    await self._change(topic, [], QueueChanges(released, ()))
                self._failures.pop(topic, None)
            except KourouError as error:
                is_settled = False
                if not self._is_stopped:
                    self._log_failure(topic, error)
            except Exception:
                # The loop must outlive its worst pass: without it nothing would be consumed.
                is_settled = False
                log.exception("rebalance.broken group=%s topic=%s", self._group, topic)
        return is_settled

    def _log_failure(self, topic: str, error: KourouError) -> None:
        """Say once that a topic fails in this way; a topic may simply not exist yet."""
        is_told = type(self._failures.get(topic)) is type(error)
        self._failures[topic] = error
        usual = logging.INFO if isinstance(error, NoRouteError) else logging.WARNING
        level = logging.DEBUG if is_told else usual
        log.log(level, "rebalance.failed group=%s topic=%s reason=%s", self._group, topic, error)

    async def _rebalance(self, topic: str) -> bool:
        """Make this member's share of one topic right; return whether it was."""
        timeout_s = self._instance.request_timeout_s
        route = await self._instance.routes.get(topic, timeout_s)
        queues = self._queues_of(topic, route)
        changes = await self._plan(topic, route, queues) if queues else None
        self._held.note_wanted(topic, () if changes is None else changes.added)
        if changes is None:
            return False
        if changes.is_empty:
            return True
        log.info(
            "rebalance.changed group=%s topic=%s queues=%d released=%d added=%d",
            self._group,
            topic,
            len(queues),
            len(changes.released),
            len(changes.added),
        )
        await self._change(topic, queues, changes)
        return False

    async def _plan(
        self, topic: str, route: TopicRoute, queues: Sequence[MessageQueue]
    ) -> QueueChanges | None:
        """Return what is to be changed; None where nobody knows who has what."""
        if self._is_alone:
            return plan_share(self._held.of_topic(topic), queues, is_shared=False)
        if self._assignment is not None:
            return await self._plan_as_told(topic, self._some_broker(topic, route))
        ids = await self._consumer_ids(topic, route)
        if not ids:
            return None
        own_id, held = self._instance.client_id, self._held.of_topic(topic)
        changes = plan_changes(held, queues, java_order(ids), own_id, self._allocate)
        # A broker that restarted may have heard of nobody else yet: only who has just come and is
        # alone can be sure that nobody lets go of these queues still.
        is_shared = changes.is_shared or self._first_pass_done.is_set()
        return dataclasses.replace(changes, is_shared=is_shared)

    async def _plan_as_told(self, topic: str, address: str) -> QueueChanges | None:
        """Return what a broker's word changes; None where it has nothing to go by.

        A broker that takes all away may not know this member: it is told of it, and asked again.
        """
        assert self._assignment is not None, "shares are computed here"
        held = self._held.of_topic(topic)
        share = await self._assignment.share(topic, address)
        if held and share == [] and await self._instance.heartbeat(address):
            share = await self._assignment.share(topic, address)
        return None if share is None else plan_share(held, share)

    def _queues_of(self, topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
        """Return the topic's queues, listed once for as long as the route is the same."""
        known = self._queues.get(topic)
        if known is None or known[0] is not route:
            known = self._queues[topic] = (route, tuple(subscribe_queues(topic, route)))
        return known[1]

    async def _change(
        self, topic: str, queues: Collection[MessageQueue], changes: QueueChanges
    ) -> None:
        """Release and start queues, and tell who listens, also if some could not be started."""
        before = set(self._held.of_topic(topic))
        try:
            if not await self._held.apply(changes):
                self._is_waiting = True
        finally:
            held = sorted(self._held.of_topic(topic))
            if self.on_queues_changed is not None and before.symmetric_difference(held):
                try:
                    self.on_queues_changed(topic, sorted(queues), held)
                except PROGRAM_ENDS:
                    raise
                except BaseException:
                    # The user's own: it must not end the rebalancing.
                    log.exception("listener.broken event=queues_changed topic=%s", topic)

    async def _consumer_ids(self, topic: str, route: TopicRoute) -> list[str]:
        """Return the members' ids from one broker of the topic; none if it knows nobody.

        A broker that does not know this member is told of it, and asked again: after its restart,
        the member that it hears of last would give up its queues for a moment.
        """
        address = self._some_broker(topic, route)
        ids = await self._ask(topic, address)
        if self._instance.client_id not in ids and await self._instance.heartbeat(address):
            ids = await self._ask(topic, address)
        return ids

    def _some_broker(self, topic: str, route: TopicRoute) -> str:
        addresses = _addresses(route)
        if not addresses:
            raise NoRouteError(f"no broker of topic {topic} has an address")
        return self._instance.runtime.random.choice(addresses)

    async def _ask(self, topic: str, address: str) -> list[str]:
        try:
            return await calls_consume.consumer_ids(
                self._instance.pool,
                address,
                self._group,
                timeout_s=self._instance.request_timeout_s,
            )
        except RemoteSystemError:
            return []  # how a broker says that nobody is there
        except KourouError as error:
            if error.refresh_route:
                self._instance.routes.refresh_soon(topic)
            raise


def _addresses(route: TopicRoute) -> list[str]:
    """Return one address of each broker, its master's where there is one."""
    return [
        broker.broker_addrs.get(MASTER_ID) or broker.broker_addrs[min(broker.broker_addrs)]
        for broker in route.broker_datas
        if broker.broker_addrs
    ]

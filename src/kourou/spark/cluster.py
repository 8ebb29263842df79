"""Client of a Spark process: the queues of a read, their offsets, and pulls of stored records.

One request returns the offsets of all queues that a broker has of a topic. Brokers are queried
concurrently, at most `REQUESTS_MAX` at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from kourou.client.administration.admin_calls import Server
from kourou.client.administration.admin_topics import topic_stats
from kourou.client.administration.plain_names import own_names
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.polling.queue_access import QueueAccess
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import Lifetime
from kourou.client.pull_result import PullResult
from kourou.client.retrying import Deadline
from kourou.errors import (
    ConfigError,
    KourouError,
    MalformedMessageError,
    RemoteError,
    TopicNotFoundError,
    TransportError,
)
from kourou.model.queue import MessageQueue
from kourou.model.route import TopicRoute, subscribe_queues
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.record.read import read_record
from kourou.protocol.topics import decode_topic_list
from kourou.remoting.runtime import Runtime
from kourou.spark.connection import ConnectionOptions
from kourou.spark.limits import Sample
from kourou.spark.planning import QueueBounds, name_of
from kourou.spark.positions import EARLIEST, LATEST, Offset, Positions
from kourou.spark.read_options import TopicSource
from kourou.spark.stream_planning import View

_T = TypeVar("_T")
_R = TypeVar("_R")
log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 16
"""Maximum number of queries in progress."""

SAMPLE_MESSAGES: Final = 32
"""Number of messages of which a sample has the mean size; brokers of RocketMQ return no more."""


class _Answer(NamedTuple):
    """The queues of a topic on one broker; `failure` tells why they are unknown."""

    broker_name: str
    bounds: Mapping[MessageQueue, QueueBounds]
    is_replica: bool
    failure: str | None


async def started_client(options: ConnectionOptions, group: str, timeout_ms: int) -> ClusterClient:
    """Return a started client; raises as `ClusterClient`."""
    client = ClusterClient(options, group, timeout_ms)
    await client.start()
    return client


class ClusterClient(Lifetime):
    """Queries and pulls of one process. Each call is retried until its timeout.

    Args:
        options: name servers, namespace, TLS and credentials.
        group: the group that brokers count the pulls for.
        timeout_ms: timeout of a call with its retries; long enough for the restart of a broker.
        runtime: the environment, for tests; None: the real one.

    Raises:
        CredentialsError: the file or the environment does not hold both keys.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        group: str,
        timeout_ms: int,
        runtime: Runtime | None = None,
    ) -> None:
        # No auto commit: this client has no member of the group and commits only on request.
        self._config = PullConsumerConfig(
            **options.settings(),
            request_timeout_ms=timeout_ms,
            pull_timeout_ms=timeout_ms,
            auto_commit=False,
        )
        self._timeout_ms = timeout_ms
        self._instance = ClientInstance(
            options.name_server, self._config, runtime, kind="Spark reader"
        )
        self._access = QueueAccess(self._instance, group, self._config)
        self._slots = asyncio.Semaphore(REQUESTS_MAX)

    async def start(self) -> None:
        """Start; no request is sent before the first call."""
        self._instance.start()

    async def close(self) -> None:
        """Close the connections; calls in progress fail."""
        if self._instance.stop():
            await self._instance.close()

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        max_messages: int,
        *,
        master_only: bool = False,
    ) -> PullResult:
        """Return the stored records of a queue from an offset on; see `QueueAccess.pull_raw`.

        Raises:
            TransportError: no answer within the timeout.
            RemoteError: the broker refused.
        """
        return await self._access.pull_raw(
            queue,
            offset,
            subscription,
            max_messages,
            (0, self._timeout_ms),
            master_only=master_only,
        )

    async def commit_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit the group's offsets; raises as `pull`, after all requests have ended."""
        answers = await self._gather(
            offsets.items(), lambda pair: _or_error(self._access.commit_offset(*pair))
        )
        for error in answers:
            if error is not None:
                raise error

    async def view(
        self,
        source: TopicSource,
        known: Iterable[MessageQueue] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> View:
        """Return the queues of the read, with their bounds.

        Args:
            source: selects the topics and queues.
            known: queues of a running stream: their topics and brokers may be absent, for example
                while a broker restarts. None at the start of a read, which needs all topics.
            timeout_ms: timeout for all answers; None: that of the client.

        Raises:
            ConfigError: at the start of a read, no topic or queue is selected, or an assigned queue
                does not exist.
            NoRouteError: at the start of a read, a topic does not exist.
            TransportError, RemoteError: no name server answered, or it refused.
        """
        deadline = Deadline(self._timeout_ms if timeout_ms is None else timeout_ms)
        held: dict[str, set[MessageQueue]] = {}
        for queue in known or ():
            held.setdefault(queue.topic, set()).add(queue)
        topics = sorted({*await self._topics(source, deadline), *held})
        if known is None and not topics:
            raise ConfigError(
                f"{source.option} is {source.pattern!r}: no topic has such a name; system, retry "
                "and dead-letter topics are left out"
            )
        parts = [
            self._view_topic(
                topic,
                source,
                None if known is None else frozenset(held.get(topic, ())),
                deadline,
            )
            for topic in topics
        ]
        view = _merged(await asyncio.gather(*parts))
        if known is None and not view.silent:
            _check_assignment(source, view)
        return view

    async def settle(
        self, positions: Positions, bounds: Mapping[MessageQueue, QueueBounds]
    ) -> dict[MessageQueue, int]:
        """Return the offset in each queue that a start or an end of the read means.

        An offset that the option names is returned as it is, also if the queue does not hold it.

        Raises:
            ConfigError: the option names other queues than `bounds` has, or a queue has no message
                at a time or later, and the option does not accept that.
            TransportError, RemoteError: a broker did not answer, or refused.
        """
        positions.check_queues(bounds)
        settled: dict[MessageQueue, int] = {}
        timed: dict[MessageQueue, int] = {}
        for queue, held in bounds.items():
            position = positions.of(queue)
            if position is EARLIEST:
                settled[queue] = held.min_offset
            elif position is LATEST:
                settled[queue] = held.max_offset
            elif isinstance(position, Offset):
                settled[queue] = position.value
            else:
                timed[queue] = position.at_ms
        found = await self._gather(
            timed.items(), lambda pair: self._offset_at(pair[0], pair[1], bounds[pair[0]])
        )
        for queue, offset in zip(timed, found, strict=True):
            if offset == bounds[queue].max_offset and not positions.is_latest_without_match:
                raise ConfigError(
                    f"{positions.option}: no message of {name_of(queue)} "
                    f"was stored at {timed[queue]} (epoch ms) or later: "
                    "use an earlier time, or set startingOffsetsByTimestampStrategy to latest"
                )
            settled[queue] = offset
        return settled

    async def offsets_at(
        self, queues: Sequence[MessageQueue], time_ms: int
    ) -> dict[MessageQueue, int]:
        """Return of each queue the first offset stored at a time or later, else its end.

        Queues whose broker does not answer are left out.
        """
        found = await self._gather(
            queues, lambda queue: _or_none(self._access.offset_for_time(queue, time_ms))
        )
        return {q: offset for q, offset in zip(queues, found, strict=True) if offset is not None}

    async def samples(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Sample]:
        """Return a sample of each queue at its offset; queues without an answer are left out."""
        found = await self._gather(offsets.items(), lambda pair: _or_none(self._sample(*pair)))
        return {q: one for q, one in zip(offsets, found, strict=True) if one is not None}

    async def _topics(self, source: TopicSource, deadline: Deadline) -> Sequence[str]:
        if source.pattern is None:
            return source.topics
        self._instance.check_open()
        command = request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        answer = await self._instance.name_servers.request(command, deadline.remaining_s())
        names = own_names(self._config.namespace, decode_topic_list(answer.body))
        return [name for name in names if source.selects(name)]

    async def _view_topic(
        self,
        topic: str,
        source: TopicSource,
        held: frozenset[MessageQueue] | None,
        deadline: Deadline,
    ) -> View:
        """Return the selected queues of a topic, and `held`; None at the start of a read."""
        route = await self._route(topic, deadline, is_needed=held is None and not source.pattern)
        if route is None:
            return View({})
        held = held or frozenset()
        wanted = held | {q for q in subscribe_queues(topic, route) if _is_selected(source, q)}
        names = sorted({queue.broker_name for queue in wanted})
        answers = await self._gather(
            [name for name in names if route.any_address(name) is not None],
            lambda name: self._view_broker(topic, name, route, deadline),
        )
        bounds = {q: b for answer in answers for q, b in answer.bounds.items() if q in wanted}
        answered = {answer.broker_name for answer in answers if answer.failure is None}
        return View(
            bounds,
            frozenset(q for q in held if q.broker_name in answered and q not in bounds),
            {a.broker_name: a.failure for a in answers if a.failure is not None},
            frozenset(answer.broker_name for answer in answers if answer.is_replica),
        )

    async def _route(self, topic: str, deadline: Deadline, *, is_needed: bool) -> TopicRoute | None:
        """Return the route; None if there is none, or if no name server answers, unless needed."""
        self._instance.check_open()
        routes = self._instance.routes
        try:
            return await routes.refresh(topic, deadline.remaining_s())
        except TransportError as error:
            # A topic has no route while its only broker restarts. It may also be deleted.
            if is_needed:
                raise
            log.warning("spark_route.missed topic=%s reason=%s", topic, error)
            return routes.cached(topic)

    async def _view_broker(
        self, topic: str, broker_name: str, route: TopicRoute, deadline: Deadline
    ) -> _Answer:
        is_replica = route.master_address(broker_name) is None

        async def ask(address: str, within: Deadline) -> dict[MessageQueue, QueueBounds]:
            server = Server(self._instance.pool, address, within.remaining_s())
            table = await topic_stats(server, topic)
            return {
                # By the name of the route: a broker that was renamed may not know it yet.
                MessageQueue(topic, broker_name, queue.queue_id): QueueBounds(
                    max(held.min_offset, 0), max(held.max_offset, held.min_offset, 0)
                )
                for queue, held in table.offsets.items()
            }

        queue = MessageQueue(topic, broker_name, 0)
        try:
            bounds = await self._instance.call_broker(
                queue, max(1, int(deadline.remaining_s() * 1000)), ask, broker_id=None
            )
        except TopicNotFoundError:
            return _Answer(broker_name, {}, is_replica, None)
        except TransportError as error:
            return _Answer(broker_name, {}, is_replica, str(error))
        return _Answer(broker_name, bounds, is_replica, None)

    async def _offset_at(self, queue: MessageQueue, time_ms: int, bounds: QueueBounds) -> int:
        """Return the first offset stored at a time or later, or the end of the bounds."""
        end = bounds.max_offset
        offset = await self._access.offset_for_time(queue, time_ms)
        if offset == end - 1 >= bounds.min_offset:
            # Brokers before 5.0 also return the last message if all messages are older.
            last = await self._sample(queue, offset)
            if last is not None and last.store_time_ms < time_ms:
                return end
        return min(max(offset, bounds.min_offset), end)

    async def _sample(self, queue: MessageQueue, offset: int) -> Sample | None:
        subscription = SubscriptionData(queue.topic)
        result = await self.pull(queue, offset, subscription, max_messages=SAMPLE_MESSAGES)
        if not result.raw:
            return None
        times_ms: list[int] = []
        at = 0
        while at < len(result.raw):
            try:
                record = read_record(result.raw, at, check_crc=False)
            except MalformedMessageError:
                break  # the task that reads it reports it
            times_ms.append(record.store_at_ms)
            at += record.total_size
        return Sample(times_ms[0], at // len(times_ms)) if times_ms else None

    async def _gather(self, items: Iterable[_T], call: Callable[[_T], Awaitable[_R]]) -> list[_R]:
        """Call for each item, at most `REQUESTS_MAX` at a time; raise the first failure."""

        async def one(item: _T) -> _R:
            async with self._slots:
                return await call(item)

        return await asyncio.gather(*map(one, items))


async def _or_none(call: Awaitable[_R]) -> _R | None:
    """Return the result of a query that the caller can do without."""
    try:
        return await call
    except (TransportError, RemoteError) as error:
        log.warning("spark_query.failed reason=%s", error)
        return None


async def _or_error(call: Awaitable[object]) -> KourouError | None:
    """Return the failure of a request that must not end the other ones."""
    try:
        await call
    except (TransportError, RemoteError) as error:
        return error
    return None


def _merged(views: Iterable[View]) -> View:
    """Return the union of views of different topics."""
    bounds: dict[MessageQueue, QueueBounds] = {}
    vanished: set[MessageQueue] = set()
    silent: dict[str, str] = {}
    replicas: set[str] = set()
    for view in views:
        bounds |= view.bounds
        vanished |= view.vanished
        silent |= view.silent
        replicas |= view.replicas
    return View(bounds, frozenset(vanished), silent, frozenset(replicas))


def _is_selected(source: TopicSource, queue: MessageQueue) -> bool:
    return source.assignment is None or queue in source.queues


def _check_assignment(source: TopicSource, view: View) -> None:
    absent = source.queues - view.bounds.keys()
    if absent:
        names = ", ".join(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in sorted(absent))
        raise ConfigError(f"{source.option} names queues that do not exist: {names}")

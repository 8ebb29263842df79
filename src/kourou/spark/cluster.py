"""Client of a Spark process: the queues of a read, their offsets, and pulls of stored records.

One request returns the offsets of all queues that a broker has of a topic. Brokers are queried
concurrently, at most `REQUESTS_MAX` at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from kourou.client.administration.admin_calls import Server
from kourou.client.administration.admin_topics import topic_stats_and_begin
from kourou.client.administration.plain_names import own_names
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.polling.queue_access import QueueAccess
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import Lifetime
from kourou.client.pull_result import PullResult
from kourou.client.retrying import Deadline
from kourou.errors import (
    ConfigError,
    GroupNotFoundError,
    KourouError,
    MalformedMessageError,
    NoRouteError,
    RemoteError,
    TopicNotFoundError,
    TransportError,
)
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID, TopicRoute, subscribe_queues
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.record.read import read_record
from kourou.protocol.routes import decode_cluster_info
from kourou.protocol.topics import decode_topic_list
from kourou.remoting.runtime import Runtime
from kourou.spark.connection import ConnectionOptions
from kourou.spark.limits import Sample
from kourou.spark.planning import BrokerTopic, QueueBounds, broker_topic, name_of
from kourou.spark.positions import EARLIEST, LATEST, Offset, Positions
from kourou.spark.read_options import TopicSource
from kourou.spark.stream_offsets import Absence
from kourou.spark.stream_planning import View

_T = TypeVar("_T")
_R = TypeVar("_R")
log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 16
"""Maximum number of queries in progress."""

SAMPLE_MESSAGES: Final = 32
"""Number of messages of which a sample has the mean size; brokers of RocketMQ return no more."""


class _Answer(NamedTuple):
    """The queues of a topic on one broker.

    Attributes:
        bounds: the queues; None if they are unknown, for the reason `failure`.
        is_deleted: the broker does not have the topic.
        begin: the topic's `TOPIC_BEGIN_FIELD`, if the broker has one.
    """

    broker_name: str
    bounds: Mapping[MessageQueue, QueueBounds]
    is_replica: bool
    failure: str | None = None
    is_deleted: bool = False
    begin: int | None = None


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
        self._group = group
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
        topic_begin: int | None = None,
    ) -> PullResult:
        """Return the stored records of a queue from an offset on; see `QueueAccess.pull_raw`.

        Raises:
            ConfigError: the broker does not have the group, and does not create groups.
            TransportError: no answer within the timeout.
            TopicNotFoundError: the topic was deleted, or created again since `topic_begin`.
            RemoteError: the broker refused.
        """
        try:
            return await self._access.pull_raw(
                queue,
                offset,
                subscription,
                max_messages,
                (0, self._timeout_ms),
                master_only=master_only,
                topic_begin=topic_begin,
            )
        except NoRouteError:
            # A deleted topic has no route either.
            if await self._deleted([broker_topic(queue)], Deadline(self._timeout_ms)):
                text = f"topic {queue.topic} does not exist"
                raise TopicNotFoundError(ResponseCode.TOPIC_NOT_EXIST, text) from None
            raise
        except GroupNotFoundError as error:
            raise ConfigError(
                f"consumerGroup is {self._group!r}, which broker {queue.broker_name!r} does not "
                f"have (code {error.code}), and it creates no groups: name a group that it has, or "
                f"run `kourou group create {self._group}`"
            ) from error

    async def commit_offsets(
        self,
        offsets: Mapping[MessageQueue, int],
        topic_begins: Mapping[BrokerTopic, int],
    ) -> None:
        """Commit the group's offsets; raises as `pull`, after all requests have ended.

        An offset of a topic that was created again since `topic_begins` is refused.
        """
        answers = await self._gather(
            offsets.items(),
            lambda pair: _or_error(
                self._access.commit_offset(*pair, topic_begins.get(broker_topic(pair[0])))
            ),
        )
        _raise_first(answers)

    async def advance_offsets(
        self,
        offsets: Mapping[MessageQueue, int],
        topic_begins: Mapping[BrokerTopic, int],
        latest: Mapping[MessageQueue, int],
    ) -> None:
        """Commit those of the offsets that are ahead of the group's; as `commit_offsets`.

        Args:
            offsets: the offsets to commit.
            topic_begins: identities of the topics.
            latest: ends of the queues, as far as known. A group that is beyond the end is set back:
                the topic was created again.
        """

        async def advance(queue: MessageQueue, offset: int) -> None:
            committed = await self._access.committed(queue)
            if committed is not None:
                end = max(latest.get(queue, committed), offset)
                if offset <= committed <= end:
                    return
            begin = topic_begins.get(broker_topic(queue))
            await self._access.commit_offset(queue, offset, begin)

        _raise_first(await self._gather(offsets.items(), lambda pair: _or_error(advance(*pair))))

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
            _check_queues(source, view)
        unseen = {
            queue
            for queues in held.values()
            for queue in queues - view.bounds.keys() - view.vanished.keys()
            if queue.broker_name not in view.silent
        }
        deleted = await self._deleted({*map(broker_topic, unseen)}, deadline) if unseen else ()
        vanished = {q: Absence.TOPIC for q in unseen if broker_topic(q) in deleted}
        return replace(view, vanished={**view.vanished, **vanished})

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
        absences = {
            answer.broker_name: Absence.TOPIC if answer.is_deleted else Absence.QUEUE
            for answer in answers
            if answer.failure is None
        }
        return View(
            bounds,
            {
                queue: absences[queue.broker_name]
                for queue in held
                if queue.broker_name in absences and queue not in bounds
            },
            {a.broker_name: a.failure for a in answers if a.failure is not None},
            frozenset(answer.broker_name for answer in answers if answer.is_replica),
            {
                (topic, answer.broker_name): answer.begin
                for answer in answers
                if answer.begin is not None and not answer.is_replica
            },
        )

    async def _deleted(
        self, topics: Collection[BrokerTopic], deadline: Deadline
    ) -> set[BrokerTopic]:
        """Return those of the topics that their brokers, which are up, do not have.

        A broker that restarts is not in the routes either, so the brokers themselves are asked.
        """
        command = request(RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            answer = await self._instance.name_servers.request(command, deadline.remaining_s())
            raise_for_response(answer)
        except (TransportError, RemoteError) as error:
            log.warning("spark_query.failed reason=%s", error)
            return set()
        brokers = decode_cluster_info(answer.body).brokers

        async def is_deleted(topic: BrokerTopic) -> bool:
            broker = brokers.get(topic[1])
            address = None if broker is None else broker.broker_addrs.get(MASTER_ID)
            if address is None:
                return False
            server = Server(self._instance.pool, address, deadline.remaining_s())
            try:
                await topic_stats_and_begin(server, topic[0])
            except TopicNotFoundError:
                return True
            except (TransportError, RemoteError) as error:
                log.warning("spark_query.failed reason=%s", error)
            return False

        ordered = sorted(topics)
        found = await self._gather(ordered, is_deleted)
        return {topic for topic, is_gone in zip(ordered, found, strict=True) if is_gone}

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

        async def ask(address: str, within: Deadline) -> _Answer:
            server = Server(self._instance.pool, address, within.remaining_s())
            table, begin = await topic_stats_and_begin(server, topic)
            bounds = {
                # By the name of the route: a broker that was renamed may not know it yet.
                MessageQueue(topic, broker_name, queue.queue_id): QueueBounds(
                    max(held.min_offset, 0), max(held.max_offset, held.min_offset, 0)
                )
                for queue, held in table.offsets.items()
            }
            return _Answer(broker_name, bounds, is_replica, begin=begin)

        queue = MessageQueue(topic, broker_name, 0)
        try:
            return await self._instance.call_broker(
                queue, max(1, int(deadline.remaining_s() * 1000)), ask, broker_id=None
            )
        except TopicNotFoundError:
            return _Answer(broker_name, {}, is_replica, is_deleted=True)
        except TransportError as error:
            return _Answer(broker_name, {}, is_replica, str(error))

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


def _raise_first(errors: Iterable[KourouError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def _merged(views: Iterable[View]) -> View:
    """Return the union of views of different topics."""
    bounds: dict[MessageQueue, QueueBounds] = {}
    vanished: dict[MessageQueue, Absence] = {}
    silent: dict[str, str] = {}
    replicas: set[str] = set()
    begins: dict[BrokerTopic, int] = {}
    for view in views:
        bounds |= view.bounds
        vanished |= view.vanished
        silent |= view.silent
        replicas |= view.replicas
        begins |= view.topic_begins
    return View(bounds, vanished, silent, frozenset(replicas), begins)


def _is_selected(source: TopicSource, queue: MessageQueue) -> bool:
    return source.assignment is None or queue in source.queues


def _check_queues(source: TopicSource, view: View) -> None:
    """Refuse a read of queues or topics that cannot be read."""
    unreadable = set(source.topics) - {queue.topic for queue in view.bounds}
    if unreadable and source.assignment is None:
        raise ConfigError(
            f"{source.option}: the topic {min(unreadable)!r} has no readable queue: give it read "
            "permission and queues"
        )
    absent = source.queues - view.bounds.keys()
    if absent:
        names = ", ".join(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in sorted(absent))
        raise ConfigError(f"{source.option} names queues that do not exist: {names:.200}")

"""Progress of consumer groups: requests 208, 317, 303 and 308.

The times of messages are read from the log, off the event loop. The offsets are read before that,
on the event loop.

Source: AdminBrokerProcessor.java, ConsumerOffsetManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Final, NamedTuple, Protocol

from kourou.broker.advertised import advertised_address
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.invisible import InvisibleMessages
from kourou.errors import TopicNotFoundError
from kourou.model.queue import MessageQueue
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.offsets import QueryCorrectionOffsetHeader, encode_correction_offsets
from kourou.protocol.popping.topic_names import normal_topic
from kourou.protocol.stats import (
    ConsumeOffset,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueueTimeSpan,
    encode_consume_stats,
    encode_consume_stats_list,
    encode_consume_time_spans,
)
from kourou.remoting.connection import Request

_LONG_MAX: Final = 2**63 - 1
_GROUPS_PER_TURN: Final = 100
"""Groups that 317 processes before other tasks run."""
_TOPICS_PER_TURN: Final = 20
"""Topics of a group that are processed before other tasks run: some ms with 8 queues each."""

LockHolder = Callable[[str, MessageQueue], str | None]
"""Returns the id of the client that holds the lock of a group's queue; None if none does."""


class QueueTimes(Protocol):
    """The part of `kourou.store.reader.StoreReader` that is used here."""

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    def store_time(self, topic: str, queue_id: int, offset: int) -> int: ...


class _QueueProgress(NamedTuple):
    """Progress of a group in one queue; `consumed` is None if it never committed there."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    consumed: int | None


class ProgressHandlers:
    """Serves the requests."""

    def __init__(
        self,
        context: BrokerContext,
        offsets: ConsumerOffsets,
        invisible: InvisibleMessages,
        lock_holder: LockHolder,
    ) -> None:
        """Create the handlers.

        Args:
            context: the broker's state and services.
            offsets: source of committed and pulled offsets.
            invisible: the messages in flight of groups that pop.
            lock_holder: returns the holder of the lock of a queue that is consumed in order.
        """
        self._config = context.config
        self._topics = context.topics
        self._groups = context.groups
        self._clients = context.clients
        self._offsets = offsets
        self._invisible = invisible
        self._store = context.store.reader
        self._consume_tps = context.stats.get_tps
        self._lock_holder = lock_holder
        self._clock = context.clock
        self._offload = context.offload
        self._later = context.later

    def on_get_consume_stats(self, request: Request) -> None:
        """Return the group's progress in each queue (208).

        Covers the topics that the request names, or else those in which the group committed. While
        the group has members, topics that it no longer subscribes to are left out, unless they are
        in the request's topic list.
        """
        header = request.command.header(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        listed = [name for name in (header.topic_list or "").split(";") if name]
        names = listed or ([header.topic] if header.topic else self._offsets.topics_of(group))
        wanted = [
            name
            for name in dict.fromkeys(names)
            if self._topics.get(name) is not None and (listed or self._may_consume(group, name))
        ]

        async def serve() -> RemotingCommand:
            found: dict[MessageQueue, ConsumeOffset] = {}
            tps = 0.0
            for number, topic in enumerate(wanted, 1):
                stats = await self._stats_of(group, topic)
                if stats is not None:
                    found.update(stats.offsets)
                    tps += stats.consume_tps
                if number % _TOPICS_PER_TURN == 0:
                    await asyncio.sleep(0)
            body = await self._offload(encode_consume_stats, ConsumeStats(found, tps))
            return response(request.command, body=body)

        self._later.answer(request, serve)

    def on_get_broker_consume_stats(self, request: Request) -> None:
        """Return the progress of all groups, in ordered topics only or in all topics (317).

        Java always reports 0 as the pulled offset, and so a negative sum of messages in flight;
        here both have their real values.
        """
        is_order = request.command.header(GetConsumeStatsInBrokerHeader).is_order
        address = advertised_address(self._config, request.connection.local_address)

        async def serve() -> RemotingCommand:
            table: dict[str, list[ConsumeStats]] = {}
            topics_of = self._offsets.topics_by_group()
            for number, group in enumerate(self._groups.names()):
                if number % _GROUPS_PER_TURN == _GROUPS_PER_TURN - 1:
                    await asyncio.sleep(0)
                table[group] = await self._all_stats(
                    group, topics_of.get(group, ()), is_order=is_order
                )
            all_offsets = [
                offset
                for all_stats in table.values()
                for stats in all_stats
                for offset in stats.offsets.values()
            ]
            found = ConsumeStatsList(
                table,
                address,
                sum(offset.broker_offset - offset.consumer_offset for offset in all_offsets),
                sum(offset.pull_offset - offset.consumer_offset for offset in all_offsets),
            )
            return response(
                request.command, body=await self._offload(encode_consume_stats_list, found)
            )

        self._later.answer(request, serve)

    def on_query_consume_time_span(self, request: Request) -> None:
        """Return the time span of each queue of the topic, and the group's delay in it (303).

        Times are -1 if there is no message. For a group that never committed in a queue, the
        consumed time is that of the queue's oldest message.
        """
        header = request.command.header(QueryConsumeTimeSpanRequestHeader)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise TopicNotFoundError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist"
            )
        queues = self._queue_progress(header.group, topic, topic.write_queue_nums)
        now_ms = self._clock.now_ms()

        async def serve() -> RemotingCommand:
            spans = await self._offload(_time_spans, self._store, queues, now_ms)
            body = encode_consume_time_spans(spans, zone=_local_zone(now_ms))
            return response(request.command, body=body)

        self._later.answer(request, serve)

    def on_query_correction_offset(self, request: Request) -> RemotingCommand:
        """Return the smallest offset that groups committed in each queue of the topic (308).

        The groups of `filter_groups` are left out, and so are offsets whose messages have expired.
        A queue in which `compare_group` is behind all these groups gets the largest 64-bit number.
        """
        header = request.command.header(QueryCorrectionOffsetHeader)
        left_out = set(filter(None, (header.filter_groups or "").split(",")))
        least: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic):
            if group in left_out:
                continue
            for queue_id, offset in self._offsets.of_topic(group, header.topic).items():
                if offset >= self._store.min_offset(header.topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        compared = self._offsets.of_topic(header.compare_group, header.topic)
        for queue_id, offset in compared.items():
            if least.get(queue_id, offset) > offset:
                least[queue_id] = _LONG_MAX
        return response(request.command, body=encode_correction_offsets(least))

    def _may_consume(self, group: str, topic: str) -> bool:
        """Return whether the group is not connected, or subscribes to the topic."""
        live = self._clients.consumer_group(group)
        if live is None or not live.subscriptions or topic in live.subscriptions:
            return True
        return normal_topic(topic, group) in live.subscriptions  # its pop retry topic

    async def _all_stats(
        self, group: str, topics: Sequence[str], *, is_order: bool
    ) -> list[ConsumeStats]:
        """Return the group's progress, one result per topic."""
        found = []
        for number, name in enumerate(topics, 1):
            if number % _TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
            topic = self._topics.get(name)
            if topic is None or (is_order and not topic.order):
                continue
            stats = await self._stats_of(group, name) if self._may_consume(group, name) else None
            if stats is not None:
                found.append(stats)
        return found

    async def _stats_of(self, group: str, name: str) -> ConsumeStats | None:
        """Return the group's progress in the topic; None if the topic does not exist."""
        topic = self._topics.get(name)
        if topic is None:
            return None
        queues = self._queue_progress(group, topic, topic.read_queue_nums)
        offsets = {
            progress.queue: ConsumeOffset(
                progress.max_offset,
                progress.consumed or 0,
                max(
                    progress.consumed or 0,
                    self._offsets.pulled(group, name, progress.queue.queue_id) or 0,
                ),
                lock_holder=self._lock_holder(group, progress.queue),
                in_flight=self._invisible.count(name, group, progress.queue.queue_id) or None,
                block_reason=self._invisible.block_reason(name, group, progress.queue.queue_id),
            )
            for progress in queues
        }
        tps = self._consume_tps(group, name)
        if any(progress.consumed for progress in queues):
            offsets = await self._offload(_with_times, self._store, offsets)
        return ConsumeStats(offsets, tps)

    def _queue_progress(
        self, group: str, topic: TopicConfig, queue_nums: int
    ) -> list[_QueueProgress]:
        return [
            _QueueProgress(
                MessageQueue(topic.name, self._config.broker_name, queue_id),
                self._store.min_offset(topic.name, queue_id),
                self._store.max_offset(topic.name, queue_id),
                self._offsets.query(group, topic.name, queue_id),
            )
            for queue_id in range(queue_nums)
        ]


def _with_times(
    store: QueueTimes, offsets: dict[MessageQueue, ConsumeOffset]
) -> dict[MessageQueue, ConsumeOffset]:
    """Return the offsets with the times of the last consumed messages; may read the disk."""
    return {
        queue: replace(offset, last_timestamp=_last_time(store, queue, offset.consumer_offset))
        for queue, offset in offsets.items()
    }


def _last_time(store: QueueTimes, queue: MessageQueue, consumed: int) -> int:
    """Return the store time of the last message before an offset; 0 if there is none."""
    return max(0, store.store_time(queue.topic, queue.queue_id, consumed - 1)) if consumed else 0


def _time_spans(
    store: QueueTimes, queues: Sequence[_QueueProgress], now_ms: int
) -> list[QueueTimeSpan]:
    """Return the time spans of queues; may read the disk."""
    return [_time_span(store, progress, now_ms) for progress in queues]


def _time_span(store: QueueTimes, progress: _QueueProgress, now_ms: int) -> QueueTimeSpan:
    stored_at = partial(store.store_time, progress.queue.topic, progress.queue.queue_id)
    is_empty = progress.max_offset <= progress.min_offset
    oldest_ms = -1 if is_empty else stored_at(progress.min_offset)
    newest_ms = -1 if is_empty else stored_at(progress.max_offset - 1)
    consumed_ms = stored_at(progress.consumed - 1) if progress.consumed else oldest_ms
    next_offset = max(progress.consumed or 0, progress.min_offset)
    next_ms = stored_at(next_offset) if next_offset < progress.max_offset else -1
    return QueueTimeSpan(
        progress.queue, oldest_ms, newest_ms, consumed_ms, now_ms - next_ms if next_ms >= 0 else 0
    )


def _local_zone(at_ms: int) -> tzinfo:
    """Return the time zone of this machine at that time."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().tzinfo or UTC

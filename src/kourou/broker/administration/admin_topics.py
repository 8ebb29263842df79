"""Requests of administrators on topics.

    17   UPDATE_AND_CREATE_TOPIC   29 bad name, system topic, bad numbers; 1 bad attributes
    18   UPDATE_AND_CREATE_TOPIC_LIST   several, all or none of them
    21   GET_ALL_TOPIC_CONFIG      all, or one page
    202  GET_TOPIC_STATS_INFO      what each queue holds; 17 unknown
    215  DELETE_TOPIC_IN_BROKER    with its messages' places and its offsets; unknown is no error
    305  GET_SYSTEM_TOPIC_LIST     those that are the system's own
    351  GET_TOPIC_CONFIG          17 unknown

A change is answered when it is durable and in the routes, if name servers can be told.

Source: AdminBrokerProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.live_config import LiveConfig
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.topic_attributes import SERVED_VALUES, change_attributes, change_text
from kourou.broker.topics import Topics, system_topics
from kourou.broker.writing.queue_deletion import QueueDeletion
from kourou.errors import (
    InvalidParameterError,
    InvalidTopicError,
    ServiceNotAvailableError,
    StoreError,
    TopicNotFoundError,
)
from kourou.model.queue import MessageQueue
from kourou.model.route import QUEUE_NUMS_MAX
from kourou.model.topic import PERM_MAX, SYSTEM_TOPICS, TopicConfig, check_topic, is_system_topic
from kourou.protocol.bodies import (
    TopicOffset,
    TopicStatsTable,
    decode_data_version,
    decode_topic_config_list,
    encode_topic_config,
    encode_topic_list,
    encode_topic_stats,
)
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.headers_admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetAllTopicConfigResponseHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from kourou.remoting.connection import Request
from kourou.remoting.later import LaterReplies
from kourou.remoting.runtime import Offload
from kourou.store.message_store import MessageStore

_PAGE_MAX: Final = 2000
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
_MESSAGE_TYPE: Final = "message.type"
_MIXED: Final = "MIXED"


class AdminTopicHandlers:
    """Serves administrators: topics."""

    def __init__(
        self,
        *,
        config: LiveConfig,
        topics: Topics,
        offsets: ConsumerOffsets,
        store: MessageStore,
        queues: QueueDeletion,
        offload: Offload,
        later: LaterReplies,
        stats: BrokerStats,
        on_deleted: Callable[[TopicConfig], None],
    ) -> None:
        """Serve `topics`.

        Args:
            config: the broker's name, in statistics; whether topics may take messages of any type.
            topics: changed and read.
            offsets: those of a deleted topic go with it.
            store: read for statistics.
            queues: removes those of a deleted topic from the store.
            offload: takes reads of the store off the loop.
            later: answers when a change is durable.
            stats: tells how many messages come a second.
            on_deleted: told of each topic that was deleted.
        """
        self._on_deleted = on_deleted
        self._config = config
        self._system_topics = SYSTEM_TOPICS | {topic.name for topic in system_topics(config.now)}
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._queues = queues
        self._offload = offload
        self._later = later
        self._stats = stats

    def on_update_and_create_topic(self, request: Request) -> RemotingCommand | None:
        """Serve 17. Attributes that are not mentioned stay as they are."""
        header = request.command.header(CreateTopicRequestHeader)
        topic = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
            header.order,
        )
        self._topics.put(self._checked(topic, header.attributes))
        self._later.answer(request, partial(self._saved, request))
        return None

    def on_update_and_create_topic_list(self, request: Request) -> RemotingCommand | None:
        """Serve 18: all topics, or none if one of them is refused.

        The attributes of each are a change, as with 17: `{"+message.type": "FIFO"}`.
        """
        asked = decode_topic_config_list(request.command.body)
        topics = [self._checked(topic, change_text(topic.attributes)) for topic in asked]
        self._topics.put_all(topics)
        self._later.answer(request, partial(self._saved, request))
        return None

    def on_delete_topic(self, request: Request) -> None:
        """Serve 215. The messages stay in the log until it is cut, but no queue leads to them.

        The queues go first: a crash in between leaves a topic without messages, never messages
        that a topic of the same name would begin with.
        """
        name = request.command.header(DeleteTopicRequestHeader).topic
        self._check_not_system(name)

        async def serve() -> RemotingCommand:
            try:
                await self._queues.delete(name)
            except StoreError as error:
                raise ServiceNotAvailableError(
                    ResponseCode.SERVICE_NOT_AVAILABLE, f"topic {name} cannot be deleted: {error}"
                ) from error
            topic = self._topics.get(name)
            self._topics.delete(name)
            self._offsets.remove_topic(name)
            self._stats.on_topic_deleted(name)
            if topic is not None:
                self._on_deleted(topic)
            return await self._saved(request)

        self._later.answer(request, serve)

    def on_get_topic_config(self, request: Request) -> RemotingCommand:
        """Serve 351."""
        topic = self._existing(request.command.header(GetTopicConfigRequestHeader).topic)
        return response(request.command, body=encode_topic_config(topic))

    def on_get_system_topic_list(self, request: Request) -> RemotingCommand:
        """Serve 305: the topics that nobody may make, change or delete by request."""
        return response(request.command, body=encode_topic_list(sorted(self._system_topics)))

    def on_get_all_topic_config(self, request: Request) -> RemotingCommand:
        """Serve 21: all topics, or the page that begins with number `topic_seq`.

        A page that belongs to an older version of the table begins again at 0.
        """
        header = request.command.header(GetAllTopicConfigRequestHeader)
        names, total = None, len(self._topics)
        if header.max_topic_num is not None:
            start = max(0, header.topic_seq or 0)
            count = max(0, min(header.max_topic_num, _PAGE_MAX))
            if start and not self._is_current(header.data_version):
                start = 0
            names = [topic.name for topic in islice(self._topics, start, start + count)]
        return response(
            request.command,
            header=GetAllTopicConfigResponseHeader(total),
            body=self._topics.body(names),
        )

    def on_get_topic_stats_info(self, request: Request) -> None:
        """Serve 202: the offsets of each queue, when its last message was stored, and the rate."""
        topic = self._existing(request.command.header(GetTopicStatsInfoRequestHeader).topic)
        ends = [
            (
                self._store.min_offset(topic.name, queue_id),
                self._store.max_offset(topic.name, queue_id),
            )
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
        ]
        rate = self._stats.put_tps(topic.name)

        async def serve() -> RemotingCommand:
            times_ms = await self._offload(_last_times, self._store, topic.name, ends)
            offsets = {
                MessageQueue(topic.name, self._config.now.broker_name, queue_id): TopicOffset(
                    *ends[queue_id], at_ms
                )
                for queue_id, at_ms in enumerate(times_ms)
            }
            stats = TopicStatsTable(offsets, rate)
            return response(request.command, body=encode_topic_stats(stats))

        self._later.answer(request, serve)

    def _checked(self, topic: TopicConfig, change: str | None) -> TopicConfig:
        """Return the topic as it is to be, with the attributes that it has after the change.

        Raises:
            InvalidParameterError: it is the system's, or there can be no such topic.
            RemoteSystemError: the change of attributes is refused.
        """
        self._check_not_system(topic.name)
        known = self._topics.get(topic.name)
        attributes = change_attributes(
            known.attributes if known is not None else {}, change, is_new=known is None
        )
        topic = replace(topic, attributes=attributes)
        may_mix = self._config.now.enable_mixed_message_type or not change
        _check_topic_config(topic, may_mix=may_mix)
        return topic

    def _check_not_system(self, name: str) -> None:
        """Refuse a name that no topic can have, or that is the system's own."""
        try:
            check_topic(name)
        except InvalidTopicError as error:
            raise _invalid(str(error)) from None
        if is_system_topic(name) or name in self._system_topics:
            raise _invalid(f"The topic[{name}] is conflict with system topic.")

    def _existing(self, name: str) -> TopicConfig:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFoundError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}"
            )
        return topic

    def _is_current(self, data_version: str | None) -> bool:
        """Return whether a page's version is that of the table as it is now."""
        if not data_version:
            return False
        return decode_data_version(data_version.encode()) == self._topics.data_version

    async def _saved(self, request: Request) -> RemotingCommand:
        """Return success once all changes are durable, and name servers know those of topics."""
        try:
            await self._topics.settle()
            await self._offsets.persist()
        except OSError as error:
            raise ServiceNotAvailableError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the change cannot be saved: {error}"
            ) from error
        return response(request.command)


def _last_times(store: MessageStore, topic: str, ends: Sequence[tuple[int, int]]) -> list[int]:
    """Return when each queue's last message was stored, 0 if it has none; may read the disk."""
    return [
        max(0, store.store_time(topic, queue_id, most - 1)) if most > least else 0
        for queue_id, (least, most) in enumerate(ends)
    ]


def _check_topic_config(topic: TopicConfig, *, may_mix: bool) -> None:
    """Refuse numbers that no topic can have, and ways of storing that are not built yet.

    A topic may take messages of all types (MIXED) where `may_mix` says so.
    """
    for what, count in (("read", topic.read_queue_nums), ("write", topic.write_queue_nums)):
        if not 1 <= count <= QUEUE_NUMS_MAX:
            raise _invalid(f"{what} queues are {count}; allowed are 1 to {QUEUE_NUMS_MAX}")
    if not 0 <= topic.perm <= PERM_MAX:
        raise _invalid(f"perm is {topic.perm}; allowed are 0 to {PERM_MAX}")
    if topic.topic_filter_type not in _FILTER_TYPES:
        raise _invalid(f"topicFilterType is {topic.topic_filter_type!r}, not {_FILTER_TYPES}")
    if topic.attributes.get(_MESSAGE_TYPE) == _MIXED and not may_mix:
        raise _invalid("MIXED message type is not supported; enableMixedMessageType allows it")
    for name, served in SERVED_VALUES.items():
        if topic.attributes.get(name, served) != served:
            raise _invalid(f"{name}={topic.attributes[name]}: only {served} is served yet")


def _invalid(reason: str) -> InvalidParameterError:
    return InvalidParameterError(ResponseCode.INVALID_PARAMETER, reason)

"""Handlers of administrators' requests on topics.

    code  request                       effect; codes of errors
    17    UPDATE_AND_CREATE_TOPIC       creates or changes one topic; 29 invalid name or numbers, or
                                        a system topic; 1 invalid attributes
    18    UPDATE_AND_CREATE_TOPIC_LIST  the same for several topics, all or none of them
    21    GET_ALL_TOPIC_CONFIG          returns all topics, or one page
    202   GET_TOPIC_STATS_INFO          returns the offsets of each queue; 17 unknown topic
    215   DELETE_TOPIC_IN_BROKER        deletes the topic with its queues and offsets, and its pop
                                        retry topics; an unknown topic is no error
    305   GET_SYSTEM_TOPIC_LIST         returns the system topics
    351   GET_TOPIC_CONFIG              returns one topic; 17 unknown topic

A change is answered when it is durable and the reachable name servers have it, or after a bounded
wait for them.

Source: AdminBrokerProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from kourou.broker.administration.topic_deletion import TopicDeletion
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.topic_attributes import SERVED_VALUES, change_attributes, change_text
from kourou.broker.topics import system_topics
from kourou.errors import (
    InvalidParameterError,
    InvalidTopicError,
    ServiceNotAvailableError,
    TopicNotFoundError,
)
from kourou.model.queue import MessageQueue
from kourou.model.route import QUEUE_NUMS_MAX
from kourou.model.topic import PERM_MAX, SYSTEM_TOPICS, TopicConfig, check_topic, is_system_topic
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.data_version import decode_data_version
from kourou.protocol.offsets import TOPIC_BEGIN_FIELD
from kourou.protocol.stats import (
    GetTopicStatsInfoRequestHeader,
    TopicOffset,
    TopicStatsTable,
    encode_topic_stats,
)
from kourou.protocol.table_changes import TABLE_LOG_FIELD
from kourou.protocol.topic_table import (
    GetAllTopicConfigRequestHeader,
    GetAllTopicConfigResponseHeader,
)
from kourou.protocol.topics import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    decode_topic_config_list,
    encode_topic_config,
    encode_topic_list,
)
from kourou.remoting.connection import Request
from kourou.store.message_store import MessageStore

_PAGE_MAX: Final = 2000
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
_MESSAGE_TYPE: Final = "message.type"
_MIXED: Final = "MIXED"


class TopicAdminHandlers:
    """Serves the requests."""

    def __init__(
        self, context: BrokerContext, offsets: ConsumerOffsets, deletion: TopicDeletion
    ) -> None:
        """Create the handlers.

        Args:
            context: the broker's state and services.
            offsets: saved with the topics.
            deletion: deletes topics.
        """
        self._deletion = deletion
        self._config = context.live_config
        self._system_topics = SYSTEM_TOPICS | {
            topic.name for topic in system_topics(context.live_config.current)
        }
        self._topics = context.topics
        self._offsets = offsets
        self._store = context.store
        self._offload = context.offload
        self._later = context.later
        self._stats = context.stats

    def on_update_and_create_topic(self, request: Request) -> RemotingCommand | None:
        """Serve 17. Attributes that the request does not name keep their values."""
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
        self._topics.put(self._validated(topic, header.attributes))
        self._later.answer(request, partial(self._save_and_answer, request))
        return None

    def on_update_and_create_topic_list(self, request: Request) -> RemotingCommand | None:
        """Serve 18: create or change all topics, or none if one of them is refused.

        The attributes of each topic are a change, as with 17: `{"+message.type": "FIFO"}`.
        """
        asked = decode_topic_config_list(request.command.body)
        topics = [self._validated(topic, change_text(topic.attributes)) for topic in asked]
        self._topics.put_all(topics)
        self._later.answer(request, partial(self._save_and_answer, request))
        return None

    def on_delete_topic(self, request: Request) -> None:
        """Serve 215. The records stay in the log until they expire, but no queue refers to them."""
        name = request.command.header(DeleteTopicRequestHeader).topic
        self._check_not_system(name)

        async def serve() -> RemotingCommand:
            takes_retries = self._config.current.pop.clear_retry_topic_when_delete_topic
            retry_topics = self._deletion.retry_topics_of_topic(name) if takes_retries else []
            for one in [*retry_topics, name]:
                await self._deletion.delete(one)
            return await self._save_and_answer(request)

        self._later.answer(request, serve)

    def on_get_topic_config(self, request: Request) -> RemotingCommand:
        """Serve 351: return one topic."""
        topic = self._existing(request.command.header(GetTopicConfigRequestHeader).topic)
        return response(request.command, body=encode_topic_config(topic))

    def on_get_system_topic_list(self, request: Request) -> RemotingCommand:
        """Serve 305: return the system topics, which no request may create, change or delete."""
        return response(request.command, body=encode_topic_list(sorted(self._system_topics)))

    def on_get_all_topic_config(self, request: Request) -> RemotingCommand:
        """Serve 21: return all topics, or the page that starts at number `topic_seq`.

        A page starts at 0 unless the request names the current version of the table.
        """
        header = request.command.header(GetAllTopicConfigRequestHeader)
        names, total = None, len(self._topics)
        if header.max_topic_num is not None:
            start = max(0, header.topic_seq or 0)
            count = max(0, min(header.max_topic_num, _PAGE_MAX))
            if start and not self._is_current(header.data_version):
                start = 0
            names = [topic.name for topic in islice(self._topics, start, start + count)]
        answer = response(
            request.command,
            header=GetAllTopicConfigResponseHeader(total),
            body=self._topics.body(names),
        )
        if self._topics.change_log is not None:
            answer.ext_fields[TABLE_LOG_FIELD] = "true"
        return answer

    def on_get_topic_stats_info(self, request: Request) -> None:
        """Serve 202: return each queue's offsets and last store time, and the topic's rate."""
        topic = self._existing(request.command.header(GetTopicStatsInfoRequestHeader).topic)
        ends = [
            (
                self._store.reader.min_offset(topic.name, queue_id),
                self._store.reader.max_offset(topic.name, queue_id),
            )
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
        ]
        rate = self._stats.put_tps(topic.name)
        begin = self._store.reader.topic_begin(topic.name)

        async def serve() -> RemotingCommand:
            times_ms = await self._offload(_last_times, self._store, topic.name, ends)
            offsets = {
                MessageQueue(topic.name, self._config.current.broker_name, queue_id): TopicOffset(
                    *ends[queue_id], at_ms
                )
                for queue_id, at_ms in enumerate(times_ms)
            }
            stats = TopicStatsTable(offsets, rate)
            answer = response(request.command, body=encode_topic_stats(stats))
            answer.ext_fields[TOPIC_BEGIN_FIELD] = str(begin)
            return answer

        self._later.answer(request, serve)

    def _validated(self, topic: TopicConfig, change: str | None) -> TopicConfig:
        """Check the topic, and return it with its attributes after the change.

        Raises:
            InvalidParameterError: it is a system topic, or one of its settings is invalid.
            RemoteSystemError: the change of attributes is refused.
        """
        self._check_not_system(topic.name)
        existing = self._topics.get(topic.name)
        attributes = change_attributes(
            existing.attributes if existing is not None else {}, change, is_new=existing is None
        )
        topic = replace(topic, attributes=attributes)
        may_mix = self._config.current.enable_mixed_message_type or not change
        _check_topic_config(topic, may_mix=may_mix)
        return topic

    def _check_not_system(self, name: str) -> None:
        """Check that the name is valid and not that of a system topic."""
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
        """Return whether the version of a page request is that of the current table."""
        if not data_version:
            return False
        return decode_data_version(data_version.encode()) == self._topics.data_version

    async def _save_and_answer(self, request: Request) -> RemotingCommand:
        """Return success once the changes are durable and the name servers have the topics.

        Raises:
            ServiceNotAvailableError: a table cannot be written.
        """
        try:
            await self._topics.persist_and_announce()
            await self._offsets.persist()
        except OSError as error:
            raise ServiceNotAvailableError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the change cannot be saved: {error}"
            ) from error
        return response(request.command)


def _last_times(store: MessageStore, topic: str, ends: Sequence[tuple[int, int]]) -> list[int]:
    """Return the store time of each queue's last message, 0 if it has none; may read the disk."""
    return [
        max(0, store.reader.store_time(topic, queue_id, most - 1)) if most > least else 0
        for queue_id, (least, most) in enumerate(ends)
    ]


def _check_topic_config(topic: TopicConfig, *, may_mix: bool) -> None:
    """Check the topic's settings; refuse invalid numbers and unsupported attributes.

    The type MIXED, for messages of all types, is allowed if `may_mix` is true.
    """
    for what, count in (("read", topic.read_queue_nums), ("write", topic.write_queue_nums)):
        if not 1 <= count <= QUEUE_NUMS_MAX:
            raise _invalid(f"{what} queues are {count}; the number must be 1 to {QUEUE_NUMS_MAX}")
    if not 0 <= topic.perm <= PERM_MAX:
        raise _invalid(f"perm is {topic.perm}; it must be 0 to {PERM_MAX}")
    if topic.topic_filter_type not in _FILTER_TYPES:
        raise _invalid(f"topicFilterType is {topic.topic_filter_type!r}, not {_FILTER_TYPES}")
    if topic.attributes.get(_MESSAGE_TYPE) == _MIXED and not may_mix:
        raise _invalid("MIXED message type is not supported; enableMixedMessageType allows it")
    for name, served in SERVED_VALUES.items():
        if topic.attributes.get(name, served) != served:
            raise _invalid(f"{name}={topic.attributes[name]}: only {served} is supported so far")


def _invalid(reason: str) -> InvalidParameterError:
    return InvalidParameterError(ResponseCode.INVALID_PARAMETER, reason)

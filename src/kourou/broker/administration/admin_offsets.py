"""Reset, clone and export of consumer groups' offsets: requests 222, 314, 43 and 45.

A reset (222) applies to groups with and without connected members. By default it is stored in the
broker, and the group learns of it from the answer to its next pull of the queue
(`consumer_offsets.py`, `pull.py`). If `use_server_side_reset_offset` is off, the broker sends it to
the group's connected members, as older brokers do, and the members move to the new offsets. A reset
that is stored and a clone (314) are answered when the table was saved; with ASYNC_FLUSH the file
follows, as for all offsets, once the log is synced up to the records that the offsets refer to.

Source: AdminBrokerProcessor.java, Broker2Client.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kourou.broker.administration.admin_saving import save_and_answer
from kourou.broker.client_calls import ClientCalls
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.reserved import check_not_reserved, reserved_reason
from kourou.errors import (
    ConsumerNotOnlineError,
    GroupNotFoundError,
    InvalidParameterError,
    RemoteSystemError,
    TopicNotFoundError,
)
from kourou.model.queue import MessageQueue
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.offset_table import DelayOffsetTable, encode_delay_offset_table
from kourou.protocol.offsets import (
    CloneGroupOffsetRequestHeader,
    ResetOffsetRequestHeader,
    encode_reset_offsets,
)
from kourou.protocol.table_changes import LOCKS_MEMBER, REPLICA_FIELD, with_member
from kourou.remoting.connection import Request
from kourou.store.reader import StoreReader

log = logging.getLogger(__name__)

OnReset = Callable[[str, str, int], None]
"""Called with the group, topic and queue id whose offset was reset."""


class OffsetAdminHandlers:
    """Serves the requests."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        offsets: ConsumerOffsets,
        delay_offsets: Callable[[], DelayOffsetTable],
        locks: Callable[[], bytes],
        calls: ClientCalls,
        on_reset: OnReset,
    ) -> None:
        """Create the handlers.

        Args:
            context: the broker's state and services.
            offsets: the offsets of all groups, which are changed.
            delay_offsets: returns the progress of the delay levels.
            locks: returns the queue locks for a replica, as JSON.
            calls: sends resets to the members of a group.
            on_reset: called after each reset, to answer held pulls of the queue.
        """
        self._config = context.config
        self._topics = context.topics
        self._groups = context.groups
        self._clients = context.clients
        self._offsets = offsets
        self._delay_offsets = delay_offsets
        self._locks = locks
        self._store = context.store.reader
        self._calls = calls
        self._on_reset = on_reset
        self._offload = context.offload
        self._later = context.later

    def on_invoke_broker_to_reset_offset(self, request: Request) -> None:
        """Serve 222: reset all queues to a time, or one queue to a time or an offset.

        The answer contains the new offsets.

        Raises:
            TopicNotFoundError, GroupNotFoundError: the topic or the group does not exist.
            InvalidParameterError: the topic has no such queue.
            RemoteSystemError: the offset is outside the queue's range.
            NoPermissionError: the group or the topic is reserved for the broker.
        """
        header = request.command.header(ResetOffsetRequestHeader)
        check_not_reserved(header.group, header.topic)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise TopicNotFoundError(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist"
            )
        if not self._config.use_server_side_reset_offset:
            self._later.answer(request, lambda: self._push(request, header, topic))
            return
        if self._groups.get(header.group) is None:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
            )
        queue_ids = _queue_ids(header, topic)
        if header.queue_id >= 0 and header.offset not in (None, -1):
            self._check_range(topic.name, header.queue_id, header.offset or 0)
        self._later.answer(request, lambda: self._reset(request, header, queue_ids))

    def on_clone_group_offset(self, request: Request) -> None:
        """Serve 314: copy the offsets of the source group to the destination group.

        Copies one topic or all topics. Unless `offline` is given, topics that the connected source
        does not subscribe to are left out.

        Raises:
            GroupNotFoundError: the destination does not exist and its creation is refused.
            NoPermissionError: the destination is reserved for the broker.
        """
        header = request.command.header(CloneGroupOffsetRequestHeader)
        source, destination = header.src_group, header.dest_group
        check_not_reserved(destination)
        host = request.remote_address[0]
        if self._groups.get_or_create(destination, host) is None:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                self._groups.missing_reason(destination, host),
            )
        live = None if header.offline else self._clients.consumer_group(source)
        topic = (header.topic or "").strip()
        for name in [topic] if topic else self._offsets.topics_of(source):
            if self._topics.get(name) is None or reserved_reason(destination, name) is not None:
                continue
            if live is not None and live.subscriptions and name not in live.subscriptions:
                continue
            if self._offsets.clone(source, destination, name):
                log.info("consumer_offset.cloned topic=%s from=%s to=%s", name, source, destination)
        self._later.answer(
            request, lambda: save_and_answer(response(request.command), self._offsets)
        )

    def on_get_all_consumer_offset(self, request: Request) -> None:
        """Serve 43: return the committed offsets of all groups, as a replica copies them.

        A replica that asks for more also gets the queue locks.
        """
        is_replica = REPLICA_FIELD in request.command.ext_fields

        async def serve() -> RemotingCommand:
            body = await self._offsets.body(with_positions=is_replica)
            if is_replica:
                body = with_member(body, LOCKS_MEMBER, self._locks())
            return response(request.command, body=body)

        self._later.answer(request, serve)

    def on_get_all_delay_offset(self, request: Request) -> RemotingCommand:
        """Serve 45: return the offset up to which each delay level has been delivered."""
        return response(request.command, body=encode_delay_offset_table(self._delay_offsets()))

    async def _reset(
        self, request: Request, header: ResetOffsetRequestHeader, queue_ids: range
    ) -> RemotingCommand:
        """Reset the offsets in the broker; members learn of them from the answers to their pulls.

        Raises:
            TopicNotFoundError: the topic was deleted in the meantime.
            RemoteSystemError: the table could not be saved.
        """
        topic, group = header.topic, header.group
        if header.queue_id >= 0 and header.offset not in (None, -1):
            found = {header.queue_id: header.offset or 0}
        else:
            found = await self._by_time(topic, queue_ids, header.timestamp)
        if self._topics.get(topic) is None:
            # If the topic is created again, it must not have a reset offset of the deleted one.
            raise TopicNotFoundError(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist any more"
            )
        for queue_id, offset in found.items():
            self._offsets.reset(group, topic, queue_id, offset)
            self._on_reset(group, topic, queue_id)
        body = encode_reset_offsets(
            {self._queue(topic, queue_id): offset for queue_id, offset in found.items()}
        )
        return await save_and_answer(response(request.command, body=body), self._offsets)

    async def _push(
        self, request: Request, header: ResetOffsetRequestHeader, topic: TopicConfig
    ) -> RemotingCommand:
        """Send the new offsets to the group's members.

        Unless the reset is forced, no offset is moved forward.

        Raises:
            RemoteSystemError: the group has not committed in every queue, or has too many members
                or a member whose version does not support the request.
            ConsumerNotOnlineError: the group has no connected member.
        """
        group = header.group
        committed = self._offsets.of_topic(group, topic.name)
        queue_ids = range(topic.write_queue_nums)
        if any(queue_id not in committed for queue_id in queue_ids):
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"THe consumer group <{group}> not exist: it has not committed in every queue of "
                f"topic {topic.name}",
            )
        found = await self._by_time(topic.name, queue_ids, header.timestamp)
        offsets = {
            self._queue(topic.name, queue_id): (
                offset if header.is_force else min(offset, committed[queue_id])
            )
            for queue_id, offset in found.items()
        }
        if not self._calls.push_reset(topic.name, group, header.timestamp, offsets):
            raise ConsumerNotOnlineError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} "
                f"Topic: {topic.name} Timestamp: {header.timestamp}",
            )
        log.info("consumer_offset.reset_pushed group=%s topic=%s", group, topic.name)
        return response(request.command, body=encode_reset_offsets(offsets))

    async def _by_time(self, topic: str, queue_ids: range, at_ms: int) -> dict[int, int]:
        """Return the offsets of the queues at a time; for a negative time, their ends."""
        if at_ms < 0:
            return {queue_id: self._store.max_offset(topic, queue_id) for queue_id in queue_ids}
        return await self._offload(_offsets_by_time, self._store, topic, queue_ids, at_ms)

    def _check_range(self, topic: str, queue_id: int, offset: int) -> None:
        """Check that an offset is within the queue, its end included.

        Java also accepts the offset after the end, and so would skip the next message.

        Raises:
            RemoteSystemError: the offset is outside.
        """
        first = self._store.min_offset(topic, queue_id)
        end = self._store.max_offset(topic, queue_id)
        if not first <= offset <= end:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {offset} not in consume queue range [{first}-{end}]",
            )

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._config.broker_name, queue_id)


def _queue_ids(header: ResetOffsetRequestHeader, topic: TopicConfig) -> range:
    """Return the queues to be reset: the one that is named, or all.

    Raises:
        InvalidParameterError: the topic has no such queue.
        RemoteSystemError: the topic has no queues to read.
    """
    if header.queue_id < 0:
        if topic.read_queue_nums <= 0:
            raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        return range(topic.read_queue_nums)
    queue_nums = max(topic.read_queue_nums, topic.write_queue_nums)
    if header.queue_id >= queue_nums:
        raise InvalidParameterError(
            ResponseCode.INVALID_PARAMETER,
            f"topic {topic.name} has no queue {header.queue_id}; it has {queue_nums} queues",
        )
    return range(header.queue_id, header.queue_id + 1)


def _offsets_by_time(
    store: StoreReader, topic: str, queue_ids: range, at_ms: int
) -> dict[int, int]:
    """Return each queue's first offset whose message is not older; may read the disk."""
    return {queue_id: store.offset_by_time(topic, queue_id, at_ms) for queue_id in queue_ids}

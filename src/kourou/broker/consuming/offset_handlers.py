"""Requests for committed offsets: QUERY_CONSUMER_OFFSET (14) and UPDATE_CONSUMER_OFFSET (15).

Source: ConsumerManageProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.consuming.young_queues import YoungQueues, queue_nums
from kourou.broker.context import BrokerContext
from kourou.broker.reserved import check_not_reserved
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.offsets import (
    TOPIC_BEGIN_FIELD,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    parse_topic_begin,
)
from kourou.remoting.connection import Request


class OffsetHandlers:
    """Serves QUERY_CONSUMER_OFFSET and UPDATE_CONSUMER_OFFSET."""

    def __init__(self, context: BrokerContext, offsets: ConsumerOffsets) -> None:
        """Serve `offsets`.

        Args:
            context: the broker's state and services.
            offsets: offsets of all groups.
        """
        self._groups = context.groups
        self._clients = context.clients
        self._topics = context.topics
        self._offsets = offsets
        self._store = context.store.reader
        self._young = YoungQueues(context)

    def on_query_consumer_offset(self, request: Request) -> RemotingCommand:
        """Answer with the committed offset, with 0 if a new group may begin there, or with code 22.

        A new group begins at 0 if no message of the queue was deleted, and its first message is
        still in memory or has not arrived yet. The queue is then young, and most likely as old as
        the group. Otherwise the client decides by its `consume_from_where`.
        """
        command = request.command
        header = command.header(QueryConsumerOffsetRequestHeader)
        topic, queue_id = header.topic, header.queue_id
        committed = self._offsets.query(header.consumer_group, topic, queue_id)
        if committed is None:
            if header.set_zero_if_not_found is False or not self._young.contains(topic, queue_id):
                text = f"group {header.consumer_group} has no offset of queue {queue_id} of {topic}"
                return self._with_topic_begin(
                    response(command, ResponseCode.QUERY_NOT_FOUND, text), topic
                )
            committed = 0
        answer = response(command, header=QueryConsumerOffsetResponseHeader(committed))
        return self._with_topic_begin(answer, topic)

    def on_update_consumer_offset(self, request: Request) -> RemotingCommand:
        """Commit an offset, forward or back; it is durable after the next save.

        While a reset is pending for the group's next pull, the commit is answered but ignored.

        Raises:
            NoPermissionError: the group or the topic is reserved for the broker.
        """
        command = request.command
        if "commitOffset" not in command.ext_fields or "queueId" not in command.ext_fields:
            text = "queueId and commitOffset must both be set"
            return response(command, ResponseCode.INVALID_PARAMETER, text)
        header = command.header(UpdateConsumerOffsetRequestHeader)
        check_not_reserved(header.consumer_group, header.topic)
        host = request.remote_address[0]
        if self._groups.find(header.consumer_group, host) is None:
            text = self._groups.missing_reason(header.consumer_group, host)
            return response(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        topic = self._topics.get(header.topic)
        if topic is None:
            text = f"topic {header.topic} does not exist"
            return response(command, ResponseCode.TOPIC_NOT_EXIST, text)
        if not 0 <= header.queue_id < queue_nums(topic) or header.commit_offset < 0:
            text = (
                f"offset {header.commit_offset} of queue {header.queue_id}: topic {topic.name} "
                f"has {queue_nums(topic)} queues, and offsets begin at 0"
            )
            return response(command, ResponseCode.INVALID_PARAMETER, text)
        where = (header.consumer_group, topic.name, header.queue_id)
        if self._offsets.is_reset(*where):
            # The client does not know of the reset yet; its next pull returns the new offset.
            return response(command, remark="Offset has been previously reset")
        live = self._clients.consumer_group(header.consumer_group)
        is_member = live is not None and request.connection in live.members
        if is_member and self._offsets.is_behind_pops(*where, header.commit_offset):
            return response(command, remark="the group has popped later messages meanwhile")
        if is_for_deleted_topic(command, self._store.topic_begin(topic.name)):
            return response(command, ResponseCode.TOPIC_NOT_EXIST, recreated_remark(topic.name))
        if not self._offsets.has_room(header.consumer_group, topic.name, host):
            text = self._offsets.refusal(header.consumer_group, topic.name, host)
            return response(command, ResponseCode.SYSTEM_BUSY, text)
        self._groups.get_or_create(header.consumer_group, host)
        end = self._store.max_offset(topic.name, header.queue_id)
        if not self._offsets.commit_within(*where, header.commit_offset, end, host):
            text = (
                f"offset {header.commit_offset} of queue {header.queue_id} of topic {topic.name}: "
                f"it is beyond the queue's end {end}"
            )
            return response(command, ResponseCode.INVALID_PARAMETER, text)
        return response(command)

    def _with_topic_begin(self, answer: RemotingCommand, topic: str) -> RemotingCommand:
        answer.ext_fields[TOPIC_BEGIN_FIELD] = str(self._store.topic_begin(topic))
        return answer


def is_for_deleted_topic(command: RemotingCommand, topic_begin: int) -> bool:
    """Return whether the client's request is for a topic that has been deleted since.

    Args:
        command: the request; only Kourou's clients send the beginning of their topic.
        topic_begin: beginning of the current topic of that name.
    """
    requested_begin = parse_topic_begin(command.ext_fields)
    return requested_begin is not None and requested_begin < topic_begin


def recreated_remark(topic: str) -> str:
    """Return the remark for a request for a topic that was deleted and created again."""
    return f"topic {topic} was deleted and created again: its earlier offsets are no longer valid"

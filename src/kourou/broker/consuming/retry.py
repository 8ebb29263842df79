"""CONSUMER_SEND_MSG_BACK (36): a consumer gives a message back, to get it again later.

The checks come in Java's order, each with Java's code:

    16  the group is the broker's own; Java takes it
    26  the group does not exist and may not be made
    16  the broker is not writable
    0   the group has no retry queues: nothing is stored
    16  its retry topic is not writable
    1   there is no message at the given place of the log
    16  the message waits for a time or for its commit; Java gives it to the group

The message is stored anew for the group's retry topic, with one more in reconsume_times, and waits
at a delay level: the one asked for, or what the group's policy says (`retry_policy.py`), mostly
longer each time. With a negative level, when it was given back as often as the group allows, or
when its properties leave no room for those of a retry, it
goes to the group's dead-letter topic, from where nobody takes it but by hand. Our clients say why
they gave it back, which a dead letter keeps as the property KOUROU_DLQ_REASON.

The answer comes when the message is as safe as one that is sent; Java does not wait for the disk.

Source: AbstractSendMessageProcessor.consumerSendMsgBack, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from functools import partial
from random import Random
from typing import Final

from kourou.broker.consuming.retry_policy import retry_level
from kourou.broker.consuming.retry_topics import SavedTopics, ensure_dlq_topic, ensure_retry_topic
from kourou.broker.groups import Groups
from kourou.broker.live_config import LiveConfig
from kourou.broker.reserved import check_delivered, check_not_reserved
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.placement import place
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.clock import Clock
from kourou.errors import (
    GroupNotFoundError,
    MalformedMessageError,
    NoPermissionError,
    RemoteSystemError,
)
from kourou.model import properties as names
from kourou.model.group import SubscriptionGroup
from kourou.model.host import Host
from kourou.model.message import MessageExt
from kourou.model.properties import PROPERTIES_SIZE_MAX
from kourou.model.property_limits import fitting_properties
from kourou.model.topic import TopicConfig, retry_topic
from kourou.protocol.codes import VERSION_MAX_RECONSUME_TIMES, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.headers_send import (
    REASON_CHARS_MAX,
    REASON_FIELD,
    ConsumerSendMsgBackRequestHeader,
)
from kourou.protocol.message_decoding import decode_message
from kourou.protocol.message_layout import RecordDraft, read_record
from kourou.remoting.connection import Request
from kourou.remoting.later import LaterReplies
from kourou.remoting.runtime import Offload
from kourou.store.log.record_seal import without_seal
from kourou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_NOT_DELAYED: Final = 0


class SendBackHandler:
    """Serves the request."""

    def __init__(
        self,
        *,
        config: LiveConfig,
        topics: SavedTopics,
        groups: Groups,
        store: MessageStore,
        commit: GroupCommit,
        later: LaterReplies,
        stats: BrokerStats,
        offload: Offload,
        clock: Clock,
        random: Random,
        store_host: Host | None,
    ) -> None:
        """Give messages of `store` to their groups again.

        Args:
            config: whether the broker is writable; the delay levels.
            topics: get the group's retry and dead-letter topics.
            groups: say how often a message is given again.
            store: holds the messages that are given back.
            commit: stores them anew.
            later: runs the requests, which all wait for the disk.
            stats: counts them.
            offload: takes the read of the message off the loop.
            clock: the store time.
            random: chooses among the retry queues.
            store_host: the broker's address in message ids; None takes the one that the consumer
                connected to.
        """
        self._config = config
        self._topics = topics
        self._groups = groups
        self._store = store
        self._commit = commit
        self._later = later
        self._stats = stats
        self._offload = offload
        self._clock = clock
        self._random = random
        self._store_host = store_host

    def on_consumer_send_msg_back(self, request: Request) -> RemotingCommand | None:
        """Check what needs no disk; the rest answers later."""
        command = request.command
        header = command.header(ConsumerSendMsgBackRequestHeader)
        check_not_reserved(header.group)
        host = request.remote_address[0]
        group = self._groups.find(header.group, host)
        if group is None:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                self._groups.absence(header.group, host),
            )
        if not self._config.now.is_writable:
            raise NoPermissionError(ResponseCode.NO_PERMISSION, "the broker is not writable")
        if group.retry_queue_nums <= 0:
            log.info("message.dropped group=%s reason=no_retry_queues", group.group_name)
            return response(command)
        topic = self._topics.get(retry_topic(group.group_name))
        if topic is not None and not topic.is_writable:
            raise NoPermissionError(
                ResponseCode.NO_PERMISSION, f"topic {topic.name} is not writable"
            )
        self._later.answer(request, partial(self._give_back, request, header, group))
        return None

    async def _give_back(
        self,
        request: Request,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroup,
    ) -> RemotingCommand:
        command = request.command
        message, stored_text = await self._message_at(header.offset)
        check_delivered(message.topic, header.offset)
        host = request.remote_address[0]
        self._groups.get_or_create(group.group_name, host)  # only now is it certain to be used
        topic = ensure_retry_topic(self._topics, group, host, unit_mode=header.unit_mode)
        level = header.delay_level
        draft = None
        if level >= 0 and message.reconsume_times < _tries_max(command, header, group):
            levels_ms = self._config.now.delay_levels_ms
            level = min(level, len(levels_ms)) or retry_level(
                group, message.reconsume_times, levels_ms
            )
            draft = self._draft(message, topic, level, request)
            if len(draft.properties) > PROPERTIES_SIZE_MAX:
                draft = None  # a store without reserve has taken it; a dead letter needs less
        is_dead = draft is None
        if draft is None:
            topic = ensure_dlq_topic(self._topics, group)
            draft = self._draft(message, topic, _NOT_DELAYED, request, _reason_of(command))
            if len(draft.properties) > PROPERTIES_SIZE_MAX:
                draft.properties = stored_text
            log.info("message.dead group=%s physical_offset=%d", group.group_name, header.offset)
        if not self._topics.is_saved(topic.name):
            # Else a crash could leave a dead letter in a topic that nobody can read.
            await self._topics.persist()
        now_ms = self._clock.now_ms()
        result = await self._commit.put_and_wait([draft], now_ms)
        self._count(result, group.group_name, message, now_ms, is_dead=is_dead)
        if result.status is PutStatus.OK:
            return response(command)
        # The client sends the message by itself then, so that it may come twice, but is not lost.
        text = f"{result.status.name}: {result.reason}"
        return response(command, ResponseCode.SYSTEM_ERROR, text)

    def _count(
        self,
        result: PutResult,
        group: str,
        message: MessageExt,
        began_ms: int,
        *,
        is_dead: bool,
    ) -> None:
        """Count what became of a message that was given back."""
        if not result.appended:
            self._stats.on_put_failed()
            return
        origin = message.properties.get(names.RETRY_TOPIC, message.topic)
        if self._topics.get(origin) is None:
            origin = message.topic  # producers may write anything there, and keys stay for a day
        self._stats.on_sent_back(
            group,
            origin,
            result.appended[0],
            is_dead=is_dead,
            took_ms=self._clock.now_ms() - began_ms,
        )

    async def _message_at(self, physical_offset: int) -> tuple[MessageExt, bytes]:
        """Return the message whose record begins at a byte of the log, and its property text.

        Raises:
            RemoteSystemError: there is none, or not any more.
        """
        record = await self._offload(self._store.read_record, physical_offset)
        try:
            if record is not None:
                header = read_record(record, check_crc=False)
                text = record[header.properties_start : header.total_size]
                return decode_message(record, decompress=False), without_seal(text)
        except MalformedMessageError as error:
            log.warning("record.unreadable physical_offset=%d error=%s", physical_offset, error)
        raise RemoteSystemError(
            ResponseCode.SYSTEM_ERROR, f"there is no message at byte {physical_offset} of the log"
        )

    def _draft(
        self,
        message: MessageExt,
        topic: TopicConfig,
        level: int,
        request: Request,
        reason: str = "",
    ) -> RecordDraft:
        """Return the message as it is stored anew: the same content, for another queue.

        Its properties may be too long, see `fitting_properties`.
        """
        properties = dict(message.properties)
        properties.pop(names.DLQ_REASON, None)  # of an earlier death, if it was redriven
        properties.setdefault(names.RETRY_TOPIC, message.topic)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.offset_msg_id)
        properties[names.DELAY] = str(level)
        properties[names.WAIT] = "false"
        placement = place(
            topic.name,
            self._random.randrange(max(1, topic.write_queue_nums)),
            properties,
            len(self._config.now.delay_levels_ms),
        )
        if reason:
            properties[names.DLQ_REASON] = reason
        return RecordDraft(
            topic=placement.topic.encode(),
            queue_id=placement.queue_id,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_at_ms=message.born_at_ms,
            born_host=message.born_host,
            store_host=self._store_host or request.connection.local_address,
            reconsume_times=message.reconsume_times + 1,
            prepared_transaction_offset=0,
            body=message.body,
            properties=fitting_properties(properties, waits=level != _NOT_DELAYED),
        )


def _tries_max(
    command: RemotingCommand, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroup
) -> int:
    """Return how often a message may be given again: the client's limit, else the group's."""
    told = header.max_reconsume_times
    if told is not None and command.version >= VERSION_MAX_RECONSUME_TIMES:
        return told
    return group.retry_max_times


def _reason_of(command: RemotingCommand) -> str:
    """Return why the delivery failed, as far as the client says and a property can hold."""
    told = command.ext_fields.get(REASON_FIELD, "")[:REASON_CHARS_MAX]
    return "".join(character if character.isprintable() else " " for character in told)

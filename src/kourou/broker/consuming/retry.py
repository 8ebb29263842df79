"""CONSUMER_SEND_MSG_BACK (36): a consumer sends a message back for a later redelivery.

The checks run in Java's order, each with Java's response code:

    16  the group is reserved for the broker; Java accepts it
    26  the group does not exist and may not be created
    16  the broker is not writable
    0   the group has no retry queues: nothing is stored
    16  its retry topic is not writable
    1   there is no message at the given log position
    16  the message is still delayed or a half message; Java delivers it to the group

The message is stored again for the group's retry topic, with its reconsume_times increased by one.
It waits at a delay level: the requested one, or the one of the group's policy,
which usually increases. It is stored in the group's dead-letter topic instead if the requested
level is negative, if the limit of redeliveries is reached, or if its properties leave no room for
those of a retry. Dead letters are only consumed on an administrator's initiative. Kourou's clients
send the reason of the failure, which a dead letter keeps as the property KOUROU_DLQ_REASON.

By default the delay level after the n-th redelivery is 3 + n: 10 s, 30 s, 1 min ... An
administrator may give the group a policy of its own (`group_retry_policy`, the JSON object of
RocketMQ's `groupRetryPolicy`):

    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 1000, 5000, 60000]}}
        ms, by redelivery + 2, as in Java; the last applies to all further ones
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000,
        "multiplier": 2}}
        min(max, initial * multiplier ** redelivery)

In Java a policy applies to POP and gRPC consumers only. Messages that are sent back wait at a delay
level. So here the shortest level that is not shorter than the policy's delay is used, else the
longest level.

The request is answered when the message is as durable as a sent one; Java does not wait for the
disk.

Source: AbstractSendMessageProcessor.consumerSendMsgBack, GroupRetryPolicy.java,
CustomizedRetryPolicy.java, ExponentialRetryPolicy.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from kourou.broker.consuming.retry_topics import ensure_dlq_topic, ensure_retry_topic
from kourou.broker.context import BrokerContext
from kourou.broker.reserved import check_delivered, check_not_reserved
from kourou.broker.writing.placement import choose_placement
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.errors import (
    GroupNotFoundError,
    MalformedMessageError,
    NoPermissionError,
    RemoteSystemError,
)
from kourou.model import properties as names
from kourou.model.group import SubscriptionGroup
from kourou.model.message import MessageExt
from kourou.model.properties import PROPERTIES_SIZE_MAX
from kourou.model.property_limits import encode_fitting_properties
from kourou.model.topic import TopicConfig, retry_topic
from kourou.protocol.codes import VERSION_MAX_RECONSUME_TIMES, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.record.decode import decode_message
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.layout import without_seal
from kourou.protocol.record.read import read_record
from kourou.protocol.sending import REASON_CHARS_MAX, REASON_FIELD, ConsumerSendMsgBackRequestHeader
from kourou.remoting.connection import Request

log = logging.getLogger(__name__)

_FIRST_LEVEL: Final = 3
"""Delay level of the first retry if the client leaves it to the broker: 10 s."""
_SKIPPED_DELAYS: Final = 2
"""Number of leading delays in a list that do not apply to sent-back messages."""
_REDELIVERIES_MAX: Final = 32
"""Limit on the exponent of an exponential policy."""
_DEFAULTS: Final = {"initial": 5_000, "max": 7_200_000, "multiplier": 2}


def retry_level(
    group: SubscriptionGroup, reconsume_times: int, delay_levels_ms: Sequence[int]
) -> int:
    """Return the delay level, from 1, of a message with that many redeliveries so far."""
    delay_ms = policy_delay_ms(group.group_retry_policy, reconsume_times)
    if delay_ms is None:
        return min(_FIRST_LEVEL + reconsume_times, len(delay_levels_ms))
    for level, level_ms in enumerate(delay_levels_ms, 1):
        if level_ms >= delay_ms:
            return level
    return len(delay_levels_ms)


def policy_delay_ms(policy: Mapping[str, object], reconsume_times: int) -> int | None:
    """Return the policy's delay in ms; None if the policy is incomplete or invalid."""
    if policy.get("type", "CUSTOMIZED") == "EXPONENTIAL":
        exponential = policy.get("exponentialRetryPolicy")
        if not isinstance(exponential, Mapping):
            return None
        values = {name: exponential.get(name, default) for name, default in _DEFAULTS.items()}
        initial, longest, multiplier = map(_as_delay, values.values())
        if initial is None or longest is None or multiplier is None:
            return None
        return int(min(longest, initial * multiplier ** min(reconsume_times, _REDELIVERIES_MAX)))
    customized = policy.get("customizedRetryPolicy")
    delays = customized.get("next") if isinstance(customized, Mapping) else None
    if not isinstance(delays, list) or not delays:
        return None
    return _as_delay(delays[min(reconsume_times + _SKIPPED_DELAYS, len(delays) - 1)])


def _as_delay(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None


_NOT_DELAYED: Final = 0


class SendBackHandler:
    """Serves CONSUMER_SEND_MSG_BACK."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.live_config
        self._topics = context.topics
        self._groups = context.groups
        self._reader = context.store.reader
        self._commit = context.commit
        self._later = context.later
        self._stats = context.stats
        self._offload = context.offload
        self._clock = context.clock
        self._random = context.random
        self._store_host = context.store_host

    def on_consumer_send_msg_back(self, request: Request) -> RemotingCommand | None:
        """Run the checks that need no disk, and answer the rest of the request later."""
        command = request.command
        header = command.header(ConsumerSendMsgBackRequestHeader)
        check_not_reserved(header.group)
        host = request.remote_address[0]
        group = self._groups.find(header.group, host)
        if group is None:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                self._groups.missing_reason(header.group, host),
            )
        if not self._config.current.is_writable:
            raise NoPermissionError(ResponseCode.NO_PERMISSION, "the broker is not writable")
        if group.retry_queue_nums <= 0:
            log.info("message.dropped group=%s reason=no_retry_queues", group.group_name)
            return response(command)
        topic = self._topics.get(retry_topic(group.group_name))
        if topic is not None and not topic.is_writable:
            raise NoPermissionError(
                ResponseCode.NO_PERMISSION, f"topic {topic.name} is not writable"
            )
        self._later.answer(request, partial(self._send_back, request, header, group))
        return None

    async def _send_back(
        self,
        request: Request,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroup,
    ) -> RemotingCommand:
        command = request.command
        message, stored_text = await self._message_at(header.offset)
        check_delivered(message.topic, header.offset)
        host = request.remote_address[0]
        self._groups.get_or_create(group.group_name, host)  # not before the request is valid
        topic = ensure_retry_topic(self._topics, group, host, unit_mode=header.unit_mode)
        level = header.delay_level
        draft = None
        if level >= 0 and message.reconsume_times < _redeliveries_max(command, header, group):
            levels_ms = self._config.current.delay_levels_ms
            level = min(level, len(levels_ms)) or retry_level(
                group, message.reconsume_times, levels_ms
            )
            draft = self._draft(message, topic, level, request)
            if len(draft.properties) > PROPERTIES_SIZE_MAX:
                draft = None  # stored by a broker without the reserve; a dead letter needs less
        is_dead = draft is None
        if draft is None:
            topic = ensure_dlq_topic(self._topics, group)
            draft = self._draft(message, topic, _NOT_DELAYED, request, _reason_of(command))
            if len(draft.properties) > PROPERTIES_SIZE_MAX:
                draft.properties = stored_text
            log.info("message.dead group=%s physical_offset=%d", group.group_name, header.offset)
        if not self._topics.is_saved(topic.name):
            # Otherwise a crash could leave a dead letter in a topic that does not exist.
            await self._topics.persist()
        now_ms = self._clock.now_ms()
        result = await self._commit.put_and_wait([draft], now_ms, wait_for_copies=True)
        self._count(result, group.group_name, message, now_ms, is_dead=is_dead)
        if result.status is PutStatus.OK:
            return response(command)
        # The client then sends the message itself. It may be delivered twice, but is not lost.
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
        """Count a message that was sent back, by its result."""
        if not result.appended:
            self._stats.on_put_failed()
            return
        origin = message.properties.get(names.RETRY_TOPIC, message.topic)
        if self._topics.get(origin) is None:
            origin = message.topic  # producers can set the property, and a counter lives for a day
        self._stats.on_sent_back(
            group,
            origin,
            result.appended[0],
            is_dead=is_dead,
            took_ms=self._clock.now_ms() - began_ms,
        )

    async def _message_at(self, physical_offset: int) -> tuple[MessageExt, bytes]:
        """Return the message whose record begins at a log position, and its property text.

        Raises:
            RemoteSystemError: there is none, or it has expired.
        """
        record = await self._offload(self._reader.read_record, physical_offset)
        try:
            if record is not None:
                header = read_record(record, check_crc=False)
                text = header.properties(record)
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
        """Return the record draft for another queue, with the same content.

        Its properties may still be too long; see `encode_fitting_properties`.
        """
        properties = dict(message.properties)
        properties.pop(names.DLQ_REASON, None)  # from an earlier dead letter that was redriven
        properties.setdefault(names.RETRY_TOPIC, message.topic)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.offset_msg_id)
        properties[names.DELAY] = str(level)
        properties[names.WAIT] = "false"
        placement = choose_placement(
            topic.name,
            self._random.randrange(max(1, topic.write_queue_nums)),
            properties,
            len(self._config.current.delay_levels_ms),
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
            properties=encode_fitting_properties(properties, is_pending=level != _NOT_DELAYED),
        )


def _redeliveries_max(
    command: RemotingCommand, header: ConsumerSendMsgBackRequestHeader, group: SubscriptionGroup
) -> int:
    """Return the limit of redeliveries: the client's, else the group's."""
    limit = header.max_reconsume_times
    if limit is not None and command.version >= VERSION_MAX_RECONSUME_TIMES:
        return limit
    return group.retry_max_times


def _reason_of(command: RemotingCommand) -> str:
    """Return the client's reason for the failure, cut to what a property can hold."""
    reason = command.ext_fields.get(REASON_FIELD, "")[:REASON_CHARS_MAX]
    return "".join(character if character.isprintable() else " " for character in reason)

"""Validation of sends before anything is stored: the order of the checks.

The refusals of messages, topics and queues themselves are in `verdicts.py`.

The checks run in Java's order, each with Java's response code:

    29  the topic's name is invalid
    16  only the broker may write to the topic; except for checkpoints and acks of a slave that acts
        for its master elsewhere
    17  the topic does not exist and may not be created
    16  the broker is not writable and the topic is an ordered one
    29  the queue does not exist
    26  retry topic: its group does not exist
    13  the topic is compacted, or the message is for light queues. Neither is implemented yet;
        stored as a normal message, it would be delivered as one
    13  the message claims to be an inner batch, or only one of flag and property marks it as
        transactional
    16  the message is transactional and the broker refuses transactions
    13  the batch is empty, delayed, transactional, or for a retry topic; or it is to be stored as
        one record and is compressed or has too many messages

Source: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.consuming.queue_locks import QueueLocks
from kourou.broker.context import BrokerContext
from kourou.broker.popping.foreign_revivals import foreign_refusal
from kourou.broker.sending.verdicts import (
    JUDGED_IN_BATCHES,
    Verdict,
    batch_flag_refusal,
    half_refusal,
    illegal,
    judge_batched,
    judge_message,
    judge_reply,
    queue_refusal,
    storage_refusal,
    topic_refusal,
)
from kourou.broker.writing.placement import delay_level_of, has_timer
from kourou.errors import (
    CodecMissingError,
    GroupNotFoundError,
    InvalidParameterError,
    InvalidTopicError,
    MalformedMessageError,
    MessageIllegalError,
    NoPermissionError,
    RemoteError,
    RemoteSystemError,
    TopicNotFoundError,
)
from kourou.model import properties as names
from kourou.model.group import SubscriptionGroup
from kourou.model.properties import PROPERTIES_SIZE_MAX, decode_properties, encode_properties
from kourou.model.property_limits import (
    SENT_PROPERTIES_SIZE_MAX,
    encode_fitting_properties,
    exceeds_send_limit,
)
from kourou.model.sysflag import COMPRESSED
from kourou.model.topic import (
    RETRY_PREFIX,
    TopicConfig,
    check_topic,
    is_retry_topic,
)
from kourou.protocol.codes import VERSION_MAX_RECONSUME_TIMES, RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.compression import DECOMPRESSED_SIZE_MAX, decompress
from kourou.protocol.message_batch import BatchItem
from kourou.protocol.popping.revive_records import REVIVE_TAGS
from kourou.protocol.popping.topic_names import revive_topic
from kourou.protocol.record.keys import INNER_MESSAGES_MAX
from kourou.protocol.sending import SendHeader, SendMessageRequestHeader, SendMessageRequestHeaderV2
from kourou.remoting.steady_time import steady_ms

_LONG_HEADERS: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
_BATCH_MARKERS: Final = tuple(f"\x02{name}\x01".encode() for name in JUDGED_IN_BATCHES)
"""Markers of the properties of batch messages that need a verdict."""
_DECODED_BYTES_MAX: Final = 128 * 1024
"""Limit on the bytes of message properties that are decoded for one batch: 20 ms at most."""


def send_header(command: RemotingCommand) -> SendHeader:
    """Return the header of a send or a reply in either of its two forms.

    Raises:
        MalformedHeaderError: a field is missing or has a bad value.
    """
    if command.code in _LONG_HEADERS:
        return command.header(SendMessageRequestHeader)
    return command.header(SendMessageRequestHeaderV2)


def check_has_body(body: bytes) -> None:
    """Refuse a message without a body.

    Raises:
        RemoteSystemError: it is empty.
    """
    if not body:
        raise RemoteSystemError(ResponseCode.SYSTEM_ERROR, "the message has no body")


def is_copy(header: SendHeader, properties: Mapping[str, str]) -> bool:
    """Return whether a broker accepted the message before and it is now sent again.

    A consumer sends a message to its retry topic, or an administrator redrives a dead letter. The
    limits for new messages do not apply: they may have been lowered, or be another broker's.
    """
    return is_retry_topic(header.topic) or names.REDRIVEN_FROM in properties


def check_size(body: bytes, config: BrokerConfig, *, copied: bool = False) -> None:
    """Refuse a body that is too long, or for a copy, one that the store cannot hold.

    Raises:
        MessageIllegalError: it exceeds `max_message_size_bytes`, or for a copy half a segment.
    """
    limit = config.max_message_size_bytes
    if copied:
        limit = config.store.commitlog_segment_bytes // 2
    if len(body) > limit:
        raise _too_long("body", len(body), limit)


def check_inflates(body: bytes, sys_flag: int) -> None:
    """Refuse a compressed body that no consumer could read. Safe in any thread.

    Raises:
        MessageIllegalError: it cannot be decompressed, or this process lacks the codec.
    """
    try:
        decompress(body, sys_flag, size_max=DECOMPRESSED_SIZE_MAX)
    except (MalformedMessageError, CodecMissingError) as error:
        raise illegal(f"the message is illegal: its body cannot be read: {error}") from None


def check_properties(text: bytes, properties: Mapping[str, str]) -> None:
    """Refuse a new message whose properties leave too little room for later additions.

    Args:
        text: the encoded properties, as received or as stored.
        properties: the decoded properties.

    Raises:
        MessageIllegalError: they are too long.
    """
    # Decoding turns one byte into three at most: those of U+FFFD.
    if 3 * len(text) > SENT_PROPERTIES_SIZE_MAX and exceeds_send_limit(properties):
        raise illegal(
            f"the message is illegal: properties of {len(text)} bytes, limit "
            f"{SENT_PROPERTIES_SIZE_MAX}: put large values into the body"
        )


def stored_properties(
    properties: Mapping[str, str], *, copied: bool = False, waits: bool = False
) -> bytes:
    """Return the encoded properties for the record.

    Args:
        properties: all properties, with those that the broker adds.
        copied: the message is a copy: properties that describe its deliveries are dropped if all
            together are too long.
        waits: the record is stored in a topic for delayed or half messages.

    Raises:
        MessageIllegalError: they are too long.
    """
    if copied:
        text = encode_fitting_properties(properties, is_pending=waits)
        if len(text) > PROPERTIES_SIZE_MAX:
            raise _too_long("properties", len(text), PROPERTIES_SIZE_MAX)
        return text
    text = encode_properties(properties)
    check_properties(text, properties)
    return text


class SendChecks:
    """Validates the headers of sends; creates the topic and group of a valid send."""

    def __init__(self, context: BrokerContext, locks: QueueLocks) -> None:
        """Create the checks; `locks` are the queue locks of groups that consume in order."""
        self._config = context.live_config
        self._topics = context.topics
        self._groups = context.groups
        self._clients = context.clients
        self._locks = locks

    def topic_of(
        self, header: SendHeader, record: tuple[bytes, str | None] | None = None
    ) -> TopicConfig:
        """Return the topic of the message: the existing one, or the one that may be created.

        Args:
            header: of the send.
            record: body and tag of a single message, which may be a revive record of another
                broker.

        Raises:
            InvalidParameterError: the name is invalid, or the queue does not exist.
            NoPermissionError: only the broker may write to the topic, or the broker is not
                writable and the topic is ordered.
            TopicNotFoundError: it does not exist and may not be created.
        """
        name = header.topic
        topic = self._topics.get(name)
        if topic is None:
            _check_name(name)
        if not self._topics.accepts_sends(name):
            self._check_revive_record(name, record)
        if topic is None:
            topic = self._topics.find_for_send(
                name,
                header.default_topic,
                header.default_topic_queue_nums,
                is_unit=header.unit_mode,
            )
        if topic is None:
            raise TopicNotFoundError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! create it, or have "
                f"auto_create_topic_enable on and topic {header.default_topic} inheritable",
            )
        _accept(topic_refusal(topic, self._config.current))
        _accept(queue_refusal(topic, header.queue_id))
        return topic

    def _check_revive_record(self, topic: str, record: tuple[bytes, str | None] | None) -> None:
        """Refuse a message for a topic of the broker, but for revive records of another broker.

        Raises:
            NoPermissionError: it is something else.
        """
        config, text = self._config.current, f"Sending message to topic[{topic}] is forbidden."
        body, tag = record or (b"", None)
        if tag is not None and tag in REVIVE_TAGS and topic == revive_topic(config.cluster_name):
            reason = foreign_refusal(body, tag, config.broker_name)
            if not reason:
                return
            text = f"{text} The record is refused: {reason}"
        raise NoPermissionError(ResponseCode.NO_PERMISSION, text)

    def group_of_retry(self, topic: str, host: str) -> SubscriptionGroup:
        """Return the group of a retry topic: the existing one, or the one that may be created.

        Args:
            topic: name of the retry topic.
            host: host of the client that sends.

        Raises:
            GroupNotFoundError: it does not exist and may not be created.
        """
        name = topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(name, host)
        if group is None:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, self._groups.missing_reason(name, host)
            )
        return group

    def is_dead(
        self,
        header: SendHeader,
        properties: dict[str, str],
        group: SubscriptionGroup,
        client_version: int,
    ) -> bool:
        """Return whether a message sent to the group's retry topic is a dead letter.

        It is one after too many redeliveries. It is also one while the group consumes a queue in
        order: such a consumer retries by itself, and sends only messages that it has given up. A
        scheduled message has not been given up. Locks of clients that are not members of the group
        do not count, unless no member is known: after a broker start, consumers may request locks
        before their first heartbeat.

        Raises:
            MessageIllegalError: the property DELAY is not a number.
        """
        if is_dead(header, group, client_version):
            return True
        if has_timer(properties):
            return False
        live = self._clients.consumer_group(group.group_name)
        members = None if live is None else live.client_ids()
        return self._locks.is_any_held(group.group_name, steady_ms(), members)

    def create_topic(self, topic: TopicConfig, host: str) -> None:
        """Create the topic if it does not exist, and the group if it is a retry topic.

        Args:
            topic: topic of the send.
            host: host of the client that sends.

        Raises:
            RemoteSystemError: the limit of topics is reached, of the broker or for the host.
        """
        self._topics.ensure(topic, host)
        if is_retry_topic(topic.name):
            self._groups.get_or_create(topic.name.removeprefix(RETRY_PREFIX), host)


def is_dead(header: SendHeader, group: SubscriptionGroup, client_version: int) -> bool:
    """Return whether a message sent to the group's retry topic exceeds its limit of retries."""
    limit = group.retry_max_times
    if client_version >= VERSION_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
        limit = header.max_reconsume_times
    return header.reconsume_times > limit


def is_redriven(header: SendHeader, properties: dict[str, str]) -> bool:
    """Return whether the message is a dead letter that an administrator redrives.

    Members of ordered groups send to the same topic messages that they have given up. A redriven
    dead letter is not one of these.
    """
    by_a_member = header.reconsume_times > 0 or header.max_reconsume_times is not None
    return names.REDRIVEN_FROM in properties and not by_a_member


def check_message(topic: TopicConfig, header: SendHeader, properties: dict[str, str]) -> Verdict:
    """Return the verdict on a single message.

    Raises:
        MessageIllegalError: its topic is compacted, it is for light queues, claims to be an inner
            batch, has the flag of a transaction without the property, or a DELAY that is no number.
    """
    _accept(storage_refusal(topic))
    sent_back = _is_sent_back(header)
    verdict = judge_message(properties, header.sys_flag, is_sent_back=sent_back)
    _accept(verdict.refusal)
    return verdict


def check_reply(topic: TopicConfig, header: SendHeader, properties: dict[str, str]) -> None:
    """Refuse a reply that is delayed or transactional: replies are stored as normal messages.

    Raises:
        MessageIllegalError: it is delayed or transactional, or would be refused as a message.
    """
    _accept(storage_refusal(topic))
    sent_back = _is_sent_back(header)
    _accept(judge_reply(properties, header.sys_flag, is_sent_back=sent_back).refusal)


def check_half(config: BrokerConfig) -> None:
    """Refuse half messages if the broker is configured so.

    Raises:
        NoPermissionError: `reject_transaction_message` is on.
    """
    _accept(half_refusal(config))


def check_batch_topic(topic: TopicConfig) -> None:
    """Refuse a batch because of its topic, before its body is decoded.

    Raises:
        MessageIllegalError: it is a retry topic, or is compacted.
    """
    _accept(storage_refusal(topic))
    if is_retry_topic(topic.name):
        raise illegal(f"batch request does not support retry group {topic.name}")


def check_batch(header: SendHeader, items: Sequence[BatchItem], config: BrokerConfig) -> None:
    """Refuse a batch that cannot be stored as individual messages.

    Raises:
        MessageIllegalError: it is empty or has too many messages, or a message is delayed,
            transactional, for light queues, or has too long properties.
    """
    if len(items) > config.batch_messages_max:
        raise illegal(
            f"a batch of more than {config.batch_messages_max} messages: send several batches, "
            "or raise batchMessagesMax at the broker"
        )
    _accept(batch_flag_refusal(header.sys_flag))
    if not items:
        raise illegal("the batch is empty")
    decoded_bytes = 0
    for item in items:
        text = item.properties
        if not _is_surely_short(text):
            decoded_bytes += len(text)
            if decoded_bytes > _DECODED_BYTES_MAX:
                raise illegal(
                    f"more than {_DECODED_BYTES_MAX} bytes of properties in a batch that are close "
                    "to their limit or not UTF-8: send these messages one by one"
                )
            check_properties(text, decode_properties(text))
        judged = _judged_properties(text)
        if judged:
            _accept(judge_batched(judged).refusal)


def _is_surely_short(text: bytes) -> bool:
    """Return whether `check_properties` accepts the text without decoding it."""
    if 3 * len(text) <= SENT_PROPERTIES_SIZE_MAX:
        return True  # the same limit as in `check_properties`
    if len(text) > SENT_PROPERTIES_SIZE_MAX:
        return False
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True  # valid UTF-8 has the same length after decoding and encoding


def _judged_properties(text: bytes) -> dict[str, str]:
    """Return the properties of a batch's message that need a verdict.

    They are searched for, because decoding all properties takes ten times as long.

    Raises:
        MessageIllegalError: one of them occurs twice. No client sends that, and deciding which one
            applies may take long.
    """
    text = b"\x02" + text
    found = []
    for marker in _BATCH_MARKERS:
        at = text.find(marker)
        if at < 0:
            continue
        if text.find(marker, at + 1) >= 0:
            name = marker[1:-1].decode()
            raise illegal(f"a message of the batch has property {name} twice")
        found.append(text[at + 1 :].partition(b"\x02")[0])
    return decode_properties(b"\x02".join(found)) if found else {}


def check_inner_batch(
    header: SendHeader, properties: dict[str, str], items: Sequence[BatchItem]
) -> None:
    """Refuse a batch that cannot be stored as one record; runs after `check_batch`.

    Raises:
        MessageIllegalError: it is compressed, so that it could not be unpacked, is delayed, or has
            more messages than a queue entry can count.
    """
    if header.sys_flag & COMPRESSED:
        raise illegal("a batch for batch consume queues must not be compressed")
    if delay_level_of(properties) > 0 or has_timer(properties):
        raise illegal("a batch must not be delayed")
    if len(items) > INNER_MESSAGES_MAX:
        raise illegal(
            f"a batch of {len(items)} messages: at most {INNER_MESSAGES_MAX} fit into a record"
        )


def _check_name(name: str) -> None:
    try:
        check_topic(name)
    except InvalidTopicError as error:
        raise InvalidParameterError(ResponseCode.INVALID_PARAMETER, str(error)) from None


def _is_sent_back(header: SendHeader) -> bool:
    return header.reconsume_times > 0 and is_retry_topic(header.topic)


def _accept(refusal: RemoteError | None) -> None:
    """Raise the refusal of a verdict, if there is one."""
    if refusal is not None:
        raise refusal


def _too_long(part: str, size: int, limit: int) -> MessageIllegalError:
    return MessageIllegalError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal: {part} of {size} bytes, limit {limit}",
    )

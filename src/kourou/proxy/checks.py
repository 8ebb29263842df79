"""Checks of the names, messages and times of calls, with RocketMQ's codes and texts.

Each check raises `CallRefusedError`.

Source: GrpcValidator.java, SendMessageActivity.java, ReceiveMessageActivity.java,
Validators.java, DefaultTopicMessageTypeValidator.java, apache/rocketmq 5.5.0, and recorded calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kourou.errors import CallRefusedError
from kourou.model import properties as names
from kourou.model.topic import (
    GROUP_LENGTH_MAX,
    TOPIC_LENGTH_MAX,
    TopicConfig,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
)
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code
from kourou.proxy.status import proxy_refusal
from kourou.proxy.times import duration_ms, timestamp_ms

NAME_PATTERN: Final = "^[%|a-zA-Z0-9_-]+$"
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_LITE_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_JAVA_BLANK: Final = re.compile(r"\S|[\x85\xa0\u2007\u202f]")
"""A character that is no white space in Java, which excludes the no-break spaces."""

MIXED: Final = "MIXED"
"""Type of a topic that accepts all types of messages."""
UNSPECIFIED: Final = "UNSPECIFIED"
TYPE_ATTRIBUTE: Final = "message.type"
_TYPE_DEFAULT: Final = "NORMAL"

_POLLING_CODE_SINCE: Final = "5.0.3"
"""Version of the first clients that know ILLEGAL_POLLING_TIME; compared as text."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of the values in calls; 0 switches a limit off where it says so.

    Attributes:
        body_bytes_max: body of a message; 0: no limit.
        refuse_empty_body: messages need a body.
        properties_max: user properties of a message.
        properties_bytes_max: user properties, tag and keys of a message, all together.
        group_bytes_max: a message group has fewer bytes; 0: no limit.
        lite_topic_bytes_max: name of a lite topic.
        delay_ms_max: time from the send to the delivery; 0: no limit.
        recovery_s_max: time until the first check of a transaction; 0: no limit.
        invisible_ms_min: invisible time of a receive.
        invisible_ms_max: of a receive or a change; 0: no limit.
        polling_ms_min: time that a receive waits for messages.
        polling_ms_max: likewise.
        batch_max: messages of one receive.
    """

    body_bytes_max: int = 4 * 1024 * 1024
    refuse_empty_body: bool = True
    properties_max: int = 128
    properties_bytes_max: int = 16 * 1024
    group_bytes_max: int = 64
    lite_topic_bytes_max: int = 64
    delay_ms_max: int = 86_400_000
    recovery_s_max: int = 3_600
    invisible_ms_min: int = 10_000
    invisible_ms_max: int = 43_200_000
    polling_ms_min: int = 5_000
    polling_ms_max: int = 20_000
    batch_max: int = 32


def is_blank(text: str) -> bool:
    """Return whether the text is empty or has only white space of Java."""
    return _NOT_JAVA_BLANK.search(text) is None


def check_topic(name: str) -> None:
    """Refuse an invalid name of a topic, and system topics: ILLEGAL_TOPIC."""
    if is_blank(name):
        raise CallRefusedError(Code.ILLEGAL_TOPIC, "The specified topic is blank")
    if len(name) > TOPIC_LENGTH_MAX:
        raise CallRefusedError(
            Code.ILLEGAL_TOPIC,
            f"The specified topic is longer than topic max length {TOPIC_LENGTH_MAX}.",
        )
    if not _NAME.fullmatch(name):
        raise CallRefusedError(
            Code.ILLEGAL_TOPIC,
            f"The specified topic[{name}] contains illegal characters, allowing only "
            f"{NAME_PATTERN}",
        )
    if is_system_topic(name):
        raise CallRefusedError(Code.ILLEGAL_TOPIC, "cannot access system topic")


def check_group(name: str) -> None:
    """Refuse an invalid name of a group, and system groups: ILLEGAL_CONSUMER_GROUP."""
    if is_blank(name):
        raise CallRefusedError(Code.ILLEGAL_CONSUMER_GROUP, "the specified group is blank")
    if len(name) > GROUP_LENGTH_MAX:
        raise CallRefusedError(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"the specified group[{name}] is longer than group max length: {GROUP_LENGTH_MAX}.",
        )
    if not _NAME.fullmatch(name):
        raise CallRefusedError(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"the specified group[{name}] contains illegal characters, allowing only "
            f"{NAME_PATTERN}",
        )
    if is_system_group(name):
        raise CallRefusedError(Code.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")


def check_lite_topic(name: str, limits: CallLimits) -> None:
    """Refuse an invalid name of a lite topic: ILLEGAL_LITE_TOPIC."""
    if is_blank(name):
        raise CallRefusedError(
            Code.ILLEGAL_LITE_TOPIC, "lite topic cannot be the char sequence of whitespace"
        )
    if len(name.encode()) > limits.lite_topic_bytes_max:
        raise CallRefusedError(
            Code.ILLEGAL_LITE_TOPIC,
            f"lite topic exceed the max size {limits.lite_topic_bytes_max}",
        )
    if not _LITE_NAME.fullmatch(name):
        raise CallRefusedError(
            Code.ILLEGAL_LITE_TOPIC,
            "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)",
        )


def check_same_topic(request: v2.SendMessageRequest) -> v2.Resource:
    """Return the topic of all messages of a send; refuse none or several: MESSAGE_CORRUPTED."""
    messages = request.messages
    if not messages:
        raise CallRefusedError(Code.MESSAGE_CORRUPTED, "no message to send")
    topic = messages[0].topic
    check_topic(topic.name)
    if len(messages) > 1 and any(message.topic != topic for message in messages):
        raise CallRefusedError(Code.MESSAGE_CORRUPTED, "topic in message is not same")
    return topic


def check_message(message: v2.Message, limits: CallLimits, now_ms: int) -> None:
    """Refuse a message to send that exceeds a limit or has an invalid value.

    The topic is not checked here. The order of the checks is RocketMQ's.
    """
    _check_body(message.body, limits)
    system = message.system_properties
    size = _user_properties_bytes(message, limits)
    _check_tag(system.tag)
    size += len(system.tag.encode())
    for key in system.keys:
        _check_key(key)
        size += len(key.encode())
    if size > limits.properties_bytes_max:
        raise CallRefusedError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {limits.properties_bytes_max}",
        )
    if is_blank(system.message_id):
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if system.message_type == v2.MessageType.TRANSACTION:
        _check_recovery(system, limits)
    if system.HasField("delivery_timestamp"):
        _check_delivery(timestamp_ms(system.delivery_timestamp), limits, now_ms)
    if system.HasField("priority") and system.priority < 0:
        raise CallRefusedError(
            Code.INTERNAL_SERVER_ERROR,
            "The priority must be greater than or equal to 0. IllegalArgumentException",
        )
    if system.message_group:
        _check_message_group(system.message_group, limits)
    if system.lite_topic:
        check_lite_topic(system.lite_topic, limits)


def type_of_topic(config: TopicConfig | None) -> str:
    """Return the type of a topic's messages, such as FIFO; UNSPECIFIED of an unknown topic."""
    if config is None:
        return UNSPECIFIED
    return config.attributes.get(TYPE_ATTRIBUTE, _TYPE_DEFAULT).upper()


def check_type(topic_type: str, message_type: str) -> None:
    """Refuse a type that is not the topic's: MESSAGE_PROPERTY_CONFLICT_WITH_TYPE.

    Args:
        topic_type: the topic's attribute `message.type`; UNSPECIFIED of an unknown topic.
        message_type: the type of the message, in capital letters.
    """
    if not _accepts(topic_type, message_type):
        raise _type_refusal(topic_type, message_type)


def accepts_all_types(topic: str) -> bool:
    """Return whether messages of all types may be sent to a topic: a retry or dead-letter topic."""
    return is_retry_topic(topic) or is_dlq_topic(topic)


def check_sent_type(topic: str, topic_type: str, message_type: str) -> None:
    """Refuse a message to send as `check_type` does; retry and dead-letter topics accept all.

    The text has the remedy after that of RocketMQ.
    """
    if _accepts(topic_type, message_type) or accepts_all_types(topic):
        return
    command = "create" if topic_type == UNSPECIFIED else "update"
    raise _type_refusal(
        topic_type,
        message_type,
        f"; `kourou topic {command} {topic} --type {message_type.lower()}` declares it",
    )


def _accepts(topic_type: str, message_type: str) -> bool:
    return message_type != UNSPECIFIED and topic_type in (message_type, MIXED)


def _type_refusal(topic_type: str, message_type: str, remedy: str = "") -> CallRefusedError:
    return proxy_refusal(
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"TopicMessageType validate failed, the expected type is {topic_type}, but actual "
        f"type is {message_type}{remedy}",
    )


def check_invisible(ms: int, limits: CallLimits, least_ms: int = 0) -> None:
    """Refuse an invisible time out of range: ILLEGAL_INVISIBLE_TIME."""
    if ms < least_ms:
        raise CallRefusedError(
            Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least_ms}"
        )
    if 0 < limits.invisible_ms_max < ms:
        raise CallRefusedError(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too large. max is {limits.invisible_ms_max}",
        )


def polling_ms(
    request: v2.ReceiveMessageRequest,
    remaining_ms: int | None,
    request_timeout_ms: int,
    client_version: str,
    limits: CallLimits,
) -> int:
    """Return the time that a receive may wait for messages.

    Args:
        request: names the time, or leaves it to the call's deadline.
        remaining_ms: time until the call's deadline; None without one.
        request_timeout_ms: from the client's settings.
        client_version: such as 5.0.9; empty if unknown.
        limits: the shortest and longest time.

    Raises:
        CallRefusedError: the call has no deadline, or it is too near.
    """
    if remaining_ms is None:
        raise CallRefusedError(
            Code.INTERNAL_SERVER_ERROR, "the call has no deadline: send the header grpc-timeout"
        )
    if request.HasField("long_polling_timeout"):
        wanted_ms = duration_ms(request.long_polling_timeout)
    else:
        wanted_ms = remaining_ms - request_timeout_ms // 2
    wanted_ms = min(max(wanted_ms, limits.polling_ms_min), limits.polling_ms_max)
    if wanted_ms <= remaining_ms:
        return wanted_ms
    if remaining_ms >= limits.polling_ms_min:
        return remaining_ms
    is_known = bool(client_version) and client_version >= _POLLING_CODE_SINCE
    raise CallRefusedError(
        Code.ILLEGAL_POLLING_TIME if is_known else Code.BAD_REQUEST,
        "The deadline time remaining is not enough for polling, please check network condition",
    )


def _check_body(body: bytes, limits: CallLimits) -> None:
    if not body and limits.refuse_empty_body:
        raise CallRefusedError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if 0 < limits.body_bytes_max < len(body):
        raise CallRefusedError(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"message body cannot exceed the max {limits.body_bytes_max}",
        )


def _user_properties_bytes(message: v2.Message, limits: CallLimits) -> int:
    """Check the user properties, and return the bytes of their names and values."""
    properties = message.user_properties
    if len(properties) > limits.properties_max:
        raise CallRefusedError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"too many user properties, max is {limits.properties_max}",
        )
    size = 0
    for name, value in properties.items():
        if name in names.RESERVED:
            raise CallRefusedError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}"
            )
        for part, text in (("key", name), ("value", value)):
            if _CONTROL.search(text):
                raise CallRefusedError(
                    Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                    f"the {part} of property cannot contain control character",
                )
        size += len(name.encode()) + len(value.encode())
    return size


def _check_tag(tag: str) -> None:
    if not tag:
        return
    if is_blank(tag):
        raise CallRefusedError(
            Code.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace"
        )
    if "|" in tag:
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if _CONTROL.search(tag):
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character")


def _check_key(key: str) -> None:
    if not key:
        return
    if is_blank(key):
        raise CallRefusedError(
            Code.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace"
        )
    if _CONTROL.search(key):
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_KEY, "key cannot contain control character")


def _check_message_group(group: str, limits: CallLimits) -> None:
    if is_blank(group):
        raise CallRefusedError(
            Code.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of whitespace"
        )
    if 0 < limits.group_bytes_max <= len(group.encode()):
        raise CallRefusedError(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"message group exceed the max size {limits.group_bytes_max}",
        )
    if _CONTROL.search(group):
        raise CallRefusedError(
            Code.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character"
        )


def _check_recovery(system: v2.SystemProperties, limits: CallLimits) -> None:
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return
    seconds = duration_ms(system.orphaned_transaction_recovery_duration) // 1_000
    if 0 < limits.recovery_s_max < seconds:
        raise CallRefusedError(
            Code.BAD_REQUEST,
            "the max transaction recovery time of message is too large, max is "
            f"{limits.recovery_s_max}",
        )


def _check_delivery(deliver_at_ms: int, limits: CallLimits, now_ms: int) -> None:
    if 0 < limits.delay_ms_max < deliver_at_ms - now_ms:
        raise CallRefusedError(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the max delay time of message is too large, max is {limits.delay_ms_max}",
        )

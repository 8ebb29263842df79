"""Verdicts on sends: the meaning of a message, and the refusals of messages, topics and queues.

Pure. The general path (`send.py`, `reply.py`) judges every message. The fast paths judge each shape
of properties, each topic and each queue once, cache the verdict, and leave to the general path
everything that is refused or stored otherwise than as received. So a property with a meaning for
sends is named in this module and nowhere else: a refused one in `_REFUSED`.

Source: AbstractSendMessageProcessor.msgCheck, SendMessageProcessor, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kourou.broker.config import BrokerConfig
from kourou.broker.message_type import message_type
from kourou.broker.topic_attributes import SERVED_VALUES
from kourou.broker.writing.placement import delay_level_of, has_timer
from kourou.errors import (
    InvalidParameterError,
    MessageIllegalError,
    NoPermissionError,
    RemoteError,
)
from kourou.model import properties as names
from kourou.model.sysflag import (
    COMPRESSED,
    COMPRESSION_MASK,
    INNER_BATCH,
    MULTI_TAGS,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
)
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode

_LIGHT: Final = "light queues are not served yet"
_REFUSED: Final = {names.INNER_MULTI_DISPATCH: _LIGHT, names.LITE_TOPIC: _LIGHT}
"""Reasons by refused property, of single messages and of messages in batches."""
_DELAYS: Final = (names.DELAY, *names.TIMER_PROPERTIES)
JUDGED_IN_BATCHES: Final = (names.TRAN_MSG, *_DELAYS, *_REFUSED)
"""All properties that `judge_batched` examines."""
_REMOVED: Final = frozenset({names.CRC32, names.INNER_MULTI_QUEUE_OFFSET})
"""Properties that the store alone sets: received ones are removed."""
_REPLACED: Final = frozenset(
    {names.PRIORITY, names.POP_CK, names.MSG_REGION, names.TRACE_ON, names.CLUSTER}
)
"""Properties of single messages that the broker interprets, removes or sets itself."""
_UNCHANGED: Final = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
"""System flags that are stored as received."""


class Verdict(NamedTuple):
    """The meaning of a message's properties.

    Attributes:
        refusal: error with which the message is refused; None if it is accepted.
        type: message type, as metrics distinguish them.
        is_half: it is a half message.
        is_delayed: it has a delay level or a delivery time.
        waits_for_sync: the producer's answer waits for the disk sync.
        is_unchanged: its properties are stored as received, except that the broker appends its own,
            and it is stored in the queue that it names, or in the queue of half messages.
    """

    refusal: RemoteError | None
    type: str
    is_half: bool
    is_delayed: bool
    waits_for_sync: bool
    is_unchanged: bool


def judge_message(
    properties: Mapping[str, str], sys_flag: int = 0, *, is_sent_back: bool = False
) -> Verdict:
    """Return the verdict on a single message.

    Args:
        properties: the decoded properties, as received.
        sys_flag: the system flag of its header.
        is_sent_back: its consumer sent it to a retry topic. It keeps the property of the
            transaction in which it was committed, and is not a half message.
    """
    is_half = _has_half_property(properties) and not is_sent_back
    reason = None
    if sys_flag & TRANSACTION_MASK and not is_half:
        reason = (
            f"sys_flag {sys_flag:#x} marks the message as transactional, but its "
            f"properties do not: a half message needs {names.TRAN_MSG}=true"
        )
    elif sys_flag & INNER_BATCH or names.INNER_NUM in properties:
        reason = "a single message cannot be an inner batch: the broker makes those of batches"
    else:
        reason = _refused_property(properties)
    received = properties.keys()
    is_unchanged = names.INNER_NUM not in received and received.isdisjoint(_REPLACED)
    return _verdict(properties, reason, is_half=is_half, is_unchanged=is_unchanged)


def judge_reply(properties: Mapping[str, str], sys_flag: int, *, is_sent_back: bool) -> Verdict:
    """Return the verdict on a reply, which is stored as a normal message or not at all."""
    verdict = judge_message(properties, sys_flag, is_sent_back=is_sent_back)
    if verdict.refusal is None and (verdict.is_half or verdict.is_delayed):
        reason = "a reply must not be delayed or transactional: send it as a message"
        return verdict._replace(refusal=illegal(reason))
    return verdict


def judge_batched(properties: Mapping[str, str]) -> Verdict:
    """Return the verdict on one message of a batch.

    Args:
        properties: the decoded properties, or at least those of `JUDGED_IN_BATCHES`.
    """
    is_half = _has_half_property(properties)
    is_unchanged = names.TRAN_MSG not in properties
    reason = _refused_property(properties)
    verdict = _verdict(properties, reason, is_half=is_half, is_unchanged=is_unchanged)
    if is_half or (verdict.is_delayed and verdict.refusal is None):
        refusal = illegal("a message of a batch must not be delayed or transactional")
        return verdict._replace(refusal=refusal)
    return verdict


def batch_flag_refusal(sys_flag: int) -> RemoteError | None:
    """Return the error with which a batch with this system flag is refused; None if it is not."""
    if sys_flag & (TRANSACTION_MASK | INNER_BATCH):
        return illegal("a batch must not be transactional or an inner batch")
    return None


def is_unchanged_flag(sys_flag: int, config: BrokerConfig, *, is_half: bool) -> bool:
    """Return whether a message with this system flag is accepted, and needs no further step.

    Args:
        sys_flag: the system flag of its header.
        config: whether compressed bodies are verified before they are stored.
        is_half: whether the flag of a half message is accepted too.
    """
    if is_to_be_verified(sys_flag, config):
        return False
    return not sys_flag & ~(_UNCHANGED | (TRANSACTION_PREPARED if is_half else 0))


def is_to_be_verified(sys_flag: int, config: BrokerConfig) -> bool:
    """Return whether the body is decompressed before it is accepted."""
    return bool(sys_flag & COMPRESSED) and config.verify_compressed_bodies


def half_refusal(config: BrokerConfig) -> RemoteError | None:
    """Return the error with which half messages are refused; None if they are accepted."""
    if config.transactions.reject_transaction_message:
        return NoPermissionError(
            ResponseCode.NO_PERMISSION,
            f"the broker[{config.broker_name}] sending transaction message is forbidden: "
            "rejectTransactionMessage is on",
        )
    return None


def waits_for_sync(properties: Mapping[str, str]) -> bool:
    """Return whether the producer's answer waits for the sync; this is the default."""
    return properties.get(names.WAIT, "true").lower() == "true"


def topic_refusal(topic: TopicConfig, config: BrokerConfig) -> RemoteError | None:
    """Return the error with which sends to an existing topic are refused; None if they are not."""
    if topic.order and not config.is_writable:
        return NoPermissionError(
            ResponseCode.NO_PERMISSION,
            f"broker {config.broker_name} is not writable, and topic {topic.name} is ordered",
        )
    return None


def queue_refusal(topic: TopicConfig, queue_id: int) -> RemoteError | None:
    """Return the error with which sends to a queue are refused; None if they are not.

    Args:
        topic: the topic of the queue.
        queue_id: the queue; a negative one stands for any writable queue.
    """
    queue_nums = max(topic.read_queue_nums, topic.write_queue_nums)
    if queue_id < queue_nums and topic.write_queue_nums >= 1:
        return None
    return InvalidParameterError(
        ResponseCode.INVALID_PARAMETER,
        f"request queueId[{queue_id}] is illegal, topic {topic.name} has "
        f"{topic.write_queue_nums} queues to write and {topic.read_queue_nums} to read",
    )


def storage_refusal(topic: TopicConfig) -> RemoteError | None:
    """Return the error for a topic that needs another way of storing messages; None if none."""
    for name, served in SERVED_VALUES.items():
        value = topic.attributes.get(name, served)
        if value != served:
            return illegal(f"topic {topic.name} has {name}={value}; only {served} is served yet")
    return None


def illegal(reason: str) -> MessageIllegalError:
    """Return the error of a message that is refused for `reason`."""
    return MessageIllegalError(ResponseCode.MESSAGE_ILLEGAL, reason)


def _has_half_property(properties: Mapping[str, str]) -> bool:
    return properties.get(names.TRAN_MSG, "").lower() == "true"


def _refused_property(properties: Mapping[str, str]) -> str | None:
    for name, reason in _REFUSED.items():
        if name in properties:
            return f"property {name}: {reason}"
    return None


def _verdict(
    properties: Mapping[str, str], reason: str | None, *, is_half: bool, is_unchanged: bool
) -> Verdict:
    refusal: RemoteError | None = None if reason is None else illegal(reason)
    is_delayed = False
    try:
        is_delayed = delay_level_of(properties) > 0 or has_timer(properties)
    except MessageIllegalError as error:
        refusal = refusal or error
    received = properties.keys()
    return Verdict(
        refusal=refusal,
        type=message_type(properties),
        is_half=is_half,
        is_delayed=is_delayed,
        waits_for_sync=waits_for_sync(properties),
        is_unchanged=(
            is_unchanged
            and refusal is None
            and received.isdisjoint(_DELAYS)
            and received.isdisjoint(_REMOVED)
        ),
    )

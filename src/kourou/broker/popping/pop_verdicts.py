"""Verdicts on POP_MESSAGE, PEEK_MESSAGE, NOTIFICATION and POLLING_INFO. Pure.

The rules are applied in Java's order, each with Java's response code and text:

    210  POP: the request came later than half a second after its own time-out
    16   the broker is not readable
    29   POP: more than 32 messages are requested
    1    POP: the timer wheel is off, on which checkpoints depend
    16   the group or the topic is reserved for the broker; not in Java, see `reserved.py`
    29   POP: the timer cannot hold a checkpoint for as long as the messages are to be invisible;
         Java leaves such messages out of its answers
    17   the topic does not exist
    16   the topic is not readable
    29   the queue does not exist
    26   the group does not exist and may not be created
    16   the group may not consume
    1    POP: the topic has queues of batches, which cannot be revived; Java fails to revive them
    23   the filter does not parse
    1    POP, PEEK: a negative number of messages is requested; Java fails to allocate their list

Source: PopMessageProcessor.java, PeekMessageProcessor.java, NotificationProcessor.java,
PollingInfoProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kourou.broker.config import BrokerConfig
from kourou.broker.popping.pop_filters import PopFilter, parse_filter
from kourou.broker.pulling.verdicts import Refusal
from kourou.broker.reserved import reserved_reason
from kourou.broker.topic_attributes import has_batch_queues
from kourou.errors import FilterSyntaxError
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.popping.headers import NotificationRequestHeader, PopMessageRequestHeader
from kourou.remoting.network import Address

MESSAGES_MAX: Final = 32
"""Limit on the messages of one pop; a checkpoint has as many bits."""
LATE_MS: Final = 500
"""How long after its own time-out a pop is still served."""
HOLD_MARGIN_MS: Final = 50
"""A held request is answered this long before its own time-out."""

_FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class PopFacts(NamedTuple):
    """The state of the broker that a verdict depends on.

    Attributes:
        broker_ip: the broker's advertised address, which is part of Java's texts.
        now_ms: the time.
        topic: None if it does not exist.
        group: None if it does not exist and may not be created.
    """

    config: BrokerConfig
    broker_ip: str
    now_ms: int
    topic: TopicConfig | None
    group: SubscriptionGroup | None
    client: Address


class ReadTarget(NamedTuple):
    """The topic, queue and group of a request; a negative queue id stands for all queues."""

    group: str
    topic: str
    queue_id: int


class PermittedPop(NamedTuple):
    """The verdict on a permitted pop.

    Attributes:
        filter: None for all messages.
    """

    topic: TopicConfig
    group: SubscriptionGroup
    filter: PopFilter | None


def judge_pop(header: PopMessageRequestHeader, facts: PopFacts) -> PermittedPop | Refusal:
    """Return the verdict on a pop."""
    refusal = _refusal_of_pop(header, facts)
    if refusal is not None:
        return refusal
    target = ReadTarget(header.consumer_group, header.topic, header.queue_id)
    found = _judge_topic_and_group(target, facts)
    if isinstance(found, Refusal):
        return found
    topic, group = found
    if has_batch_queues(topic):
        text = f"topic {topic.name} has queues of batches (queue.type=BatchCQ): pull it instead"
        return Refusal("batches", ResponseCode.SYSTEM_ERROR, text)
    pop_filter = judge_filter(header)
    if isinstance(pop_filter, Refusal):
        return pop_filter
    negative = judge_count(header.max_msg_nums)
    if negative is not None:
        return negative
    return PermittedPop(topic, group, pop_filter)


def judge_count(count: int) -> Refusal | None:
    """Return the refusal of a negative number of messages; 0 is answered without any."""
    if count >= 0:
        return None
    text = f"{count} messages are requested (maxMsgNums): request 1 to {MESSAGES_MAX}"
    return Refusal("negative_count", ResponseCode.SYSTEM_ERROR, text)


def is_late(born_ms: int, poll_ms: int, now_ms: int) -> bool:
    """Return whether a pop came too late after its own time-out."""
    return now_ms - born_ms - poll_ms > LATE_MS


def judge_filter(
    header: PopMessageRequestHeader | NotificationRequestHeader,
) -> PopFilter | Refusal | None:
    """Return the filter of a request, None for all messages, or the refusal of its expression."""
    try:
        return parse_filter(header.topic, header.exp_type, header.exp)
    except FilterSyntaxError:
        return Refusal(
            "subscription",
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "parse the consumer's subscription failed",
        )


def judge_reader(
    target: ReadTarget, facts: PopFacts
) -> tuple[TopicConfig, SubscriptionGroup] | Refusal:
    """Return topic and group of a request that only reads: PEEK, NOTIFICATION, POLLING_INFO."""
    if not facts.config.is_readable:
        return _forbidden(f"the broker[{facts.broker_ip}] peeking message is forbidden")
    reserved = reserved_reason(target.group, target.topic)
    if reserved is not None:
        return _forbidden(reserved)
    return _judge_topic_and_group(target, facts)


def _refusal_of_pop(header: PopMessageRequestHeader, facts: PopFacts) -> Refusal | None:
    """Return the refusal of a pop by what does not depend on topic and group."""
    broker = f"the broker[{facts.broker_ip}] pop message"
    if is_late(header.born_time, header.poll_time, facts.now_ms):
        return Refusal("late", ResponseCode.POLLING_TIMEOUT, f"{broker} is timeout too much")
    if not facts.config.is_readable:
        return _forbidden(f"{broker} is forbidden")
    if header.max_msg_nums > MESSAGES_MAX:
        text = f"{broker}'s num is greater than {MESSAGES_MAX}"
        return Refusal("count", ResponseCode.INVALID_PARAMETER, text)
    if not facts.config.timer.timer_wheel_enable:
        text = f"{broker} is forbidden because timerWheelEnable is false"
        return Refusal("timer", ResponseCode.SYSTEM_ERROR, text)
    reserved = reserved_reason(header.consumer_group, header.topic)
    if reserved is not None:
        return _forbidden(reserved)
    return judge_invisible_time(header.invisible_time, facts.config)


def judge_invisible_time(invisible_ms: int, config: BrokerConfig) -> Refusal | None:
    """Return the refusal of a time for which the timer cannot hold a checkpoint."""
    most_s = config.timer.timer_max_delay_sec
    if invisible_ms <= most_s * 1000:
        return None
    text = (
        f"the invisible time is {invisible_ms} ms, the limit is {most_s} s (timerMaxDelaySec): "
        "use a shorter time and renew it, or raise the limit"
    )
    return Refusal("invisible_time", ResponseCode.INVALID_PARAMETER, text)


def _judge_topic_and_group(
    target: ReadTarget, facts: PopFacts
) -> tuple[TopicConfig, SubscriptionGroup] | Refusal:
    topic, group = facts.topic, facts.group
    if topic is None:
        return Refusal("topic", ResponseCode.TOPIC_NOT_EXIST, missing_topic_text(target.topic))
    if not topic.is_readable:
        return _forbidden(f"the topic[{target.topic}] peeking message is forbidden")
    if target.queue_id >= topic.read_queue_nums:
        text = wrong_queue_text(target.queue_id, topic, facts.client)
        return Refusal("queue", ResponseCode.INVALID_PARAMETER, text)
    if group is None:
        text = f"subscription group [{target.group}] does not exist, \n{_FAQ}"
        return Refusal("group", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
    if not group.consume_enable:
        return _forbidden(f"subscription group no permission, {target.group}")
    return topic, group


def missing_topic_text(topic: str) -> str:
    """Return Java's text for a topic that does not exist."""
    return f"topic[{topic}] not exist, apply first please! \n{_FAQ}"


def wrong_queue_text(queue_id: int, topic: TopicConfig, client: Address) -> str:
    """Return Java's text for a queue that does not exist."""
    host, port = client
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.name}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{host}:{port}]"
    )


def _forbidden(text: str) -> Refusal:
    return Refusal("forbidden", ResponseCode.NO_PERMISSION, text)

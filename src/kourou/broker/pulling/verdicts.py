"""Verdicts on pulls: the refusals of a pull, and the subscription and filter of a permitted one.

Pure. The general path (`pull.py`) judges every pull. The fast path (`fast_pull.py`) caches the
verdict for as long as the facts are the same, and leaves to the general path every pull that is
refused or selects messages. So a rule about pulls is in this module and nowhere else: a refusal in
`judge_pull`, with what it depends on in `PullSpec` or `PullFacts`.

The rules are applied in Java's order, each with Java's response code:

    16  the broker is not readable (forbiddenType 1)
    16  the group or the topic is reserved for the broker (3); not in Java, see `reserved.py`
    26  the group does not exist and may not be created
    16  the group may not consume (2)
    17  the topic does not exist
    16  the topic is not readable (3)
    29  the queue does not exist
    23  the pull carries a subscription of its own, which does not parse
    24  it carries none, and no member of the group is connected or subscribes to the topic
    16  the group is broadcasting, which it may not (4), or may not read this topic (5)
    25  the broker's subscription is older than the client's
    27  it filters by properties, and its group's filter does not compile or is not registered
    28  the registered filter is older than the client's
    1   it filters by properties, which is off (`enablePropertyFilter`)

Source: PullMessageProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import NamedTuple

from kourou.broker.config import BrokerConfig
from kourou.broker.pulling.consumer_filters import ConsumerFilter, compile_expression
from kourou.broker.pulling.message_filters import (
    CompiledExpression,
    filters_off_remark,
    is_tag_expression,
)
from kourou.broker.reserved import reserved_reason
from kourou.errors import FilterSyntaxError
from kourou.filter.tags import parse_tags
from kourou.model.group import MessageModel, SubscriptionGroup
from kourou.model.subscription import SubscriptionData
from kourou.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.pulling import PullMessageRequestHeader


class PullSpec(NamedTuple):
    """A pull's request without its offsets: the same for successive pulls of a queue.

    Attributes:
        max_messages: as requested.
        sub_version: version of the client's subscription.
        suspend_ms: time for which it may be held if it finds nothing; 0 for none.
        is_committing: it commits an offset.
        has_subscription: it carries a subscription, used instead of that of its group's heartbeats.
        subscription, expression_type: the expression that it carries, and its type.
    """

    group: str
    topic: str
    queue_id: int
    max_messages: int
    sub_version: int
    suspend_ms: int
    is_committing: bool
    has_subscription: bool
    subscription: str | None
    expression_type: str | None


class PullFacts(NamedTuple):
    """The state of the broker that the verdict on a pull depends on.

    Equal facts give equal verdicts, so no part that the verdict depends on changes in place.

    Attributes:
        group: None if it does not exist.
        topic: None if it does not exist.
        message_model: that of the group's connected members; None if there is none.
        subscription: that of the group's heartbeats to the topic.
        is_read_forbidden: the group may not read the topic.
        filter: the group's registered filter for the topic, for a subscription by properties.
        filter_version: the filter's version; unlike the rest of the filter, it changes in place.
    """

    config: BrokerConfig
    group: SubscriptionGroup | None
    topic: TopicConfig | None
    message_model: MessageModel | None = None
    subscription: SubscriptionData | None = None
    is_read_forbidden: bool = False
    filter: ConsumerFilter | None = None
    filter_version: int = 0


class Refusal(NamedTuple):
    """The refusal of a pull.

    Attributes:
        reason: a word to count it by.
        forbidden_type: RocketMQ's number for the reason of a code 16.
    """

    reason: str
    code: ResponseCode
    text: str
    forbidden_type: int | None = None


class PermittedPull(NamedTuple):
    """The verdict on a permitted pull.

    Attributes:
        takes_all: its subscription matches all messages.
        is_filtered: it filters by properties, which tags cannot express.
        expression: the compiled filter.
        registered: the filter if it is that of the group's heartbeats.
    """

    topic: TopicConfig
    group: SubscriptionGroup
    subscription: SubscriptionData
    takes_all: bool
    is_filtered: bool = False
    expression: CompiledExpression | None = None
    registered: ConsumerFilter | None = None


def pull_spec(header: PullMessageRequestHeader) -> PullSpec:
    """Return the header's fields without the offsets, its flags decoded."""
    flags = header.sys_flag
    return PullSpec(
        header.consumer_group,
        header.topic,
        header.queue_id,
        header.max_msg_nums,
        header.sub_version,
        header.suspend_timeout_millis if flags & PULL_SUSPEND else 0,
        is_committing=bool(flags & PULL_COMMIT_OFFSET),
        has_subscription=bool(flags & PULL_SUBSCRIPTION),
        subscription=header.subscription,
        expression_type=header.expression_type,
    )


def message_limit(spec: PullSpec, config: BrokerConfig) -> int:
    """Return the most messages that the pull is answered with.

    At least one, as in Java, so that a group that asks for none makes progress.
    """
    return max(1, min(spec.max_messages, config.pull_messages_max))


def judge_pull(spec: PullSpec, facts: PullFacts) -> PermittedPull | Refusal:
    """Return the verdict on a pull."""
    group = facts.group
    if not facts.config.is_readable:
        return _forbidden("broker", "the broker is not readable", 1)
    reserved = reserved_reason(spec.group, spec.topic)
    if reserved is not None:
        return _forbidden("reserved", reserved, 3)
    if group is None:
        text = f"consumer group {spec.group} does not exist"
        return Refusal("group", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
    if not group.consume_enable:
        return _forbidden("group", f"consumer group {spec.group} may not consume", 2)
    topic = _readable_topic(spec, facts.topic)
    if isinstance(topic, Refusal):
        return topic
    if spec.has_subscription:
        subscription = _own_subscription(spec)
    else:
        subscription = _group_subscription(spec, facts, group)
    if isinstance(subscription, Refusal):
        return subscription
    if is_tag_expression(subscription.expression_type):
        return PermittedPull(topic, group, subscription, takes_all=not subscription.code_set)
    return _judge_filter(spec, facts, PermittedPull(topic, group, subscription, takes_all=False))


def _readable_topic(spec: PullSpec, topic: TopicConfig | None) -> TopicConfig | Refusal:
    """Return the topic if the pull's queue may be read, or the refusal."""
    if topic is None:
        text = f"topic {spec.topic} does not exist"
        return Refusal("topic", ResponseCode.TOPIC_NOT_EXIST, text)
    if not topic.is_readable:
        return _forbidden("topic", f"topic {topic.name} may not be read", 3)
    if not 0 <= spec.queue_id < topic.read_queue_nums:
        text = (
            f"queue {spec.queue_id} of topic {topic.name} does not exist: it has "
            f"{topic.read_queue_nums} readable queues"
        )
        return Refusal("queue", ResponseCode.INVALID_PARAMETER, text)
    return topic


def _own_subscription(spec: PullSpec) -> SubscriptionData | Refusal:
    """Return the subscription that the pull carries, or the refusal."""
    text, kind = spec.subscription, spec.expression_type
    if not is_tag_expression(kind):
        if not text:
            return _unparsed(f"the {kind} expression is empty")
        return SubscriptionData(spec.topic, text, expression_type=str(kind))
    try:
        return parse_tags(spec.topic, text, spec.sub_version)
    except FilterSyntaxError as error:
        return _unparsed(str(error))


def _group_subscription(
    spec: PullSpec, facts: PullFacts, group: SubscriptionGroup
) -> SubscriptionData | Refusal:
    """Return the subscription of the group's heartbeats, or the refusal."""
    name, subscription = spec.group, facts.subscription
    if facts.message_model is None:
        text = f"no consumer of group {name} is connected"
        return Refusal("subscription", ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
    if facts.message_model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
        return _forbidden("group", f"consumer group {name} may not consume in broadcasting mode", 4)
    if facts.is_read_forbidden:
        return _forbidden("group", f"consumer group {name} may not read topic {spec.topic}", 5)
    if subscription is None:
        text = f"consumer group {name} did not subscribe to topic {spec.topic}"
        return Refusal("subscription", ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
    if subscription.sub_version < spec.sub_version:
        text = (
            f"the registered subscription of group {name} has version "
            f"{subscription.sub_version}, older than the client's {spec.sub_version}"
        )
        return Refusal("subscription", ResponseCode.SUBSCRIPTION_NOT_LATEST, text)
    return subscription


def _judge_filter(
    spec: PullSpec, facts: PullFacts, permitted: PermittedPull
) -> PermittedPull | Refusal:
    """Return the permitted pull with its filter by properties, or the refusal."""
    subscription, registered = permitted.subscription, facts.filter
    if not spec.has_subscription:
        if registered is None:
            text = (
                f"no filter of group {spec.group} for topic {spec.topic} is "
                f"registered: {subscription.sub_string!r} may be invalid"
            )
            return Refusal("filter", ResponseCode.FILTER_DATA_NOT_EXIST, text)
        if facts.filter_version < spec.sub_version:
            text = (
                f"the registered filter of group {spec.group} has version "
                f"{facts.filter_version}, older than the client's {spec.sub_version}"
            )
            return Refusal("filter", ResponseCode.FILTER_DATA_NOT_LATEST, text)
    if not facts.config.enable_property_filter:
        text = filters_off_remark(subscription.expression_type)
        return Refusal("filter", ResponseCode.SYSTEM_ERROR, text)
    if registered is not None:
        return permitted._replace(
            is_filtered=True, expression=registered.compiled, registered=registered
        )
    try:
        expression = compile_expression(subscription.expression_type, subscription.sub_string)
    except FilterSyntaxError as error:
        return _unparsed(str(error))  # Java delivers all messages then
    return permitted._replace(is_filtered=True, expression=expression)


def _forbidden(reason: str, text: str, forbidden_type: int) -> Refusal:
    return Refusal(reason, ResponseCode.NO_PERMISSION, text, forbidden_type)


def _unparsed(text: str) -> Refusal:
    return Refusal("subscription", ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)


def slave_code(code: ResponseCode) -> ResponseCode:
    """Return the code of a slave's answer without messages, from that of a master.

    A slave corrects no offsets, because it may lack the newest messages: the client asks again, at
    the master if that lives.

    Source: DefaultPullMessageResultHandler.handle. The redirection of all other answers to a living
    master, in PullMessageProcessor.composeResponseHeader, never applies in RocketMQ 5.5.0:
    BrokerController.getMinBrokerIdInGroup returns the slave's own id.
    """
    if code is ResponseCode.PULL_OFFSET_MOVED:
        return ResponseCode.PULL_RETRY_IMMEDIATELY
    return code

"""Explains why a message was or was not delivered to a consumer group. Pure.

`admin_explain.py` collects the facts. The first that applies decides:

    dead letter   a copy of the message is in the group's dead-letter topic
    retry         a copy waits to be delivered again: for its time, for an ack, or in a retry topic
    expired       the queue begins after the message
    in flight     it was popped and is neither acknowledged nor visible again
    filtered      the group's subscription does not accept it
    consumed      the group's offset is behind it, or its last retry was consumed
    waiting       nothing of these; the reasons are listed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from kourou.errors import FilterSyntaxError, InvalidMessageError
from kourou.filter.sql92 import compile_sql
from kourou.filter.tags import matches_tag
from kourou.model import properties as names
from kourou.model.group import ConsumeType, MessageModel, SubscriptionGroup
from kourou.model.message import MessageExt
from kourou.model.msgid import decode_unique_id
from kourou.model.subscription import SQL92_EXPRESSION, SubscriptionData
from kourou.protocol.stats import ConsumeOffset

JAVA_HIDES_POPS: Final = (
    "whether it is popped and invisible, and until when: Java brokers do not report it"
)
NO_COPIES: Final = "whether it was delivered again: it has no unique id to find its copies by"
NO_FILTER: Final = "whether it was filtered: no live member has reported a subscription"

_LINE_MAX: Final = 200
_ZONE_MS: Final = 14 * 3_600_000
"""Java counts the month in local time, which may be ahead of UTC by this much."""


class DeliveryState(StrEnum):
    """Outcome of a message in a group, or before it reached its queue."""

    CONSUMED = "consumed"
    IN_FLIGHT = "in flight"
    FILTERED = "filtered"
    WAITING = "waiting"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    EXPIRED = "expired"
    BROADCAST = "broadcast"
    NO_GROUP = "no group"
    NOT_DUE = "not due"
    HALF = "half message"


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A copy of a message: a retry, a dead letter, or one that waits for its time.

    Attributes:
        message: the copy.
        topic: the topic that it is stored in, or for which it waits.
        due_at_ms: the time for which it waits, in epoch ms; None if it is in its topic.
        is_consumed: whether the group's offset is behind it; None if it is not in its topic.
        visible_at_ms: when it is visible again; None if it is not in flight, or not known.
    """

    message: MessageExt
    topic: str
    due_at_ms: int | None = None
    is_consumed: bool | None = None
    visible_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DeliveryFacts:
    """Facts that brokers report of a group and a message.

    Attributes:
        settings: the group's, on the message's broker; None if the broker does not have it.
        is_read_forbidden: whether the group may not read the topic.
        is_topic_readable: whether the topic may be read.
        members: ids of the live members.
        consume_type, message_model: those of the live members; None without any.
        subscription: the members' subscription to the topic; None if they have none.
        offset: the group's progress in the queue; None if it is not known.
        first_offset: that of the oldest message in the queue.
        visible_at_ms: when the message is visible again; None if it is not in flight.
        reports_pops: whether the broker reports which messages are in flight.
        holders: the members to which the queue is assigned; None if that is not known.
        copies: retries, and the dead letter, by their store time.
        dead_letter: the latest dead letter.
    """

    group: str
    settings: SubscriptionGroup | None
    is_read_forbidden: bool = False
    is_topic_readable: bool = True
    members: tuple[str, ...] = ()
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    subscription: SubscriptionData | None = None
    offset: ConsumeOffset | None = None
    first_offset: int = 0
    visible_at_ms: int | None = None
    reports_pops: bool = True
    holders: tuple[str, ...] | None = None
    copies: tuple[MessageCopy, ...] = ()
    dead_letter: MessageCopy | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Outcome of a message in a group.

    Attributes:
        group: None if the message did not reach its queue.
        text: one sentence.
        reasons: of a message that waits, all that hold it up.
        unknown: what the brokers do not report, and the text therefore leaves open.
    """

    group: str | None
    state: DeliveryState
    text: str
    reasons: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


TimeText = Callable[[int], str]
"""Returns the text of a time in epoch ms."""


def explain_delivery(message: MessageExt, facts: DeliveryFacts, time_text: TimeText) -> Explanation:
    """Return what became of a message in a group."""
    if facts.settings is None:
        text = f"broker {message.broker_name} does not have the group"
        return Explanation(facts.group, DeliveryState.NO_GROUP, text)
    if facts.message_model is MessageModel.BROADCASTING:
        text = "each member receives all messages; its offsets are on its own machine"
        return Explanation(facts.group, DeliveryState.BROADCAST, text)
    found = _explain_copies(facts, time_text) or _explain_original(message, facts, time_text)
    state, text, reasons = found
    return Explanation(facts.group, state, text, reasons, tuple(_unknown(message, facts, state)))


_Found = tuple[DeliveryState, str, tuple[str, ...]]


def _explain_copies(facts: DeliveryFacts, time_text: TimeText) -> _Found | None:
    """Return the state of the dead letter or of the latest retry; None if there is none."""
    dead = facts.dead_letter
    if dead is not None:
        reason = dead.message.properties.get(names.DLQ_REASON) or "no reason was stored"
        text = f"since {time_text(dead.message.store_at_ms)}: {reason}"
        return DeliveryState.DEAD_LETTER, _one_line(text), ()
    if not facts.copies:
        return None
    copy = max(facts.copies, key=lambda one: (_retries(one), one.message.store_at_ms))
    assert facts.settings is not None
    retry = f"retry {_retries(copy)} of {facts.settings.retry_max_times}"
    if copy.due_at_ms is not None:
        return DeliveryState.RETRY, f"{retry} is due at {time_text(copy.due_at_ms)}", ()
    if copy.visible_at_ms is not None:
        until = time_text(copy.visible_at_ms)
        return DeliveryState.RETRY, f"{retry} is in flight, and invisible until {until}", ()
    if copy.is_consumed:
        return DeliveryState.CONSUMED, f"{retry} was consumed", ()
    text = f"{retry} waits in {copy.topic}"
    return DeliveryState.RETRY, text, tuple(_general_reasons(facts))


def _explain_original(message: MessageExt, facts: DeliveryFacts, time_text: TimeText) -> _Found:
    """Return the state of the message in its own queue."""
    if message.queue_offset < facts.first_offset:
        text = f"the queue begins at offset {facts.first_offset}: the message was removed"
        return DeliveryState.EXPIRED, text, ()
    if facts.visible_at_ms is not None:
        until = time_text(facts.visible_at_ms)
        text = f"popped; invisible until {until}, and then delivered again if not acknowledged"
        return DeliveryState.IN_FLIGHT, text, ()
    committed = 0 if facts.offset is None else facts.offset.consumer_offset
    is_passed = committed > message.queue_offset
    if facts.subscription is not None:
        mismatch = _mismatch(facts.subscription, message)
        if mismatch is not None:
            outcome = "it was passed over" if is_passed else "it will be passed over"
            return DeliveryState.FILTERED, f"{mismatch}; {outcome}", ()
    if is_passed:
        return DeliveryState.CONSUMED, f"the group's offset is {committed}, behind it", ()
    reasons = [*_general_reasons(facts), *_queue_reasons(message, facts, committed)]
    text = reasons[0] if reasons else "it is the next message of its queue"
    return DeliveryState.WAITING, text, tuple(reasons)


def _general_reasons(facts: DeliveryFacts) -> list[str]:
    """Return why the group reads nothing at all."""
    assert facts.settings is not None
    reasons = []
    if not facts.settings.consume_enable:
        reasons.append("the group may not consume (consume_enable=false)")
    if facts.is_read_forbidden:
        reasons.append("the group is forbidden to read the topic")
    if not facts.is_topic_readable:
        reasons.append("the topic is not readable")
    if not facts.members:
        reasons.append("the group has no live member")
    elif facts.subscription is None:
        reasons.append("the live members do not subscribe to the topic")
    return reasons


def _queue_reasons(message: MessageExt, facts: DeliveryFacts, committed: int) -> list[str]:
    """Return why the message waits in its queue."""
    reasons = []
    at = facts.offset or ConsumeOffset()
    if at.block_reason is not None:
        reasons.append(f"the queue is blocked: {at.block_reason}")
    if at.lock_holder is not None:
        reasons.append(f"the queue is locked by {at.lock_holder}, which consumes it in order")
    is_popping = facts.consume_type is ConsumeType.POP
    if facts.holders is not None and facts.members and not is_popping:
        if not facts.holders:
            reasons.append("the queue is assigned to no live member")
        elif at.lock_holder is None:
            reasons.append(f"the queue is assigned to {', '.join(facts.holders)}")
    if facts.members and at.pull_offset > message.queue_offset:
        reasons.append("a member has pulled it and not acknowledged it")
    before = message.queue_offset - committed
    if before > 0:
        count = "1 message is" if before == 1 else f"{before} messages are"
        reasons.append(f"{count} before it: the group's offset is {committed}")
    return reasons


def _mismatch(subscription: SubscriptionData, message: MessageExt) -> str | None:
    """Return why the subscription does not accept the message; None if it does."""
    expression = subscription.sub_string
    if subscription.expression_type == SQL92_EXPRESSION:
        try:
            if compile_sql(expression).matches(message.properties):
                return None
        except FilterSyntaxError:
            return None
        return _one_line(f"the expression {expression!r} is not true for its properties")
    if matches_tag(subscription, message.tags):
        return None
    tag = "without a tag" if message.tags is None else f"with tag {message.tags!r}"
    return _one_line(f"the tags {expression!r} do not accept a message {tag}")


def _unknown(message: MessageExt, facts: DeliveryFacts, state: DeliveryState) -> list[str]:
    """Return what the facts leave open, as far as it matters for this state."""
    unknown = []
    is_open = state in (DeliveryState.CONSUMED, DeliveryState.WAITING, DeliveryState.RETRY)
    may_pop = facts.consume_type in (None, ConsumeType.POP)
    if is_open and not facts.reports_pops and may_pop:
        unknown.append(JAVA_HIDES_POPS)
    if state is DeliveryState.CONSUMED:
        if facts.subscription is None:
            unknown.append(NO_FILTER)
        if names.UNIQ_KEY not in message.properties:
            unknown.append(NO_COPIES)
    return unknown


def _retries(copy: MessageCopy) -> int:
    return copy.message.reconsume_times


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]}..."


class AbsentMessage(NamedTuple):
    """A message that is not in its topic.

    Attributes:
        oldest_ms: store time of the oldest message of the topic's brokers, in epoch ms.
    """

    topic: str
    unique_id: str
    oldest_ms: int


def explain_absence(
    copies: Sequence[MessageCopy], absent: AbsentMessage, time_text: TimeText, now_ms: int
) -> Explanation | None:
    """Return why a message is not in its topic; None if it is not known.

    Args:
        copies: copies that wait for their time, and half messages, which have no time.
        absent: the message.
        time_text: returns the text of a time.
        now_ms: the current time, in epoch ms.
    """
    if not copies:
        return _explain_expiry(absent, time_text, now_ms)
    copy = max(copies, key=lambda one: one.message.store_at_ms)
    if copy.due_at_ms is None:
        stored = time_text(copy.message.store_at_ms)
        text = f"its transaction is open, or was rolled back; the half message was stored {stored}"
        return Explanation(None, DeliveryState.HALF, text)
    due = time_text(copy.due_at_ms)
    if copy.due_at_ms > now_ms:
        text = f"it is delivered to {absent.topic} at {due}"
    else:
        text = f"it was due at {due}; it was recalled, its topic was deleted, or it is late"
    return Explanation(None, DeliveryState.NOT_DUE, text)


def _explain_expiry(absent: AbsentMessage, time_text: TimeText, now_ms: int) -> Explanation | None:
    """Return that a message has expired, if its id is older than all messages of the brokers."""
    created_at_ms = created_ms(absent.unique_id, now_ms)
    if created_at_ms is None or created_at_ms >= absent.oldest_ms:
        return None
    text = (
        f"it has expired: by its id it was created {time_text(created_at_ms)}, or in an earlier "
        f"month, and the oldest message is from {time_text(absent.oldest_ms)}"
    )
    return Explanation(None, DeliveryState.EXPIRED, text)


def created_ms(unique_id: str, now_ms: int) -> int | None:
    """Return the creation time that a unique id contains, in epoch ms; None for another id.

    The id contains no month: the latest one is taken in which the time is not in the future.
    """
    try:
        month_ms = decode_unique_id(unique_id).month_ms
    except InvalidMessageError:
        return None
    start = datetime.fromtimestamp(now_ms / 1000, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    found_ms = int(start.timestamp()) * 1000 + month_ms
    if found_ms > now_ms + _ZONE_MS:
        before = (start - timedelta(days=1)).replace(day=1)
        found_ms = int(before.timestamp()) * 1000 + month_ms
    return found_ms

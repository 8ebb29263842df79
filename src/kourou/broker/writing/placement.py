"""Choice of the queue in which a message is stored: its own queue, or the queue of its delay level.

A message with a delay level waits in queue `level - 1` of SCHEDULE_TOPIC_XXXX. Its properties hold
its destination; its consume queue entry holds the time at which it is due.

Source: HookUtils.handleScheduleMessage, transformDelayLevelMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kourou.broker.message_type import PRIORITY, message_type
from kourou.decimals import is_decimal
from kourou.errors import MessageIllegalError
from kourou.model import properties as names
from kourou.model.properties import PROPERTIES_SIZE_MAX, decode_properties
from kourou.model.property_limits import encode_fitting_properties
from kourou.model.topic import SCHEDULE_TOPIC, TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.layout import RecordHeader

SET_ASIDE_MS: Final = 60_000
"""Shortest delay of a message whose topic refused it when it was due."""

_PRIORITY_DIGITS_MAX: Final = 10
_LEVEL: Final = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Placement:
    """The queue in which a message is stored."""

    topic: str
    queue_id: int


def delay_level_of(properties: Mapping[str, str]) -> int:
    """Return the message's delay level; 0 or less if it has none.

    Raises:
        MessageIllegalError: the property is no number.
    """
    text = properties.get(names.DELAY)
    if text is None:
        return 0
    if not _LEVEL.fullmatch(text):
        raise MessageIllegalError(
            ResponseCode.MESSAGE_ILLEGAL, f"property {names.DELAY} is {text!r}, not a delay level"
        )
    return int(text)


def choose_placement(
    topic: str,
    queue_id: int,
    properties: dict[str, str],
    delay_level_max: int,
) -> Placement:
    """Return the queue in which a message for `topic` and `queue_id` is stored now.

    A delay level above the highest counts as the highest. `properties` of a delayed message is
    changed: its destination is added, and timers are removed, because the level overrides them.

    Args:
        topic: the topic in which consumers are to find the message.
        queue_id: the queue of that topic.
        properties: of the message; changed in place.
        delay_level_max: the highest configured level.

    Raises:
        MessageIllegalError: the property DELAY is no number.
    """
    level = delay_level_of(properties)
    if level <= 0:
        return Placement(topic, queue_id)
    level = min(level, delay_level_max)
    drop_timers(properties)
    properties[names.DELAY] = str(level)
    properties[names.REAL_TOPIC] = topic
    properties[names.REAL_QID] = str(queue_id)
    return Placement(SCHEDULE_TOPIC, level - 1)


def set_aside(
    due: RecordDraft, waited: RecordHeader, delay_levels_ms: Sequence[int]
) -> RecordDraft:
    """Return the record of a due message whose topic refuses messages, for another delay level.

    It waits in the first level of a minute or more, and in the next longer one each further time.
    So a topic that refuses messages while it is deleted does not delay messages of other topics.
    The record is marked (`is_set_aside`) in the field in which a committed message names its half
    message: the field holds the physical offset of the first record of the message, plus one.

    Args:
        due: the record that was to be stored for consumers; its properties name its destination.
        waited: the header of the record that waited until now.
        delay_levels_ms: the delay of each level, level 1 first.
    """
    properties = decode_properties(due.properties)
    last = len(delay_levels_ms)
    level = next((n for n, ms in enumerate(delay_levels_ms, 1) if ms >= SET_ASIDE_MS), last)
    origin = waited.prepared_transaction_offset
    if origin:
        level = max(level, min(delay_level_of(properties) + 1, last))
    properties[names.DELAY] = str(level)
    text = encode_fitting_properties(properties, is_pending=True)
    if len(text) > PROPERTIES_SIZE_MAX:
        drop_timers(properties)
        properties.pop(names.TIMER_OUT_MS, None)
        text = encode_fitting_properties(properties, is_pending=True)
    return replace(
        due,
        topic=SCHEDULE_TOPIC.encode(),
        queue_id=level - 1,
        prepared_transaction_offset=origin or waited.physical_offset + 1,
        properties=text,
    )


def drop_timers(properties: dict[str, str]) -> None:
    """Remove the properties that set a delivery time."""
    for name in names.TIMER_PROPERTIES:
        properties.pop(name, None)


def has_timer(properties: Mapping[str, str]) -> bool:
    """Return whether the message has a delivery time and no delay level.

    TIMER_OUT_MS, which marks a message that has waited already, is ignored: a copy of a scheduled
    message has it too, besides a timer of its own.

    Raises:
        MessageIllegalError: the property DELAY is no number.
    """
    if delay_level_of(properties) > 0:
        return False
    return any(name in properties for name in names.TIMER_PROPERTIES)


def queue_by_priority(properties: dict[str, str], topic: TopicConfig, queue_id: int) -> int:
    """Return the queue of the message's priority, or `queue_id` if it has no effective priority.

    A priority together with a delay, an ordering key or a transaction has no effect and is removed.

    Raises:
        MessageIllegalError: the priority is no number.
    """
    text = properties.get(names.PRIORITY)
    if text is None:
        return queue_id
    if message_type(properties) != PRIORITY:
        del properties[names.PRIORITY]
        return queue_id
    if not is_decimal(text, _PRIORITY_DIGITS_MAX):
        raise MessageIllegalError(
            ResponseCode.MESSAGE_ILLEGAL, f"property {names.PRIORITY} is {text!r}, not a priority"
        )
    return min(int(text), topic.write_queue_nums - 1)

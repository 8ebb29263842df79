"""Rule of redrives: the copy of a dead letter, and the recognition of its copies. Pure.

`kourou dlq redrive` and the pipeline `redrive` share this rule, so that each recognizes the copies
that the other has sent.

A dead letter is a copy of the last delivered message, in the topic `%DLQ%<group>`. Its properties
describe the origin:

    RETRY_TOPIC           the topic to which the producer sent the message
    ORIGIN_MESSAGE_ID     the offset message id in that topic
    UNIQ_KEY              the unique id set by the producer, the same in every copy
    KOUROU_DLQ_REASON     why the last delivery failed, if the consumer was Kourou's

The copy keeps the body, keys, tag, user properties and unique id, so that an idempotent listener
recognizes it. KOUROU_REDRIVEN_FROM is the offset message id of the dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.model import properties as names
from kourou.model.topic import is_dlq_topic, is_retry_topic

ORIGIN_TOPICS: Final = (names.RETRY_TOPIC, names.DLQ_ORIGIN_TOPIC)
"""Properties that name the original topic, the preferred one first."""

CLOCK_DIFFERENCE_MAX_MS: Final = 10 * 60 * 1000
"""Largest assumed difference between the clocks of two brokers: a copy may be on another one."""


def origin_topic(properties: Mapping[str, str]) -> str | None:
    """Return the topic to which the producer sent a dead letter; None if it does not name one."""
    for name in ORIGIN_TOPICS:
        topic = properties.get(name)
        if topic and not is_retry_topic(topic) and not is_dlq_topic(topic):
            return topic
    return None


def redriven_properties(
    properties: Mapping[str, str], offset_msg_id: str, *, to_topic: bool
) -> dict[str, str]:
    """Return the properties of the copy of a dead letter.

    Args:
        properties: those of the dead letter.
        offset_msg_id: its offset message id.
        to_topic: the copy is sent to the original topic, for all its groups; otherwise to the
            group's retry topic, whose consumers need the property RETRY_TOPIC.
    """
    kept = {
        name: value for name, value in properties.items() if name not in names.DELIVERY_PROPERTIES
    }
    kept[names.REDRIVEN_FROM] = offset_msg_id
    if to_topic:
        kept.pop(names.RETRY_TOPIC, None)
    return kept


def is_redriven_copy(
    properties: Mapping[str, str], offset_msg_id: str, unique_id: str | None
) -> bool:
    """Return whether a message with these properties is a copy of a dead letter.

    An offset message id repeats if the broker's store was replaced by an empty one. Therefore the
    unique ids must be equal too, if the dead letter has one.

    Args:
        properties: those of the message.
        offset_msg_id: of the dead letter.
        unique_id: of the dead letter; None if it has none.
    """
    return properties.get(names.REDRIVEN_FROM) == offset_msg_id and (
        unique_id is None or properties.get(names.UNIQ_KEY) == unique_id
    )


def copies_since_ms(died_at_ms: int) -> int:
    """Return the earliest store time of a copy, in epoch ms.

    Args:
        died_at_ms: store time of the dead letter, by the clock of its broker.
    """
    return max(0, died_at_ms - CLOCK_DIFFERENCE_MAX_MS)

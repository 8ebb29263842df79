"""Limits of the property text, and the omission of properties from records that exceed them.

A record holds at most `PROPERTIES_SIZE_MAX` bytes of property text. Brokers and consumers add
properties after a message was sent: its destination while it is delayed, its origin when it is
retried, timestamps, transaction checks. A producer may therefore send only
`SENT_PROPERTIES_SIZE_MAX` bytes. The rest is reserved: for the properties of
`ADDED_VALUE_BYTES_MAX`, each with its longest value, and for the store's checksum.

Records of RocketMQ, and of Kourou versions before this limit, may have no room left. When such a
record is stored again, `encode_fitting_properties` omits properties that only describe the
delivery.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.model import properties as names
from kourou.model.properties import PROPERTIES_SIZE_MAX, encode_properties

SENT_PROPERTIES_SIZE_MAX: Final = 30_000
"""Bytes of the property text that a producer may send; RocketMQ accepts 32,767 and loses some."""

CHECKSUM_ROOM_BYTES: Final = 21
"""Bytes of the store's checksum property, including a separator before it."""

_NUMBER_DIGITS: Final = 20
_ID_CHARS: Final = 56
"""Characters of an offset message id with an IPv6 host."""
_NAME_CHARS: Final = 255

ADDED_VALUE_BYTES_MAX: Final[Mapping[str, int]] = {
    # Added when a broker receives the message.
    names.UNIQ_KEY: 32,
    names.MSG_REGION: 64,
    names.TRACE_ON: 5,
    names.CLUSTER: 127,
    # Added while it is delayed, and when it is delivered.
    names.REAL_TOPIC: _NAME_CHARS,
    names.REAL_QID: _NUMBER_DIGITS,
    names.DELAY: 10,
    names.TIMER_DELAY_SEC: _NUMBER_DIGITS,
    names.TIMER_DELAY_MS: _NUMBER_DIGITS,
    names.TIMER_DELIVER_MS: _NUMBER_DIGITS,
    names.TIMER_OUT_MS: _NUMBER_DIGITS,
    names.TIMER_ENQUEUE_MS: _NUMBER_DIGITS,
    names.TIMER_DEQUEUE_MS: _NUMBER_DIGITS,
    names.TIMER_ROLL_TIMES: _NUMBER_DIGITS,
    # Added to a half message.
    names.TRANSACTION_ID: 32,
    names.PGROUP: _NAME_CHARS,
    names.TRAN_PREPARED_QUEUE_OFFSET: _NUMBER_DIGITS,
    names.TRANSACTION_CHECK_TIMES: 10,
    # Added to a batch that is stored as one record.
    names.INNER_NUM: 10,
    names.INNER_BASE: _NUMBER_DIGITS,
    # Added when it is retried, becomes a dead letter or is redriven. RocketMQ's clients copy the
    # properties that they set on pulled messages.
    names.RETRY_TOPIC: _NAME_CHARS,
    names.ORIGIN_MESSAGE_ID: _ID_CHARS,
    names.WAIT: 5,
    names.RECONSUME_TIME: 10,
    names.MAX_RECONSUME_TIMES: 10,
    names.MIN_OFFSET: _NUMBER_DIGITS,
    names.MAX_OFFSET: _NUMBER_DIGITS,
    names.CONSUME_START_TIME: _NUMBER_DIGITS,
    names.DLQ_ORIGIN_TOPIC: _NAME_CHARS,
    names.DLQ_ORIGIN_MESSAGE_ID: _ID_CHARS,
    names.REDRIVEN_FROM: _ID_CHARS,
    # Added when it is popped.
    names.POP_CK: 255,
    names.FIRST_POP_TIME: _NUMBER_DIGITS,
}
"""Properties that are added to a message after it was sent: name -> bytes of the longest value."""

_OMITTABLE: Final = (
    names.DLQ_REASON,
    names.CONSUME_START_TIME,
    names.MIN_OFFSET,
    names.MAX_OFFSET,
    names.RECONSUME_TIME,
    names.MAX_RECONSUME_TIMES,
    names.FIRST_POP_TIME,
    names.POP_CK,
    names.TIMER_ENQUEUE_MS,
    names.TIMER_ROLL_TIMES,
    names.CLUSTER,
    names.TRACE_ON,
    names.MSG_REGION,
    names.TRANSACTION_ID,
    names.DLQ_ORIGIN_TOPIC,
    names.DLQ_ORIGIN_MESSAGE_ID,
    names.WAIT,
)
"""Properties that any record can omit, in the order in which they are omitted."""

_OMITTABLE_IF_DELIVERED: Final = (
    names.TRANSACTION_CHECK_TIMES,
    names.TRAN_PREPARED_QUEUE_OFFSET,
    names.REAL_QID,
    names.REAL_TOPIC,
    names.DELAY,
    *names.TIMER_PROPERTIES,
)
"""Further properties that can be omitted from a record of a delivered message."""

_OMITTED_LAST: Final = (
    names.TIMER_DEQUEUE_MS,  # without these two, a crash may repeat a delivery or a redrive
    names.REDRIVEN_FROM,
    names.ORIGIN_MESSAGE_ID,
)


def exceeds_send_limit(properties: Mapping[str, str]) -> bool:
    """Return whether a new message with these properties exceeds the limit for producers.

    Properties that brokers add do not count, so that a copy of a received message is not refused.
    """
    counted = {
        name: value
        for name, value in properties.items()
        if len(value.encode()) > ADDED_VALUE_BYTES_MAX.get(name, -1)
    }
    return len(encode_properties(counted)) > SENT_PROPERTIES_SIZE_MAX


def encode_fitting_properties(properties: Mapping[str, str], *, is_pending: bool) -> bytes:
    """Return the property text for a record that stores an existing message again.

    Properties are omitted only if the text would leave no room for the store's checksum. User
    properties are never omitted: the text of a message with very many of them may still exceed
    `PROPERTIES_SIZE_MAX`, and the store then refuses it.

    Args:
        properties: those of the message, including the ones that this step adds.
        is_pending: the record is delayed or a half message, so it needs its destination.
    """
    text = encode_properties(properties)
    limit = PROPERTIES_SIZE_MAX - CHECKSUM_ROOM_BYTES
    if len(text) <= limit:
        return text
    remaining = dict(properties)
    for name in (*_OMITTABLE, *(() if is_pending else _OMITTABLE_IF_DELIVERED), *_OMITTED_LAST):
        if remaining.pop(name, None) is not None:
            text = encode_properties(remaining)
            if len(text) <= limit:
                break
    return text

"""How long the properties of a message may be, and what a record spares where they are too long.

A record holds at most `PROPERTIES_SIZE_MAX` bytes of property text. Brokers and consumers add
properties during a message's life: its destination while it waits, its origin when it is retried,
its times, its checks. So a producer may send `SENT_PROPERTIES_SIZE_MAX` bytes only, and the rest
of the record is reserved. What is reserved is the sum of `ADDED_VALUE_BYTES_MAX`, each property
with its longest value, and of the store's checksum.

Records of RocketMQ, and of versions before this rule, may be full. Where such a record is stored
again, `fitting_properties` leaves out what describes the delivery only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.model import properties as names
from kourou.model.properties import PROPERTIES_SIZE_MAX, encode_properties

SENT_PROPERTIES_SIZE_MAX: Final = 30_000
"""Bytes of the property text that a producer may send; RocketMQ takes 32,767 and loses some."""

SEAL_ROOM_BYTES: Final = 21
"""The store's checksum property, with a separator before it."""

_NUMBER_DIGITS: Final = 20
_ID_CHARS: Final = 56
"""An offset message id of an IPv6 host."""
_NAME_CHARS: Final = 255

ADDED_VALUE_BYTES_MAX: Final[Mapping[str, int]] = {
    # Added when a broker takes the message.
    names.UNIQ_KEY: 32,
    names.MSG_REGION: 64,
    names.TRACE_ON: 5,
    names.CLUSTER: 127,
    # While it waits, and when it was delivered.
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
    # Of a transaction.
    names.TRANSACTION_ID: 32,
    names.PGROUP: _NAME_CHARS,
    names.TRAN_PREPARED_QUEUE_OFFSET: _NUMBER_DIGITS,
    names.TRANSACTION_CHECK_TIMES: 10,
    # Of a batch that is one record.
    names.INNER_NUM: 10,
    names.INNER_BASE: _NUMBER_DIGITS,
    # When it is retried, becomes a dead letter, or is redriven; RocketMQ's clients copy what they
    # note of a pull.
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
    # When it is popped.
    names.POP_CK: 255,
    names.FIRST_POP_TIME: _NUMBER_DIGITS,
}
"""What is added to a message that a broker has taken: name -> bytes of its longest value."""

_SPARED: Final = (
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
"""What any record can do without, in the order in which it is left out."""

_SPARED_BY_DELIVERED: Final = (
    names.TRANSACTION_CHECK_TIMES,
    names.TRAN_PREPARED_QUEUE_OFFSET,
    names.REAL_QID,
    names.REAL_TOPIC,
    names.DELAY,
    *names.TIMERS,
)
"""The same of a record that waits for nothing any more."""

_SPARED_LAST: Final = (
    names.TIMER_DEQUEUE_MS,  # without these two, a crash may deliver, or redrive, once more
    names.REDRIVEN_FROM,
    names.ORIGIN_MESSAGE_ID,
)


def are_too_long_to_send(properties: Mapping[str, str]) -> bool:
    """Return whether a new message with these properties is refused.

    What brokers add does not count, so that a copy of a message is as long as the message was.
    """
    counted = {
        name: value
        for name, value in properties.items()
        if len(value.encode()) > ADDED_VALUE_BYTES_MAX.get(name, -1)
    }
    return len(encode_properties(counted)) > SENT_PROPERTIES_SIZE_MAX


def fitting_properties(properties: Mapping[str, str], *, waits: bool) -> bytes:
    """Return the property text for a record that stores a message once more.

    Properties are left out only where the text leaves no room for the store's checksum. Those of
    the user are never left out: the text of a message with very many of them may still be longer
    than `PROPERTIES_SIZE_MAX`, and is refused by the store.

    Args:
        properties: of the message, with what this step adds.
        waits: the record waits for a time or for the end of a transaction, and must say where the
            message goes then.
    """
    text = encode_properties(properties)
    limit = PROPERTIES_SIZE_MAX - SEAL_ROOM_BYTES
    if len(text) <= limit:
        return text
    left = dict(properties)
    for name in (*_SPARED, *(() if waits else _SPARED_BY_DELIVERED), *_SPARED_LAST):
        if left.pop(name, None) is not None:
            text = encode_properties(left)
            if len(text) <= limit:
                break
    return text

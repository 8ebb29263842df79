r"""Names of system properties, and the codec of the property text.

The text repeats `name \x01 value \x02`, including the last \x02; nothing is escaped.

Source: MessageConst.java, MessageDecoder.messageProperties2String and string2messageProperties.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.errors import InvalidMessageError

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
BUYER_ID: Final = "BUYER_ID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
DUP_INFO: Final = "DUP_INFO"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CLUSTER: Final = "CLUSTER"
MSG_TYPE: Final = "MSG_TYPE"
POP_CK: Final = "POP_CK"
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
SHARDING_KEY: Final = "__SHARDINGKEY"
FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT: Final = "REDIRECT"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
CRC32: Final = "__CRC32#"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
LITE_TOPIC: Final = "__LITE_TOPIC"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
DLQ_REASON: Final = "KOUROU_DLQ_REASON"
"""Kourou's own, of a dead letter: the reason why its last delivery failed, in one line."""
REDRIVEN_FROM: Final = "KOUROU_REDRIVEN_FROM"
"""Kourou's own, of a redriven message: the offset message id of its dead letter."""
REPLAYED_FROM: Final = "KOUROU_REPLAYED_FROM"
"""Kourou's own, of a replayed message: the offset message id of the original."""
POP_LOG_END: Final = "KOUROU_POP_LOG_END"
"""Kourou's own, of a checkpoint: the end of the log when its messages were popped, and possibly the
offset that the group may commit. A message at one of its offsets that lies beyond that end is
another one: the topic was deleted and created again."""
SPARK_ID: Final = "KOUROU_SPARK_ID"
"""Kourou's own, of a message that a Spark job sent: identifies its row (`kourou.spark.stamps`)."""

TIMER_PROPERTIES: Final = (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)
"""Properties that request a delivery time or a delay."""

DELIVERY_PROPERTIES: Final = (
    DELAY,
    WAIT,
    REAL_TOPIC,
    REAL_QID,
    TRAN_MSG,
    PGROUP,
    MIN_OFFSET,
    MAX_OFFSET,
    RECONSUME_TIME,
    MAX_RECONSUME_TIMES,
    CONSUME_START_TIME,
    POP_CK,
    FIRST_POP_TIME,
    TIMER_DELAY_SEC,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ROLL_TIMES,
    TIMER_OUT_MS,
    TIMER_DELAY_LEVEL,
    INNER_NUM,
    INNER_BASE,
    CLUSTER,
    MSG_REGION,
    TRACE_ON,
    CRC32,
    DLQ_REASON,
)
"""Properties that describe one delivery of a message. They are removed from a copy that is
delivered again, in a retry or a redrive."""

VARYING: Final = frozenset({UNIQ_KEY, KEYS, BORN_TIMESTAMP})
"""Properties that differ from message to message; a producer's others are mostly the same."""

RESERVED: Final = frozenset(
    {
        KEYS, TAGS, WAIT, DELAY, RETRY_TOPIC, REAL_TOPIC, REAL_QID, TRAN_MSG, PGROUP, MIN_OFFSET,
        MAX_OFFSET, BUYER_ID, ORIGIN_MESSAGE_ID, TRANSFER_FLAG, CORRECTION_FLAG, MQ2_FLAG,
        RECONSUME_TIME, MSG_REGION, TRACE_ON, UNIQ_KEY, EXTEND_UNIQ_INFO, MAX_RECONSUME_TIMES,
        CONSUME_START_TIME, DUP_INFO, TRAN_PREPARED_QUEUE_OFFSET, INSTANCE_ID, CORRELATION_ID,
        REPLY_TO_CLIENT, TTL, ARRIVE_TIME, PUSH_REPLY_TIME, CLUSTER, MSG_TYPE, POP_CK,
        POP_CK_OFFSET, FIRST_POP_TIME, INNER_MULTI_QUEUE_OFFSET, TIMER_DELAY_SEC, TIMER_DELAY_MS,
        TIMER_DELIVER_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_OUT_MS,
        TIMER_DEL_UNIQKEY, TIMER_DELAY_LEVEL, BORN_HOST, BORN_TIMESTAMP, DLQ_ORIGIN_TOPIC,
        DLQ_ORIGIN_MESSAGE_ID, CRC32, PRIORITY, LITE_TOPIC, ORIGIN_GROUP,
    }
)  # fmt: skip
"""Names that user properties must not have: the system sets or reads them."""

PROPERTIES_SIZE_MAX: Final = 32767
"""Largest property text in bytes: its size is a signed 16-bit field of the record."""

REPLY_MESSAGE: Final = "reply"
"""The MSG_TYPE of a reply message."""

_NAME_END: Final = "\x01"
_VALUE_END: Final = "\x02"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the property text as UTF-8, in the mapping's order.

    The size is not checked here: record encoders refuse more than `PROPERTIES_SIZE_MAX` bytes.

    Raises:
        InvalidMessageError: a name or value is not valid Unicode text (a lone surrogate).
    """
    parts = [f"{name}{_NAME_END}{value}{_VALUE_END}" for name, value in properties.items()]
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"a property is not valid Unicode text: {error}") from None


def decode_properties(text: bytes) -> dict[str, str]:
    """Return the properties of an encoded text; of equal names the last one counts.

    Decoding is as tolerant as Java's, so that no stored message can block its queue: an entry
    without a name or value is dropped, a missing last separator is accepted, and bytes that are not
    UTF-8 become U+FFFD.
    """
    properties: dict[str, str] = {}
    for entry in text.decode(errors="replace").split(_VALUE_END):
        name, _, value = entry.partition(_NAME_END)
        if name and value:
            properties[name] = value
    return properties

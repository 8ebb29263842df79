"""Sends, replies, recalls, send backs and transactions.

The send requests 10, 310 and 320 have the same fields; 310 and 320 use one-letter names. Headers of
requests that may be relayed by a proxy also have the fields of `RpcHeader` and `TopicHeader`.

Source: SendMessageRequestHeader.java, SendMessageRequestHeaderV2.java,
SendMessageResponseHeader.java, ConsumerSendMsgBackRequestHeader.java, RpcRequestHeader.java,
TopicRequestHeader.java, ReplyMessageRequestHeader.java, RecallMessageRequestHeader.java and
ResponseHeader, EndTransactionRequestHeader.java, CheckTransactionStateRequestHeader.java,
ResumeCheckHalfMessageRequestHeader.java.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.protocol.codes import RequestCode
from kourou.protocol.fields import Int, Long, RpcHeader, TopicHeader
from kourou.protocol.message_batch import decode_batch, encode_batch
from kourou.protocol.request_spec import MESSAGE_BYTES_MAX, MESSAGE_CODEC, BodyCodec, RequestSpec

DURABILITY_FIELD: Final = "KOUROU_DURABILITY"
"""Kourou's own field of a response to a send: the durability of the message. DISK survives a power
cut, MEMORY survives the death of the broker process, REPLICATED any failover."""

COPIES_FIELD: Final = "KOUROU_COPIES"
"""Kourou's own field of a response to a send that is REPLICATED: the number of brokers that have
the message."""

REASON_FIELD: Final = "KOUROU_DLQ_REASON"
"""Kourou's own field of a send back: the reason why the delivery failed, in one line. Kourou's
brokers store it as the property of the same name of a dead letter; Java's brokers ignore it."""

REASON_CHARS_MAX: Final = 300
"""Longest stored reason in characters."""


@dataclass(slots=True)
class SendMessageRequestHeader(TopicHeader):
    """SEND_MESSAGE (10): store one message.

    Attributes:
        default_topic: the topic from which an unknown topic inherits queues and permission.
        default_topic_queue_nums: largest number of queues of a topic created in this way.
        queue_id: if negative, the broker chooses the queue.
        born_timestamp: in epoch milliseconds.
        properties: the property text (`kourou.model.properties`).
        reconsume_times: number of times it was sent back; for retry topics.
        batch: the body is a batch (`kourou.protocol.message_batch`), regardless of the code.
        max_reconsume_times: for retry topics, overrides that of the group.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int = 0
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int | None = None


@dataclass(slots=True)
class SendMessageRequestHeaderV2(TopicHeader):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): the fields of 10 with short names."""

    producer_group: str = field(metadata={"wire": "a"})
    topic: str = field(metadata={"wire": "b"})
    default_topic: str = field(metadata={"wire": "c"})
    default_topic_queue_nums: Int = field(metadata={"wire": "d"})
    queue_id: Int = field(metadata={"wire": "e"})
    sys_flag: Int = field(metadata={"wire": "f"})
    born_timestamp: Long = field(metadata={"wire": "g"})
    flag: Int = field(metadata={"wire": "h"})
    properties: str | None = field(default=None, metadata={"wire": "i"})
    reconsume_times: Int = field(default=0, metadata={"wire": "j"})
    unit_mode: bool = field(default=False, metadata={"wire": "k"})
    batch: bool = field(default=False, metadata={"wire": "m"})
    max_reconsume_times: Int | None = field(default=None, metadata={"wire": "l"})
    broker_name: str | None = field(default=None, kw_only=True, metadata={"wire": "n"})


SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2
"""Header of any send; both classes have the same attributes."""


@dataclass(slots=True)
class SendMessageResponseHeader:
    """Position of the stored message; Java clients read its fields without checking for null.

    Attributes:
        msg_id: the offset message id; those of a batch are joined by commas.
        queue_offset: that of the message, or of the first message of a batch.
        region: the broker's region, which clients write into traces; `DefaultRegion`.
        trace_on: whether the producer may trace this message.
    """

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = field(default=None, metadata={"wire": "MSG_REGION"})
    trace_on: str | None = field(default=None, metadata={"wire": "TRACE_ON"})


@dataclass(slots=True)
class ConsumerSendMsgBackRequestHeader(RpcHeader):
    """CONSUMER_SEND_MSG_BACK (36): send a message back for redelivery.

    Attributes:
        offset: the message's physical offset.
        delay_level: 0 lets the broker choose; a negative level makes it a dead letter at once.
    """

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


@dataclass(slots=True)
class ReplyMessageRequestHeader(TopicHeader):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), broker to client: the reply to a request message.

    The fields not listed are those of `SendMessageRequestHeader`.

    Attributes:
        born_host: `host:port` of the client that replied.
        store_host: `host:port` of the broker.
        store_timestamp: in epoch milliseconds.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool = False


@dataclass(slots=True)
class RecallMessageRequestHeader(TopicHeader):
    """RECALL_MESSAGE (370): cancel a scheduled message that has not been delivered yet.

    Attributes:
        recall_handle: from the response to its send.
    """

    topic: str
    recall_handle: str
    producer_group: str | None = None


@dataclass(slots=True)
class RecallMessageResponseHeader:
    """The unique id of the cancelled message."""

    msg_id: str
    region: str | None = field(default=None, metadata={"wire": "MSG_REGION"})


@dataclass(slots=True)
class EndTransactionRequestHeader(RpcHeader):
    """END_TRANSACTION (37): commit or roll back a half message; Java sends it one-way.

    Attributes:
        tran_state_table_offset: the half message's queue offset.
        commit_log_offset: its physical offset.
        commit_or_rollback: 8 commit, 12 rollback, 0 unknown; bits of `kourou.model.sysflag`.
        from_transaction_check: the request answers a check (39).
        msg_id: the unique id.
    """

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    topic: str | None = None
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


@dataclass(slots=True)
class CheckTransactionStateRequestHeader(RpcHeader):
    """CHECK_TRANSACTION_STATE (39), broker to producer, one-way; the body is the half message."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


@dataclass(slots=True)
class ResumeCheckHalfMessageRequestHeader:
    """RESUME_CHECK_HALF_MESSAGE (323): restart the checks of a half message.

    Attributes:
        msg_id: the offset message id.
    """

    msg_id: str | None = None
    topic: str | None = None


SPECS: Final = (
    RequestSpec(
        RequestCode.SEND_MESSAGE,
        SendMessageRequestHeader,
        SendMessageResponseHeader,
        body_bytes_max=MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.SEND_MESSAGE_V2,
        SendMessageRequestHeaderV2,
        SendMessageResponseHeader,
        body_bytes_max=MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.SEND_BATCH_MESSAGE,
        SendMessageRequestHeaderV2,
        SendMessageResponseHeader,
        request_body=BodyCodec(decode_batch, encode_batch),
        body_bytes_max=MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.SEND_REPLY_MESSAGE,
        SendMessageRequestHeader,
        SendMessageResponseHeader,
        body_bytes_max=MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.SEND_REPLY_MESSAGE_V2,
        SendMessageRequestHeaderV2,
        SendMessageResponseHeader,
        body_bytes_max=MESSAGE_BYTES_MAX,
    ),
    RequestSpec(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        ReplyMessageRequestHeader,
        body_bytes_max=MESSAGE_BYTES_MAX,
    ),
    RequestSpec(RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader),
    RequestSpec(
        RequestCode.RECALL_MESSAGE,
        RecallMessageRequestHeader,
        RecallMessageResponseHeader,
    ),
    RequestSpec(RequestCode.END_TRANSACTION, EndTransactionRequestHeader),
    RequestSpec(
        RequestCode.CHECK_TRANSACTION_STATE,
        CheckTransactionStateRequestHeader,
        request_body=MESSAGE_CODEC,
        body_bytes_max=MESSAGE_BYTES_MAX,
    ),
    RequestSpec(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequestHeader),
)

"""Headers of sending: codes 10, 310, 320, 324 to 326, 370 and the send back 36.

The three send requests say the same; 310 and 320 write one-letter names. All headers of requests
that go through a proxy also carry the fields of `RpcHeader` and `TopicHeader`.

Source: SendMessageRequestHeader.java, SendMessageRequestHeaderV2.java,
SendMessageResponseHeader.java, ConsumerSendMsgBackRequestHeader.java, RpcRequestHeader.java,
TopicRequestHeader.java, ReplyMessageRequestHeader.java, RecallMessageRequestHeader.java and
ResponseHeader.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.protocol.fields import Int, Long

DURABILITY_FIELD: Final = "KOUROU_DURABILITY"
"""Field of a send's answer, not one of RocketMQ's, by which our brokers tell our clients what the
message survives: DISK, a power cut, or MEMORY, the death of the broker's process."""

REASON_FIELD: Final = "KOUROU_DLQ_REASON"
"""Field of a send back, not one of RocketMQ's: why the delivery failed, in one line. Our brokers
keep it as the property of that name of a dead letter; Java's ignore it."""

REASON_CHARS_MAX: Final = 300
"""Longest reason that is kept, in characters."""


@dataclass(slots=True, kw_only=True)
class RpcHeader:
    """What any request may carry for whoever relays it."""

    namespace: str | None = field(default=None, metadata={"wire": "ns"})
    namespaced: bool | None = field(default=None, metadata={"wire": "nsd"})
    broker_name: str | None = field(default=None, metadata={"wire": "bname"})
    is_oneway: bool | None = field(default=None, metadata={"wire": "oway"})


@dataclass(slots=True, kw_only=True)
class TopicHeader(RpcHeader):
    """What a request on a topic may carry beside."""

    is_logical_queue: bool | None = field(default=None, metadata={"wire": "lo"})


@dataclass(slots=True)
class SendMessageRequestHeader(TopicHeader):
    """SEND_MESSAGE (10): store one message.

    Attributes:
        default_topic: the topic whose queues and permission an unknown topic inherits.
        default_topic_queue_nums: at most so many queues for it.
        queue_id: negative lets the broker choose.
        born_timestamp: epoch milliseconds.
        properties: the property text (`kourou.model.properties`).
        reconsume_times: how often it was given back; for retry topics.
        batch: the body is a batch (`kourou.protocol.message_batch`), whatever the code is.
        max_reconsume_times: for retry topics, overrides the group's.
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
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): as 10, written with short names."""

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
"""Any header of a send; the attributes are the same."""


@dataclass(slots=True)
class SendMessageResponseHeader:
    """Where the message is stored; Java clients read it without asking whether it is there.

    Attributes:
        msg_id: the offset message id; of a batch all, joined by commas.
        queue_offset: of a batch, the first.
        region: the broker's region, which clients hand to their tracing; `DefaultRegion`.
        trace_on: the producer may trace this message.
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
    """CONSUMER_SEND_MSG_BACK (36): give a message back, to come again later.

    Attributes:
        offset: the message's physical offset.
        delay_level: 0 lets the broker choose, negative means dead letter at once.
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
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), broker to client: the reply to a request of its own.

    Attributes:
        born_host: `host:port` of who replied; `store_host`, of the broker.
        store_timestamp: epoch milliseconds; the others are as in `SendMessageRequestHeader`.
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
    """RECALL_MESSAGE (370): take back a delayed message that is not delivered yet.

    Attributes:
        recall_handle: from the answer to its send.
    """

    topic: str
    recall_handle: str
    producer_group: str | None = None


@dataclass(slots=True)
class RecallMessageResponseHeader:
    """The unique id of the message that will not come."""

    msg_id: str
    region: str | None = field(default=None, metadata={"wire": "MSG_REGION"})

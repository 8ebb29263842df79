"""Headers of pop: codes 200050 to 200055.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fields import Int, Long
from kourou.protocol.headers_send import TopicHeader


@dataclass(slots=True)
class PopMessageRequestHeader(TopicHeader):
    """POP_MESSAGE (200050): take messages, for a time.

    Attributes:
        queue_id: -1 for all queues.
        invisible_time: milliseconds until an unacknowledged message comes again.
        poll_time: milliseconds to wait for a message, from `born_time`, epoch milliseconds.
        init_mode: where a new group begins: 0 the oldest message, 1 the end.
        exp_type: TAG or SQL92, of the expression `exp`.
        order: keep the order of each queue.
        attempt_id: of one try; the same one gets the same messages again.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    max_msg_nums: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    init_mode: Int
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


@dataclass(slots=True)
class PopMessageResponseHeader:
    """What the messages' handles are made of.

    Attributes:
        pop_time: epoch milliseconds.
        revive_qid: the queue of check points; 999 for an ordered pop.
        rest_num: messages that are left.
        start_offset_info: by queue, the check point's offset; `msg_offset_info`, all offsets.
        order_count_info: how often the messages were popped before.
    """

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    rest_num: Long
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(slots=True)
class AckMessageRequestHeader(TopicHeader):
    """ACK_MESSAGE (200051): a popped message is done.

    Attributes:
        topic: the real one, which may be a retry topic.
        extra_info: the message's handle.
        offset: its queue offset.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    lite_topic: str | None = None


@dataclass(slots=True)
class PeekMessageRequestHeader(TopicHeader):
    """PEEK_MESSAGE (200052): read from the pop position, without taking."""

    topic: str
    queue_id: Int
    max_msg_nums: Int
    consumer_group: str


@dataclass(slots=True)
class ChangeInvisibleTimeRequestHeader(TopicHeader):
    """CHANGE_MESSAGE_INVISIBLETIME (200053): let a popped message come again at another time.

    Attributes:
        extra_info: the message's handle; it is replaced by one made of the answer.
        invisible_time: milliseconds from now.
        suspend: of lite topics: the client asks no more for now.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    extra_info: str
    offset: Long
    invisible_time: Long
    lite_topic: str | None = None
    suspend: bool = False


@dataclass(slots=True)
class ChangeInvisibleTimeResponseHeader:
    """What the new handle is made of."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int


@dataclass(slots=True)
class NotificationRequestHeader(TopicHeader):
    """NOTIFICATION (200054): wait until a pop would find something.

    Attributes:
        poll_time: milliseconds to wait, from `born_time`, epoch milliseconds.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    poll_time: Long
    born_time: Long
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


@dataclass(slots=True)
class NotificationResponseHeader:
    """Whether there is something, or too many wait already."""

    has_msg: bool
    polling_full: bool = False


@dataclass(slots=True)
class PollingInfoRequestHeader(TopicHeader):
    """POLLING_INFO (200055): how many pops of a queue wait."""

    consumer_group: str
    topic: str
    queue_id: Int


@dataclass(slots=True)
class PollingInfoResponseHeader:
    """How many wait."""

    polling_num: Int

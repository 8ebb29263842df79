"""SubscriptionGroup, a broker's configuration of a consumer group, and the modes of consumption.

Source: SubscriptionGroupConfig.java, ConsumeFromWhere.java, MessageModel.java, ConsumeType.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ConsumeFromWhere(StrEnum):
    """Position at which a group without a committed offset starts.

    The values and their order are those of the wire.
    """

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(StrEnum):
    """Delivery of each message to one member of a group (clustering) or to every member."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"
    LITE_SELECTIVE = "LITE_SELECTIVE"


class ConsumeType(StrEnum):
    """Way in which a consumer fetches messages: pull consumer, push consumer or pop."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


def _customized_retry() -> dict[str, object]:
    return {"type": "CUSTOMIZED"}


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """A broker's configuration of one consumer group.

    Attributes:
        consume_enable: members may consume at all.
        consume_from_min_enable: a new group may start at the oldest message.
        consume_broadcast_enable: members may consume in broadcasting mode.
        consume_message_orderly: pop preserves the order of each queue.
        retry_queue_nums: queues of the retry topic; with 0, messages sent back are dropped.
        retry_max_times: redeliveries of a message before it becomes a dead letter.
        group_retry_policy: the JSON object of the delays between redeliveries.
        broker_id: the replica that serves the group; 0 is the master.
        which_broker_when_consume_slowly: the broker id suggested to a consumer far behind.
        notify_consumer_ids_changed_enable: members are notified when members join or leave.
        consume_timeout_minute: a message that is handled for longer is sent back; in minutes.
        subscription_datas: the JSON objects of fixed subscriptions, if any; stored unchanged.
        attributes: such as `priority.factor`.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: Mapping[str, object] = field(default_factory=_customized_retry)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_datas: tuple[Mapping[str, object], ...] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

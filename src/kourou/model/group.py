"""SubscriptionGroup: what a broker knows of a consumer group; how groups consume.

Source: SubscriptionGroupConfig.java, ConsumeFromWhere.java, MessageModel.java, ConsumeType.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ConsumeFromWhere(StrEnum):
    """Where a group begins that has no committed offset; values are the wire's, in its order."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(StrEnum):
    """Whether a group's members share the messages or each get all of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"
    LITE_SELECTIVE = "LITE_SELECTIVE"


class ConsumeType(StrEnum):
    """How a consumer asks for messages: by its own pulls, by a pushing client, by pop."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


def _customized_retry() -> dict[str, object]:
    return {"type": "CUSTOMIZED"}


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """What a broker knows of one consumer group.

    Attributes:
        consume_enable: its members may read at all.
        consume_from_min_enable: a new group may begin at the oldest message.
        consume_broadcast_enable: its members may each read all messages.
        consume_message_orderly: pop keeps the order of each queue.
        retry_queue_nums: queues of its retry topic; 0 drops what it gives back.
        retry_max_times: how often a message is given again before it is a dead letter.
        group_retry_policy: the JSON object that says how long a message waits for its next try.
        broker_id: who serves it: 0 the master.
        which_broker_when_consume_slowly: the broker id suggested to a reader far behind.
        notify_consumer_ids_changed_enable: members are told when others come and go.
        consume_timeout_minute: a message handled longer is given back, in minutes.
        subscription_datas: the JSON objects of fixed subscriptions, if any; kept as they came.
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

"""JSON of static topics: the mapping of logical queues to queues of brokers.

Source: TopicQueueMappingInfo.java, TopicQueueMappingDetail.java, LogicQueueMappingItem.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogicQueueMappingItem:
    """One part of a logical queue.

    Offsets are queue offsets, times are epoch milliseconds; -1 means an open end.

    Attributes:
        gen: the part's number.
        logic_offset: offset of its first message in the logical queue.
    """

    gen: int = 0
    queue_id: int = 0
    broker_name: str | None = field(default=None, metadata={"wire": "bname"})
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


@dataclass(frozen=True, slots=True)
class TopicQueueMappingDetail:
    """The logical queues of a topic on one broker: the body of 513, and a part of that of 351.

    Attributes:
        curr_id_map: logical queue id to the broker's queue id.
        hosted_queues: logical queue id to its parts, in order.
    """

    topic: str | None = None
    scope: str | None = "__global__"
    total_queues: int = 0
    broker_name: str | None = field(default=None, metadata={"wire": "bname"})
    epoch: int = 0
    dirty: bool = False
    curr_id_map: Mapping[int, int] | None = None
    hosted_queues: Mapping[int, tuple[LogicQueueMappingItem, ...]] | None = None

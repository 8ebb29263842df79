"""JSON body of BATCH_ACK_MESSAGE (200151).

Source: BatchAckMessageRequestBody.java, BatchAck.java.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BatchAck:
    """Acknowledged messages of one pop; see `kourou.protocol.headers_pop`.

    Attributes:
        retry: "0" if `topic` itself holds them, "1" or "2" for a form of the retry topic.
        bits: little-endian bits, one for each queue offset from `start_offset` on.
        pop_time: in epoch milliseconds.
        invisible_time: in milliseconds.
    """

    consumer_group: str = field(metadata={"wire": "c", "alias": "consumerGroup"})
    topic: str = field(metadata={"wire": "t", "alias": "topic"})
    retry: str = field(default="0", metadata={"wire": "r", "alias": "retry"})
    start_offset: int = field(default=0, metadata={"wire": "so", "alias": "startOffset"})
    queue_id: int = field(default=0, metadata={"wire": "q", "alias": "queueId"})
    revive_queue_id: int = field(default=0, metadata={"wire": "rq", "alias": "reviveQueueId"})
    pop_time: int = field(default=0, metadata={"wire": "pt", "alias": "popTime"})
    invisible_time: int = field(default=0, metadata={"wire": "it", "alias": "invisibleTime"})
    bits: bytes = field(default=b"", metadata={"wire": "b", "alias": "bitSet"})


@dataclass(frozen=True, slots=True)
class BatchAckMessages:
    """The body of 200151."""

    broker_name: str | None = None
    acks: tuple[BatchAck, ...] = ()

"""Queue locks, broker-side queue assignment, and request modes (pull or pop).

Source: LockBatchRequestBody.java, UnlockBatchRequestBody.java, LockBatchResponseBody.java,
QueryAssignmentRequestBody.java and ResponseBody, SetMessageRequestModeRequestBody.java,
MessageRequestModeSerializeWrapper.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kourou.model.group import MessageModel
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode
from kourou.protocol.fields import RpcHeader
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_records import record_functions
from kourou.protocol.request_spec import BodyCodec, RequestSpec


@dataclass(slots=True)
class LockBatchMqRequestHeader(RpcHeader):
    """LOCK_BATCH_MQ (41); the queues are in the body."""


@dataclass(slots=True)
class UnlockBatchMqRequestHeader(RpcHeader):
    """UNLOCK_BATCH_MQ (42); the queues are in the body."""


class MessageRequestMode(StrEnum):
    """Consumption mode of a group for a topic; the values and their order are those of the wire."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True)
class LockBatch:
    """The body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

    Attributes:
        only_this_broker: the broker does not forward the request to its replicas.
    """

    consumer_group: str
    client_id: str
    queues: tuple[MessageQueue, ...] = field(default=(), metadata={"wire": "mqSet"})
    only_this_broker: bool = False


@dataclass(frozen=True, slots=True)
class LockedQueues:
    """The queues of a request 41 whose lock the client now holds."""

    queues: tuple[MessageQueue, ...] = field(default=(), metadata={"wire": "lockOKMQSet"})


@dataclass(frozen=True, slots=True)
class QueryAssignment:
    """The body of QUERY_ASSIGNMENT (400).

    Attributes:
        strategy_name: name of an allocation strategy, such as AVG.
    """

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: MessageModel = MessageModel.CLUSTERING


@dataclass(frozen=True, slots=True)
class MessageQueueAssignment:
    """A queue assigned to the client; queue id -1 stands for all queues of the broker."""

    message_queue: MessageQueue
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Assignments:
    """The client's queues; None if they are not known, for example for an unknown topic."""

    message_queue_assignments: tuple[MessageQueueAssignment, ...] | None = None


@dataclass(frozen=True, slots=True)
class SetMessageRequestMode:
    """The body of SET_MESSAGE_REQUEST_MODE (401).

    Attributes:
        pop_share_queue_num: number of clients that may pop one queue; 0 means no limit.
    """

    topic: str
    consumer_group: str
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: int = 0


@dataclass(frozen=True, slots=True)
class MessageRequestModes:
    """Request modes of all groups: topic to group to the request 401 that set its mode."""

    message_request_mode_map: Mapping[str, Mapping[str, SetMessageRequestMode]] = field(
        default_factory=dict
    )


decode_lock_batch, encode_lock_batch = record_functions(LockBatch)

decode_locked_queues, encode_locked_queues = record_functions(LockedQueues)

decode_query_assignment, encode_query_assignment = record_functions(QueryAssignment)

decode_assignments, encode_assignments = record_functions(Assignments)

decode_message_request_mode, encode_message_request_mode = record_functions(SetMessageRequestMode)

decode_message_request_modes, encode_message_request_modes = record_functions(
    MessageRequestModes, bare_keys_bytes_max=FRAME_SIZE_MAX
)


SPECS: Final = (
    RequestSpec(
        RequestCode.LOCK_BATCH_MQ,
        LockBatchMqRequestHeader,
        request_body=BodyCodec(decode_lock_batch, encode_lock_batch),
        response_body=BodyCodec(decode_locked_queues, encode_locked_queues),
        body_bytes_max=128 * 1024,  # about 1,500 queues
    ),
    RequestSpec(
        RequestCode.UNLOCK_BATCH_MQ,
        UnlockBatchMqRequestHeader,
        request_body=BodyCodec(decode_lock_batch, encode_lock_batch),
        body_bytes_max=128 * 1024,
    ),
    RequestSpec(
        RequestCode.QUERY_ASSIGNMENT,
        request_body=BodyCodec(decode_query_assignment, encode_query_assignment),
        response_body=BodyCodec(decode_assignments, encode_assignments),
    ),
    RequestSpec(
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        request_body=BodyCodec(decode_message_request_mode, encode_message_request_mode),
    ),
    RequestSpec(
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        response_body=BodyCodec(decode_message_request_modes, encode_message_request_modes),
    ),
)

"""Locks, assignments and request modes are encoded and decoded as in Java."""

from __future__ import annotations

from kourou.model.group import MessageModel
from kourou.model.queue import MessageQueue
from kourou.protocol.queue_assignment import (
    Assignments,
    LockBatch,
    LockedQueues,
    MessageQueueAssignment,
    MessageRequestMode,
    MessageRequestModes,
    QueryAssignment,
    SetMessageRequestMode,
    decode_assignments,
    decode_lock_batch,
    decode_locked_queues,
    decode_message_request_mode,
    decode_message_request_modes,
    decode_query_assignment,
    encode_assignments,
    encode_lock_batch,
    encode_locked_queues,
    encode_message_request_mode,
    encode_message_request_modes,
    encode_query_assignment,
)

QUEUE = MessageQueue("T", "b", 0)
QUEUE_JSON = b'{"brokerName":"b","queueId":0,"topic":"T"}'


def test_lock_request_contains_client_and_queues() -> None:
    request = LockBatch("g", "c@1", (QUEUE,), True)
    body = encode_lock_batch(request)

    assert body == (
        b'{"clientId":"c@1","consumerGroup":"g","mqSet":[%b],"onlyThisBroker":true}' % QUEUE_JSON
    )
    assert decode_lock_batch(body) == request


def test_lock_response_contains_the_queues() -> None:
    body = encode_locked_queues(LockedQueues((QUEUE,)))

    assert body == b'{"lockOKMQSet":[%b]}' % QUEUE_JSON
    assert decode_locked_queues(body) == LockedQueues((QUEUE,))


def test_assignment_contains_the_mode_of_each_queue() -> None:
    request = QueryAssignment("T", "g", "c@1", "AVG", MessageModel.BROADCASTING)
    answer = Assignments((MessageQueueAssignment(QUEUE, MessageRequestMode.POP, {"a": "b"}),))

    assert decode_query_assignment(encode_query_assignment(request)) == request
    assert decode_assignments(encode_assignments(answer)) == answer
    assert encode_assignments(Assignments()) == b"{}"
    assert decode_assignments(b"{}") == Assignments()


def test_request_modes_of_one_or_all_groups_are_decoded() -> None:
    mode = SetMessageRequestMode("T", "g", MessageRequestMode.POP, 8)
    modes = MessageRequestModes({"T": {"g": mode}})

    assert encode_message_request_mode(mode) == (
        b'{"consumerGroup":"g","mode":"POP","popShareQueueNum":8,"topic":"T"}'
    )
    assert decode_message_request_mode(encode_message_request_mode(mode)) == mode
    assert decode_message_request_modes(encode_message_request_modes(modes)) == modes

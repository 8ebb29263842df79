"""Running info and consume results are encoded and decoded as in Java."""

from __future__ import annotations

import pytest

from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.protocol.running_info import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    decode_consume_directly_result,
    decode_consumer_running_info,
    encode_consume_directly_result,
    encode_consumer_running_info,
)

QUEUE = MessageQueue("T", "b", 0)


def test_running_info_decodes_to_the_same() -> None:
    info = ConsumerRunningInfo(
        {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
        (SubscriptionData("T"),),
        {QUEUE: ProcessQueueInfo(1, 2, 3, 4, 5, 6, 7, 8, True, 9, 10, True, 11, 12)},
        {QUEUE: PopProcessQueueInfo(1, True, 2)},
        {"T": ConsumeStatus(1, 2.5, 3, 4, 5, 6)},
        {"k": "v"},
        "stack",
    )
    body = encode_consumer_running_info(info)

    assert b'"mqPopTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"droped":true' in body
    assert b'"pullRT":1.0,"pullTPS":2.5' in body
    assert decode_consumer_running_info(body) == info


def test_an_idle_consumer_has_no_stack() -> None:
    body = encode_consumer_running_info(ConsumerRunningInfo())

    assert body == (
        b'{"mqPopTable":{},"mqTable":{},"properties":{},"statusTable":{},"subscriptionSet":[],'
        b'"userConsumerInfo":{}}'
    )
    assert decode_consumer_running_info(body) == ConsumerRunningInfo()


def test_consume_result_decodes_to_the_same() -> None:
    result = ConsumeMessageDirectlyResult(ConsumeResult.LATER, True, False, "why", 7)
    body = encode_consume_directly_result(result)

    assert body == (
        b'{"autoCommit":false,"consumeResult":"CR_LATER","order":true,"remark":"why",'
        b'"spentTimeMills":7}'
    )
    assert decode_consume_directly_result(body) == result


@pytest.mark.parametrize("body", [b'{"consumeResult":"CR_NONE"}', b"[]", b'{"order":7}'])
def test_malformed_consume_result_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode_consume_directly_result(body)

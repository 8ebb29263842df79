"""Messages of one group go to the queue that RocketMQ's proxy chose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import CallRefusedError
from kourou.model.queue import MessageQueue
from kourou.protocol.sending import SendMessageRequestHeaderV2
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import Code
from kourou.proxy.queue_choice import (
    consistent_hash,
    ordering_key,
    receiving_broker,
    sending_queue,
)
from tests.golden_calls import calls
from tests.golden_exchanges import exchanges

QUEUES = [MessageQueue("T", broker, queue) for broker in "ab" for queue in range(4)]


def test_queue_of_a_group_is_the_recorded_one() -> None:
    exchange = exchanges()["310_SEND_MESSAGE_V2_grpc-SendMessage-fifo"]
    header = exchange.request.command.header(SendMessageRequestHeaderV2)
    request = parse(v2.SendMessageRequest, calls()["cluster/SendMessage_fifo"].request)
    key = ordering_key(request.messages)

    chosen = [sending_queue(QUEUES[:4], key, turn).queue_id for turn in (0, 1, 2)]

    assert key
    assert chosen == [header.queue_id] * 3


GUAVA_OF_100 = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
"""Buckets of 0 to 19 among 100, from Guava's test of compatibility; so are those below."""


def test_buckets_equal_guavas() -> None:
    assert [consistent_hash(value, 100) for value in range(20)] == GUAVA_OF_100
    assert consistent_hash(10_863_919_174_838_991, 11) == 6
    assert consistent_hash(2_016_238_256_797_177_309, 11) == 3
    assert consistent_hash(1_673_758_223_894_951_030, 11) == 5
    assert consistent_hash(2, 100_001) == 80_343
    assert consistent_hash(2_201, 100_001) == 22_152
    assert consistent_hash(2_202, 100_001) == 15_018


@given(st.integers(-(2**31), 2**31 - 1), st.integers(1, 500))
def test_new_buckets_take_values_only_for_themselves(value: int, buckets: int) -> None:
    before = consistent_hash(value, buckets)
    after = consistent_hash(value, buckets + 1)

    assert 0 <= before < buckets
    assert after in (before, buckets)


def test_messages_without_a_group_take_turns() -> None:
    turns = [sending_queue(QUEUES, "", turn) for turn in range(-1, 9)]

    assert turns == [QUEUES[-1], *QUEUES, QUEUES[0]]


def test_a_batch_has_no_key() -> None:
    message = v2.Message(system_properties=v2.SystemProperties(message_group="g"))

    assert ordering_key([message]) == "g"
    assert ordering_key([message, message]) == ""


def test_receives_go_to_the_named_broker_or_to_any() -> None:
    assert receiving_broker(QUEUES, "b", 0) == "b"
    assert [receiving_broker(QUEUES, "gone", turn) for turn in (0, 1, 2)] == ["a", "b", "a"]


def test_topics_without_queues_are_refused() -> None:
    with pytest.raises(CallRefusedError, match="ProxyException: no writable queue") as refused:
        sending_queue([], "g", 0)
    assert refused.value.code == Code.FORBIDDEN
    with pytest.raises(CallRefusedError, match="no readable queue"):
        receiving_broker([], "a", 0)

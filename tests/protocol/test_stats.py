"""Statistics keyed by queue are encoded and decoded as in Java."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue
from kourou.protocol.stats import (
    ConsumeOffset,
    ConsumeStats,
    TopicOffset,
    TopicStatsTable,
    decode_consume_stats,
    decode_topic_stats,
    encode_consume_stats,
    encode_topic_stats,
)
from tests.documented_errors import only_raises

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
longs = st.integers(-(2**63), 2**63 - 1)
rates = st.floats(allow_nan=False, allow_infinity=False)
queues = st.builds(MessageQueue, texts, texts, st.integers(-(2**31), 2**31 - 1))


@given(
    st.builds(
        TopicStatsTable,
        st.dictionaries(queues, st.builds(TopicOffset, longs, longs, longs), max_size=3),
        rates,
    )
)
def test_encoded_topic_stats_decode_to_the_same(stats: TopicStatsTable) -> None:
    assert decode_topic_stats(encode_topic_stats(stats)) == stats


@given(
    st.builds(
        ConsumeStats,
        st.dictionaries(
            queues,
            st.builds(ConsumeOffset, longs, longs, longs, longs, st.none() | st.text(max_size=9)),
            max_size=3,
        ),
        rates,
    )
)
def test_encoded_consume_stats_decode_to_the_same(stats: ConsumeStats) -> None:
    assert decode_consume_stats(encode_consume_stats(stats)) == stats


def test_consume_stats_are_encoded_like_javas() -> None:
    stats = ConsumeStats({MessageQueue("T", "b", 0): ConsumeOffset(3, 2, 2, 1795228398447)})

    assert encode_consume_stats(stats) == (
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:'
        b'{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":1795228398447,"pullOffset":2}}}'
    )


def test_queue_key_may_be_a_quoted_text() -> None:
    body = b'{"offsetTable":{"{\\"topic\\":\\"T\\",\\"brokerName\\":\\"b\\"}":{"maxOffset":5}}}'

    assert decode_topic_stats(body).offsets == {MessageQueue("T", "b", 0): TopicOffset(0, 5)}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"offsetTable":{"x":{}}}', "not JSON"),
        (b'{"offsetTable":{"[]":{}}}', "a queue"),
        (b'{"offsetTable":{{"topic":1}:{}}}', "topic"),
        (b'{"offsetTable":{{"topic":"T"}:5}}', "offsetTable"),
        (b"5", "stats"),
    ],
)
def test_malformed_stats_are_refused(body: bytes, reason: str) -> None:
    for decode in (decode_topic_stats, decode_consume_stats):
        with pytest.raises(MalformedBodyError, match=reason):
            decode(body)


@given(st.binary(max_size=30))
def test_arbitrary_bytes_raise_only_malformed_body_errors(data: bytes) -> None:
    for decode in (decode_topic_stats, decode_consume_stats):
        with only_raises(MalformedBodyError):
            decode(data)

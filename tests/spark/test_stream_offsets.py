"""Tests of the offsets that a stream logs in its checkpoint."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import CheckpointError
from kourou.model.queue import MessageQueue
from kourou.spark.planning import QueueRange, broker_topic
from kourou.spark.stream_offsets import Absence, StreamOffset, ranges_of

Q0 = MessageQueue("flights", "broker-a", 0)
Q1 = MessageQueue("flights", "broker-a", 1)
Q10 = MessageQueue("flights", "broker-a", 10)
B0 = MessageQueue("flights", "broker-b", 0)
INITIAL = StreamOffset.initial("latest")
EMPTY = {"version": 1, "from": {}, "until": {}}

queues = st.builds(
    MessageQueue, st.text(min_size=1), st.text(min_size=1), st.integers(0, 999_999_999)
)


def test_the_initial_offset_is_a_constant() -> None:
    assert INITIAL.to_json() == {"version": 1, "starting": "latest"}
    assert StreamOffset.from_json({"version": 1, "starting": "latest"}) == INITIAL
    assert INITIAL.is_initial


def test_the_end_of_a_batch_names_topic_broker_and_queue() -> None:
    offset = StreamOffset(until={B0: 4, Q10: 7, Q1: 6}, begin={Q1: 2})

    text = json.dumps(offset.to_json())

    assert text == (
        '{"version": 1, "from": {"flights": {"broker-a": {"1": 2}}}, '
        '"until": {"flights": {"broker-a": {"1": 6, "10": 7}, "broker-b": {"0": 4}}}}'
    )


@given(
    until=st.dictionaries(queues, st.integers(0, 2**63 - 1), max_size=8),
    data=st.data(),
)
def test_an_offset_survives_the_checkpoint(
    until: dict[MessageQueue, int], data: st.DataObject
) -> None:
    begin = {q: data.draw(st.integers(0, end)) for q, end in until.items() if end % 2}
    begins = {broker_topic(queue): end for queue, end in until.items() if end % 3}
    gone = {q: data.draw(st.sampled_from(Absence)) for q, end in until.items() if end % 5 == 0}
    offset = StreamOffset(until, begin, topic_begins=begins, gone=gone)

    text = json.dumps(offset.to_json())
    restored = StreamOffset.from_json(json.loads(text))

    assert restored == offset
    assert not restored.is_initial
    assert json.dumps(restored.to_json()) == text


@pytest.mark.parametrize(
    ("logged", "reported"),
    [
        ([], "not an offset of the source rocketmq"),
        ({"flights": {"0": 5}}, "not an offset of the source rocketmq"),
        ({"version": 2, "until": {}}, "version 2, this Kourou reads version 1"),
        ({"version": True, "from": {}, "until": {}}, "version True"),
        ({"version": 1}, 'expected the keys "version", "from" and "until"'),
        ({"version": 1, "starting": 5}, 'expected the keys "version", "from" and "until"'),
        ({"version": 1, "from": {}, "until": []}, "[] is not an object"),
        ({"version": 1, "from": {}, "until": {"t": 4}}, "4 is not an object"),
        ({"version": 1, "from": {}, "until": {"t": {"b": {"one": 1}}}}, "'one': 1"),
        ({**EMPTY, "until": {"t": {"b": {"1": -1}}}}, "-1 of queue 1"),
        ({**EMPTY, "until": {"t": {"b": {"1": True}}}}, "True of queue 1"),
        ({"version": 1, "from": {}, "until": {"t": {"b": {"1": 2**63}}}}, "is not an offset"),
        ({**EMPTY, "topicBegins": {"t": {"b": "x"}}}, "'x' of 't' on 'b' is no begin"),
        ({**EMPTY, "topicBegins": [1]}, "[1] is not an object"),
        ({**EMPTY, "gone": {"t": {"b": {"1": "queue"}}}}, '"gone" has queues'),
        ({**EMPTY, "until": {"t": {"b": {"1": 1}}}, "gone": {"t": {"b": {"1": 1}}}}, "no reason"),
        ({**EMPTY, "other": {}}, 'expected the keys "version", "from" and "until"'),
        (
            {"version": 1, "from": {"t": {"b": {"1": 5}}}, "until": {"t": {"b": {"1": 4}}}},
            "queue 1 of 't' on 'b' begins at 5 and ends before",
        ),
        (
            {"version": 1, "from": {"t": {"b": {"1": 5}}}, "until": {}},
            "queue 1 of 't' on 'b' begins at 5 and ends before",
        ),
    ],
)
def test_a_damaged_or_foreign_offset_is_refused_with_the_remedy(
    logged: object, reported: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        StreamOffset.from_json(logged)

    assert reported in str(caught.value)
    assert "new checkpointLocation" in str(caught.value)


def test_checkpoint_of_a_version_without_topic_begins_is_read() -> None:
    logged = {"version": 1, "from": {}, "until": {"flights": {"broker-a": {"0": 9}}}}

    assert StreamOffset.from_json(logged) == StreamOffset({Q0: 9})
    assert StreamOffset({Q0: 9}).to_json() == logged


def test_offset_names_the_topics_and_the_queues_that_are_gone() -> None:
    offset = StreamOffset(
        {Q1: 6}, topic_begins={("flights", "broker-a"): 7}, gone={Q1: Absence.QUEUE}
    )

    assert offset.to_json() == {
        "version": 1,
        "from": {},
        "until": {"flights": {"broker-a": {"1": 6}}},
        "topicBegins": {"flights": {"broker-a": 7}},
        "gone": {"flights": {"broker-a": {"1": "queue"}}},
    }


def test_range_has_the_topic_that_it_was_planned_for() -> None:
    end = StreamOffset({Q0: 9, B0: 3}, {B0: 0}, topic_begins={("flights", "broker-a"): 7})

    assert ranges_of(StreamOffset({Q0: 4}), end) == [QueueRange(Q0, 4, 9, 7), QueueRange(B0, 0, 3)]


def test_a_batch_reads_from_the_previous_end() -> None:
    start = StreamOffset({Q0: 5, Q1: 8}, {Q0: 0, Q1: 0})
    end = StreamOffset({Q0: 9, Q1: 8})

    assert ranges_of(start, end) == [QueueRange(Q0, 5, 9)]


def test_batch_0_and_new_queues_read_from_their_logged_start() -> None:
    first = StreamOffset({Q0: 9}, {Q0: 7})
    second = StreamOffset({Q0: 9, B0: 3}, {B0: 0})

    assert ranges_of(INITIAL, first) == [QueueRange(Q0, 7, 9)]
    assert ranges_of(first, second) == [QueueRange(B0, 0, 3)]


def test_a_queue_that_was_given_up_is_not_read() -> None:
    assert ranges_of(StreamOffset({Q0: 9, Q1: 4}), StreamOffset({Q1: 5})) == [QueueRange(Q1, 4, 5)]


@pytest.mark.parametrize(
    ("start", "end"),
    [(INITIAL, StreamOffset({Q0: 4})), (StreamOffset({Q0: 5}), StreamOffset({Q0: 4}))],
)
def test_offsets_of_different_queries_are_refused(start: StreamOffset, end: StreamOffset) -> None:
    with pytest.raises(CheckpointError, match="queue 0 of 'flights' on 'broker-a' ends at 4"):
        ranges_of(start, end)

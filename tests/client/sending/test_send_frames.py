"""Frames from templates equal those of the general encoder byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.client.calls_send import encode_message, send_command
from kourou.client.sending.send_plans import SendFrames, property_json
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.protocol.frame import FRAME_SIZE_MAX, encode_frame

names = st.text("abcXYZ012_-%|", min_size=1, max_size=30)
texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
)
int32 = st.integers(-(2**31), 2**31 - 1)


@given(
    names,
    names,
    names,
    st.integers(1, 1024),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    int32,
    st.integers(0, 2**31 - 1),
    texts,
    st.binary(min_size=1, max_size=50),
)
def test_template_frame_equals_the_frame_of_the_general_encoder(
    group: str,
    topic: str,
    broker_name: str,
    queue_nums: int,
    queue_id: int,
    born_at_ms: int,
    flag: int,
    opaque: int,
    value: str,
    body: bytes,
) -> None:
    outgoing = encode_message(Message(topic, body, flag=flag, properties={"k": value}), "AB" * 16)
    queue = MessageQueue(topic, broker_name, queue_id)
    command = send_command(outgoing, queue, group, born_at_ms, queue_nums)
    command.opaque = opaque
    frames = SendFrames(group, topic, broker_name, queue_nums)
    assert frames.is_usable
    properties = property_json(outgoing.properties)
    made = frames.frame(queue_id, born_at_ms, flag, properties, opaque, body)
    assert made == encode_frame(command)


def test_frame_above_the_maximum_size_is_not_built() -> None:
    frames = SendFrames("g", "T", "b", 4)
    room = FRAME_SIZE_MAX - 4 - len(frames.frame(0, 0, 0, b'""', 0, b"") or b"") + 8
    assert frames.frame(0, 0, 0, b'""', 0, bytes(room)) is not None
    assert frames.frame(0, 0, 0, b'""', 0, bytes(room + 1)) is None


@pytest.mark.parametrize("name", ["2147483543", "x-2147483629"])
def test_name_with_a_marker_disables_the_template(name: str) -> None:
    assert not SendFrames(name, "T", "b", 4).is_usable
    assert not SendFrames("g", "T", name, 4).is_usable

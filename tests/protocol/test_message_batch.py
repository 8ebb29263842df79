"""Batches are encoded and decoded as in Java, and no entry exceeds its body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import InvalidMessageError, MalformedMessageError
from kourou.model.properties import PROPERTIES_SIZE_MAX, decode_properties
from kourou.protocol.message_batch import BatchItem, decode_batch, encode_batch
from tests.documented_errors import only_raises

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
CASES = json.loads((VECTORS / "message_encode.json").read_text())["batch_body"]
ONE = bytes.fromhex(
    "0000002900000000000000000000000000000002686900115741495401747275650254414753014102"
)
items = st.builds(
    BatchItem, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=32), st.binary(max_size=32)
)


def test_batch_of_one_is_encoded_like_javas() -> None:
    item = BatchItem(0, b"hi", b"WAIT\x01true\x02TAGS\x01A\x02")

    assert encode_batch([item]) == ONE
    assert decode_batch(ONE) == [item]


@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c["messages"]))
def test_batches_of_java_clients_are_decoded_and_encoded_unchanged(case: dict[str, Any]) -> None:
    body = bytes.fromhex(case["hex"])
    messages = decode_batch(body)

    assert len(messages) == case["messages"]
    assert messages[0].body == b"body 0"
    assert decode_properties(messages[0].properties) == {"WAIT": "true", "TAGS": "Tag0"}
    assert encode_batch(messages) == body


@given(st.lists(items, max_size=5))
def test_encoded_batch_decodes_to_the_same(messages: list[BatchItem]) -> None:
    body = encode_batch(messages)

    assert decode_batch(body) == messages
    assert decode_batch(memoryview(body)) == messages


@given(st.lists(items, min_size=1, max_size=3), st.data())
def test_batch_truncated_within_an_entry_is_refused(
    messages: list[BatchItem], data: st.DataObject
) -> None:
    body = encode_batch(messages)
    last = len(encode_batch(messages[-1:]))
    size = data.draw(st.integers(len(body) - last + 1, len(body) - 1))
    with pytest.raises(MalformedMessageError):
        decode_batch(body[:size])


@given(st.binary())
def test_arbitrary_bytes_raise_only_malformed_message_errors(data: bytes) -> None:
    with only_raises(MalformedMessageError):
        decode_batch(data)


@pytest.mark.parametrize("at", [3, 19, 23])
def test_sizes_that_contradict_each_other_are_refused(at: int) -> None:
    for delta in (1, -1):
        body = bytearray(ONE)
        body[at] += delta
        with pytest.raises(MalformedMessageError):
            decode_batch(bytes(body))


@pytest.mark.parametrize(("at", "width"), [(0, 4), (16, 4), (22, 2)])
def test_negative_sizes_are_refused(at: int, width: int) -> None:
    body = ONE[:at] + b"\xff" * width + ONE[at + width :]
    with pytest.raises(MalformedMessageError):
        decode_batch(body)


def test_an_entry_that_ends_after_the_body_is_refused() -> None:
    # The sizes are consistent, but the properties exceed the body.
    entry = b"\x00\x00\x00\x17" + bytes(12) + b"\x00\x00\x00\x00" + b"\x00\x01"
    with pytest.raises(MalformedMessageError, match="1 bytes after"):
        decode_batch(entry)


def test_value_that_does_not_fit_an_entry_is_refused() -> None:
    encode_batch([BatchItem(0, b"", bytes(PROPERTIES_SIZE_MAX))])
    with pytest.raises(InvalidMessageError, match="properties of 32768"):
        encode_batch([BatchItem(0, b"", bytes(PROPERTIES_SIZE_MAX + 1))])
    with pytest.raises(InvalidMessageError, match="flag"):
        encode_batch([BatchItem(1 << 31, b"", b"")])

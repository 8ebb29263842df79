"""The seal reveals every flipped bit, and which of two files was saved later."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.protocol import fastjson
from kourou.store.state.config_file import ConfigText, is_newer, seal, unseal

OFFSETS = b'{\n\t"offsetTable":{"T@g":{0:7,1:5}}\n}'


def version(counter: int, timestamp: int, state: int = 0) -> ConfigText:
    members = {"counter": counter, "stateVersion": state, "timestamp": timestamp}
    return ConfigText(json.dumps({"dataVersion": members, "x": 1}, indent=1).encode(), 0)


def test_the_seal_is_an_additional_last_member() -> None:
    assert seal(b'{"a":1}', 3) == b'{"a":1,"kourouSeal":{"sequence":3,"crc32":"2ce1c72c"}}'
    assert seal(b"{}", 3) == b'{"kourouSeal":{"sequence":3,"crc32":"34f639cc"}}'
    sealed = fastjson.loads(seal(OFFSETS, 12))
    assert sealed["kourouSeal"]["sequence"] == 12
    assert sealed["offsetTable"] == {"T@g": {"0": 7, "1": 5}}


@given(
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=4),
    st.integers(1, 10**18 - 1),
)
def test_unseal_returns_the_sealed_bytes(members: dict[str, str], sequence: int) -> None:
    for data in (json.dumps(members).encode(), json.dumps(members, indent=2).encode(), b"{ }"):
        assert unseal(seal(data, sequence)) == ConfigText(data, sequence)


@pytest.mark.parametrize("text", [OFFSETS, b"", b"{", b'{"kourouSeal":"mine"}', b"\xff" * 99])
def test_a_text_without_a_seal_is_returned_unchanged(text: bytes) -> None:
    assert unseal(text) == ConfigText(text, 0)


def test_a_member_of_the_same_name_far_before_the_end_is_no_seal() -> None:
    text = b'{"kourouSeal":{"sequence":1,"crc32":"00000000"},"a":"' + b"x" * 80 + b'"}'

    assert unseal(text) == ConfigText(text, 0)


def test_no_flipped_bit_changes_the_values_read() -> None:
    text = seal(OFFSETS, 12)
    for at in range(len(text) * 8):
        flipped = bytearray(text)
        flipped[at // 8] ^= 1 << at % 8
        try:
            found = fastjson.loads(unseal(bytes(flipped)).data)
        except MalformedBodyError:
            continue
        assert found["offsetTable"] == {"T@g": {"0": 7, "1": 5}}, flipped


def test_the_error_for_an_edited_file_names_the_member_to_remove() -> None:
    text = seal(OFFSETS, 12).replace(b"0:7", b"0:9")

    with pytest.raises(
        MalformedBodyError, match=r"by hand \(then remove its last member, kourouSeal\)"
    ):
        unseal(text)


def test_a_text_that_is_no_object_cannot_be_sealed() -> None:
    with pytest.raises(ValueError, match="one JSON object"):
        seal(b"[1]", 1)


def test_the_sequence_orders_two_sealed_texts() -> None:
    older, newer = ConfigText(version(9, 9).data, 4), ConfigText(version(1, 1).data, 5)

    assert is_newer(newer, older)
    assert not is_newer(older, newer)
    assert not is_newer(older, older)


@pytest.mark.parametrize("sequence", [0, 7])
def test_the_data_version_orders_texts_if_java_saved_one(sequence: int) -> None:
    newer, older = version(5, 2000), ConfigText(version(4, 1000).data, sequence)

    assert is_newer(newer, older)
    assert not is_newer(older, newer)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (version(5, 1000), version(4, 2000)),
        (version(5, 1000, state=1), version(6, 1000)),
        (version(5, 1000), version(5, 1000)),
        (version(5, 1000), ConfigText(b'{"a":1}', 3)),
        (version(5, 1000), ConfigText(b'{"dataVersion":{"counter":"x"}}', 3)),
        (version(5, 1000), ConfigText(b'{"dataVersion":{"counter"}}', 3)),
    ],
)
def test_contradictory_data_versions_order_nothing(one: ConfigText, other: ConfigText) -> None:
    assert not is_newer(one, other)
    assert not is_newer(other, one)

"""The property text is encoded and decoded as in Java."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import InvalidMessageError
from kourou.model import properties as names
from kourou.model.properties import RESERVED, decode_properties, encode_properties

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
PROPERTIES = json.loads((VECTORS / "properties.json").read_text())
TABLES = json.loads((VECTORS / "tables.json").read_text())
texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize("case", PROPERTIES["cases"], ids=lambda c: c["text_hex"][:24])
def test_properties_are_encoded_and_decoded_as_in_java(case: dict[str, Any]) -> None:
    given_map = {name: value for name, value in case["map"].items() if value is not None}
    text = encode_properties(given_map)

    assert text.hex() == case["text_hex"]
    assert decode_properties(text) == case["parsed_back"]


@pytest.mark.parametrize("case", PROPERTIES["decode"], ids=lambda c: repr(c["text"]))
def test_malformed_property_texts_are_decoded_as_in_java(case: dict[str, Any]) -> None:
    assert decode_properties((case["text"] or "").encode()) == case["map"]


@given(st.dictionaries(texts, texts))
def test_encoded_properties_decode_to_the_same(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(st.binary())
def test_arbitrary_bytes_can_be_decoded(data: bytes) -> None:
    for name, value in decode_properties(data).items():
        assert name
        assert value


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    assert decode_properties(b"k\x01\xff\x02") == {"k": "\ufffd"}


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="Unicode"):
        encode_properties({"k": "\ud800"})


def test_reserved_names_equal_javas() -> None:
    assert sorted(RESERVED) == sorted(TABLES["reserved_properties"])


def test_every_reserved_name_has_a_constant() -> None:
    constants = {value for name, value in vars(names).items() if name.isupper()} - {RESERVED}

    assert constants >= RESERVED

"""Tests of the keys of a record: values found in the property text without decoding all of it."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from kourou.model.properties import decode_properties
from kourou.protocol.hashing import tags_code
from kourou.protocol.record.keys import property_value, queue_tags_code

TEXTS = st.lists(
    st.tuples(st.sampled_from(["TAGS", "T", "XTAGS", "KEYS"]), st.sampled_from(["", "a", "b\x01c"]))
).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs))


@given(text=TEXTS, is_closed=st.booleans(), name=st.sampled_from(["TAGS", "T", "KEYS"]))
@example(text="TAGS\x01a\x02TAGS\x01\x02", is_closed=True, name="TAGS")
def test_a_value_is_that_of_the_decoded_properties(text: str, is_closed: bool, name: str) -> None:
    text = text if is_closed else text.removesuffix("\x02")
    expected = decode_properties(text.encode()).get(name, "")

    assert property_value(text.encode(), f"{name}\x01".encode()) == expected.encode()


def test_an_empty_repeated_tag_leaves_the_code_of_the_earlier_one() -> None:
    code = queue_tags_code(b"T", b"TAGS\x01a\x02TAGS\x01\x02", 0, ())

    assert code == tags_code("a") != 0

"""The fast decoder of consumerOffset.json agrees with the general one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.protocol.data_version import DataVersion
from kourou.protocol.offset_table import (
    ConsumerOffsetTable,
    decode_consumer_offset_table,
    encode_consumer_offset_table,
    try_decode_offsets,
)

VERSION = DataVersion(7, 0, 1_795_228_489_975)
GOLDEN = Path(__file__).parent.parent / "golden" / "config" / "consumerOffset.json"
NAMES = st.text("aB_%|-0", min_size=1, max_size=4)
TABLES = st.dictionaries(
    st.builds("{}@{}".format, NAMES, NAMES),
    st.dictionaries(st.integers(0, 12), st.integers(-1, 2**63 - 1), max_size=9),
    max_size=8,
)
TEXT = (
    b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":2},'
    b'"offsetTable":{"T@g":{0:5}},"pullOffsetTable":{}}'
)


@settings(max_examples=200, deadline=None)
@given(TABLES, TABLES, st.booleans())
def test_fast_decoder_returns_the_encoded_offsets(
    committed: dict[str, dict[int, int]], pulled: dict[str, dict[int, int]], pretty: bool
) -> None:
    table = ConsumerOffsetTable(committed, VERSION, {"g": ["T", "U-1"]}, pulled)
    text = encode_consumer_offset_table(table, pretty=pretty)

    plain = try_decode_offsets(text)

    assert plain is not None
    assert (plain.offset_table, plain.pull_offset_table) == (committed, pulled)
    assert plain.data_version.timestamp == VERSION.timestamp


def test_fast_decoder_reads_javas_file() -> None:
    text = GOLDEN.read_bytes()
    table = decode_consumer_offset_table(text)

    plain = try_decode_offsets(text)

    assert plain is not None
    assert plain.offset_table == table.offsets
    assert plain.pull_offset_table == table.pulled


@pytest.mark.parametrize(
    ("usual", "unusual"),
    [
        (b"T@g", b"T,{1:@g"),
        (b"T@g", b'T\\"{1:@g'),
        (b"{0:5}", b"{-1:5}"),
        (b"{0:5}", b'{0:"5"}'),
        (b"{0:5}", b"{0:9223372036854775808}"),
        (b"{0:5}", b"null"),
        (b'"counter":1,', b""),
        (b"{}}", b"{}"),
    ],
)
def test_fast_decoder_declines_unusual_texts(usual: bytes, unusual: bytes) -> None:
    assert try_decode_offsets(TEXT) is not None
    assert try_decode_offsets(TEXT.replace(usual, unusual)) is None

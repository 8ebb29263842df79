"""The file of ordered pops is encoded and decoded as in Java."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.protocol.popping.order_file import (
    OrderInfo,
    OrderInfoTable,
    decode_order_info_table,
    encode_order_info_parts,
    encode_order_info_table,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "config" / "consumerOrderInfo.json"


def test_order_info_file_of_java_is_decoded_and_encoded_unchanged() -> None:
    data = GOLDEN.read_bytes()
    table = decode_order_info_table(data)

    info = table.table["StorePopOrder@store_pop_order"][0]
    assert (info.offsets, info.commit_bits, info.attempt_id) == ((0, 1, 2, 3), 1, "a1")
    assert info.invisible_time == 600_000
    assert encode_order_info_table(table) == data


def test_counts_and_times_of_messages_have_bare_keys() -> None:
    info = OrderInfo(1, 2, (5, 1), {6: 9}, {5: 2}, 3, -1)
    table = OrderInfoTable({"T@g": {1: info}}, 1)

    data = encode_order_info_table(table, pretty=False)

    assert b'"oc":{5:2}' in data
    assert b'"ot":{6:9}' in data
    assert decode_order_info_table(data) == table


LONGS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.dictionaries(LONGS, LONGS, max_size=3)
INFOS = st.builds(
    OrderInfo,
    LONGS,
    st.none() | LONGS,
    st.lists(LONGS, max_size=3).map(tuple),
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    LONGS,
    LONGS,
    st.none() | st.text(max_size=8) | st.just('"12:\n\t3:'),
)
QUEUES = st.dictionaries(LONGS, INFOS, max_size=3)
TABLES = st.dictionaries(st.text(max_size=8), QUEUES, max_size=30)


@given(TABLES)
def test_parts_are_the_text_of_the_table_which_is_decoded_unchanged(
    table: dict[str, dict[int, OrderInfo]],
) -> None:
    whole = OrderInfoTable(table, len(table))
    text = b"".join(encode_order_info_parts(len(table), sorted(table.items())))
    assert text == encode_order_info_table(whole)
    assert decode_order_info_table(text) == whole
    assert decode_order_info_table(encode_order_info_table(whole, pretty=False)) == whole


@pytest.mark.parametrize("data", [b"[]", b'{"table":{"T@g":{"x":{}}}}', b'{"table":{"T@g":7}}'])
def test_malformed_file_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode_order_info_table(data)

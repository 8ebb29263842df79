"""The file of ordered pops is encoded and decoded as in Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from kourou.errors import MalformedBodyError
from kourou.protocol.popping.order_file import (
    OrderInfo,
    OrderInfoTable,
    decode_order_info_table,
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


@pytest.mark.parametrize("data", [b"[]", b'{"table":{"T@g":{"x":{}}}}', b'{"table":{"T@g":7}}'])
def test_malformed_file_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode_order_info_table(data)

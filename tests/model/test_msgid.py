"""Message ids equal Java's."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import InvalidMessageError
from kourou.model.msgid import (
    UniqueIdGenerator,
    decode_offset_msg_id,
    decode_unique_id,
    encode_offset_msg_id,
)

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
OFFSET_IDS = json.loads((VECTORS / "message_id.json").read_text())["cases"]
UNIQUE_IDS = json.loads((VECTORS / "unique_id.json").read_text())
addresses = st.ip_addresses().filter(lambda a: a.version == 4 or a.ipv4_mapped is None).map(str)
NOVEMBER_MS = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize("case", [c for c in OFFSET_IDS if "id" in c], ids=lambda c: c["id"])
def test_offset_ids_equal_javas(case: dict[str, Any]) -> None:
    host = (case["decoded_host"], case["port"])

    assert encode_offset_msg_id(host, case["offset"]) == case["id"]
    (address, port), physical_offset = decode_offset_msg_id(case["id"])
    assert ip_address(address) == ip_address(case["decoded_host"])
    assert (port, physical_offset) == (case["decoded_port"], case["decoded_offset"])


@given(addresses, st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_id_decodes_to_host_and_offset(
    address: str, port: int, physical_offset: int
) -> None:
    text = encode_offset_msg_id((address, port), physical_offset)

    assert decode_offset_msg_id(text) == ((address, port), physical_offset)
    assert decode_offset_msg_id(text.lower()) == ((address, port), physical_offset)


@pytest.mark.parametrize(
    "text",
    [case["bad_id"] for case in OFFSET_IDS if "bad_id" in case]
    + ["7F 00 00 01 00 00 2A 9F 00 00 00", "G" * 32, "0" * 31, "\u0660" * 32],
)
def test_invalid_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessageError, match="hexadecimal"):
        decode_offset_msg_id(text)
    with pytest.raises(InvalidMessageError, match="hexadecimal"):
        decode_unique_id(text)


@pytest.mark.parametrize("case", UNIQUE_IDS["cases"], ids=lambda c: c["id"])
def test_unique_ids_are_decoded_as_in_java(case: dict[str, Any]) -> None:
    parts = decode_unique_id(case["id"])

    assert ip_address(parts.address) == ip_address(case["ip"])
    assert parts.pid == case["pid"]
    assert parts.month_ms == case["ms_in_month"]
    assert parts.counter == case["counter"]


@pytest.mark.parametrize("case", UNIQUE_IDS["created"], ids=lambda c: c["id"])
def test_unique_ids_are_encoded_as_in_java(case: dict[str, Any]) -> None:
    parts = decode_unique_id(case["id"])
    ids = UniqueIdGenerator(case["ip"], case["pid"], lambda: parts.salt)
    made = [ids.next(case["made_at_ms"]) for _ in range(parts.counter + 1)]

    assert made[-1] == case["id"]


def test_ids_of_one_millisecond_differ_and_the_counter_wraps() -> None:
    ids = UniqueIdGenerator("10.0.0.1", 70_000, lambda: 0x18B4AAC2)
    made = [ids.next(NOVEMBER_MS) for _ in range(65_537)]

    assert len(set(made)) == 65_536
    assert made[0] == "0A000001117018B4AAC2000000000000"
    assert made[65_535][-4:] == "FFFF"
    assert made[65_536] == made[0]


def test_time_restarts_each_month_and_after_a_clock_set_back() -> None:
    ids = UniqueIdGenerator("10.0.0.1", 1, lambda: 0)
    month_ms = [
        decode_unique_id(ids.next(now_ms)).month_ms
        for now_ms in (NOVEMBER_MS - 1, NOVEMBER_MS, NOVEMBER_MS + 5, NOVEMBER_MS - 1)
    ]

    october = 31 * 86_400_000
    assert month_ms == [october - 1, 0, 5, october - 1]


def test_december_is_followed_by_january() -> None:
    ids = UniqueIdGenerator("10.0.0.1", 1, lambda: 0)
    january = int(datetime(2027, 1, 1, tzinfo=UTC).timestamp() * 1000)

    assert decode_unique_id(ids.next(january - 1)).month_ms == 31 * 86_400_000 - 1
    assert decode_unique_id(ids.next(january)).month_ms == 0


def test_ids_differ_between_months() -> None:
    ids = UniqueIdGenerator("10.0.0.1", 1, itertools.count(7).__next__)
    december = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp() * 1000)
    made = [ids.next(begin + ms) for begin in (NOVEMBER_MS, december) for ms in range(65_536)]

    assert len(set(made)) == len(made)
    assert [decode_unique_id(one).salt for one in (made[0], made[65_535])] == [7, 7]
    assert [decode_unique_id(one).salt for one in (made[65_536], made[-1])] == [8, 8]


def test_ids_differ_after_the_clock_was_set_back() -> None:
    ids = UniqueIdGenerator("10.0.0.1", 1, itertools.count().__next__)
    made = [
        ids.next(now_ms)
        for _ in range(2)
        for now_ms in (NOVEMBER_MS, NOVEMBER_MS + 1)
        for _ in range(32_768)  # twice: the counter has its first value again
    ]

    assert len(set(made)) == len(made)

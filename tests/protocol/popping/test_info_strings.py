"""Texts of responses to pops are read and written as by Java."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kourou.errors import MalformedHeaderError
from kourou.protocol.popping.info_strings import (
    ENTRY_END,
    offsets_entry,
    order_count,
    order_counts_entries,
    parse_offsets,
    parse_order_counts,
    parse_start_offsets,
    start_offset_entry,
)
from tests.golden_exchanges import exchanges
from tests.protocol.popping.vectors import VECTORS

PARSERS: dict[str, Callable[[str], Mapping[tuple[str, str], object]]] = {
    "start_offset_info": parse_start_offsets,
    "msg_offset_info": parse_offsets,
    "order_count_info": parse_order_counts,
}
# Those of lite topics, which are not served, have a form of their own.
CASES = [
    (field, case[field], case["parsed"])
    for case in VECTORS["info_strings"]
    for field in PARSERS
    if field in case
]


def test_vectors_have_cases_of_each_text() -> None:
    assert {field for field, _, _ in CASES} == PARSERS.keys()
    assert len(CASES) == 24


@pytest.mark.parametrize(("field", "text", "parsed"), CASES)
def test_text_is_parsed_as_by_java(field: str, text: str, parsed: dict[str, Any] | None) -> None:
    parse = PARSERS[field]
    if parsed is not None and "error" in parsed:
        with pytest.raises(MalformedHeaderError):
            parse(text)
        return
    values = {"@".join(key): value for key, value in parse(text).items()}

    assert values == (parsed or {})


def test_recorded_responses_are_parsed_and_written_unchanged() -> None:
    count = 0
    for exchange in exchanges().values():
        if exchange.response is None or exchange.code != 200050:
            continue
        fields = exchange.response.header.get("extFields", {})
        if "startOffsetInfo" not in fields:
            continue
        count += 1
        starts = parse_start_offsets(fields["startOffsetInfo"])
        offsets = parse_offsets(fields["msgOffsetInfo"])
        assert starts.keys() == offsets.keys()
        entries = [start_offset_entry(k, int(q), start) for (k, q), start in starts.items()]
        assert ENTRY_END.join(entries) == fields["startOffsetInfo"]
        entries = [offsets_entry(k, int(q), found) for (k, q), found in offsets.items()]
        assert ENTRY_END.join(entries) == fields["msgOffsetInfo"]
    assert count > 20


def test_counts_of_an_ordered_pop_are_written_as_recorded() -> None:
    response = exchanges()["200050_POP_MESSAGE_pop-order-redelivered-count"].response
    assert response is not None
    recorded = response.header["extFields"]["orderCountInfo"]

    assert order_counts_entries("0", 0, {3: 1}) == recorded
    counts = parse_order_counts(recorded)
    assert [order_count(counts, "0", 0, offset) for offset in (3, 4)] == [1, 0]
    assert order_count(counts, "1", 0, 3) == 0


def test_entry_of_32_messages_has_all_offsets() -> None:
    offsets = tuple(range(2**40, 2**40 + 32))

    assert parse_offsets(offsets_entry("1", 7, offsets)) == {("1", "7"): list(offsets)}


@pytest.mark.parametrize("text", [";", "0 1 2;;0 2 3", "0 1 9223372036854775808", "0 1 1_0"])
def test_malformed_start_offsets_are_refused(text: str) -> None:
    with pytest.raises(MalformedHeaderError, match="startOffsetInfo is invalid"):
        parse_start_offsets(text)

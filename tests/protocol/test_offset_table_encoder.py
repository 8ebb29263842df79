"""The parts of the offset table's text join to the text encoded as a whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.protocol.data_version import DataVersion
from kourou.protocol.encoded_members import compact
from kourou.protocol.offset_table import (
    ConsumerOffsetTable,
    encode_consumer_offset_table,
    encode_offset_table_parts,
)

VERSION = DataVersion(7, 0, 1_795_228_489_975)
NAMES = st.text("aB_%|-", min_size=1, max_size=4)
KEYS = st.builds("{}@{}".format, NAMES, NAMES)
TABLES = st.dictionaries(
    KEYS, st.dictionaries(st.integers(0, 12), st.integers(-1, 2**63 - 1), max_size=9), max_size=8
)
GROUP_TOPICS = st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=3), max_size=3)


@settings(max_examples=200, deadline=None)
@given(GROUP_TOPICS, TABLES, TABLES)
def test_joined_parts_equal_the_whole_text(
    group_topics: dict[str, list[str]],
    committed: dict[str, dict[int, int]],
    pulled: dict[str, dict[int, int]],
) -> None:
    text = b"".join(
        encode_offset_table_parts(
            VERSION,
            dict(sorted(group_topics.items())),
            (sorted(committed), committed.get),
            (sorted(pulled), pulled.get),
        )
    )
    table = ConsumerOffsetTable(committed, VERSION, group_topics, pulled)
    assert text == encode_consumer_offset_table(table, pretty=True)
    assert compact(text) == encode_consumer_offset_table(table)


def test_entries_are_divided_into_parts_and_removed_ones_are_omitted() -> None:
    table = {f"topic-{number:04d}@g": {0: number} for number in range(2_000)}
    parts = []
    for part in encode_offset_table_parts(VERSION, {}, (sorted(table), table.get), ([], table.get)):
        parts.append(part)
        table.pop("topic-1999@g", None)

    assert max(map(len, parts)) < 10_000
    whole = ConsumerOffsetTable(table, VERSION, {}, {})
    assert b"".join(parts) == encode_consumer_offset_table(whole, pretty=True)

"""The text kept topic by topic is the text made as a whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.model.topic import TopicConfig
from kourou.protocol.bodies import (
    DataVersion,
    TopicConfigTable,
    decode_topic_config_table,
    encode_topic_config_table,
)
from kourou.protocol.topic_table_text import TopicTableText

VERSION = DataVersion(7, 0, 1_795_228_489_975)
NAMES = st.text('aB_%|\n"\\é\U0001f600', min_size=1, max_size=3)
TOPICS = st.builds(
    TopicConfig,
    NAMES,
    st.integers(1, 9),
    order=st.booleans(),
    attributes=st.dictionaries(NAMES, NAMES, max_size=2),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(TOPICS, NAMES), max_size=12))
def test_after_any_changes_it_is_the_same(changes: list[TopicConfig | str]) -> None:
    text, topics = TopicTableText(), dict[str, TopicConfig]()
    for change in changes:
        if isinstance(change, str):
            text.remove(change)
            topics.pop(change, None)
        else:
            text.put(change)
            topics[change.name] = change

    encoded = text.encode(VERSION)

    table = TopicConfigTable(topics, VERSION)
    assert encoded == encode_topic_config_table(table, pretty=True)
    assert decode_topic_config_table(encoded) == table

"""The joined texts of cached topics and groups equal the texts encoded as a whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.protocol.data_version import DataVersion
from kourou.protocol.groups import (
    GroupTableEncoder,
    SubscriptionGroupTable,
    encode_subscription_group_table,
)
from kourou.protocol.topic_table import (
    RegisterBody,
    TopicConfigTable,
    TopicTableEncoder,
    decode_topic_config_table,
    encode_register_body,
    encode_topic_config_table,
)

VERSION = DataVersion(7, 0, 1_795_228_489_975)
NAMES = st.text('aB_%|\n\t"\\{}é\U0001f600', min_size=1, max_size=3) | st.sampled_from(
    ["topicConfigTable", "subscriptionGroupTable", '"subscriptionGroupTable":{}']
)
TEXTS = st.dictionaries(NAMES, NAMES, max_size=2)
TOPICS = st.builds(TopicConfig, NAMES, st.integers(1, 9), order=st.booleans(), attributes=TEXTS)
GROUPS = st.builds(SubscriptionGroup, NAMES, st.booleans(), attributes=TEXTS)
FORBIDDEN = st.dictionaries(
    NAMES, st.dictionaries(NAMES, st.integers(1, 7), min_size=1, max_size=2), max_size=2
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(TOPICS, NAMES), max_size=12), st.sets(NAMES, max_size=4))
def test_joined_texts_of_topics_equal_the_whole_text(
    changes: list[TopicConfig | str], some: set[str]
) -> None:
    text, topics = TopicTableEncoder(), dict[str, TopicConfig]()
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
    assert text.encode_body(VERSION) == encode_topic_config_table(table)
    assert text.encode_registration(VERSION) == encode_register_body(RegisterBody(table))
    page = {name: topics[name] for name in some & topics.keys()}
    body = encode_topic_config_table(TopicConfigTable(page, VERSION))
    assert text.encode_body(VERSION, page) == body


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(GROUPS, NAMES), max_size=8), FORBIDDEN, st.sets(NAMES, max_size=4))
def test_joined_texts_of_groups_equal_the_whole_text(
    changes: list[SubscriptionGroup | str], forbidden: dict[str, dict[str, int]], some: set[str]
) -> None:
    text, groups = GroupTableEncoder(), dict[str, SubscriptionGroup]()
    for change in changes:
        if isinstance(change, str):
            text.remove(change)
            groups.pop(change, None)
        else:
            text.put(change)
            groups[change.group_name] = change

    table = SubscriptionGroupTable(groups, VERSION, forbidden)
    pretty = encode_subscription_group_table(table, pretty=True)
    assert text.encode(VERSION, forbidden) == pretty
    assert text.encode_body(VERSION, forbidden) == encode_subscription_group_table(table)
    page = {name: groups[name] for name in some & groups.keys()}
    body = encode_subscription_group_table(SubscriptionGroupTable(page, VERSION, forbidden))
    assert text.encode_body(VERSION, forbidden, page) == body

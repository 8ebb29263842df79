"""A record's queue entry is the same at the append and when recovery rebuilds it from the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.model.delay import DELAY_LEVELS_MS
from kourou.model.properties import encode_properties
from kourou.model.sysflag import (
    COMPRESSED,
    INNER_BATCH,
    NEED_UNWRAP,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.hashing import tags_code
from kourou.protocol.record.keys import is_visible, light_queues, queue_tags_code
from tests.store.rig import Rig, draft

LATER = SCHEDULE_TOPIC.encode()


def code(properties: bytes, topic: bytes = b"T", levels: tuple[int, ...] = DELAY_LEVELS_MS) -> int:
    return queue_tags_code(topic, properties, 1_000_000, levels)


@pytest.mark.parametrize(
    ("properties", "tags"),
    [
        (b"", None),
        (b"TAGS\x01a\x02", "a"),
        (b"KEYS\x01k\x02TAGS\x01a\x02", "a"),
        (b"KEYS\x01k\x02TAGS\x01a", "a"),
        (b"KEYS\x01k\x02TAGS\x01\x02", None),
        (b"MYTAGS\x01b\x02", None),
        (b"MYTAGS\x01b\x02TAGS\x01a\x02MYTAGS\x01c\x02", "a"),
        (b"NOTE\x01TAGS\x02", None),
        (b"TAGS\x01a\x02TAGS\x01b\x02", "b"),
        ("TAGS\x01grün\x02".encode(), "grün"),
    ],
)
def test_the_code_of_a_tag(properties: bytes, tags: str | None) -> None:
    assert code(properties) == tags_code(tags)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1),
        st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1),
    ),
    st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1),
)
def test_the_tag_is_found_among_any_properties(properties: dict[str, str], tags: str) -> None:
    assert code(encode_properties(properties | {"TAGS": tags})) == tags_code(tags)


@pytest.mark.parametrize(
    ("level", "due_in_ms"),
    [("1", 1_000), ("3", 10_000), ("18", 7_200_000), ("19", 7_200_000), ("999999999", 7_200_000)],
)
def test_a_delayed_message_has_its_due_time_as_code(level: str, due_in_ms: int) -> None:
    properties = encode_properties({"TAGS": "a", "DELAY": level})

    assert code(properties, LATER) == 1_000_000 + due_in_ms
    assert code(properties) == tags_code("a")


@pytest.mark.parametrize("level", ["0", "-1", "x", "9" * 5000])
def test_an_invalid_delay_level_gives_the_tags_code(level: str) -> None:
    assert code(encode_properties({"TAGS": "a", "DELAY": level}), LATER) == tags_code("a")


def test_other_delay_levels_come_from_the_config() -> None:
    assert code(b"DELAY\x012\x02", LATER, (5, 7)) == 1_000_007


@pytest.mark.parametrize(
    ("flag", "visible"),
    [
        (0, True),
        (COMPRESSED, True),
        (TRANSACTION_COMMIT, True),
        (TRANSACTION_PREPARED, False),
        (TRANSACTION_ROLLBACK, False),
        (INNER_BATCH | NEED_UNWRAP, True),
    ],
)
def test_prepared_and_rolled_back_records_get_no_entry(flag: int, visible: bool) -> None:
    assert is_visible(flag) is visible


def test_light_queues_are_those_with_an_offset() -> None:
    def found(names: str, offsets: str | None) -> list[tuple[str, int]]:
        properties = {"INNER_MULTI_DISPATCH": names}
        if offsets is not None:
            properties["INNER_MULTI_QUEUE_OFFSET"] = offsets
        return light_queues(encode_properties(properties))

    assert found("%LMQ%a,%LMQ%b", "3,40") == [("%LMQ%a", 3), ("%LMQ%b", 40)]
    assert found("%LMQ%a", None) == []
    assert found("%LMQ%a,%LMQ%b", "3") == []
    assert found("%LMQ%a", "x") == []
    assert found("%LMQ%a", "9" * 5000) == []


def test_a_message_cannot_claim_a_light_queue(rig: Rig) -> None:
    claim = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0", "TAGS": "a"}
    rig.store.writer.append(draft(b"one", properties=claim), rig.now_ms)
    rig.commit()
    rig.kill()

    assert rig.store.reader.queues() == {"T": [0]}
    assert rig.bodies() == [b"one"]


def test_append_and_recovery_agree_on_every_code(rig: Rig) -> None:
    drafts = [
        draft(properties={"TAGS": "a"}),
        draft(properties={"KEYS": "k"}),
        draft(topic=SCHEDULE_TOPIC, queue_id=2, properties={"DELAY": "3", "TAGS": "a"}),
    ]
    appended = [rig.store.writer.append(one, rig.now_ms) for one in drafts]
    rig.commit()
    before = [rig.store.reader.entry(a.topic, a.queue_id, a.queue_offset) for a in appended]
    rig.crash()

    assert [rig.store.reader.entry(a.topic, a.queue_id, a.queue_offset) for a in appended] == before
    assert [entry.tags_code for entry in before if entry] == [a.tags_code for a in appended]

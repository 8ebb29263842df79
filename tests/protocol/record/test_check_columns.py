"""Records pass the joint check only if each passes alone, and ordinary records do pass."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.hashing import tags_code
from kourou.protocol.record.check import ExpectedRecord, RecordCheck
from kourou.protocol.record.check_columns import ColumnCheck, EntryColumns
from kourou.protocol.record.encode import RecordDraft, encode_record, encode_sealed
from tests.store.rig import draft

FIRST = 7
TAGGED = {"KEYS": "k", "TAGS": "a", "WAIT": "true"}


def run_of(
    drafts: Sequence[RecordDraft], *, is_sealed: bool = True, tags: Sequence[str] | None = None
) -> tuple[bytes, EntryColumns]:
    """Return the records of one queue's messages, stored between others, and their entries."""
    encode = encode_sealed if is_sealed else encode_record
    records, position = [], 4096
    positions = []
    for number, one in enumerate(drafts):
        records.append(encode(one, FIRST + number, position, 1_000_000))
        positions.append(position)
        position += len(records[-1]) + 100
    codes = tuple(tags_code(tag) for tag in tags or ["a"] * len(drafts))
    offsets = tuple(range(FIRST, FIRST + len(drafts)))
    return b"".join(records), EntryColumns(
        offsets, tuple(positions), tuple(map(len, records)), codes
    )


def passes_alone(body: bytes, run: EntryColumns, topic: str = "T", queue_id: int = 0) -> bool:
    """Tell whether each record passes alone."""
    return (
        RecordCheck(topic, queue_id, (1_000,)).first_wrong(body, list(map(ExpectedRecord, *run)))
        is None
    )


def is_certain(body: bytes, run: EntryColumns, topic: str = "T", queue_id: int = 0) -> bool:
    """Tell whether they pass together; assert that each then passes alone as well."""
    found = ColumnCheck().is_certain(topic, queue_id, run, body)
    assert not found or passes_alone(body, run, topic, queue_id)
    return found


EQUAL = [draft(properties=TAGGED)] * 3
VARIED = [
    draft(b"", properties=TAGGED),
    draft(b"b" * 300, properties=TAGGED | {"more": "text"}),
    draft(b"body", properties={"TAGS": "a"}, sys_flag=1),
]


@pytest.mark.parametrize("drafts", [EQUAL, VARIED, EQUAL[:1]], ids=["equal", "varied", "one"])
def test_ordinary_records_pass_but_not_with_any_bit_changed(drafts: list[RecordDraft]) -> None:
    body, run = run_of(drafts)
    check = ColumnCheck()
    for _ in range(2):
        assert check.is_certain("T", 0, run, body)
    for bit in range(len(body) * 8):
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        assert not check.is_certain("T", 0, run, bytes(changed)), f"bit {bit}"


@pytest.mark.parametrize("drafts", [EQUAL, VARIED], ids=["equal", "varied"])
def test_no_entry_passes_with_any_bit_changed(drafts: list[RecordDraft]) -> None:
    body, run = run_of(drafts)
    for name, bits in (("offsets", 62), ("positions", 62), ("sizes", 31), ("codes", 63)):
        for number in range(len(drafts)):
            for bit in range(bits):
                values = list(getattr(run, name))
                values[number] ^= 1 << bit
                assert not is_certain(body, EntryColumns(**run._asdict() | {name: tuple(values)}))


@pytest.mark.parametrize("drafts", [EQUAL, VARIED], ids=["equal", "varied"])
def test_records_of_another_queue_do_not_pass(drafts: list[RecordDraft]) -> None:
    body, run = run_of(drafts)
    assert is_certain(body, run)
    assert not is_certain(body, run, "U")
    assert not is_certain(body, run, "TT")
    assert not is_certain(body, run, queue_id=1)
    for number in range(len(drafts)):
        others = list(drafts)
        others[number] = replace(drafts[number], topic=b"U")
        assert not is_certain(*run_of(others)), "one record of another queue"


def test_very_many_records_pass_as_well() -> None:
    for count in (64, 65, 300):
        body, run = run_of([draft(properties=TAGGED)] * count)
        assert is_certain(body, run)
        assert not is_certain(body[:-300] + b"X" + body[-299:], run)


def test_zeros_and_truncated_records_do_not_pass() -> None:
    body, run = run_of(VARIED)
    for at in range(len(body)):
        torn = body[:at] + bytes(len(body) - at)
        assert torn == body or not is_certain(torn, run)
    assert not is_certain(body[:-1], run)
    assert not is_certain(body + b"\0", run)
    sizes = (run.sizes[0] - 30, run.sizes[1] + 30, run.sizes[2])
    assert not is_certain(body, run._replace(sizes=sizes))


@pytest.mark.parametrize(
    ("properties", "tags", "is_plain"),
    [
        pytest.param([{"TAGS": "a"}, {"KEYS": "k", "TAGS": "a"}], ["a", "a"], True, id="places"),
        pytest.param([{"TAGS": "a"}, {"TAGS": "b"}], ["a", "b"], True, id="two"),
        pytest.param([{"TAGS": "a"}, {"KEYS": "k"}], ["a", ""], True, id="with and without"),
        pytest.param([{"KEYS": "k"}, {"a": "b"}], ["", ""], True, id="none"),
        pytest.param([{"KEYS": "TAGS"}, {"KEYS": "k"}], ["", ""], True, id="as a value"),
        pytest.param([{"TAGS": "é"}, {"TAGS": "é"}], ["é", "é"], True, id="not ASCII"),
        pytest.param([{"MYTAGS": "a"}, {"TAGS": "a"}], ["", "a"], False, id="a longer name"),
        pytest.param([{"MYTAGS": "a"}, {"MYTAGS": "a"}], ["", ""], False, id="longer names"),
        pytest.param([{"MYTAGS": "a"}, {"MYTAGS": "a"}], ["a", "a"], False, id="taken for tags"),
        pytest.param([{"TAGS": "a"}, {"TAGS": "b"}], ["a", "a"], False, id="another"),
        pytest.param([{"TAGS": "a", "x": "\x0f"}] * 2, ["a", "a"], False, id="a mark"),
        pytest.param([{"TAGS": "a"}, {"x": "\x0f"}], ["a", "a"], False, id="a mark for a tag"),
        pytest.param([{"x": "\x0e\x0f"}, {"x": "y"}], ["", ""], True, id="marks without tags"),
        pytest.param([{"MYTAGS": "a"}, {"TAGS": "a"}], ["a", "a"], False, id="taken for it"),
        pytest.param([{"KEYS": "k"}, {"TAGS": "a"}], ["a", "a"], False, id="one lacks it"),
        pytest.param([{"TAGS": "a"}, {"TAGS": "a"}], ["", "a"], False, id="one has it"),
        pytest.param([{"TAGS": "ab"}, {"TAGS": "a"}], ["a", "a"], False, id="the begin of it"),
        pytest.param([{"TAGS": "Aa"}, {"TAGS": "BB"}], ["Aa", "BB"], False, id="one code for two"),
    ],
)
def test_a_record_has_the_tag_of_its_entry(
    properties: list[dict[str, str]], tags: list[str], *, is_plain: bool
) -> None:
    body, run = run_of([draft(properties=one) for one in properties], tags=tags)
    assert is_certain(body, run) == is_plain


def test_records_without_properties_pass() -> None:
    assert is_certain(*run_of([replace(draft(), properties=b"")] * 2, tags=["", ""]))


def test_a_duplicate_tag_does_not_replace_a_missing_one() -> None:
    twice = replace(draft(), properties=b"TAGS\x01a\x02KEYS\x01k\x02TAGS\x01a\x02")
    without = draft(properties={"KEYS": "k"})
    for drafts, tags in (
        ([twice, without], ["a", "a"]),
        ([without, twice], ["a", "a"]),
        ([twice, without, without], ["a", "a", ""]),
    ):
        body, run = run_of(drafts, tags=tags)
        assert not passes_alone(body, run)
        assert not is_certain(body, run)


@pytest.mark.parametrize(
    ("one", "topic"),
    [
        (replace(draft(), born_host=("::1", 40_000)), "T"),
        (replace(draft(), topic=b"x" * 200), "x" * 200),
        (draft(topic=SCHEDULE_TOPIC, properties={"TAGS": "a"}), SCHEDULE_TOPIC),
    ],
    ids=["v6 host", "v2", "delayed"],
)
def test_unordinary_records_are_left_to_the_single_check(one: RecordDraft, topic: str) -> None:
    body, run = run_of([one, one])
    assert passes_alone(body, run, topic)
    assert not is_certain(body, run, topic)


def test_records_without_a_seal_are_left_to_the_single_check() -> None:
    for is_sealed in (False, True):
        body, run = run_of(EQUAL, is_sealed=is_sealed)
        assert passes_alone(body, run)
        assert is_certain(body, run) == is_sealed
    body, run = run_of([draft(), draft()])
    unsealed, other = run_of([draft()], is_sealed=False)
    mixed = EntryColumns(run.offsets, run.positions, (run.sizes[0], other.sizes[0]), run.codes)
    assert not is_certain(body[: run.sizes[0]] + unsealed, mixed)


def test_more_tags_than_the_cache_holds_pass() -> None:
    check = ColumnCheck()
    for number in range(1100):
        tags = [f"tag-{number}", f"tag-{number + 1}"]
        body, run = run_of([draft(properties={"TAGS": tag}) for tag in tags], tags=tags)
        assert check.is_certain("T", 0, run, body)


@pytest.mark.parametrize("seed", range(3))
def test_no_changed_record_passes(seed: int) -> None:
    dice = random.Random(seed)
    passed = 0
    for _ in range(300):
        drafts = [
            draft(
                dice.choice((b"", b"b" * 40, b"TAGS\x01a\x02" * 5)),
                topic=dice.choice(("T", "T", "T", "T", "T", "U")),
                properties=dice.choice(
                    (TAGGED, TAGGED, {"TAGS": "a"}, {"MYTAGS": "a"}, {"a": "b"})
                ),
            )
            for _ in range(dice.choice((1, 2, 5)))
        ]
        body, run = run_of(drafts, tags=[dice.choice(("a",) * 9 + ("",)) for _ in drafts])
        if dice.random() < 0.5:
            changed, at = bytearray(body), dice.randrange(len(body))
            size = dice.choice((1, 4, 60))
            changed[at : at + size] = body[dice.randrange(len(body)) :][: len(body[at : at + size])]
            body = bytes(changed)
        passed += is_certain(body, run)
    assert passed > 30

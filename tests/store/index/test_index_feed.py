"""The index has the same entries from fed records as from the log, in all cases of the feed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random

import pytest

from kourou.protocol.record.encode import encode_record
from kourou.store.index.index_feed import SLICE_MAX, FedBatch, FedRecord, IndexFeed
from kourou.store.index.index_file import IndexLayout
from kourou.store.index.index_keys import KeyKind, key_hash
from kourou.store.index.key_index import IndexStep, KeyIndex
from kourou.store.log.commitlog import CommitLog
from kourou.store.paths import INDEX
from kourou.testing.disk import SimDisk
from tests.store.rig import draft

SEGMENT_BYTES = 64 * 1024
START_MS = 1_700_000_000_000
LAYOUTS = (IndexLayout(8, 64), IndexLayout(1000, 5000))
KEYS = ("", "k", "order-1", "12345678", "x" * 64, "a" * 36)
ODD_KEYS = ("two keys", " blank", "schlüssel", "y" * 65, "y" * 128, "y" * 129, "z" * 3000)
OTHER_IDS = ("T@3@17@group@1700000000000@broker-a@ck", "i" * 127, "j" * 128, "l" * 129, "short")


class Appends:
    """Appends random records to a log, and feeds them to the index.

    Args:
        seed: of random choices.
        feed: the index's feed.
    """

    def __init__(self, seed: int, feed: IndexFeed) -> None:
        self.disk = SimDisk(seed)
        self.disk.make_directory("commitlog")
        self.log = CommitLog(self.disk, SEGMENT_BYTES)
        self.feed = feed
        self._dice = Random(seed)
        self._number = 0

    def run(self, records: int, *, odd_each: float = 0.0) -> None:
        """Append single records and feed them, as long as the segment has room."""
        taken = self.feed.begin_run()
        for _ in range(records):
            keys = self._dice.choice(KEYS)
            if self._dice.random() < odd_each:
                keys = self._dice.choice(ODD_KEYS)
            unique_id = f"{self._dice.getrandbits(128):032X}"
            if self._dice.random() < odd_each / 10:
                unique_id = "Ä" + unique_id[1:]
            if self._dice.random() < odd_each * 2:
                unique_id = self._dice.choice(OTHER_IDS)
            tags = self._dice.choice(("", "TagA", "TagB", "täg")) if odd_each else "TagA"
            topic = self._dice.choice(("T", "Orders", "Ünicode")) if odd_each else "T"
            position, end, at_ms = self.ordinary(topic, unique_id, keys, tags)
            taken.append((position, end, at_ms, topic, tags, unique_id, keys))

    def batch(self, records: int, *, odd_each: float = 0.0) -> None:
        """Append and feed a batch of one topic and time, with equal or different keys and tags."""
        self.feed.begin_run()
        topic, tag = self._dice.choice(("T", "T", "Orders")), self._dice.choice(("TagA", "TagB"))
        has_keys, is_alike = self._dice.random() < 0.3, self._dice.random() < 0.5
        head = self._dice.choice(("", "A" * 24, f"{self._dice.getrandbits(96):024X}"))
        starts, rests, keys, tags = array("q"), "", list[str](), list[str]()
        end = at_ms = -1
        self._number += 1
        for _ in range(records):
            rest = f"{self._dice.getrandbits(128):032X}"[len(head) :]
            rests += rest
            keys.append(self._dice.choice(KEYS) if has_keys else "")
            tags.append(tag if is_alike else self._dice.choice(("", "TagA")))
            if self._dice.random() < odd_each and has_keys:
                keys[-1] = self._dice.choice(ODD_KEYS)
            start, next_end, at_ms = self.ordinary(
                topic, head + rest, keys[-1], tags[-1], later=not starts
            )
            if starts and start != end:
                return  # a batch cannot reach into the next segment
            starts.append(start)
            end = next_end
        some_tags = tags[:1] if is_alike else tags
        some_keys = keys if has_keys else ()
        id_head, id_tails = head.encode(), rests.encode()
        self.feed.add_batch(
            FedBatch(
                starts[0], end, at_ms, topic, starts, some_tags, id_head, id_tails, some_keys
            )
        )  # fmt: skip

    def ordinary(
        self,
        topic: str = "T",
        unique_id: str = "short",
        keys: str = "a b",
        tags: str = "TagA",
        *,
        later: bool = True,
    ) -> tuple[int, int, int]:
        """Append a record with a later time; return its start, end and store time."""
        properties = {"UNIQ_KEY": unique_id, "KEYS": keys, "TAGS": tags}
        record = draft(
            bytes(self._dice.randrange(99)),
            topic=topic,
            properties={name: value for name, value in properties.items() if value},
        )
        self._number += later
        at_ms = START_MS + self._number * 40
        position = self.log.position_for(len(encode_record(record, self._number, 0, at_ms)))
        data = encode_record(record, self._number, position, at_ms)
        self.log.add(position, data)
        return position, position + len(data), at_ms

    def take_back(self) -> None:
        """Drop the unwritten records, as after a failed write."""
        self.log.drop_appends()
        self.feed.drop_from(self.log.written_position)

    def sync(self) -> None:
        """Make all records durable."""
        self.log.write()
        self.log.synced(self.log.written_position)


def new_index(appends: Appends, layout: IndexLayout, feed: IndexFeed | None) -> KeyIndex:
    index = KeyIndex(appends.disk, appends.log, layout)
    if feed is not None:
        index.feed = feed
    index.open(durable_to_ms=None, complete_to=None)
    return index


def follow(index: KeyIndex, end: int, steps: int = 1 << 30, records: int = SLICE_MAX) -> None:
    while steps and (left := index.step(end, records)) is not IndexStep.IDLE:
        steps -= 1
        if left is IndexStep.BLOCKED:
            index.upkeep(end, START_MS)


def files(disk: SimDisk) -> list[bytes]:
    """Return the contents of the index's files, oldest first; their names are times."""
    return [disk.read(f"{INDEX}/{name}", 0, 1 << 30) for name in sorted(disk.list(INDEX))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(25))
def test_files_from_the_feed_equal_files_from_the_log(seed: int, layout: IndexLayout) -> None:
    dice = Random(seed)
    appends = Appends(seed, IndexFeed(dice.choice((12_800, 1 << 22))))
    fed = new_index(appends, layout, appends.feed)
    for _ in range(dice.randrange(5, 40)):
        drawn = dice.random()
        if drawn < 0.3:
            appends.run(dice.choice((1, 5, 30, 100)), odd_each=dice.choice((0.0, 0.0, 0.02, 0.2)))
        elif drawn < 0.5:
            for _ in range(dice.choice((1, 1, 8))):
                appends.batch(dice.choice((1, 2, 9, 40)), odd_each=dice.choice((0.0, 0.0, 0.02)))
        elif drawn < 0.7:
            for _ in range(dice.choice((1, 10))):
                appends.ordinary()
        elif drawn < 0.8:
            appends.take_back()
        elif drawn < 0.9:
            appends.sync()
        else:
            records = dice.choice((1, 7, 16, 50, SLICE_MAX))
            follow(fed, appends.log.synced_position, steps=dice.randrange(4), records=records)
    appends.ordinary()
    appends.sync()
    follow(fed, appends.log.synced_position)
    fed.save()
    found = files(appends.disk)
    for name in appends.disk.list(INDEX):
        appends.disk.unlink(f"{INDEX}/{name}")
    read = new_index(appends, layout, None)
    follow(read, appends.log.synced_position)
    read.save()
    assert found == files(appends.disk)
    assert found


def test_the_log_is_not_read_for_fed_records() -> None:
    appends = Appends(1, IndexFeed())
    index = new_index(appends, LAYOUTS[1], appends.feed)
    appends.run(50)
    (last, *_, unique_id, _) = appends.feed.items[-1]
    assert isinstance(unique_id, str)
    appends.sync()
    appends.disk.write("commitlog/00000000000000000000", 0, [bytes(last)])
    follow(index, appends.log.synced_position)
    hash_ = key_hash("T", unique_id, KeyKind.UNIQUE_ID)
    assert list(index.find(hash_, 0, 2 * START_MS)) == [last]
    assert index.last_header.count > 100


def test_records_behind_the_synced_position_are_not_taken() -> None:
    appends = Appends(1, IndexFeed())
    index = new_index(appends, LAYOUTS[1], appends.feed)
    appends.run(20)
    appends.sync()
    appends.run(20)
    follow(index, appends.log.synced_position)
    assert index.position == appends.log.synced_position < appends.log.appended_position
    assert len(appends.feed.items) == 40


def record(number: int, size: int = 100) -> FedRecord:
    return number * 100, number * 100 + size, START_MS, "T", "", "0" * 32, ""


def batch(first: int, number: int, size: int = 100, keys: Sequence[str] = ()) -> FedBatch:
    starts = array("q", range(first * size, (first + number) * size, size))
    end, rests = (first + number) * size, b"0" * 8 * number
    return FedBatch(starts[0], end, START_MS, "T", starts, ("",), b"A" * 24, rests, keys)


@pytest.mark.parametrize("count", [1, 32])
def test_a_full_feed_keeps_its_records_until_they_are_indexed(count: int) -> None:
    kept = 40 * (320 if count == 1 else 512 + count * 48)
    feed = IndexFeed(kept)
    for number in range(60):
        if count == 1:
            feed.begin_run().append(record(number))
        else:
            feed.begin_run()
            feed.add_batch(batch(number * count, count))
    assert len(feed.items) == 40
    assert feed.fullness == 1
    assert feed.next_from(20 * count * 100, 1 << 30) == 20 * count * 100
    assert feed.fullness == 0.5
    feed.begin_run().append(record(3_000))
    assert len(feed.items) == 21


def taken(feed: IndexFeed, position: int, until: int) -> tuple[int, int] | None:
    """Return the start of each taken record, and the end of the last."""
    found = feed.take(position, until)
    return None if found is None else (found.starts[0], found.end)


def test_records_with_gaps_are_taken_separately() -> None:
    feed = IndexFeed()
    feed.begin_run().extend([record(number) for number in range(100) if number != 60])
    assert taken(feed, 0, 10_000) == (0, 6_000)
    assert feed.next_from(6_000, 10_000) == 6_100
    assert taken(feed, 6_100, 10_000) == (6_100, 10_000)


def test_few_records_are_taken_only_if_no_others_follow() -> None:
    feed = IndexFeed()
    feed.begin_run().extend([record(0), record(1)])
    assert taken(feed, 0, 200) == (0, 200)
    assert taken(feed, 0, 300) is None
    assert taken(feed, 0, 50) is None
    assert feed.next_from(0, 300) == 0
    feed.drop_from(0)
    feed.begin_run().append(record(5))
    assert feed.next_from(200, 10_000) is None
    feed.add_batch(batch(6, 20))
    assert feed.next_from(200, 10_000) == 500


def test_batches_and_single_records_make_one_slice() -> None:
    feed = IndexFeed()
    feed.begin_run().extend([record(0), record(1)])
    feed.add_batch(batch(2, 3, keys=("a", "", "b")))
    feed.begin_run().append(record(5))
    feed.add_batch(batch(6, 20))
    found = feed.take(0, 10_000)
    assert found is not None
    assert list(found.starts) == [100 * number for number in range(26)]
    assert found.end == 2_600
    assert found.keys == ["", "", "a", "", "b", *[""] * 21]
    assert [(number, len(head), len(rests)) for number, head, rests in found.ids] == [
        (2, 0, 64), (3, 24, 24), (1, 0, 32), (20, 24, 160)
    ]  # fmt: skip


def test_a_batch_is_taken_in_parts_if_a_slice_ends_in_it() -> None:
    feed = IndexFeed()
    feed.begin_run()
    keys = [f"k{number}" for number in range(100)]
    feed.add_batch(batch(0, 100, keys=keys))
    assert feed.next_from(0, 10_000) == 0
    first = feed.take(0, 10_000, 60)
    assert first is not None
    assert (first.end, first.keys) == (6_000, keys[:60])
    assert feed.next_from(first.end, 10_000) == 6_000
    assert taken(feed, 6_000, 8_000) == (6_000, 8_000)
    rest = feed.take(6_000, 10_000)
    assert rest is not None
    assert (rest.starts[0], rest.end, rest.keys) == (6_000, 10_000, keys[60:])
    assert rest.ids == [(40, b"A" * 24, b"0" * 8 * 40)]
    assert feed.next_from(10_000, 10_000) is None
    assert feed.fullness == 0


def test_the_size_of_a_slice_is_limited() -> None:
    feed = IndexFeed()
    feed.begin_run().extend([record(number) for number in range(2 * SLICE_MAX)])
    found = feed.take(0, 1 << 30)
    assert found is not None
    assert len(found.starts) == SLICE_MAX

"""With one flipped bit in log or queues, each message is correct or refused by name."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest

from kourou.errors import CorruptRecordError, DamagedRecordError
from kourou.protocol.record.decode import decode_message
from kourou.store.message_store import GetRequest, MessageStore
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, Rig, draft

FLIPS = 100
QUEUES = [("T", 0), ("T", 1), ("Other", 0), ("SCHEDULE_TOPIC_XXXX", 2)]
CONFIG_OF_A_FILE = replace(CONFIG, consumequeue_file_bytes=20 * 16)

Place = tuple[str, int, int]
"""Topic, queue id and queue offset."""
Messages = dict[Place, bytes]


def filled(count: int = 60, *, is_expired: bool = False) -> tuple[SimDisk, Messages]:
    """Return a stopped store, and its records by topic, queue and offset."""
    rig = Rig(config=CONFIG_OF_A_FILE)
    for number in range(count):
        topic, queue_id = QUEUES[number % len(QUEUES)]
        body = b"%d" % number * (number % 40 + 1)
        properties = {"TAGS": "ab"[number % 2], "DELAY": "3", "KEYS": f"k{number}"}
        rig.now_ms += 1
        rig.store.writer.append(
            draft(body, topic=topic, queue_id=queue_id, properties=properties), rig.now_ms
        )
        rig.commit()
    if is_expired:
        expiry = rig.store.expiry
        expiry.remove([expiry.hide_segment()])
        for queue in rig.store.files.queues:
            queue.correct_min_offset(rig.store.reader.min_position)
    messages = read_all(rig.store)[0]
    rig.store.close(rig.now_ms)
    return rig.disk, messages


def opened(disk: SimDisk) -> MessageStore:
    return MessageStore.open(disk, CONFIG_OF_A_FILE, 2_000_000, pid=1)


def read_all(store: MessageStore) -> tuple[Messages, list[Place]]:
    """Read each queue from begin to end like a consumer, and collect damaged messages."""
    messages: Messages = {}
    damaged = []
    for topic, queue_ids in store.reader.queues().items():
        for queue_id in queue_ids:
            offset = store.reader.min_offset(topic, queue_id)
            while offset < store.reader.max_offset(topic, queue_id):
                asked = GetRequest(offset, 8, 1 << 20, None)
                try:
                    found = store.reader.get_resident(topic, queue_id, asked)
                    found = found or store.reader.get(topic, queue_id, asked)
                except DamagedRecordError as error:
                    damaged.append((error.topic, error.queue_id, error.queue_offset))
                    offset += 1
                    continue
                store.writer.write_repaired(found.repaired)
                assert found.plan.next_offset > offset
                for record in found.records():
                    own = decode_message(record).queue_offset
                    assert offset <= own < found.plan.next_offset
                    messages[topic, queue_id, own] = record
                offset = found.plan.next_offset
    return messages, damaged


def flip(disk: SimDisk, name: str, bit: int) -> None:
    """Flip one bit of a file, without the store that has it open."""
    byte = disk.read(name, bit // 8, 1)
    disk.write(name, bit // 8, [bytes((byte[0] ^ (1 << bit % 8),))])
    disk.sync(name)


def used_bits(disk: SimDisk, directory: str) -> list[tuple[str, int]]:
    """Return each file below the directory with its number of used bits."""
    found = []
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if disk.list(path):
            found += used_bits(disk, path)
        else:
            found.append((path, len(disk.read(path, 0, disk.size(path)).rstrip(b"\0")) * 8))
    return [one for one in found if one[1]]


@pytest.mark.parametrize("is_expired", [False, True], ids=["all kept", "some expired"])
@pytest.mark.parametrize("directory", ["commitlog", "consumequeue"])
def test_with_any_flipped_bit_each_message_is_correct_or_refused_by_name(
    directory: str, is_expired: bool
) -> None:
    dice = random.Random(directory)
    disk, messages = filled(is_expired=is_expired)
    files = used_bits(disk, directory)
    damages = 0
    not_opened = []
    for _ in range(FLIPS):
        one = copy.deepcopy(disk)
        name, bits = dice.choice(files)
        bit = dice.randrange(bits)
        flip(one, name, bit)
        where = f"{name} bit {bit}"
        try:
            store = opened(one)
        except CorruptRecordError as error:
            not_opened.append((error.file, name))
            continue
        found, damaged = read_all(store)
        refused = set(damaged)
        assert found.keys() | refused == messages.keys(), where
        assert all(messages[place] == record for place, record in found.items()), where
        assert len(refused) <= 1, where
        if directory == "consumequeue":
            assert not refused, where
        damages += len(refused)
        store.abandon()
    assert all(reported == flipped for reported, flipped in not_opened), not_opened
    if directory == "commitlog":
        assert damages > FLIPS / 2, f"{damages} damaged, {len(not_opened)} not opened"

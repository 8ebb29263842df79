"""Steps that also use batch queues, key index, expiry and deletion, with power losses in each.

The remaining messages must be those in the log from its first position on, without those of
deleted topics; after a crash during a deletion, the topic is there with all messages or none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kourou.model.properties import KEYS
from kourou.model.sysflag import INNER_BATCH, NEED_UNWRAP
from kourou.protocol.record.decode import decode_message
from kourou.store.index.index_keys import KeyKind
from kourou.store.index.key_index import IndexStep, KeyQuery
from kourou.store.message_store import GetRequest
from kourou.store.retention import RetentionConfig
from tests.store.rig import draft
from tests.torture.steps import STEPS, Run, assert_survives_power_loss

BATCHES = ("B", 0)
DELETED = "D"
QUEUES = (("T", 0), ("T", 1), ("U", 0), BATCHES, (DELETED, 0), (DELETED, 3))
RETENTION = RetentionConfig(file_reserved_hours=0, delete_files_max=2)


@dataclass
class FullRun(Run):
    """A run with every kind of queue and file.

    Attributes:
        gone_below: records of the deleted topic below this log position are in no queue.
        deleting: the same for an unfinished deletion.
        keys: the key of each body.
        sent: number of bodies.
    """

    gone_below: int = 0
    deleting: int | None = None
    keys: dict[bytes, str] = field(default_factory=dict)
    sent: int = 0

    def open(self) -> None:
        self.disk.now_ms = lambda: self.now_ms
        super().open()
        self.store.writer.set_kind_lookup("B".__eq__)
        if self.deleting is not None:
            if not any(self.store.reader.max_offset(DELETED, queue_id) for queue_id in (0, 3)):
                self.gone_below = self.deleting
            self.deleting = None
        self.gone_below = min(self.gone_below, self.store.reader.written_position)

    def append_batch(self, number: int) -> None:
        self.sent += 1
        body = b"batch %06d" % self.sent + b"x" * (number * 37 % 900)
        properties = {"INNER_NUM": str(number % 5 + 1), "NOTE": "y" * (number + 1)}
        flags = INNER_BATCH | NEED_UNWRAP
        made = draft(body, topic="B", sys_flag=flags, properties=properties)
        self.note(body, self.store.writer.append(made, self.now_ms))

    def append_keyed(self, number: int) -> None:
        self._append_keyed(*QUEUES[number % 3], number)

    def append_doomed(self, number: int) -> None:
        self._append_keyed(DELETED, number % 2 * 3, number)

    def _append_keyed(self, topic: str, queue_id: int, number: int) -> None:
        self.sent += 1
        body = b"key %06d" % self.sent + b"x" * (number * 37 % 700)
        self.keys[body] = f"key-{number % 7}"
        properties = {KEYS: f"key-{number % 7} other", "NOTE": "y" * (number + 1)}
        made = draft(body, topic=topic, queue_id=queue_id, properties=properties)
        self.note(body, self.store.writer.append(made, self.now_ms))

    def follow(self, number: int) -> None:
        """Run some steps of the key index, or index to the end of the log."""
        for _ in range(number):
            if self.store.index_step() is IndexStep.IDLE:
                break
            self.store.index_upkeep(self.now_ms)

    def save_index(self, _: int) -> None:
        self.store.index_save()

    def expire(self, _number: int) -> None:
        """Remove expired files, in the steps of a broker."""
        expiry = self.store.expiry
        for _ in range(expiry.count_expired(RETENTION, self.now_ms)):
            expiry.remove([expiry.hide_segment()])
        expiry.sync_log()
        expiry.remove(expiry.hide_files(expiry.find_expired(expiry.queues())))

    def delete(self, _: int) -> None:
        """Delete a topic, in the steps of a broker."""
        deletion = self.store.writer.begin_deletion(DELETED)
        if deletion is None:
            return
        self.deleting = deletion.log_end
        deletion.note()
        deletion.forget()
        self.gone_below, self.deleting = deletion.log_end, None
        deletion.remove_files()
        deletion.allow()

    def compare(self) -> None:
        for topic, queue_id in QUEUES:
            below = self.gone_below if topic == DELETED else 0
            mine = [
                (place, body)
                for place, (queue, body) in zip(self.places, self.appended, strict=True)
                if queue == (topic, queue_id) and place.physical_offset >= below
            ]
            last = mine[-1][0] if mine else None
            end = 0 if last is None else last.queue_offset + last.count
            assert self.store.reader.max_offset(topic, queue_id) == end, (topic, queue_id, end)
            assert self._read(topic, queue_id) == [
                (place.queue_offset, body)
                for place, body in mine
                if place.physical_offset >= self.store.reader.min_position
            ]
        self._compare_index()

    def _read(self, topic: str, queue_id: int) -> list[tuple[int, bytes]]:
        given: list[tuple[int, bytes]] = []
        at, end = (
            self.store.reader.min_offset(topic, queue_id),
            self.store.reader.max_offset(topic, queue_id),
        )
        while at < end:
            asked = GetRequest(at, 32, 1 << 20, None)
            found = self.store.reader.get_resident(topic, queue_id, asked)
            found = found or self.store.reader.get(topic, queue_id, asked)
            assert not found.repaired, "no entry is corrupt"
            assert found.plan.next_offset > at, found.plan
            for record in found.records():
                message = decode_message(record)
                assert set(message.properties["NOTE"]) == {"y"}, "a torn record"
                given.append((message.queue_offset, message.body))
            at = found.plan.next_offset
        return given

    def _compare_index(self) -> None:
        """Index the whole log, then query every key."""
        self.store.writer.write()
        plan = self.store.writer.sync_plan()
        if plan is not None:
            self.store.writer.run_sync(plan)
            self.store.writer.synced(plan)
        self.store.writer.dispatch(self.store.reader.synced_position)
        for _ in range(1_000):
            if self.store.index_step() is IndexStep.IDLE:
                break
            self.store.index_upkeep(self.now_ms)
        for topic in ("T", "U", DELETED):
            for number in range(7):
                self._compare_key(topic, f"key-{number}")

    def _compare_key(self, topic: str, key: str) -> None:
        begin = max(self.store.reader.min_position, self.gone_below if topic == DELETED else 0)
        query = KeyQuery(topic, key, KeyKind.KEY, 1_000, 0, 1 << 62)
        found = [decode_message(record) for record in self.store.find_messages(query).records]
        assert [(message.physical_offset, message.body) for message in found] == [
            (place.physical_offset, body)
            for place, (_, body) in zip(self.places, self.appended, strict=True)
            if place.topic == topic
            and place.physical_offset >= begin
            and self.keys.get(body) == key
        ], f"{key} of {topic}"


MORE_STEPS = [
    *STEPS, *["append_batch"] * 4, *["append_keyed"] * 4, *["append_doomed"] * 3,
    *["follow"] * 3, "save_index", *["expire"] * 3, *["delete"] * 2,
    *["sync", "show_synced", "flush"] * 3,
]  # fmt: skip


def lose_power_in_any_file(seed: int) -> None:
    """Run these steps until a power loss, recover with further crashes, and compare.

    Raises:
        AssertionError: a durable message is lost, or there is one that was not appended.
    """
    assert_survives_power_loss(seed, FullRun, MORE_STEPS, 240)

"""A store on a simulated disk, driven as the broker drives it, and checked at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from kourou.model.properties import encode_properties
from kourou.protocol.message_decoding import decode_messages
from kourou.protocol.message_layout import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.message_store import Appended, Asked, MessageStore
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk

SEGMENT_BYTES = 4096
CONFIG = StoreConfig(
    commitlog_segment_bytes=SEGMENT_BYTES,
    consumequeue_file_bytes=20 * 8,
    batch_queue_file_bytes=46 * 4,
    queue_tail_bytes_max=20 * 5,
    queue_sync_interval_ms=1,
    queue_files_per_sync=2,
    index_slots=8,
    index_entries=32,
    free_bytes_min=1,
)
"""Small enough that a few messages cross every border."""


def draft(
    body: bytes = b"hello",
    *,
    topic: str = "T",
    queue_id: int = 0,
    sys_flag: int = 0,
    properties: dict[str, str] | None = None,
) -> RecordDraft:
    """Return a message as the broker hands it to the store."""
    return RecordDraft(
        topic=topic.encode(),
        queue_id=queue_id,
        flag=0,
        sys_flag=sys_flag,
        born_at_ms=1_000,
        born_host=("127.0.0.1", 40_000),
        store_host=("127.0.0.1", 10_911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties=encode_properties(properties or {"TAGS": "a"}),
    )


def delete_topic(store: MessageStore, topic: str) -> None:
    """Delete the topic, in the steps that the broker takes."""
    deletion = store.begin_deletion(topic)
    if deletion is not None:
        deletion.note()
        deletion.forget()
        deletion.remove_files()
        deletion.allow()


@dataclass
class Rig:
    """One store directory through its openings, kills and crashes."""

    disk: SimDisk = field(default_factory=SimDisk)
    config: StoreConfig = CONFIG
    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        self.store = self.open()

    def open(self) -> MessageStore:
        """Open the store, which must not be open."""
        self.store = MessageStore.open(self.disk, self.config, self.now_ms, pid=42)
        return self.store

    def append(self, body: bytes = b"hello", topic: str = "T", queue_id: int = 0) -> Appended:
        """Append one message, in memory."""
        return self.store.append(draft(body, topic=topic, queue_id=queue_id), self.now_ms)

    def commit(self) -> None:
        """Take everything appended through write, sync and dispatch."""
        self.store.write()
        for plan in (self.store.sync_plan(), self.store.queue_sync_plan()):
            if plan is not None:
                self.store.run_sync(plan)
                self.store.synced(plan)
        self.store.dispatch(self.store.synced_position)

    def put(self, body: bytes = b"hello", topic: str = "T", queue_id: int = 0) -> Appended:
        """Store one message durably and show it."""
        appended = self.append(body, topic, queue_id)
        self.commit()
        return appended

    def tick(self) -> None:
        """Let a second pass, and the flush that comes with it."""
        self.now_ms += 1_000
        self.store.flush(self.now_ms)

    def settle(self) -> None:
        """Let the seconds pass until all queue entries are durable."""
        for _ in range(200):
            if not self.store.expiry.awaits_queues:
                return
            self.tick()
            self.commit()
        raise AssertionError("the checkpoint does not move")

    def reopen(self) -> MessageStore:
        """Stop cleanly and start again."""
        self.store.close(self.now_ms)
        return self.open()

    def kill(self) -> MessageStore:
        """Kill the process, not the machine, and start again."""
        self.store.abandon()
        return self.open()

    def crash(self) -> MessageStore:
        """Lose power, and start again."""
        self.store.abandon()
        self.disk.crash()
        return self.open()

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """Return the bodies of all messages that a reader of the queue gets, in order."""
        bodies: list[bytes] = []
        offset = self.store.min_offset(topic, queue_id)
        while True:
            found = self.store.get(topic, queue_id, Asked(offset, 32, 1 << 20, None))
            if found.plan.next_offset == offset:
                return bodies
            assert not found.mended, "no entry has rotted"
            messages = decode_messages(found.body)
            assert [m.queue_offset for m in messages] == list(range(offset, found.plan.next_offset))
            bodies += [message.body for message in messages]
            offset = found.plan.next_offset

    def problems(self) -> list[str]:
        """Stop cleanly and return what a check of the files finds."""
        self.store.close(self.now_ms)
        return [f"{f.file} at {f.offset}: {f.problem}" for f in check_store(self.disk).findings]

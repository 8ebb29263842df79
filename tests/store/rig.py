"""Test rig: a store on a simulated disk, with the broker's order of calls and a final check."""

from __future__ import annotations

from dataclasses import dataclass, field

from kourou.model.properties import encode_properties
from kourou.protocol.record.decode import decode_messages
from kourou.protocol.record.encode import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.message_store import AppendedRecord, GetRequest, MessageStore
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
"""Sizes so small that a few messages fill several files."""


def draft(
    body: bytes = b"hello",
    *,
    topic: str = "T",
    queue_id: int = 0,
    sys_flag: int = 0,
    properties: dict[str, str] | None = None,
) -> RecordDraft:
    """Return a message as the broker passes it to the store."""
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
    """Delete the topic with the broker's steps."""
    deletion = store.writer.begin_deletion(topic)
    if deletion is not None:
        deletion.note()
        deletion.forget()
        deletion.remove_files()
        deletion.allow()


@dataclass
class Rig:
    """One store directory across openings, kills and crashes."""

    disk: SimDisk = field(default_factory=SimDisk)
    config: StoreConfig = CONFIG
    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        self.store = self.open()

    def open(self) -> MessageStore:
        """Open the store; it must be closed."""
        self.store = MessageStore.open(self.disk, self.config, self.now_ms, pid=42)
        return self.store

    def append(self, body: bytes = b"hello", topic: str = "T", queue_id: int = 0) -> AppendedRecord:
        """Append one message, in memory."""
        return self.store.writer.append(draft(body, topic=topic, queue_id=queue_id), self.now_ms)

    def commit(self) -> None:
        """Write, sync and dispatch everything appended."""
        self.store.writer.write()
        for plan in (self.store.writer.sync_plan(), self.store.writer.queue_sync_plan()):
            if plan is not None:
                self.store.writer.run_sync(plan)
                self.store.writer.synced(plan)
        self.store.writer.dispatch(self.store.reader.synced_position)

    def put(self, body: bytes = b"hello", topic: str = "T", queue_id: int = 0) -> AppendedRecord:
        """Store one message durably and dispatch it."""
        appended = self.append(body, topic, queue_id)
        self.commit()
        return appended

    def tick(self) -> None:
        """Advance the time by a second and flush."""
        self.now_ms += 1_000
        self.store.writer.flush(self.now_ms)

    def settle(self) -> None:
        """Advance the time until all queue entries are durable."""
        for _ in range(200):
            if not self.store.expiry.awaits_queues:
                return
            self.tick()
            self.commit()
        raise AssertionError("the checkpoint does not move")

    def reopen(self) -> MessageStore:
        """Stop cleanly and reopen the store."""
        self.store.close(self.now_ms)
        return self.open()

    def kill(self) -> MessageStore:
        """Kill the process, but not the machine, and reopen the store."""
        self.store.abandon()
        return self.open()

    def crash(self) -> MessageStore:
        """Cut the power and reopen the store."""
        self.store.abandon()
        self.disk.crash()
        return self.open()

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """Return the bodies of all messages of the queue, in order."""
        bodies: list[bytes] = []
        offset = self.store.reader.min_offset(topic, queue_id)
        while True:
            found = self.store.reader.get(topic, queue_id, GetRequest(offset, 32, 1 << 20, None))
            if found.plan.next_offset == offset:
                return bodies
            assert not found.repaired, "no entry is corrupt"
            messages = decode_messages(found.body)
            assert [m.queue_offset for m in messages] == list(range(offset, found.plan.next_offset))
            bodies += [message.body for message in messages]
            offset = found.plan.next_offset

    def problems(self) -> list[str]:
        """Stop cleanly and return the findings of a check of the files."""
        self.store.close(self.now_ms)
        return [f"{f.file} at {f.offset}: {f.problem}" for f in check_store(self.disk).findings]

"""A message is written, synced, made visible and acknowledged in this order on any disk."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.writing.group_commit import GroupCommit, PutResult, PutStatus
from kourou.errors import StoreReadOnlyError
from kourou.protocol.record.encode import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.message_store import Arrival, MessageStore
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual

KIB = 1024
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")


def config_of(**options: Any) -> BrokerConfig:
    values: dict[str, Any] = {
        "max_message_size_bytes": 4 * KIB,
        "pending_connection_bytes_max": 16 * KIB,
        "pending_bytes_max": 32 * KIB,
        "store": StoreConfig(commitlog_segment_bytes=16 * KIB, free_bytes_min=1),
    }
    return BrokerConfig(**(values | options))


def draft(body: bytes = b"hello", topic: bytes = b"T", queue_id: int = 0) -> RecordDraft:
    host = ("10.0.0.1", 1000)
    return RecordDraft(topic, queue_id, 0, 0, EPOCH_MS, host, host, 0, 0, body, b"")


@dataclass
class Bench:
    """A group commit on a simulated disk, and a log of its steps."""

    disk: SimDisk
    config: BrokerConfig
    store: MessageStore
    flusher: SimFlusher
    commit: GroupCommit
    events: list[str] = field(default_factory=list)
    results: list[PutResult] = field(default_factory=list)

    def put(self, *drafts: RecordDraft, **options: Any) -> None:
        self.commit.put(drafts or [draft()], EPOCH_MS, self._done, **options)

    def _done(self, result: PutResult) -> None:
        self.results.append(result)
        self.events.append(f"reply {result.status.name}")

    @property
    def statuses(self) -> list[PutStatus]:
        return [result.status for result in self.results]


def run(
    test: Callable[[Bench], Awaitable[None]],
    *,
    disk: SimDisk | None = None,
    seed: int = 0,
    on_arrivals: Callable[[list[Arrival]], None] | None = None,
    **options: Any,
) -> SimDisk:
    """Run `test` on a group commit that is closed at the end, store and all."""
    disk = disk or SimDisk(seed)
    config = config_of(**options)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = MessageStore.open(disk, config.store_config, EPOCH_MS, pid=1)
        flusher = SimFlusher(loop, seed)
        events: list[str] = []

        def note_arrivals(arrivals: list[Arrival]) -> None:
            events.append(f"wake {len(arrivals)}")

        commit = GroupCommit(store, flusher, loop, config, on_arrivals or note_arrivals)
        bench = Bench(disk, config, store, flusher, commit, events)
        disk.on_operation = lambda operation, name: (
            events.append(operation)
            if name.startswith("commitlog/") and operation in ("write", "sync")
            else None
        )
        await test(bench)
        disk.on_operation = None
        flusher.release()
        await commit.close()
        store.close(EPOCH_MS)

    run_virtual(main())
    return disk


def test_in_sync_mode_the_sync_precedes_visibility_and_acknowledgement() -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        bench.put()
        await asyncio.sleep(0.1)

        assert bench.events == ["write", "sync", "wake 2", "reply OK", "reply OK"]
        assert [r.appended[0].queue_offset for r in bench.results] == [0, 1]

    run(test)


def test_in_async_mode_the_sync_comes_last() -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert bench.events == ["write", "wake 1", "reply OK"]

        await asyncio.sleep(0.25)
        assert bench.events[3:] == ["sync"]
        assert bench.store.reader.synced_position == bench.store.reader.written_position

    run(test, flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_ms=200)


def test_in_async_mode_records_are_synced_at_once_while_slaves_copy_them() -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        await asyncio.sleep(0.01)
        before = bench.store.reader.synced_position
        bench.commit.has_slaves = lambda: True
        bench.put()
        await asyncio.sleep(0.01)
        assert before < bench.store.reader.synced_position
        assert bench.store.reader.synced_position == bench.store.reader.written_position

    run(test, flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_ms=200)


def test_puts_during_a_sync_share_the_next_one() -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        await asyncio.sleep(0)
        for _ in range(10):
            bench.put()
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)

        assert bench.flusher.sync_count == 2
        assert bench.statuses == [PutStatus.OK] * 11
        positions = [result.appended[0].physical_offset for result in bench.results]
        assert positions == sorted(positions)

    run(test)


def test_a_put_without_wait_is_answered_when_written_and_visible_when_synced() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.stall()
        bench.put(wait_for_sync=False)
        await asyncio.sleep(1)
        assert bench.events == ["write", "reply OK"]
        assert bench.store.reader.max_offset("T", 0) == 0

        bench.flusher.release()
        assert bench.store.reader.max_offset("T", 0) == 1

    run(test)


def test_a_batch_gets_consecutive_positions_and_one_reply() -> None:
    async def test(bench: Bench) -> None:
        bench.put(draft(b"a"), draft(b"b"), draft(b"c"))
        await asyncio.sleep(0.1)

        (result,) = bench.results
        assert [a.queue_offset for a in result.appended] == [0, 1, 2]
        assert bench.events == ["write", "sync", "wake 3", "reply OK"]

    run(test)


def test_put_and_wait_returns_the_result() -> None:
    async def test(bench: Bench) -> None:
        result = await bench.commit.put_and_wait([draft()], EPOCH_MS)
        refused = await bench.commit.put_and_wait([draft(topic=b"t" * 200)], EPOCH_MS)

        assert result.status is PutStatus.OK
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert "topic" in refused.reason

    run(test)


def test_a_failed_sync_refuses_all_puts_and_is_not_retried() -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        await asyncio.sleep(0.1)
        bench.flusher.fail_next(BROKEN)
        bench.put()
        await asyncio.sleep(0)
        bench.put()  # written while the sync runs that will fail
        await asyncio.sleep(0.1)
        bench.put()
        await asyncio.sleep(10)

        assert bench.statuses == [PutStatus.OK] + [PutStatus.SERVICE_NOT_AVAILABLE] * 3
        assert all("Input/output error" in r.reason for r in bench.results[1:])
        assert all(not r.appended for r in bench.results[1:])
        assert bench.store.reader.max_offset("T", 0) == 1, "consumers see only what was synced"
        assert bench.flusher.sync_count == 1
        assert bench.commit.pending_bytes == 0
        with pytest.raises(StoreReadOnlyError):
            bench.store.writer.check_writable()

    run(test)


def test_a_failed_background_sync_stops_writes_but_keeps_written_messages() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.fail_next(BROKEN)
        bench.put()
        await asyncio.sleep(1)
        bench.put()

        assert bench.statuses == [PutStatus.OK, PutStatus.SERVICE_NOT_AVAILABLE]
        assert bench.store.reader.max_offset("T", 0) == 1

    run(test, flush_disk_type=FlushDiskType.ASYNC_FLUSH)


def test_a_late_sync_is_reported_after_the_time_out_and_the_message_stays() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.stall()
        bench.put()
        await asyncio.sleep(4.9)
        assert bench.results == []
        bench.put()
        await asyncio.sleep(0.2)
        assert bench.statuses == [PutStatus.FLUSH_DISK_TIMEOUT]
        assert bench.results[0].appended[0].queue_offset == 0
        await asyncio.sleep(10)
        assert bench.statuses == [PutStatus.FLUSH_DISK_TIMEOUT] * 2
        assert bench.commit.pending_bytes > 0, "what a stuck disk has still counts"

        bench.flusher.release()
        await asyncio.sleep(0.1)
        assert bench.store.reader.max_offset("T", 0) == 2
        assert bench.statuses == [PutStatus.FLUSH_DISK_TIMEOUT] * 2, "no put is answered twice"
        assert bench.commit.pending_bytes == 0

    run(test, sync_flush_timeout_ms=5000)


def test_puts_time_out_while_a_sync_hangs_that_started_before_them() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.stall()
        bench.put(wait_for_sync=False)
        await asyncio.sleep(1)
        bench.put()
        await asyncio.sleep(6)

        assert bench.statuses == [PutStatus.OK, PutStatus.FLUSH_DISK_TIMEOUT]

    run(test)


def test_a_full_disk_refuses_messages_until_there_is_space() -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        await asyncio.sleep(0.1)
        free, bench.disk.free = bench.disk.free, 0
        for _ in range(3):
            bench.put(draft(bytes(3 * KIB)))
        await asyncio.sleep(0.1)
        assert bench.statuses[1:] == [PutStatus.SERVICE_NOT_AVAILABLE] * 3
        bench.put()
        assert "bytes free" in bench.results[-1].reason

        bench.disk.free = free
        bench.put()
        await asyncio.sleep(0.1)
        assert bench.statuses[-1] is PutStatus.OK
        assert bench.results[-1].appended[0].queue_offset == 1, "no queue offset was lost"

    run(test)


def test_a_failed_write_refuses_its_messages_and_those_that_wait_for_a_sync() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.stall()
        bench.put()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        bench.disk.fail_after(0, BROKEN, ["write"])
        bench.put()
        await asyncio.sleep(0.1)

        assert bench.statuses == [PutStatus.SERVICE_NOT_AVAILABLE] * 2
        bench.flusher.release()
        await asyncio.sleep(10)
        assert len(bench.results) == 2
        assert bench.commit.pending_bytes == 0

    run(test)


def test_pending_bytes_are_bounded_in_total_and_per_connection() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.stall()
        for _ in range(5):
            bench.put(draft(bytes(4000)), owner="a")
        assert bench.statuses == [PutStatus.BUSY], "16 KiB for one connection"
        assert "this connection" in bench.results[0].reason
        for _ in range(5):
            bench.put(draft(bytes(3900)), owner="b")
        assert bench.statuses == [PutStatus.BUSY] * 2, "32 KiB in all"
        bench.put(draft(bytes(2000)))
        assert len(bench.results) == 3
        assert "limit 32768" in bench.results[-1].reason

        await asyncio.sleep(0.1)
        bench.flusher.release()
        await asyncio.sleep(0.1)
        bench.put(draft(bytes(4000)), owner="a")
        await asyncio.sleep(0.1)
        assert bench.statuses[3:] == [PutStatus.OK] * 9
        assert bench.store.reader.max_offset("T", 0) == 9, "a refused message is not stored"

    run(test)


def test_pending_sends_are_bounded_in_number() -> None:
    async def test(bench: Bench) -> None:
        for _ in range(4):
            bench.put()
        assert bench.statuses == [PutStatus.BUSY]
        await asyncio.sleep(0.1)
        bench.put()
        await asyncio.sleep(0.1)
        assert bench.statuses[1:] == [PutStatus.OK] * 4

    run(test, pending_requests_max=3)


def test_close_answers_accepted_puts_and_refuses_later_ones() -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        closing = asyncio.create_task(bench.commit.close())
        await asyncio.sleep(0)
        bench.put()
        await closing

        assert bench.statuses == [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.OK]
        assert "stopping" in bench.results[0].reason

    run(test)


def test_close_syncs_records_written_during_the_last_background_sync() -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        bench.flusher.stall()
        await asyncio.sleep(0.3)  # until the background sync has started
        bench.put()
        closing = asyncio.create_task(bench.commit.close())
        await asyncio.sleep(0)
        bench.flusher.release()
        await closing

        assert bench.statuses == [PutStatus.OK, PutStatus.OK]
        # Tables that refer to the log are saved right after this.
        assert bench.store.reader.synced_position == bench.store.reader.written_position

    run(test, flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_ms=200)


def test_an_abandoned_group_commit_answers_no_put() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        disk = SimDisk()
        config = config_of()
        store = MessageStore.open(disk, config.store_config, EPOCH_MS, pid=1)
        flusher = SimFlusher(loop)
        commit = GroupCommit(store, flusher, loop, config, lambda _: None)
        results: list[PutResult] = []
        commit.put([draft()], EPOCH_MS, results.append)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        commit.put([draft()], EPOCH_MS, results.append)
        commit.abandon()
        flusher.close()
        store.abandon()
        await asyncio.sleep(10)
        assert results == []

    run_virtual(main())


def test_a_reply_or_wake_up_that_raises_does_not_affect_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a bug")

    async def test(bench: Bench) -> None:
        bench.commit.put([draft()], EPOCH_MS, fail)
        bench.put()
        await asyncio.sleep(0.1)

        assert bench.statuses == [PutStatus.OK]

    run(test, on_arrivals=fail)
    assert [r.getMessage() for r in caplog.records if r.exc_info] == [
        "arrivals.wake_failed count=2",
        "put.reply_failed",
    ]


@pytest.mark.parametrize("step", ["write", "dispatch"])
def test_an_internal_error_refuses_the_pending_puts(
    caplog: pytest.LogCaptureFixture, step: str
) -> None:
    async def test(bench: Bench) -> None:
        def fail(*_: int) -> list[Arrival]:
            raise RuntimeError("a bug")

        bench.put()
        setattr(bench.store.writer, step, fail)
        await asyncio.sleep(0.1)
        delattr(bench.store.writer, step)

        assert bench.statuses == [PutStatus.SERVICE_NOT_AVAILABLE]
        assert "a bug" in bench.results[0].reason
        assert bench.commit.pending_bytes == 0

    run(test)
    assert "group_commit.failed" in caplog.text


def test_deleting_a_topic_loses_no_message_of_other_topics() -> None:
    async def test(bench: Bench) -> None:
        bench.put(draft(topic=b"Gone"))
        bench.put(draft(topic=b"Kept"))
        await asyncio.sleep(0.1)
        bench.put(draft(topic=b"Gone"))
        deletion = bench.commit.begin_deletion("Gone")
        assert deletion is not None
        bench.put(draft(topic=b"Kept"))
        bench.put(draft(topic=b"Gone"))
        deletion.forget()
        await asyncio.sleep(0.1)

        refused = bench.results.pop(2)
        assert refused.status is PutStatus.TOPIC_REFUSED
        assert "Gone is being deleted" in refused.reason
        assert bench.statuses == [PutStatus.OK] * 4
        assert (
            bench.store.reader.max_offset("Gone", 0),
            bench.store.reader.max_offset("Kept", 0),
        ) == (0, 2)

    run(test)


def test_a_failed_write_at_a_topic_deletion_refuses_the_pending_puts() -> None:
    async def test(bench: Bench) -> None:
        bench.put(draft(topic=b"Gone"))
        await asyncio.sleep(0.1)
        bench.put(draft(topic=b"Kept"))
        bench.disk.fail_after(0, BROKEN, ["write"])
        with pytest.raises(StoreReadOnlyError):
            bench.commit.begin_deletion("Gone")
        await asyncio.sleep(10)

        assert bench.statuses == [PutStatus.OK, PutStatus.SERVICE_NOT_AVAILABLE]

    run(test)


def test_a_message_refused_while_a_topic_is_deleted_is_not_acknowledged_with_a_later_one() -> None:
    async def test(bench: Bench) -> None:
        bench.put(draft(topic=b"Gone"))
        await asyncio.sleep(0.1)
        bench.put(draft(topic=b"Kept"))
        bench.disk.fail_after(0, NO_SPACE, ["write"])
        bench.commit.begin_deletion("Gone")
        bench.put(draft(topic=b"Kept"))
        await asyncio.sleep(0.1)

        assert bench.statuses == [PutStatus.OK, PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.OK]
        assert bench.store.reader.max_offset("Kept", 0) == 1

    run(test)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    bodies=st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    crash_at_ms=st.floats(0, 60),
    is_full=st.booleans(),
)
def test_acknowledged_messages_survive_a_crash_at_any_time(
    seed: int, bodies: list[int], crash_at_ms: float, is_full: bool
) -> None:
    """Bodies arrive 2 ms apart; the power fails in between, perhaps on a disk that is full."""
    disk = SimDisk(seed)
    config = config_of()
    acknowledged: dict[int, int] = {}
    shown: dict[int, int] = {}

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = MessageStore.open(disk, config.store_config, EPOCH_MS, pid=1)
        if is_full:
            disk.free = 3 * 4096
        flusher = SimFlusher(loop, seed)

        def note_arrivals(arrivals: list[Arrival]) -> None:
            shown.update({a.queue_offset: a.size for a in arrivals})

        commit = GroupCommit(store, flusher, loop, config, note_arrivals)

        async def send() -> None:
            for size in bodies:
                commit.put([draft(bytes(size))], EPOCH_MS, done)
                await asyncio.sleep(0.002)

        def done(result: PutResult) -> None:
            if result.status is PutStatus.OK:
                acknowledged[result.appended[0].queue_offset] = result.appended[0].size

        sending = asyncio.create_task(send())
        await asyncio.sleep(crash_at_ms / 1000)
        sending.cancel()
        commit.abandon()
        flusher.close()
        store.abandon()

    run_virtual(main())
    disk.crash()
    disk.free = 1 << 40
    store = MessageStore.open(disk, config.store_config, EPOCH_MS, pid=2)
    stored = {}
    for offset in range(store.reader.max_offset("T", 0)):
        entry = store.reader.entry("T", 0, offset)
        assert entry is not None, "no hole"
        assert store.reader.read_record(entry.physical_offset) is not None
        stored[offset] = entry.size
    store.close(EPOCH_MS)

    assert acknowledged.items() <= stored.items()
    assert shown.items() <= stored.items(), "no lost message was visible"

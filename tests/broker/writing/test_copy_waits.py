"""Puts of clients are acknowledged when slaves have them, and time out with a code of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.writing.copy_waits import CopyRule
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.protocol.record.encode import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.message_store import Arrival, MessageStore
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual

KIB = 1024
FLUSH_MODES = pytest.mark.parametrize("flush", FlushDiskType)


@dataclass
class Bench:
    """A group commit whose slaves have the log up to `copied`."""

    store: MessageStore
    flusher: SimFlusher
    commit: GroupCommit
    arrivals: list[Arrival]
    copied: int = -1
    results: list[PutResult] = field(default_factory=list)

    def put(self, *, copies: bool = True, sync: bool = True) -> None:
        host = ("10.0.0.1", 1000)
        draft = RecordDraft(b"T", 0, 0, 0, EPOCH_MS, host, host, 0, 0, b"body", b"")
        self.commit.put(
            [draft], EPOCH_MS, self.results.append, wait_for_sync=sync, wait_for_copies=copies
        )

    def copy(self) -> None:
        """Let slaves have all synced records."""
        self.copied = self.store.reader.synced_position
        self.commit.on_copied()

    @property
    def statuses(self) -> list[PutStatus]:
        return [result.status for result in self.results]


def run(test: Callable[[Bench], Awaitable[None]], flush: FlushDiskType, **options: int) -> None:
    config = BrokerConfig(
        flush_disk_type=flush,
        max_message_size_bytes=4 * KIB,
        pending_connection_bytes_max=16 * KIB,
        pending_bytes_max=32 * KIB,
        store=StoreConfig(commitlog_segment_bytes=16 * KIB, free_bytes_min=1),
        **options,  # type: ignore[arg-type]  # all are numbers
    )

    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = MessageStore.open(SimDisk(), config.store_config, EPOCH_MS, pid=1)
        flusher, arrivals = SimFlusher(loop), list[Arrival]()
        commit = GroupCommit(store, flusher, loop, config, arrivals.extend)
        bench = Bench(store, flusher, commit, arrivals)
        commit.wait_for_copies(CopyRule(lambda: bench.copied, 3000, "no slave"))
        commit.has_slaves = lambda: True
        await test(bench)
        flusher.release()
        await commit.close()
        store.close(EPOCH_MS)

    run_virtual(main())


@FLUSH_MODES
def test_a_put_is_acknowledged_when_it_is_copied_and_not_before(flush: FlushDiskType) -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        bench.put()
        await asyncio.sleep(1)
        assert bench.statuses == []
        assert len(bench.arrivals) == 2  # visible when it is stored
        assert bench.store.reader.synced_position == bench.store.reader.written_position
        bench.copied = bench.arrivals[0].end
        bench.commit.on_copied()
        assert bench.statuses == [PutStatus.OK]
        bench.copy()
        assert bench.statuses == [PutStatus.OK] * 2
        assert bench.commit.pending_puts[0] == 0

    run(test, flush)


@FLUSH_MODES
def test_a_put_without_copies_times_out_and_counts_until_then(flush: FlushDiskType) -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        await asyncio.sleep(2)
        bench.put()
        assert bench.commit.pending_puts[0] == 2
        await asyncio.sleep(1.1)
        assert bench.statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]
        assert bench.results[0].reason == "no slave"
        assert bench.results[0].appended
        assert bench.results[0].is_settled
        await asyncio.sleep(2)
        assert bench.statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT] * 2
        assert bench.commit.pending_puts[0] == 0
        bench.put()
        await asyncio.sleep(0.1)
        bench.copy()
        assert bench.statuses[2:] == [PutStatus.OK]

    run(test, flush)


@FLUSH_MODES
def test_records_of_the_broker_and_messages_that_do_not_wait_need_no_copies(
    flush: FlushDiskType,
) -> None:
    async def test(bench: Bench) -> None:
        bench.put()
        bench.put(copies=False)
        bench.put(copies=False, sync=False)
        await asyncio.sleep(1)
        assert bench.statuses == [PutStatus.OK] * 2
        assert bench.results[0].appended[0].queue_offset > 0

    run(test, flush)


def test_a_sync_that_is_later_than_the_copies_hides_behind_the_code_of_the_slaves() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.stall()
        bench.put()
        await asyncio.sleep(4)
        assert bench.statuses == []  # slaves get only what is synced
        await asyncio.sleep(1.1)
        assert bench.statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]
        bench.flusher.release()
        await asyncio.sleep(1)
        bench.copy()
        assert bench.statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT], "no put is answered twice"
        assert bench.commit.pending_puts[0] == 0

    run(test, FlushDiskType.SYNC_FLUSH)


def test_a_sync_that_ends_after_the_time_for_copies_is_answered_at_once() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.stall()
        bench.put()
        await asyncio.sleep(4)
        bench.flusher.release()
        await asyncio.sleep(0.1)
        assert bench.statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]

    run(test, FlushDiskType.SYNC_FLUSH)


def test_a_late_sync_within_the_time_for_copies_keeps_its_code() -> None:
    async def test(bench: Bench) -> None:
        bench.flusher.stall()
        bench.put()
        await asyncio.sleep(1.5)
        assert bench.statuses == [PutStatus.FLUSH_DISK_TIMEOUT]

    run(test, FlushDiskType.SYNC_FLUSH, sync_flush_timeout_ms=1000)


@FLUSH_MODES
def test_puts_without_copies_are_refused_as_busy_at_the_limit(flush: FlushDiskType) -> None:
    async def test(bench: Bench) -> None:
        for _ in range(3):
            bench.put()
            await asyncio.sleep(0.1)
        assert bench.statuses == [PutStatus.BUSY]

    run(test, flush, pending_requests_max=2)


@FLUSH_MODES
def test_closing_waits_a_second_for_copies_and_answers_all(flush: FlushDiskType) -> None:
    async def test(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        bench.put()
        bench.put()
        closing = asyncio.create_task(bench.commit.close())
        await asyncio.sleep(0.5)
        bench.copied = bench.arrivals[0].end
        bench.commit.on_copied()
        began_s = loop.time()
        await closing
        assert bench.statuses == [PutStatus.OK, PutStatus.FLUSH_SLAVE_TIMEOUT]
        assert loop.time() - began_s < 0.6

    run(test, flush)


@FLUSH_MODES
def test_closing_refuses_puts_that_the_next_master_may_lack(flush: FlushDiskType) -> None:
    async def test(bench: Bench) -> None:
        rule = CopyRule(lambda: bench.copied, 3000, "no slave", may_be_undone=True)
        bench.commit.wait_for_copies(rule)
        bench.put()
        await asyncio.sleep(0.1)
        bench.flusher.release()
        await bench.commit.close()
        assert bench.statuses == [PutStatus.SERVICE_NOT_AVAILABLE]

    run(test, flush)


@FLUSH_MODES
def test_puts_of_the_broker_wait_for_what_is_confirmed_without_a_timeout(
    flush: FlushDiskType,
) -> None:
    async def test(bench: Bench) -> None:
        bench.commit.confirmed_position = lambda stored: min(stored, max(bench.copied, 0))
        bench.put(copies=False)
        bench.put()
        bench.put(copies=False)
        await asyncio.sleep(5)
        assert bench.statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT], "only that of the client"
        assert bench.arrivals == []
        bench.copy()
        await asyncio.sleep(0.1)
        assert bench.statuses[1:] == [PutStatus.OK] * 2
        assert len(bench.arrivals) == 3
        assert bench.commit.pending_puts[0] == 0

    run(test, flush)


@FLUSH_MODES
def test_a_stop_ends_the_puts_of_the_broker_that_are_not_confirmed(flush: FlushDiskType) -> None:
    async def test(bench: Bench) -> None:
        bench.commit.confirmed_position = lambda _stored: 0
        bench.put(copies=False)
        await asyncio.sleep(1)
        bench.flusher.release()
        await bench.commit.close()
        assert bench.statuses == [PutStatus.SERVICE_NOT_AVAILABLE]
        bench.commit.dispatch_rest()

    run(test, flush)


@FLUSH_MODES
def test_puts_of_the_broker_are_answered_only_when_they_are_visible(flush: FlushDiskType) -> None:
    async def test(bench: Bench) -> None:
        confirmed = 0
        bench.commit.confirmed_position = lambda stored: min(stored, confirmed)
        bench.put(copies=False)
        await asyncio.sleep(1)
        bench.copy()  # fewer copies than members, as without `allAckInSyncStateSet`
        await asyncio.sleep(1)
        assert bench.statuses == []
        confirmed = bench.copied
        bench.commit.on_copied()
        await asyncio.sleep(1)
        assert bench.statuses == [PutStatus.OK]
        assert len(bench.arrivals) == 1

    run(test, flush)

"""Plain sends of many producers in one loop iteration are processed and answered together."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from kourou.broker.config import FlushDiskType
from kourou.protocol.frame import encode_frame
from kourou.remoting.connection import Request
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.loop import run_virtual
from kourou.testing.send_rig import SendRig, message
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.sending.test_fast_path_edges import BrokenClock
from tests.broker.sending.test_fast_send import (
    ALL_BYTES,
    ALL_REQUESTS,
    Outcome,
    plain_frames,
    random_frame,
)

PRODUCERS = 6
UNUSUAL = encode_frame(message(b"odd", "UNIQ_KEY\x01not plain\x02WAIT\x01true\x02"))
"""A send that is buffered and then refused by the fast path."""


class ProducersRig:
    """A broker with some producers; the queues of its topic exist.

    Attributes:
        lones: their connections.
    """

    def __init__(self, broker: SimulatedBroker, *, is_fast: bool = True) -> None:
        self.broker = broker
        self.rig = SendRig(broker)
        self.lones = [self.rig.connect(is_fast=is_fast) for _ in range(PRODUCERS)]

    async def make_queues(self) -> None:
        """Send a message to each queue of `T`, and drop the answers."""
        await self.broker.topics.persist()
        self.lones[0].receive_bytes(b"".join(plain_frames(4)))
        await asyncio.sleep(1)
        self.lones[0].transport.writes.clear()

    def send_each(self, frames: list[bytes]) -> None:
        """Let each producer in turn send one of the frames, in a read of its own."""
        for lone, frame in zip(self.lones, frames, strict=False):
            lone.receive_bytes(frame)

    def codes(self) -> list[list[int]]:
        """Return the codes of each producer's answers."""
        return [[answer.code for answer in lone.sent()] for lone in self.lones]

    def assert_nothing_waits(self) -> None:
        """Assert that no limit counts a pending send."""
        assert self.broker.commit.pending_bytes == self.broker.commit.pending_puts[0] == 0
        for lone in self.lones:
            unanswered = lone.connection.unanswered
            assert unanswered.has_room(ALL_BYTES, ALL_REQUESTS) or not lone.connection.is_open


def run_producers(
    test: Callable[[ProducersRig], Awaitable[None]],
    *,
    is_fast: bool = True,
    disk: SimDisk | None = None,
    **options: Any,
) -> None:
    the_disk = disk or SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(the_disk, config=small_config(**options))
        rig = ProducersRig(broker, is_fast=is_fast)
        await rig.make_queues()
        await test(rig)
        broker.flusher.release()
        await broker.stop()

    run_virtual(main())
    assert check_store(the_disk).findings == []


@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("seed", range(6))
def test_buffered_sends_of_many_producers_have_the_outcome_of_the_general_path(
    seed: int, flush: FlushDiskType
) -> None:
    def outcome(*, is_fast: bool) -> tuple[object, ...]:
        disk, rng = SimDisk(seed), Random(seed)
        found: list[Outcome] = []

        async def test(rig: ProducersRig) -> None:
            for _ in range(20):
                rng.shuffle(rig.lones)
                body = rng.randbytes(rng.randrange(1, 3000))
                rig.send_each(plain_frames(rng.randrange(1, PRODUCERS + 1), body))
                await asyncio.sleep(rng.choice((0, 0, 0.001, 0.02)))
            await asyncio.sleep(30)
            rig.assert_nothing_waits()
            found.extend(Outcome(disk, lone, rig.broker) for lone in rig.lones)

        run_producers(test, is_fast=is_fast, disk=disk, flush_disk_type=flush)
        return [one.answers for one in found], found[0].files(), found[0].stats

    assert outcome(is_fast=True) == outcome(is_fast=False)


@pytest.mark.parametrize("seed", range(10))
def test_unusual_sends_among_buffered_ones_get_the_same_answers(seed: int) -> None:
    def answers(*, is_fast: bool) -> object:
        rng = Random(seed)
        found: list[object] = []

        async def test(rig: ProducersRig) -> None:
            for _ in range(10):
                rig.send_each([random_frame(rng) for _ in rig.lones])
                await asyncio.sleep(0)
            await asyncio.sleep(30)
            rig.assert_nothing_waits()
            for lone in rig.lones:
                # In any order: a send that does not wait for the sync may overtake one that does.
                answered = sorted((one.opaque, one.code, one.remark or "") for one in lone.sent())
                found.append((lone.transport.ending, answered))
            found.append((rig.broker.stats.sizes, rig.broker.stats.store.put_failures))

        run_producers(test, is_fast=is_fast)
        return found

    assert answers(is_fast=True) == answers(is_fast=False)


def test_buffered_sends_share_one_write_and_one_sync_and_get_separate_answers() -> None:
    async def test(rig: ProducersRig) -> None:
        synced = rig.broker.flusher.sync_count
        written = rig.broker.store.reader.written_position
        rig.send_each(plain_frames(PRODUCERS))
        assert rig.broker.store.writer.appended_position == written, "no frame has been processed"
        await asyncio.sleep(0)
        assert rig.broker.store.reader.written_position > written
        assert rig.codes() == [[]] * PRODUCERS, "nothing is acknowledged before it is synced"
        await asyncio.sleep(1)

        assert rig.broker.flusher.sync_count == synced + 1
        opaques = [[answer.opaque for answer in lone.sent()] for lone in rig.lones]
        assert opaques == [[1000 + number] for number in range(PRODUCERS)]

    run_producers(test)


def test_a_buffered_send_is_stored_if_its_producer_disconnects() -> None:
    async def test(rig: ProducersRig) -> None:
        rig.send_each(plain_frames(3))
        rig.lones[0].connection.eof_received()
        rig.lones[1].connection.connection_lost(None)
        await asyncio.sleep(1)

        assert rig.rig.stored_count() == 4 + 3
        assert rig.codes()[:3] == [[], [], [0]]
        rig.assert_nothing_waits()

    run_producers(test)


def test_buffered_frames_of_a_connection_that_the_broker_closes_are_dropped() -> None:
    async def test(rig: ProducersRig) -> None:
        rig.send_each([plain_frames(1)[0], UNUSUAL, plain_frames(3)[2]])
        rig.lones[0].connection.close("a test")
        rig.lones[1].connection.abort("a test")
        await asyncio.sleep(1)

        assert rig.rig.stored_count() == 4 + 1
        assert rig.codes()[:3] == [[], [], [0]]
        rig.assert_nothing_waits()

    run_producers(test)


@pytest.mark.parametrize("second", [UNUSUAL, plain_frames(2)[1], UNUSUAL + plain_frames(2)[1]])
def test_the_next_frame_of_a_producer_does_not_overtake_a_buffered_one(second: bytes) -> None:
    async def test(rig: ProducersRig) -> None:
        lone = rig.lones[0]
        for frame in (plain_frames(1)[0], UNUSUAL, second):
            lone.receive_bytes(frame)
        await asyncio.sleep(1)

        positions = [answer.ext_fields["msgId"] for answer in lone.sent()]
        assert positions == sorted(positions)
        assert len(positions) == 3 + (second not in (UNUSUAL, plain_frames(2)[1]))

    run_producers(test)


@pytest.mark.parametrize(
    "limits",
    [
        {"pending_requests_max": 3},
        {"pending_bytes_max": 2_400, "pending_connection_bytes_max": 2_400},
        {"pending_bytes_max": 20_000, "pending_connection_bytes_max": 2_400},
    ],
)
def test_a_limit_reached_by_buffered_sends_refuses_the_same_sends(limits: dict[str, Any]) -> None:
    def codes(*, is_fast: bool) -> list[list[int]]:
        found: list[list[int]] = []

        async def test(rig: ProducersRig) -> None:
            rig.broker.flusher.stall()
            for _ in range(4):
                rig.send_each(plain_frames(PRODUCERS, b"b" * 600))
                await asyncio.sleep(0.001)
            rig.broker.flusher.release()
            await asyncio.sleep(1)
            found.extend(rig.codes())
            rig.assert_nothing_waits()

        run_producers(test, is_fast=is_fast, max_message_size_bytes=1_000, **limits)
        return found

    fast = codes(is_fast=True)
    assert fast == codes(is_fast=False)
    assert {code for one in fast for code in one} == {0, 2}


def test_a_late_sync_is_reported_to_each_producer_and_counts_until_it_ends() -> None:
    async def test(rig: ProducersRig) -> None:
        rig.broker.flusher.stall()
        rig.send_each([*plain_frames(3), UNUSUAL])
        await asyncio.sleep(20)
        assert rig.codes() == [[10]] * 4 + [[]] * (PRODUCERS - 4)
        assert rig.broker.commit.pending_puts[0] == 4

        rig.broker.flusher.release()
        await asyncio.sleep(1)
        assert rig.codes()[0] == [10], "no request is answered twice"
        rig.assert_nothing_waits()

    run_producers(test, sync_flush_timeout_ms=5_000)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failing_disk_refuses_all_buffered_sends(operation: str) -> None:
    async def main() -> None:
        disk = SimDisk()
        broker = SimulatedBroker(disk, config=small_config())
        rig = ProducersRig(broker)
        await rig.make_queues()
        disk.fail_after(0, OSError(errno.EIO, "broken"), operations=(operation,))
        rig.send_each([*plain_frames(3), UNUSUAL])
        await asyncio.sleep(1)

        assert rig.codes() == [[14]] * 4 + [[]] * (PRODUCERS - 4)
        assert broker.stats.store.put_failures == 4
        rig.assert_nothing_waits()
        broker.abandon()

    run_virtual(main())


def test_a_stopping_broker_stores_buffered_sends() -> None:
    async def test(rig: ProducersRig) -> None:
        rig.send_each(plain_frames(3))
        await rig.broker.commit.close()
        rig.send_each(plain_frames(2))
        await asyncio.sleep(1)

        assert rig.codes()[:3] == [[0, 14], [0, 14], [0]]

    run_producers(test)


def test_a_killed_broker_answers_no_buffered_send() -> None:
    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config())
        rig = ProducersRig(broker)
        await rig.make_queues()
        rig.send_each(plain_frames(3))
        broker.abandon()
        await asyncio.sleep(1)
        assert rig.codes() == [[]] * PRODUCERS

    run_virtual(main())


def test_a_frame_returned_to_a_paused_connection_waits_until_it_resumes() -> None:
    async def test(rig: ProducersRig) -> None:
        rig.send_each([plain_frames(1)[0], UNUSUAL])
        for lone in rig.lones[:2]:
            lone.connection.pause_writing()
        await asyncio.sleep(1)
        assert rig.codes()[:2] == [[0], []]

        rig.lones[1].connection.resume_writing()
        await asyncio.sleep(1)
        assert rig.codes()[:2] == [[0], [0]]
        assert rig.lones[1].transport.is_reading()

    run_producers(test)


def test_reads_beyond_the_buffer_limit_are_processed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(rig: ProducersRig) -> None:
        path = rig.rig.fast_send
        rig.send_each(plain_frames(2))
        assert path.buffered_bytes > 0
        await asyncio.sleep(1)
        assert rig.codes()[:2] == [[0], [0]]
        # The real limit needs thousands of producers.
        monkeypatch.setattr("kourou.broker.sending.fast_send.BUFFERED_BYTES_MAX", -1)
        rig.send_each(plain_frames(2))
        assert path.buffered_bytes == 0
        await asyncio.sleep(1)
        assert rig.codes()[:2] == [[0, 0], [0, 0]]

    run_producers(test)


def test_an_internal_error_for_one_producer_closes_only_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(rig: ProducersRig) -> None:
        path = rig.rig.fast_send
        rig.lones[0].receive_bytes(plain_frames(1)[0])
        await asyncio.sleep(1)
        path.shapes = dict(path.shapes)  # type: ignore[assignment]  # any other shape raises KeyError
        other = encode_frame(message(b"x", f"UNIQ_KEY\x01{1:032X}\x02TAGS\x01Other\x02"))
        rig.send_each([plain_frames(1)[0], other, plain_frames(3)[2]])
        await asyncio.sleep(1)

        assert rig.codes()[:3] == [[0, 0], [], [0]]
        assert [lone.transport.ending for lone in rig.lones[:3]] == ["", "abort", ""]
        assert "KeyError" in caplog.text
        rig.assert_nothing_waits()

    run_producers(test)


def test_an_internal_error_for_all_buffered_sends_closes_their_connections_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(rig: ProducersRig) -> None:
        path = rig.rig.fast_send
        rig.send_each(plain_frames(2))
        path.clock = BrokenClock()
        await asyncio.sleep(1)
        assert [lone.transport.ending for lone in rig.lones[:3]] == ["abort", "abort", ""]
        assert "fast_send.failed" in caplog.text

        path.clock = rig.broker.clock
        rig.lones[2].receive_bytes(plain_frames(3)[2])
        await asyncio.sleep(1)
        assert rig.codes()[:3] == [[], [], [0]]
        rig.assert_nothing_waits()

    run_producers(test)


def test_an_internal_error_on_the_general_path_affects_no_other_producer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        def broken(_request: Request) -> None:
            raise BugError

        broker = SimulatedBroker(SimDisk(), config=small_config())
        rig = ProducersRig(broker)
        await rig.make_queues()
        lone = LoneConnection(broken, rig.rig.fast_path)
        rig.lones[0] = lone
        rig.send_each([UNUSUAL, UNUSUAL, plain_frames(3)[2]])
        await asyncio.sleep(1)

        assert rig.codes()[:3] == [[], [0], [0]]
        assert lone.transport.ending == "abort"
        assert "fast_send.handing_back_failed" in caplog.text
        await broker.stop()

    run_virtual(main())


class BugError(Exception):
    """A bug."""

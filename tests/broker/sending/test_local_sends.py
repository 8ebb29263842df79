"""Sends of this process are stored, answered and counted as the same sends in frames."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pytest

from kourou.broker.config import FlushDiskType
from kourou.broker.sending.local_sends import LocalQueue, LocalSends
from kourou.broker.wiring import build_local_sends
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.model.queue import MessageQueue
from kourou.model.topic import PERM_READ, TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import encode_frame
from kourou.store.config import StoreConfig
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.send_rig import SendRig, message
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.sending.test_fast_send import Outcome

PRODUCER, BROKER = ("10.0.0.2", 5), ("10.0.0.1", 6)
"""The ends of a `LoneConnection`."""
Result = tuple[int, str | None, str | None]
"""Code, queue offset and remark of an answer."""


class Parts(NamedTuple):
    """See `LocalMessage`."""

    message_id: bytes
    keys: bytes
    born_at_ms: int
    body: bytes


@dataclass
class Sending:
    """A `LocalSend` that notes its result, and its number among those of its test.

    Attributes:
        results: what it was told, in order.
        in_frame: sends a declined message in a frame.
    """

    message: Parts
    queue: MessageQueue
    properties: bytes
    constant: str
    results: list[Result] = field(default_factory=list)
    in_frame: Callable[[Sending], None] = lambda _: None

    def on_stored(self, queue_offset: int) -> None:
        self.results.append((0, str(queue_offset), None))

    def on_answer(self, answer: RemotingCommand) -> None:
        self.results.append(result_of(answer))

    def on_declined(self) -> None:
        self.in_frame(self)

    def frame(self) -> bytes:
        """Return the frame of the same send."""
        return encode_frame(
            message(
                self.message.body, self.properties.decode(), topic=self.queue.topic,
                queue_id=self.queue.queue_id, born_timestamp=self.message.born_at_ms,
            )
        )  # fmt: skip


def result_of(answer: RemotingCommand) -> Result:
    return answer.code, answer.ext_fields.get("queueOffset"), answer.remark


def sending(
    number: int, body: bytes = b"b" * 100, topic: str = "T", queue_id: int = 0, **more: str
) -> Sending:
    """Return a send of a gRPC client; `more` are further properties."""
    properties = {names.BORN_TIMESTAMP: "1732890000123", names.TAGS: "TagA"}
    unique_id = f"01{number:032X}"
    properties |= more | {names.UNIQ_KEY: unique_id, "PGROUP": topic}
    constant = {name: value for name, value in properties.items() if name not in names.VARYING}
    parts = Parts(unique_id.encode(), more.get(names.KEYS, "").encode(), 1_732_890_000_123, body)
    queue = MessageQueue(topic, "broker-a", queue_id)
    text = encode_properties(constant).decode()
    return Sending(parts, queue, encode_properties(properties), text)


def random_sending(rng: Random, number: int) -> Sending:
    """Return a send: plain in most cases, unusual in some."""
    more = {}
    if rng.random() < 0.5:
        more[names.KEYS] = rng.choice(("k1", "k1 k2", "k" * 60))
    if rng.random() < 0.2:
        unusual = ("DELAY", "TRAN_MSG", "INNER_NUM", "MSG_REGION", "__LITE_TOPIC", "POP_CK", "é",
                   "__SHARDINGKEY", "TIMER_DELAY_MS", "_SYS_MSG_PRIORITY_", "WAIT")  # fmt: skip
        more[rng.choice(unusual)] = rng.choice(("1", "true", "false", "é", "x" * 300))
    topic = rng.choice(("Long", "Batched", "New", "%RETRY%g", "TBW102", "ReadOnly"))
    return sending(
        number,
        rng.randbytes(rng.choice((1, 100, 1024, 4000, 5000))),
        "T" if rng.random() < 0.7 else topic,
        rng.choice((0, 0, 1, 3, 4, 8)),
        **more,
    )


class Local:
    """A broker that gets sends without frames, and those that it declines in frames.

    Args:
        rig: the broker.
        is_local: False sends all of them in frames.
    """

    def __init__(self, rig: SendRig, *, is_local: bool) -> None:
        self.rig = rig
        self.lone = rig.connect(is_fast=True)
        sends = build_local_sends(rig.broker.components, PRODUCER, BROKER)
        assert sends is not None
        self.sends: LocalSends = sends
        self._queues: dict[MessageQueue, LocalQueue] = {}
        self._is_local = is_local
        self._in_frames: list[Sending] = []

    def put(self, one: Sending) -> None:
        queue = self._queues.setdefault(one.queue, self.sends.queue(one.queue))
        queue.put(one, one.message, one.properties, one.constant)

    def start(self, *sent: Sending) -> None:
        """Begin to send, all in one turn of the loop."""
        for one in sent:
            one.in_frame = self._in_frame
            if self._is_local:
                self.put(one)
            else:
                self._in_frame(one)

    async def send(self, *sent: Sending, within_s: float = 0.5) -> list[list[Result]]:
        """Send all in one turn, and return what each was told in time."""
        self.start(*sent)
        await asyncio.sleep(within_s)
        for one, answer in zip(self._in_frames, self.lone.sent(), strict=True):
            one.results.append(result_of(answer))
        self._in_frames.clear()
        self.lone.transport.writes.clear()
        return [one.results for one in sent]

    def _in_frame(self, one: Sending) -> None:
        self._in_frames.append(one)
        self.lone.receive_bytes(one.frame())


async def local_broker(disk: SimDisk, *, is_local: bool = True, **options: Any) -> Local:
    """Return a broker whose topics have had no messages."""
    rig = SendRig(SimulatedBroker(disk, config=small_config(**options)))
    topics = rig.broker.topics
    topics.put(TopicConfig("Long", 8, 8))
    topics.put(TopicConfig("Batched", 2, 2, attributes={"queue.type": "BatchCQ"}))
    topics.put(TopicConfig("ReadOnly", 2, 2, perm=PERM_READ))
    await topics.persist()
    return Local(rig, is_local=is_local)


def with_local(test: Callable[[Local], Awaitable[None]], **options: Any) -> None:
    """Run a test on a broker whose queue 0 of T has one message."""

    async def main() -> None:
        local = await local_broker(SimDisk(), **options)
        assert await local.send(sending(0)) == [[(0, "0", None)]]
        await test(local)
        local.rig.broker.flusher.release()
        await local.rig.broker.stop()

    run_virtual(main())


def assert_same(turns: list[list[Sending]], **options: Any) -> int:
    """Send the turns with and without frames; return how many sends were not declined."""
    found = []
    taken = 0

    async def main(*, is_local: bool) -> None:
        nonlocal taken
        disk = SimDisk()
        local = await local_broker(disk, is_local=is_local, **options)
        results = [await local.send(*turn) for turn in turns]
        taken += sum(map(len, turns)) - local.sends.declined if is_local else 0
        outcome = Outcome(disk, local.lone, local.rig.broker)
        await local.rig.broker.stop()
        assert check_store(disk).findings == []
        found.append((results, outcome.stats, outcome.pending, outcome.files()))

    for is_local in (True, False):
        for turn in turns:
            for one in turn:
                one.results = []
        run_virtual(main(is_local=is_local))
    local_results, frames_results = found
    assert local_results == frames_results
    assert all(len(results) == 1 for turn in local_results[0] for results in turn)
    return taken


@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("seed", range(10))
def test_random_sends_have_the_same_outcome_as_in_frames(seed: int, flush: FlushDiskType) -> None:
    rng = Random(seed)
    turns = [[random_sending(rng, number)] for number in range(60)]
    taken = assert_same(turns, flush_disk_type=flush, max_message_size_bytes=4_500)
    assert 5 < taken < 60


def test_sends_of_one_turn_have_the_same_outcome_as_in_frames() -> None:
    first = [[sending(number, queue_id=number)] for number in range(4)]
    keyed = [sending(n, b"x" * n, queue_id=n % 4, KEYS=f"k{n} k") for n in range(10, 80)]
    assert assert_same([*first, keyed]) == len(keyed)


def test_the_log_rolls_to_its_next_segment_between_sends() -> None:
    turns = [[sending(n, b"b" * 1000)] for n in range(150)]
    store = StoreConfig(commitlog_segment_bytes=1 << 16, consumequeue_file_bytes=20 * 100)
    taken = assert_same(turns, store=store, max_message_size_bytes=1 << 15)
    assert 140 < taken < 149


@pytest.mark.parametrize("seed", range(5))
def test_messages_of_one_queue_keep_their_order_where_some_are_declined(seed: int) -> None:
    rng = Random(seed)
    numbers = iter(range(1_000_000))
    turns = [[sending(next(numbers))]]
    for _ in range(60):
        turns.append(
            [sending(next(numbers), rng.randbytes(rng.randrange(1, 9_000))) for _ in range(6)]
        )
        if rng.random() < 0.3:
            turns[-1][rng.randrange(6)] = sending(next(numbers), DELAY="1")
    store = StoreConfig(commitlog_segment_bytes=1 << 16, consumequeue_file_bytes=20 * 100)
    count = sum(map(len, turns))
    assert count // 2 < assert_same(turns, store=store, max_message_size_bytes=1 << 15) < count - 9


def test_a_failure_of_the_path_is_answered(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(local: Local) -> None:
        def begin_run(_: int) -> None:
            raise RuntimeError("no run")

        monkeypatch.setattr(local.rig.broker.store.writer, "begin_run", begin_run)
        sent = [sending(1), sending(2)]
        local.start(*sent)
        await asyncio.sleep(1)
        assert [code for one in sent for code, _, _ in one.results] == [
            ResponseCode.SYSTEM_ERROR
        ] * 2
        monkeypatch.undo()
        assert await local.send(sending(3)) == [[(0, "1", None)]]

    with caplog.at_level(logging.ERROR):
        with_local(test)
    assert "no run" in caplog.text


def test_a_message_of_the_largest_properties_is_accepted_and_a_larger_one_refused() -> None:
    size = len(sending(0, a="").properties)
    longest = SENT_PROPERTIES_SIZE_MAX - size
    turns = [[sending(n, a="x" * (longest - 200 + n))] for n in range(200)]
    assert 0 < assert_same([[sending(1)], *turns]) < 200


def test_nothing_is_answered_before_it_is_synced() -> None:
    async def test(local: Local) -> None:
        local.rig.broker.flusher.stall()
        sent = sending(1)
        local.start(sent)
        await asyncio.sleep(1)
        assert sent.results == []
        local.rig.broker.flusher.release()
        await asyncio.sleep(1)
        assert sent.results == [(0, "1", None)]

    with_local(test)


def test_a_late_sync_is_answered_as_in_frames() -> None:
    results = []

    async def main(*, is_local: bool) -> None:
        local = await local_broker(SimDisk(), is_local=is_local)
        await local.send(sending(0))
        local.rig.broker.flusher.stall()
        results.append(await local.send(sending(1), sending(2), within_s=20))
        local.rig.broker.flusher.release()
        local.rig.broker.abandon()

    run_virtual(main(is_local=True))
    run_virtual(main(is_local=False))
    assert results[0] == results[1]
    assert [[code for code, _, _ in one] for one in results[0]] == [[10], [10]]


def test_a_failed_write_is_answered_as_in_frames() -> None:
    results = []

    async def main(*, is_local: bool) -> None:
        local = await local_broker(SimDisk(), is_local=is_local)
        await local.send(sending(0))
        error = OSError(errno.EIO, "broken")
        local.rig.broker.disk.fail_after(0, error, operations=("write",))
        results.append(await local.send(sending(1), sending(2)))
        failures = local.rig.broker.stats.store.put_failures
        results[-1].append([(failures, None, None)])
        local.rig.broker.abandon()

    run_virtual(main(is_local=True))
    run_virtual(main(is_local=False))
    assert results[0] == results[1]
    assert [code for [(code, _, _)] in results[0]] == [14, 14, 2]


@pytest.mark.parametrize(
    "limits", [{"pending_requests_max": 10}, {"pending_connection_bytes_max": 3_000}]
)
def test_sends_above_a_limit_are_refused_as_in_frames(limits: dict[str, int]) -> None:
    async def test(local: Local) -> None:
        results = await local.send(*(sending(n) for n in range(1, 65)))
        codes = [code for [(code, _, _)] in results]
        assert local.sends.declined == 1 + 64  # and the first of all, whose queue was new
        assert set(codes) == {0, 2}, "[OVERLOAD]"

    with_local(test, max_message_size_bytes=1_000, **limits)


def test_new_options_are_used_for_the_next_message() -> None:
    async def test(local: Local) -> None:
        broker = local.rig.broker
        broker.topics.put(TopicConfig("T", 4, 4, order=True))
        await broker.topics.persist()
        broker.live_config.update({"brokerPermission": str(PERM_READ)}, broker.clock.now_ms())
        [[(code, _, _)]] = await local.send(sending(1))
        assert code == ResponseCode.NO_PERMISSION
        broker.live_config.update({"brokerPermission": "6"}, broker.clock.now_ms())
        assert await local.send(sending(2)) == [[(0, "1", None)]]
        assert local.sends.declined == 1 + 1  # and the first of all, whose queue was new

    with_local(test)


def test_a_topic_that_is_deleted_and_made_again_begins_anew() -> None:
    async def test(local: Local) -> None:
        broker = local.rig.broker
        broker.topics.delete("T")
        [[(code, _, _)]] = await local.send(sending(1))
        assert code == ResponseCode.TOPIC_NOT_EXIST
        broker.topics.put(TopicConfig("T", 1, 1))
        await broker.topics.persist()
        assert await local.send(sending(2)) == [[(0, "1", None)]]

    with_local(test, auto_create_topic_enable=False)


def test_sends_after_the_stop_of_the_broker_are_declined() -> None:
    async def main() -> None:
        local = await local_broker(SimDisk())
        await local.send(sending(0))
        await local.rig.broker.commit.close()
        declined = sending(1)
        local.put(declined)
        await asyncio.sleep(1)
        assert (declined.results, local.sends.declined) == ([], 2)
        local.rig.broker.abandon()

    run_virtual(main())


def test_a_sender_that_fails_does_not_affect_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Sending):
        def on_stored(self, queue_offset: int) -> None:
            raise RuntimeError(f"failed at {queue_offset}")

        def on_declined(self) -> None:
            raise RuntimeError("failed again")

    def failing(sent: Sending) -> Failing:
        return Failing(sent.message, sent.queue, sent.properties, sent.constant)

    async def test(local: Local) -> None:
        bad = [failing(sending(1)), failing(sending(2, topic="Unknown"))]
        good = [sending(3), sending(4)]
        local.start(bad[0], good[0], bad[1], good[1])
        await asyncio.sleep(1)
        assert [one.results for one in good] == [[(0, "2", None)], [(0, "3", None)]]

    with caplog.at_level(logging.ERROR):
        with_local(test)
    assert "failed at 1" in caplog.text
    assert "failed again" in caplog.text


def test_a_message_that_cannot_be_read_is_declined(caplog: pytest.LogCaptureFixture) -> None:
    async def test(local: Local) -> None:
        broken = sending(1)
        broken.message = broken.message._replace(born_at_ms=1 << 70)
        local.put(broken)
        await asyncio.sleep(1)
        assert broken.results == []
        assert await local.send(sending(2)) == [[(0, "1", None)]]

    with caplog.at_level(logging.ERROR):
        with_local(test)
    assert "local_send.failed" in caplog.text


def test_senders_and_brokers_without_ipv4_addresses_use_frames() -> None:
    async def main() -> None:
        broker = SimulatedBroker(SimDisk())
        assert build_local_sends(broker.components, ("::1", 5), BROKER) is None
        broker.abandon()

    run_virtual(main())

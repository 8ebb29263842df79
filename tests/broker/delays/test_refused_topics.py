"""Messages whose topic is being deleted, or whose deletion failed, block no others."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.errors import StoreError
from kourou.model import properties as names
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.record.encode import RecordDraft
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.delays.delay_rig import bodies, messages, run
from tests.broker.timer.timer_rig import timer_draft

BROKEN = OSError(errno.EIO, "Input/output error")
Waiting = Callable[[SimulatedBroker, bytes, str], RecordDraft]


def by_level(broker: SimulatedBroker, body: bytes, topic: str) -> RecordDraft:
    """Return a draft with a delay level that is due in a second."""
    properties = {names.UNIQ_KEY: body.decode()}
    return broker.draft(body, topic=topic, delay_level=1, properties=properties)


def by_time(broker: SimulatedBroker, body: bytes, topic: str) -> RecordDraft:
    """Return a draft of a scheduled message that is due in a second."""
    return timer_draft(broker, body, broker.clock.now_ms() + 1_000, topic=topic)


KINDS = pytest.mark.parametrize("waiting", [by_level, by_time])


async def fail_to_delete(broker: SimulatedBroker, operation: str) -> None:
    """Let the deletion of topic Gone, which has a message, fail."""
    await broker.store_messages([broker.draft(b"before", topic="Gone")])
    await broker.topics.persist()
    while not broker.commit.flush(broker.clock.now_ms()):
        pass
    broker.disk.fail_after(0, BROKEN, [operation])
    with pytest.raises(StoreError):
        await broker.queue_deletion.delete("Gone")


async def send(broker: SimulatedBroker, waiting: Waiting, count: int = 1) -> None:
    """Store delayed messages, alternately for topic Gone and topic T."""
    for number in range(count):
        await broker.store_messages(
            [waiting(broker, b"%d" % number, topic) for topic in ("Gone", "T")]
        )


def run_killed(test: Callable[[SimulatedBroker], Coroutine[Any, Any, None]], disk: SimDisk) -> None:
    """Run `test` with a broker that delivers delayed messages, and kill it afterwards."""

    async def main() -> None:
        broker = SimulatedBroker(disk, config=small_config())
        broker.delay.start()
        await broker.timers.start()
        await test(broker)
        broker.abandon()

    run_virtual(main())


@KINDS
def test_a_topic_whose_deletion_failed_delays_no_other(
    waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await fail_to_delete(broker, "unlink")
        await send(broker, waiting, 200)
        await asyncio.sleep(1.5)
        assert bodies(broker) == [b"%d" % number for number in range(200)]
        assert bodies(broker, "Gone") == []

        await broker.queue_deletion.delete("Gone")
        await asyncio.sleep(60)
        assert sorted(bodies(broker, "Gone")) == sorted(bodies(broker))

    with caplog.at_level(logging.WARNING):
        run(test)
    entries = [one for one in caplog.messages if "set_aside" in one]
    assert 0 < len(entries) < 100
    assert not any("put_refused" in one for one in caplog.messages)


@KINDS
def test_a_message_set_aside_repeatedly_waits_longer_each_time(waiting: Waiting) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await fail_to_delete(broker, "unlink")
        await send(broker, waiting)
        await asyncio.sleep(3_600)
        levels = [
            queue_id + 1 for queue_id in range(18) if messages(broker, SCHEDULE_TOPIC, queue_id)
        ]
        assert levels[levels.index(5) :] == list(range(5, 16))  # 1 m, 2 m .. 10 m, 20 m
        await broker.queue_deletion.delete("Gone")
        await asyncio.sleep(1_800)
        [message] = messages(broker, "Gone")
        assert message.body == b"0"
        assert message.prepared_transaction_offset == 0

    run(test)


@KINDS
def test_a_message_set_aside_is_delivered_once_after_a_kill(waiting: Waiting) -> None:
    async def before(broker: SimulatedBroker) -> None:
        await fail_to_delete(broker, "write")
        await send(broker, waiting, 5)
        await asyncio.sleep(1.5)

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(70)
        assert sorted(bodies(broker)) == [b"0", b"1", b"2", b"3", b"4"]
        assert sorted(bodies(broker, "Gone")) == [b"0", b"1", b"2", b"3", b"4", b"before"]

    disk = SimDisk()
    run_killed(before, disk)
    run(after, disk, later_ms=5_000)


@KINDS
def test_a_kill_around_the_delivery_of_a_message_set_aside_repeats_none(
    waiting: Waiting,
) -> None:
    async def before(broker: SimulatedBroker) -> None:
        await fail_to_delete(broker, "unlink")
        await send(broker, waiting, 5)
        await asyncio.sleep(1.5)
        await broker.queue_deletion.delete("Gone")
        await asyncio.sleep(60)
        assert len(bodies(broker, "Gone")) == 5

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(70)
        assert sorted(bodies(broker)) == [b"0", b"1", b"2", b"3", b"4"]
        assert sorted(bodies(broker, "Gone")) == [b"0", b"1", b"2", b"3", b"4"]

    disk = SimDisk()
    run_killed(before, disk)
    run(after, disk, later_ms=65_000)


def test_a_message_set_aside_twice_has_no_other_delivery_repeated_after_a_kill() -> None:
    async def before(broker: SimulatedBroker) -> None:
        await fail_to_delete(broker, "unlink")
        await broker.store_messages([by_level(broker, b"aside", "Gone")])
        again_ms = broker.clock.now_ms() + 61_000
        await asyncio.sleep(40)
        begin = broker.store.reader.written_position
        segment_bytes = broker.config.store.commitlog_segment_bytes
        while broker.store.reader.written_position < begin + segment_bytes:
            await broker.store_messages([broker.draft(bytes(1_000), topic="Filler")])
        await asyncio.sleep((again_ms - 1_500 - broker.clock.now_ms()) / 1_000)
        await broker.delay.persist()
        await broker.store_messages([by_level(broker, b"late", "T")])
        await asyncio.sleep(3)
        assert bodies(broker) == [b"late"]
        assert messages(broker, SCHEDULE_TOPIC, 5)  # set aside for the second time

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(5)
        assert bodies(broker) == [b"late"]

    disk = SimDisk()
    run_killed(before, disk)
    run(after, disk, later_ms=63_000)


@KINDS
def test_a_message_set_aside_that_is_due_at_a_start_after_a_kill_is_delivered(
    waiting: Waiting,
) -> None:
    async def before(broker: SimulatedBroker) -> None:
        await fail_to_delete(broker, "write")
        await send(broker, waiting, 5)
        await asyncio.sleep(1.5)
        await broker.delay.persist()  # the progress is past the records that were set aside

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        assert sorted(bodies(broker, "Gone")) == [b"0", b"1", b"2", b"3", b"4", b"before"]

    disk = SimDisk()
    run_killed(before, disk)
    run(after, disk, later_ms=70_000)


def test_a_scheduled_message_set_aside_is_delivered_like_any_other() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await fail_to_delete(broker, "unlink")
        await send(broker, by_time)
        await asyncio.sleep(2)
        await broker.queue_deletion.delete("Gone")
        await asyncio.sleep(70)
        [gone], [other] = messages(broker, "Gone"), messages(broker)
        assert gone.deliver_at_ms == other.deliver_at_ms
        assert broker.timers.waiting == 0

    run(test)

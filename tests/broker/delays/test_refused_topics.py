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
from kourou.testing.broker_parts import BrokerParts, small_config
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from tests.broker.delays.delay_rig import bodies, messages, run
from tests.broker.timer.timer_rig import timer_draft

BROKEN = OSError(errno.EIO, "Input/output error")
Waiting = Callable[[BrokerParts, bytes, str], RecordDraft]


def by_level(parts: BrokerParts, body: bytes, topic: str) -> RecordDraft:
    """Return a draft with a delay level that is due in a second."""
    said = {names.UNIQ_KEY: body.decode()}
    return parts.draft(body, topic=topic, delay_level=1, properties=said)


def by_time(parts: BrokerParts, body: bytes, topic: str) -> RecordDraft:
    """Return a draft of a scheduled message that is due in a second."""
    return timer_draft(parts, body, parts.clock.now_ms() + 1_000, topic=topic)


KINDS = pytest.mark.parametrize("waiting", [by_level, by_time])


async def fail_to_delete(parts: BrokerParts, operation: str) -> None:
    """Let the deletion of topic Gone, which has a message, fail."""
    await parts.store_messages([parts.draft(b"before", topic="Gone")])
    await parts.topics.persist()
    while not parts.commit.flush(parts.clock.now_ms()):
        pass
    parts.disk.fail_after(0, BROKEN, [operation])
    with pytest.raises(StoreError):
        await parts.queue_deletion.delete("Gone")


async def send(parts: BrokerParts, waiting: Waiting, count: int = 1) -> None:
    """Store delayed messages, alternately for topic Gone and topic T."""
    for number in range(count):
        await parts.store_messages(
            [waiting(parts, b"%d" % number, topic) for topic in ("Gone", "T")]
        )


def run_killed(test: Callable[[BrokerParts], Coroutine[Any, Any, None]], disk: SimDisk) -> None:
    """Run `test` with a broker that delivers delayed messages, and kill it afterwards."""

    async def main() -> None:
        parts = BrokerParts(disk, config=small_config())
        parts.delay.start()
        await parts.timers.start()
        await test(parts)
        parts.abandon()

    run_virtual(main())


@KINDS
def test_a_topic_whose_deletion_failed_delays_no_other(
    waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(parts: BrokerParts) -> None:
        await fail_to_delete(parts, "unlink")
        await send(parts, waiting, 200)
        await asyncio.sleep(1.5)
        assert bodies(parts) == [b"%d" % number for number in range(200)]
        assert bodies(parts, "Gone") == []

        await parts.queue_deletion.delete("Gone")
        await asyncio.sleep(60)
        assert sorted(bodies(parts, "Gone")) == sorted(bodies(parts))

    with caplog.at_level(logging.WARNING):
        run(test)
    said = [one for one in caplog.messages if "set_aside" in one]
    assert 0 < len(said) < 100
    assert not any("put_refused" in one for one in caplog.messages)


@KINDS
def test_a_message_set_aside_repeatedly_waits_longer_each_time(waiting: Waiting) -> None:
    async def test(parts: BrokerParts) -> None:
        await fail_to_delete(parts, "unlink")
        await send(parts, waiting)
        await asyncio.sleep(3_600)
        levels = [
            queue_id + 1 for queue_id in range(18) if messages(parts, SCHEDULE_TOPIC, queue_id)
        ]
        assert levels[levels.index(5) :] == list(range(5, 16))  # 1 m, 2 m .. 10 m, 20 m
        await parts.queue_deletion.delete("Gone")
        await asyncio.sleep(1_800)
        [message] = messages(parts, "Gone")
        assert message.body == b"0"
        assert message.prepared_transaction_offset == 0

    run(test)


@KINDS
def test_a_message_set_aside_is_delivered_once_after_a_kill(waiting: Waiting) -> None:
    async def before(parts: BrokerParts) -> None:
        await fail_to_delete(parts, "write")
        await send(parts, waiting, 5)
        await asyncio.sleep(1.5)

    async def after(parts: BrokerParts) -> None:
        await asyncio.sleep(70)
        assert sorted(bodies(parts)) == [b"0", b"1", b"2", b"3", b"4"]
        assert sorted(bodies(parts, "Gone")) == [b"0", b"1", b"2", b"3", b"4", b"before"]

    disk = SimDisk()
    run_killed(before, disk)
    run(after, disk, later_ms=5_000)


@KINDS
def test_a_kill_around_the_delivery_of_a_message_set_aside_repeats_none(
    waiting: Waiting,
) -> None:
    async def before(parts: BrokerParts) -> None:
        await fail_to_delete(parts, "unlink")
        await send(parts, waiting, 5)
        await asyncio.sleep(1.5)
        await parts.queue_deletion.delete("Gone")
        await asyncio.sleep(60)
        assert len(bodies(parts, "Gone")) == 5

    async def after(parts: BrokerParts) -> None:
        await asyncio.sleep(70)
        assert sorted(bodies(parts)) == [b"0", b"1", b"2", b"3", b"4"]
        assert sorted(bodies(parts, "Gone")) == [b"0", b"1", b"2", b"3", b"4"]

    disk = SimDisk()
    run_killed(before, disk)
    run(after, disk, later_ms=65_000)


@KINDS
def test_a_message_set_aside_that_is_due_at_a_start_after_a_kill_is_delivered(
    waiting: Waiting,
) -> None:
    async def before(parts: BrokerParts) -> None:
        await fail_to_delete(parts, "write")
        await send(parts, waiting, 5)
        await asyncio.sleep(1.5)
        await parts.delay.persist()  # the progress is past the records that were set aside

    async def after(parts: BrokerParts) -> None:
        await asyncio.sleep(1)
        assert sorted(bodies(parts, "Gone")) == [b"0", b"1", b"2", b"3", b"4", b"before"]

    disk = SimDisk()
    run_killed(before, disk)
    run(after, disk, later_ms=70_000)


def test_a_scheduled_message_set_aside_is_delivered_like_any_other() -> None:
    async def test(parts: BrokerParts) -> None:
        await fail_to_delete(parts, "unlink")
        await send(parts, by_time)
        await asyncio.sleep(2)
        await parts.queue_deletion.delete("Gone")
        await asyncio.sleep(70)
        [gone], [other] = messages(parts, "Gone"), messages(parts)
        assert gone.deliver_at_ms == other.deliver_at_ms
        assert parts.timers.waiting == 0

    run(test)

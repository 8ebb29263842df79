"""Delayed messages are delivered when they are due, once each."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest

from kourou.broker.delays.delay import (
    BATCH_MESSAGES_MAX,
    CHECK_INTERVAL_MS,
    FILE_NAME,
    parse_delay_offsets,
)
from kourou.errors import MalformedBodyError
from kourou.model.delay import DELAY_LEVELS_MS
from kourou.model.sysflag import COMPRESSED
from kourou.protocol.data_version import DataVersion
from kourou.testing.disk import SimDisk
from kourou.testing.simulated_broker import SimulatedBroker
from tests.broker.delays.delay_rig import bodies, messages, run, saved_offsets

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "config" / "delayOffset.json"


@pytest.mark.parametrize("level", range(1, 19))
def test_a_message_is_delivered_after_the_delay_of_its_level(level: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        sent_at_ms = broker.clock.now_ms()
        await broker.store_messages([broker.draft(b"late", delay_level=level, queue_id=3)])
        assert bodies(broker, queue_id=3) == []

        await asyncio.sleep(DELAY_LEVELS_MS[level - 1] / 1000 + 0.1)

        (message,) = messages(broker, queue_id=3)
        assert 0 <= message.store_at_ms - sent_at_ms - DELAY_LEVELS_MS[level - 1] < 50
        assert message.delay_level == level  # kept, as in Java
        assert message.properties["REAL_TOPIC"] == "T"

    run(test)


def test_a_message_is_delivered_as_it_was_sent() -> None:
    async def test(broker: SimulatedBroker) -> None:
        properties = {"KEYS": "k", "UNIQ_KEY": "u", "mine": "1"}
        draft = broker.draft(zlib.compress(b"long"), properties=properties, delay_level=1)
        draft.sys_flag, draft.flag, draft.reconsume_times = COMPRESSED, 7, 3
        await broker.store_messages([draft])
        await asyncio.sleep(1.1)
        (message,) = messages(broker)
        assert (message.body, message.flag, message.reconsume_times) == (b"long", 7, 3)
        assert message.born_host == draft.born_host
        assert message.born_at_ms == draft.born_at_ms < message.store_at_ms
        assert properties.items() <= message.properties.items()

    run(test)


def test_levels_do_not_wait_for_one_another() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for level in (3, 1, 2):
            await broker.store_messages([broker.draft(b"%d" % level, delay_level=level)])
        await asyncio.sleep(10.1)
        assert bodies(broker) == [b"1", b"2", b"3"]

    run(test)


def test_levels_due_together_are_delivered_with_uvloop_handles() -> None:
    async def before(broker: SimulatedBroker) -> None:
        for level in (1, 2, 3):
            await broker.store_messages([broker.draft(b"%d" % level, delay_level=level)])

    async def after(broker: SimulatedBroker) -> None:
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def call_as_uvloop(at_s: float, *call: Any, **named: Any) -> asyncio.Handle:
            """Return a handle without its time, as uvloop does for timers due at once."""
            is_due = at_s <= loop.time()
            return loop.call_soon(*call, **named) if is_due else call_at(at_s, *call, **named)

        loop.call_at = call_as_uvloop  # type: ignore[assignment, method-assign]
        await asyncio.sleep(1)
        assert sorted(bodies(broker)) == [b"1", b"2", b"3"]

    run(after, run(before), later_ms=20_000)


def test_many_messages_are_delivered_once_each_and_in_order() -> None:
    count = 3 * BATCH_MESSAGES_MAX + 7

    async def test(broker: SimulatedBroker) -> None:
        for first in range(0, count, 20):
            drafts = [
                broker.draft(b"%d" % number, delay_level=1)
                for number in range(first, min(first + 20, count))
            ]
            await broker.store_messages(drafts)
            await asyncio.sleep(0.05)
        await asyncio.sleep(2)
        assert bodies(broker) == [b"%d" % number for number in range(count)]

    run(test)


def test_an_idle_broker_rarely_checks_its_levels() -> None:
    async def test(broker: SimulatedBroker) -> None:
        looks = 0
        look = broker.delay.deliver_due

        def counted() -> None:
            nonlocal looks
            looks += 1
            look()

        broker.delay.deliver_due = counted  # type: ignore[method-assign]
        await asyncio.sleep(10 * CHECK_INTERVAL_MS / 1000)
        assert looks <= 11

    run(test)


def test_a_clock_set_back_neither_skips_nor_prolongs_the_delay() -> None:
    hour_ms = 3_600_000

    async def test(broker: SimulatedBroker) -> None:
        async def store(body: bytes, ahead_ms: int) -> None:
            draft = broker.draft(body, delay_level=2)
            await broker.commit.put_and_wait([draft], broker.clock.now_ms() + ahead_ms)

        await store(b"first", hour_ms)
        await asyncio.sleep(3)
        await store(b"second", hour_ms)
        await asyncio.sleep(1.9)
        assert bodies(broker) == []
        await asyncio.sleep(0.2)
        assert bodies(broker) == [b"first"]
        await asyncio.sleep(2.8)
        assert bodies(broker) == [b"first"]
        await asyncio.sleep(0.2)
        assert bodies(broker) == [b"first", b"second"]

        await store(b"later", 0)  # its store time does not go back with the clock
        await asyncio.sleep(4.9)
        assert bodies(broker) == [b"first", b"second"]
        await asyncio.sleep(0.2)
        assert bodies(broker) == [b"first", b"second", b"later"]

        await asyncio.sleep(hour_ms / 1000)  # the clock has caught up
        await store(b"as always", 0)
        await asyncio.sleep(4.9)
        assert len(bodies(broker)) == 3
        await asyncio.sleep(0.2)
        assert bodies(broker)[3:] == [b"as always"]

    run(test)


def test_many_messages_stored_with_a_clock_ahead_wait_concurrently() -> None:
    count = 3 * BATCH_MESSAGES_MAX

    async def test(broker: SimulatedBroker) -> None:
        drafts = [broker.draft(b"%d" % number, delay_level=2) for number in range(count)]
        await broker.commit.put_and_wait(drafts, broker.clock.now_ms() + 3_600_000)
        await asyncio.sleep(5.2)
        assert bodies(broker) == [b"%d" % number for number in range(count)]

    run(test)


def test_messages_due_while_the_broker_was_down_are_delivered_at_its_start() -> None:
    async def before(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"late", delay_level=3)])

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(0.1)
        assert bodies(broker) == [b"late"]

    run(after, run(before), later_ms=10_000)


def test_progress_survives_a_stop() -> None:
    async def before(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"%d" % n, delay_level=1) for n in range(3)])
        await asyncio.sleep(1.1)

    async def after(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert bodies(broker) == [b"0", b"1", b"2"]

    disk = run(before)
    assert saved_offsets(disk) == {1: 3}
    run(after, disk, later_ms=60_000)


def test_the_file_has_javas_format() -> None:
    version, offsets = parse_delay_offsets(GOLDEN.read_bytes())

    assert version == DataVersion(3, 0, 1795227425541)
    assert offsets == {1: 4, 2: 2, 3: 3, 9: 0, 18: 0}
    with pytest.raises(MalformedBodyError):
        parse_delay_offsets(b'{"offsetTable":{"one":1}}')


def test_a_removed_level_keeps_its_progress() -> None:
    disk = SimDisk()
    disk.make_directory("config")
    disk.write(FILE_NAME, 0, [GOLDEN.read_bytes()])

    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"late", delay_level=1)])
        await asyncio.sleep(1.1)

    run(test, disk, message_delay_level="1s")

    assert saved_offsets(disk) == {1: 1, 2: 2, 3: 3, 9: 0, 18: 0}

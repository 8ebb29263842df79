"""Messages of an answer that cannot be sent are visible again at once, or at the latest in time."""

from __future__ import annotations

import asyncio

import pytest

from kourou.protocol.popping.topic_names import retry_topic_v1
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.popping.pop_rig import GROUP, TOPIC, PopRig

INVISIBLE_MS = 10_000


def pop_and_leave(broker: SimulatedBroker, invisible_ms: int = INVISIBLE_MS) -> None:
    """Pop, and close the connection before the answer."""
    PopRig(broker).pop_later(invisible_time=invisible_ms).peer.close("gone")


def revived(broker: SimulatedBroker) -> int:
    return broker.store.reader.max_offset(retry_topic_v1(GROUP, TOPIC), 0)


@pytest.mark.parametrize("invisible_ms", [1, 900, INVISIBLE_MS])
def test_messages_of_a_closed_connection_are_visible_at_once_and_only_once(
    invisible_ms: int,
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await PopRig(broker).put(b"a", b"b")
        pop_and_leave(broker, invisible_ms)
        await asyncio.sleep(0.5)
        assert revived(broker) == 2
        assert broker.components.popping.in_flight.message_count == 0
        await asyncio.sleep(20)
        assert revived(broker) == 2

    run_with_broker(test, is_delivering=True)


@pytest.mark.parametrize("invisible_ms", [900, INVISIBLE_MS])
def test_messages_that_cannot_be_made_visible_at_once_are_so_in_time(invisible_ms: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        def refuse(operation: str, name: str) -> None:
            if operation == "write" and name.startswith("config/topics.json"):
                raise OSError(28, "No space left on device")

        await PopRig(broker).put(b"a", b"b")
        broker.disk.on_operation = refuse
        pop_and_leave(broker, invisible_ms)
        await asyncio.sleep(0.5)
        assert revived(broker) == 0
        assert broker.components.popping.in_flight.message_count == 2
        broker.disk.on_operation = None
        await asyncio.sleep(invisible_ms / 1000 + 2)
        assert revived(broker) == 2

    run_with_broker(test, is_delivering=True)


def kill_at(operations: int) -> tuple[SimDisk, int, bool]:
    """Kill a broker that makes a message visible, after disk operations with its retry topic.

    Returns:
        The disk, the time of the kill in ms since `EPOCH_MS`, and whether there were so many.
    """
    disk = SimDisk()

    async def main() -> tuple[int, bool]:
        broker = SimulatedBroker(disk)
        await broker.start_deliveries()
        await broker.topics.persist()
        await PopRig(broker).put(b"a")
        dead = asyncio.Event()
        left = operations

        def on_operation(_operation: str, _name: str) -> None:
            nonlocal left
            left -= broker.topics.is_saved(retry_topic_v1(GROUP, TOPIC))
            if left < 0:
                dead.set()

        pop_and_leave(broker)
        disk.on_operation = on_operation
        try:
            async with asyncio.timeout(0.1):
                await dead.wait()
        except TimeoutError:
            pass
        disk.on_operation = None
        ended_ms = broker.clock.now_ms() - EPOCH_MS
        broker.abandon()
        return ended_ms, dead.is_set()

    return disk, *run_virtual(main())


def test_messages_made_visible_before_a_kill_are_not_so_again() -> None:
    async def rest(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        await broker.tables.persist()

    async def check(broker: SimulatedBroker) -> None:
        await asyncio.sleep(2 + INVISIBLE_MS / 1000)
        assert (await PopRig(broker).pop()).bodies == [b"a"]

    async def kill(disk: SimDisk, later_ms: int) -> None:
        broker = SimulatedBroker(disk, later_ms=later_ms)
        await broker.start_deliveries()
        await rest(broker)
        broker.abandon()

    operations, was_killed = 0, True
    while was_killed:
        disk, ended_ms, was_killed = kill_at(operations)
        run_virtual(kill(disk, ended_ms + 100))
        run_with_broker(check, disk, is_delivering=True, later_ms=ended_ms + 2_000)
        operations += 1
    assert operations > 5

"""The queues of a topic are deleted while the broker serves other topics."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.writing.put import PutStatus
from kourou.broker.writing.queue_deletion import QueueDeletion
from kourou.errors import StoreError
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker

BROKEN = OSError(errno.EIO, "Input/output error")


class SlowOffload:
    """Runs each call after a second, like a slow disk.

    Attributes:
        is_running: whether a call is made just now.
    """

    def __init__(self) -> None:
        self.is_running = False

    async def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(1)
        self.is_running = True
        try:
            return function(*args, **kwargs)
        finally:
            self.is_running = False


async def put(broker: SimulatedBroker, topic: str) -> PutStatus:
    return (await broker.commit.put_and_wait([broker.draft(topic=topic)], 0)).status


def with_slow_disk(test: Callable[[SimulatedBroker, QueueDeletion], Awaitable[None]]) -> None:
    """Run the test with topics "Gone" and "Kept", and check that unlinks leave the loop."""

    async def main(broker: SimulatedBroker) -> None:
        for topic in ("Gone", "Kept"):
            assert await put(broker, topic) is PutStatus.OK
        broker.commit.flush(broker.clock.now_ms())
        offload = SlowOffload()

        def watch(operation: str, name: str) -> None:
            if operation in ("unlink", "remove_directory", "rename"):
                assert offload.is_running, (operation, name)

        broker.disk.on_operation = watch
        await test(broker, QueueDeletion(broker.commit, offload))
        broker.disk.on_operation = None

    run_with_broker(main)


def test_other_topics_are_served_and_the_name_is_refused_during_a_deletion() -> None:
    async def test(broker: SimulatedBroker, queues: QueueDeletion) -> None:
        deleting = asyncio.create_task(queues.delete("Gone"))
        for _ in range(3):  # before the note, before the removal, before its end
            await asyncio.sleep(0.4)
            assert not deleting.done()
            assert await put(broker, "Gone") is PutStatus.TOPIC_REFUSED
            assert await put(broker, "Kept") is PutStatus.OK
        await deleting
        assert broker.disk.list("consumequeue") == ["Kept"]
        assert await put(broker, "Gone") is PutStatus.OK
        assert broker.store.reader.max_offset("Gone", 0) == 1
        assert broker.store.reader.max_offset("Kept", 0) == 4

    with_slow_disk(test)


def test_topics_are_deleted_one_after_the_other() -> None:
    async def test(broker: SimulatedBroker, queues: QueueDeletion) -> None:
        async with asyncio.TaskGroup() as deleting:
            for topic in ("Gone", "Kept", "Gone", "never"):
                deleting.create_task(queues.delete(topic))
        assert broker.store.reader.queues() == {}
        assert broker.disk.list("consumequeue") == []
        assert broker.disk.read("config/kourou-store.json", 0, 999).count(b'"Gone"') == 1

    with_slow_disk(test)


def test_a_failed_removal_is_reported_and_a_second_one_completes_it() -> None:
    async def test(broker: SimulatedBroker, queues: QueueDeletion) -> None:
        broker.disk.fail_after(0, BROKEN, ["unlink"])
        with pytest.raises(
            StoreError, match="messages to topic Gone are refused until it is deleted"
        ):
            await queues.delete("Gone")
        assert broker.store.reader.queues() == {"Kept": [0]}
        assert await put(broker, "Gone") is PutStatus.TOPIC_REFUSED

        await queues.delete("Gone")
        assert broker.disk.list("consumequeue") == ["Kept"]
        assert await put(broker, "Gone") is PutStatus.OK

    with_slow_disk(test)

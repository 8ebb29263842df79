"""Committed offsets are durable within five seconds, and when the broker stops."""

from __future__ import annotations

import asyncio

from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

QUEUE = MessageQueue(TOPIC, "broker-0", 0)


def test_a_commit_survives_a_crash_after_five_seconds_and_a_stop_at_once() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.pull_consumer("readers") as reader:
            await w.send(*[b"%d" % number for number in range(10)])
            await reader.commit_offset(QUEUE, 3)
            await asyncio.sleep(5.5)
            await reader.commit_offset(QUEUE, 4)
            await w.cluster.crash_broker()
            await w.cluster.restart_broker()
            assert await reader.committed(QUEUE) == 3

            await reader.commit_offset(QUEUE, 6)
            await w.cluster.stop_broker()
            await w.cluster.restart_broker()
            assert await reader.committed(QUEUE) == 6

    run_virtual(main())

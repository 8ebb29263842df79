"""Commits of many queues, in an order that Java brokers support."""

from __future__ import annotations

import asyncio

from kourou.client.consuming.offsets.offset_store import commit_each
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual


def test_the_first_queue_of_each_topic_and_broker_is_committed_before_the_others() -> None:
    async def main() -> None:
        queues = [
            MessageQueue(topic, broker, number)
            for topic in ("T", "U")
            for broker in ("a", "b")
            for number in range(3)
        ]
        events: list[tuple[str, MessageQueue]] = []

        async def commit(queue: MessageQueue) -> None:
            events.append(("begin", queue))
            await asyncio.sleep(1)
            events.append(("end", queue))

        await commit_each(queues, commit)
        for queue in queues:
            first = MessageQueue(queue.topic, queue.broker_name, 0)
            if queue != first:
                assert events.index(("end", first)) < events.index(("begin", queue))
        assert len(events) == 2 * len(queues)

    run_virtual(main())

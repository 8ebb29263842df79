"""In order: the messages of a queue come one after the other, and none is skipped."""

from __future__ import annotations

import asyncio

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

BODIES = [b"%d" % number for number in range(30)]


def test_the_messages_of_a_queue_come_in_order() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            got = []
            consumer = w.cluster.push_consumer(config=PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET))
            consumer.subscribe(TOPIC)

            @consumer.listen_orderly
            async def take(message: MessageExt) -> None:
                await asyncio.sleep(0.1)
                got.append(message.body)

            async with consumer:
                await w.until(lambda: len(got) == 30)
            assert got == BODIES
            assert await w.committed() == 30

    run_virtual(main())

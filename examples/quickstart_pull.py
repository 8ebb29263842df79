"""Read all stored orders, from the first to the last, without committing offsets.

Requires `kourou serve` or RocketMQ, on localhost unless NAMESRV_ADDR names another address.
"""

from __future__ import annotations

import asyncio

from kourou import PullConsumer


async def main() -> None:
    """Read each queue from its oldest message to its current end."""
    async with PullConsumer("audit") as consumer:
        for queue in await consumer.fetch_subscribe_message_queues("orders"):
            offset = await consumer.min_offset(queue)
            end = await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                for message in result.messages:
                    print(queue.queue_id, message.queue_offset, message.body.decode())
                offset = result.next_offset


asyncio.run(main())

"""Charge each order once it is placed, until Ctrl-C.

Needs a running `kourou serve`, or any RocketMQ; NAMESRV_ADDR says where, unless it is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

from kourou import ConsumeFromWhere, MessageExt, PushConsumer, PushConsumerConfig

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")

config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
consumer = PushConsumer("billing", NAMESRV, config=config)
consumer.subscribe("OrderPlaced", tags="eu || us")


@consumer.listen
def charge(message: MessageExt) -> None:
    """Charge one order: returning acknowledges it, raising has it delivered again."""
    print("charge", *message.keys, message.body.decode(), flush=True)


async def main() -> None:
    """Consume until cancelled; leaving the block lets listeners end, and commits."""
    async with consumer:
        await consumer.run_forever()


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())

"""Send an order and print where it is stored.

Requires `kourou serve` or RocketMQ, on localhost unless NAMESRV_ADDR names another address.
"""

from __future__ import annotations

import asyncio

from kourou import Message, Producer


async def main() -> None:
    """Send one message; `send` returns when it is on the disk of the broker."""
    async with Producer() as producer:
        order = Message("orders", b'{"id": 17, "eur": 120}', tags="eu", keys=["o-17"])
        receipt = await producer.send(order)
        print(receipt.msg_id, receipt.queue, receipt.queue_offset, receipt.durability)


asyncio.run(main())

"""Resize uploaded photos: long work on single messages, with renewal and dead letters.

NAMESRV_ADDR has the address of the name server, by default localhost.
"""

from __future__ import annotations

import asyncio

from kourou import DeadLetter, Message, Producer, SimpleConsumer


async def resize(photo: str) -> None:
    """Resize one photo; some files are no images and never will be."""
    if photo == "p-2":
        raise DeadLetter("not an image")
    await asyncio.sleep(0.1)
    print("resize", photo)


async def main() -> None:
    """Send three photos, and work on each until it is done or a dead letter."""
    async with Producer("uploads") as producer:
        for photo in ("p-1", "p-2", "p-3"):
            await producer.send(Message("PhotoUploaded", photo.encode()))

    async with SimpleConsumer("resizers", start="earliest") as consumer:
        consumer.subscribe("PhotoUploaded")
        handled: set[str] = set()
        while len(handled) < 3:
            for message in await consumer.receive(max_messages=8, invisible_ms=30_000):
                async with consumer.message_scope(message, renew_ms=600_000):
                    handled.add(photo := message.body.decode())
                    await resize(photo)


asyncio.run(main())

"""Helpers of the tests of Kourou's own clients: recording listeners, members of groups."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

from kourou import ConsumeFromWhere, MessageExt, PushConsumer, PushConsumerConfig

PATIENCE_S = 60
SETTLE_S = 1.0
"""Wait for messages that would be delivered once too often."""
_NUMBERS = itertools.count()


class Inbox:
    """The messages that a listener received."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []
        self.times_ms: list[float] = []
        self._came = asyncio.Event()

    async def take(self, message: MessageExt) -> None:
        """Record a message; the listener."""
        self.messages.append(message)
        self.times_ms.append(now_ms())
        self._came.set()

    def bodies(self) -> list[str]:
        """Return the bodies in the order of their delivery."""
        return [message.body.decode() for message in self.messages]

    async def exactly(self, count: int) -> list[str]:
        """Wait for `count` messages, and `SETTLE_S` for more; return their bodies."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()
        await asyncio.sleep(SETTLE_S)
        assert len(self.messages) == count, self.bodies()
        return self.bodies()


def now_ms() -> float:
    return time.time() * 1_000  # noqa: TID251 - brokers have real time


def name_of(purpose: str) -> str:
    return f"{purpose}-{next(_NUMBERS)}"


def config_of(**options: object) -> PushConsumerConfig:
    given: dict[str, object] = {
        "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
        "route_refresh_interval_ms": 1_000,
        "rebalance_interval_ms": 1_000,
        "instance_name": name_of("member"),  # a group has several members in this process
        **options,
    }
    return PushConsumerConfig(**given)  # type: ignore[arg-type]


def consumer_of(
    namesrv_addr: str,
    topic: str,
    listener: Callable[[MessageExt], Awaitable[None]],
    **options: object,
) -> PushConsumer:
    consumer = PushConsumer(f"{topic}-group", namesrv_addr, config=config_of(**options))
    consumer.subscribe(topic)
    consumer.listen(listener)
    return consumer

"""Receiving messages by either kind of consumer, for the rules that both follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.group import ConsumeFromWhere
from kourou.testing.recording import TOPIC, Recording

BOTH_KINDS = pytest.mark.parametrize("kind", ["push", "pull"])


@asynccontextmanager
async def receiving(
    w: Recording, kind: str, **options: Any
) -> AsyncIterator[PushConsumer | PullConsumer]:
    """Receive and commit the messages of the topic in the group `consumers`; see `w.received`."""
    if kind == "push":
        async with w.consumer(**options) as consumer:
            yield consumer
        return
    config = PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **options)
    async with w.cluster.pull_consumer("consumers", config) as reader:
        reader.subscribe(TOPIC)

        async def iterate() -> None:
            async for message in reader:
                w.received.append(message.body)

        iterating = asyncio.create_task(iterate())
        try:
            yield reader
        finally:
            iterating.cancel()
            await asyncio.gather(iterating, return_exceptions=True)

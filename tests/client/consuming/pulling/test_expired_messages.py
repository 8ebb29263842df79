"""Messages that expire at the broker while consumers hold the ones before them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.inspection import config_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

QUEUE = MessageQueue(TOPIC, "broker-0", 0)
OLD = [b"%04000d" % number for number in range(100)]
NEW = [b"%04000d" % number for number in range(100, 105)]
HELD = 16
LIMITS: dict[str, Any] = {"pull_threshold_count": 10}


async def expire(w: Recording) -> int:
    """Remove messages, and store new ones; return the lowest offset stored."""
    await asyncio.sleep(1)
    expiry = w.cluster.broker().store.expiry
    for _ in range(4):
        expiry.remove([expiry.hide_segment()])
    expiry.remove(expiry.hide_files(expiry.find_expired(expiry.queues())))
    await w.send(*NEW)
    async with w.cluster.pull_consumer("readers") as reader:
        low = await reader.min_offset(QUEUE)
    assert low > HELD
    return low


@pytest.mark.parametrize("is_ordered", [False, True])
def test_messages_that_a_listener_has_not_received_yet_are_delivered(*, is_ordered: bool) -> None:
    async def main() -> None:
        released = asyncio.Event()
        received: list[bytes] = []

        async def listen(message: MessageExt) -> None:
            await released.wait()
            await asyncio.sleep(1)
            received.append(message.body)

        async with recording(queues=1) as w:
            await w.send(*OLD)
            consumer = w.consumer(consume_threads=1, pull_batch_size=8, **LIMITS)
            consumer = w.cluster.push_consumer("consumers", config_of(consumer))
            consumer.subscribe(TOPIC)
            (consumer.listen_orderly if is_ordered else consumer.listen)(listen)
            async with consumer:
                low = await expire(w)
                released.set()
                await w.until(lambda: NEW[-1] in received, timeout_s=180)
            assert received == [*OLD[:HELD], *OLD[low:], *NEW]

    run_virtual(main())


def test_messages_that_no_poll_has_returned_yet_are_returned() -> None:
    async def main() -> None:
        config = PullConsumerConfig(
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET, poll_batch_size=8, **LIMITS
        )
        async with (
            recording(queues=1) as w,
            w.cluster.pull_consumer("consumers", config) as reader,
        ):
            await w.send(*OLD)
            await reader.assign([QUEUE])
            low = await expire(w)
            received: list[bytes] = []
            while NEW[-1] not in received:
                received += [message.body for message in await reader.poll(timeout_ms=20_000)]
                await asyncio.sleep(1)
            assert received == [*OLD[:HELD], *OLD[low:], *NEW]

    run_virtual(main())

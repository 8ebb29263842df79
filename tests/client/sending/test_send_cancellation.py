"""A send that is cancelled at any point leaves the complete message or none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Producer
from kourou.model.message import Message, MessageExt
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

Send = Callable[[Producer, bytes], Awaitable[object]]

SIZE = 6_000  # above the threshold of compression
STEP_S = 0.0002
STEPS_MAX = 400


def body_of(number: int) -> bytes:
    """Return a body that can be checked for completeness; only half of it is compressible."""
    return (b"%08d" % number) * (SIZE // 8)


async def send_alone(producer: Producer, body: bytes) -> object:
    return await producer.send(Message("T", body))


async def send_by_key(producer: Producer, body: bytes) -> object:
    return await producer.send(Message("T", body), sharding_key="k")


async def send_in_batch(producer: Producer, body: bytes) -> object:
    return await producer.send_batch([Message("T", body), Message("T", body)])


async def submit(producer: Producer, body: bytes) -> object:
    return await (await producer.submit(Message("T", body)))


async def send_oneway(producer: Producer, body: bytes) -> None:
    await producer.send_oneway(Message("T", body))


async def stored(cluster: Cluster) -> list[MessageExt]:
    messages: list[MessageExt] = []
    async with cluster.pull_consumer() as reader:
        for queue in await reader.fetch_subscribe_message_queues("T"):
            offset, end = 0, await reader.max_offset(queue)
            while offset < end:
                result = await reader.pull(queue, offset)
                messages += result.messages
                offset = result.next_offset
    return messages


async def cancel_after(cluster: Cluster, config: ProducerConfig, send: Send, number: int) -> bool:
    """Cancel a send of a new producer after `number` steps; return whether it had ended before."""
    async with cluster.producer(config=config) as producer:
        sending = asyncio.ensure_future(send(producer, body_of(number)))
        # Even numbers cancel between two turns of the loop, odd ones at the start of a turn.
        await asyncio.sleep(number // 2 * STEP_S)
        for _ in range(number % 2):
            await asyncio.sleep(0)
        has_ended = sending.done()
        sending.cancel()
        await asyncio.wait({sending})
        assert has_ended or sending.cancelled() or sending.exception() is None
        # A batch continues for messages that are not cancelled.
        assert config.linger_ms or producer.stats().in_flight == 0
        return has_ended


@pytest.mark.parametrize("linger_ms", [0, 3], ids=["at once", "lingering"])
@pytest.mark.parametrize(
    ("send", "copies"),
    [(send_alone, 1), (send_by_key, 1), (send_in_batch, 2), (submit, 1), (send_oneway, 1)],
)
def test_send_cancelled_at_any_point_leaves_message_complete_or_absent(
    send: Send, copies: int, linger_ms: int
) -> None:
    async def main() -> None:
        compress_over = None if linger_ms else 4_096  # compressed messages do not linger
        config = ProducerConfig(linger_ms=linger_ms, compress_body_over_bytes=compress_over)
        async with Cluster(seed=11) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("T", queues=2)
            for number in range(STEPS_MAX):
                if await cancel_after(cluster, config, send, number):
                    break
            else:
                pytest.fail("no send ever ended")
            await asyncio.sleep(1)  # one-way messages arrive
            found = Counter(message.body for message in await stored(cluster))
            tried = {body_of(one) for one in range(number + 1)}
            assert found.keys() <= tried, "each stored body is complete"
            assert set(found.values()) <= {copies}, (
                "a batch is stored completely, and no message twice"
            )
            assert body_of(number) in found, "a send that had ended is stored"
            assert body_of(0) not in found, "a send that was cancelled at once is not stored"
            assert number > 4, "sends were cancelled at several points"

    run_virtual(main())

"""All redeliveries, during outages too: each message is consumed or becomes a dead letter.

The delay levels of these brokers are shortened; `tests/broker/consuming/test_retry.py` uses the
real ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from kourou.client.consuming.acknowledging.redelivery import RetryLater
from kourou.model.group import SubscriptionGroup
from kourou.model.message import MessageExt
from kourou.model.topic import dlq_topic, retry_topic
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

GROUP = "consumers"
DAY_S = 240
LEVELS = " ".join(f"{level}s" for level in range(1, 19))


async def dead_letters(w: Recording) -> list[MessageExt]:
    async with w.cluster.admin() as admin:
        return [dead.message for dead in await admin.dead_letters(GROUP, max_messages=1_000)]


def test_a_message_becomes_a_dead_letter_after_seventeen_deliveries() -> None:
    async def main() -> None:
        times: list[tuple[int, float]] = []

        def fail(message: MessageExt) -> None:
            times.append((message.reconsume_times, asyncio.get_running_loop().time()))
            raise ValueError("never")

        async with recording(message_delay_level=LEVELS) as w:
            await w.send(b"bad")
            async with w.consumer(fail):
                await asyncio.sleep(DAY_S)
            assert [reconsumed for reconsumed, _ in times] == list(range(17))
            waits = [later - earlier for (_, earlier), (_, later) in pairwise(times)]
            assert waits == pytest.approx(list(range(3, 19)), abs=1)
            [dead] = await dead_letters(w)
            first = w.deliveries[0]
            assert (dead.body, dead.msg_id, dead.reconsume_times) == (b"bad", first.msg_id, 17)
            assert dead.properties["ORIGIN_MESSAGE_ID"] == first.offset_msg_id
            assert dead.properties["KOUROU_DLQ_REASON"] == "ValueError: never"
            assert await w.committed() == 1
            async with w.cluster.admin() as admin:
                config = await admin.topic_config(dlq_topic(GROUP))
                assert [(one.read_queue_nums, one.perm) for one in config.values()] == [(1, 6)]

    run_virtual(main())


def test_the_group_s_maximum_applies_to_send_backs_and_copies() -> None:
    async def main() -> None:
        async with (
            recording(brokers=2, message_delay_level=LEVELS) as w,
            w.cluster.admin() as admin,
        ):
            await admin.create_group(SubscriptionGroup(GROUP, retry_max_times=3))

            def fail(message: MessageExt) -> None:
                # By a copy on another broker each time: its own does not find the record.
                message.physical_offset = 10**15
                raise ValueError("never")

            await w.send(b"bad")
            async with w.consumer(fail):
                await asyncio.sleep(DAY_S)
            assert w.received == [b"bad"] * 4
            [dead] = await dead_letters(w)
            assert (dead.body, dead.reconsume_times) == (b"bad", 4)
            assert dead.properties["KOUROU_DLQ_REASON"] == "ValueError: never"

    run_virtual(main())


def test_a_day_of_retries_through_crashes_loses_nothing() -> None:
    async def main() -> None:
        bodies = [b"%d" % number for number in range(40)]

        def often(message: MessageExt) -> None:
            number = int(message.body)
            if number % 4 == 0:
                raise ValueError("never")
            if message.reconsume_times < number % 4:
                raise RetryLater(level=1 + number % 12)

        async with recording(brokers=2, seed=11, message_delay_level=LEVELS) as w:
            await w.send(*bodies)
            async with w.consumer(often):
                for hour in range(10):
                    await asyncio.sleep(15)
                    await w.cluster.crash_broker(hour % 2)
                    await asyncio.sleep(3)
                    await w.cluster.restart_broker(hour % 2)
                await asyncio.sleep(120)
            dead = Counter(message.body for message in await dead_letters(w))
            assert set(dead) == {body for body in bodies if int(body) % 4 == 0}
            done = {
                message.body
                for message in w.deliveries
                if message.reconsume_times >= int(message.body) % 4
            }
            assert done == set(bodies)
            async with w.cluster.admin() as admin:
                stats = await admin.consume_stats(GROUP)
                lag = {
                    queue.topic: at.broker_offset - at.consumer_offset
                    for queue, at in stats.offsets.items()
                    if at.broker_offset != at.consumer_offset
                }
                assert lag == {}, "all messages are done"
                assert {queue.topic for queue in stats.offsets} == {TOPIC, retry_topic(GROUP)}

    run_virtual(main())

"""A group that is too far behind is stopped if the option is on; other groups continue."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.pulling.slow_consumers import SLOW_CHECK_INTERVAL_MS, SlowConsumers
from kourou.broker.wiring import build_slow_consumers
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.group import SubscriptionGroup
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.topic import SYSTEM_GROUP_PREFIX
from kourou.store.formats import QueueEntry
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker

LIMIT_BYTES = 20_000
BODIES = [b"%02d" % n + bytes(1_000) for n in range(40)]
OPTIONS = {"consumer_fallbehind_threshold_bytes": LIMIT_BYTES}
TWO_CHECKS_S = 2 * SLOW_CHECK_INTERVAL_MS / 1000


async def is_enabled(w: Recording, group: str) -> bool:
    async with w.cluster.admin() as admin:
        return (await admin.group_config(group))["broker-0"].consume_enable


def behind(w: Recording) -> SlowConsumers:
    return build_slow_consumers(w.cluster.broker().components)


async def take_one(w: Recording) -> PushConsumer:
    """Commit the first message for the group `slow`, and pull two."""

    async def hang(message: MessageExt) -> None:
        if message.queue_offset:
            await asyncio.Event().wait()

    slow = w.consumer(hang, group="slow", pull_batch_size=1, pull_threshold_count=1)
    await slow.start()
    return slow


@pytest.mark.parametrize("is_on", [False, True])
def test_a_group_too_far_behind_is_stopped_with_the_option_on(
    is_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with recording(
            queues=1, disable_consume_if_consumer_read_slowly=is_on, **OPTIONS
        ) as w:
            await w.send(*BODIES)
            slow = await take_one(w)
            async with w.consumer(group="quick") as quick:
                await asyncio.sleep(10)
                assert await behind(w).behind_bytes("quick") == 0
                assert LIMIT_BYTES < await behind(w).behind_bytes("slow") < 60_000
                await asyncio.sleep(TWO_CHECKS_S)

                assert await is_enabled(w, "slow") is not is_on
                assert await is_enabled(w, "quick")
                w.received.clear()
                await w.send(b"more")
                await w.until_received(b"more")
                assert quick.health().is_open
            slow.abort()
            await w.cluster.crash_broker()
            await w.cluster.restart_broker()
            assert await is_enabled(w, "slow") is not is_on, "the change is durable"

    run_virtual(main())
    stopped = [one for one in caplog.records if one.getMessage().startswith("group.stopped")]
    assert len(stopped) == is_on


def test_a_stopped_group_continues_at_its_offset_when_enabled() -> None:
    async def main() -> None:
        async with recording(
            queues=1, disable_consume_if_consumer_read_slowly=True, **OPTIONS
        ) as w:
            await w.send(*BODIES)
            slow = await take_one(w)
            await asyncio.sleep(TWO_CHECKS_S)
            slow.abort()
            w.received.clear()
            async with w.consumer(group="slow"), w.cluster.admin() as admin:
                await asyncio.sleep(30)
                assert w.received == []
                await admin.update_group("slow", consume_enable=True)
                await w.until_received(*BODIES[1:])

    run_virtual(main())


def test_the_queue_that_is_furthest_behind_counts() -> None:
    async def main() -> None:
        async with recording(queues=2, **OPTIONS) as w:
            await w.send(*BODIES)
            async with w.cluster.pull_consumer("slow") as reader:
                for queue_id, offset in ((0, 19), (1, 3)):
                    await reader.commit_offset(MessageQueue(TOPIC, "broker-0", queue_id), offset)
                first_bytes = await behind(w).behind_bytes("slow")
                for queue_id in (0, 1):
                    await reader.commit_offset(MessageQueue(TOPIC, "broker-0", queue_id), 20)
                assert await behind(w).behind_bytes("slow") == 0
            assert first_bytes > 15 * 2 * len(BODIES[0])

    run_virtual(main())


class FarEnd:
    """A log whose whole length is unread by every group."""

    min_position = 0
    visible_position = 1 << 40

    def max_offset(self, topic: str, queue_id: int) -> int:
        del topic, queue_id
        return 100

    def entry(self, topic: str, queue_id: int, offset: int) -> QueueEntry | None:
        del topic, queue_id, offset
        return None


def test_system_groups_are_never_stopped() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.live_config.update({"disableConsumeIfConsumerReadSlowly": "true"}, 0)
        for group in ("billing", f"{SYSTEM_GROUP_PREFIX}TRANS"):
            broker.groups.put(SubscriptionGroup(group))
            broker.connect("a", group)
            broker.tables.offsets.commit(group, TOPIC, 0, 1)
        await SlowConsumers(broker.components.context, broker.offsets, FarEnd()).check()
        kept = {name: broker.groups.get(name) for name in broker.groups.names()}
        stopped = [name for name, group in kept.items() if group and not group.consume_enable]
        assert stopped == ["billing"]

    run_with_broker(test)


def test_a_group_without_members_is_never_stopped() -> None:
    async def main() -> None:
        async with recording(
            queues=1, disable_consume_if_consumer_read_slowly=True, **OPTIONS
        ) as w:
            await w.send(*BODIES)
            async with w.cluster.pull_consumer("slow") as reader:
                await reader.commit_offset(MessageQueue(TOPIC, "broker-0", 0), 1)
            await asyncio.sleep(TWO_CHECKS_S)
            assert await is_enabled(w, "slow")

    run_virtual(main())

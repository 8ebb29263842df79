"""Times of rebalance passes, and failures after which members keep their queues."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from itertools import pairwise

import pytest

from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.remoting.network import parse_address
from kourou.testing.inspection import rebalance_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

BODIES = [b"%d" % number for number in range(12)]


def queue_ids(consumer: PushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == TOPIC]


async def set_queues(w: Recording, count: int) -> None:
    async with w.cluster.admin() as admin:
        await admin.update_topic(TOPIC, queues=count)


def test_added_queues_are_consumed_from_their_first_message() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            first = w.consumer(instance_name="a")
            second = w.consumer(instance_name="b")
            async with first, second:
                await asyncio.sleep(30)
                await set_queues(w, 6)
                async with w.cluster.producer() as producer:
                    for number in range(6):
                        queue = MessageQueue(TOPIC, "broker-0", number)
                        await producer.send(Message(TOPIC, b"%d" % number), queue=queue)
                await w.until_received(*BODIES[:6], timeout_s=75)
                assert queue_ids(first) + queue_ids(second) == [0, 1, 2, 3, 4, 5]
                assert sorted(w.received) == BODIES[:6]

    run_virtual(main())


def test_members_keep_their_queues_while_name_servers_are_unreachable() -> None:
    async def main() -> None:
        async with recording() as w, w.consumer() as consumer:
            before = consumer.queues
            where = parse_address(w.cluster.namesrv_addr)
            w.cluster.network.cut(where)
            await asyncio.sleep(300)
            assert consumer.queues == before
            w.cluster.network.heal(where)

    run_virtual(main())


def test_members_keep_their_queues_when_a_broker_restarts() -> None:
    async def main() -> None:
        async with recording() as w:
            members = [w.consumer(instance_name=name) for name in ("a", "b")]
            changes: list[list[MessageQueue]] = []
            async with members[0], members[1]:
                await w.until(lambda: [*map(queue_ids, members)] == [[0, 1], [2, 3]])
                for member in members:
                    member.on_queues_changed(lambda _, __, held: changes.append(held))
                await w.cluster.crash_broker()
                await w.cluster.restart_broker()
                await asyncio.sleep(120)
                assert changes == []

    run_virtual(main())


@pytest.mark.parametrize("client_rebalance", [True, False])
@pytest.mark.parametrize("forgotten", [1, 2])
def test_members_keep_their_queues_when_a_broker_lost_its_members(
    forgotten: int, *, client_rebalance: bool
) -> None:
    async def main() -> None:
        async with recording() as w:
            members = [
                w.consumer(instance_name=name, client_rebalance=client_rebalance) for name in "ab"
            ]
            async with members[0], members[1]:
                await w.until(lambda: [*map(queue_ids, members)] == [[0, 1], [2, 3]])
                await asyncio.sleep(5)
                changes: list[list[MessageQueue]] = []
                clients = w.cluster.broker().components.context.clients
                live = clients.consumer_group("consumers")
                assert live is not None
                for peer in list(live.members)[:forgotten]:
                    clients.unregister_consumer(peer, "consumers")
                for member in members:
                    member.on_queues_changed(lambda _, __, held: changes.append(held))
                    rebalance_of(member).wake()
                await asyncio.sleep(60)
                assert changes == []

    run_virtual(main())


def test_passes_run_every_20_s_and_1_s_after_a_change() -> None:
    passes: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def all_queues(
            queues: Sequence[MessageQueue], _: Sequence[str], __: str
        ) -> Sequence[MessageQueue]:
            if queues[0].topic == TOPIC:
                passes.append(loop.time())
            return queues

        async with recording() as w, w.consumer(allocation=all_queues):
            await asyncio.sleep(65)

    run_virtual(main())
    gaps = [round(later - earlier) for earlier, later in pairwise(passes)]
    assert gaps[0] <= 1, "the first pass changed something"
    assert gaps[-3:] == [20, 20, 20]


@pytest.mark.parametrize("allocation", ["AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_strategies_assign_added_and_removed_queues(allocation: str) -> None:
    async def main() -> None:
        async with recording(queues=6) as w:
            members = [
                w.consumer(allocation=allocation, instance_name=f"m{number}") for number in range(3)
            ]

            def owned() -> list[int]:
                return sorted(itertools.chain(*map(queue_ids, members)))

            async with members[0], members[1], members[2]:
                for wanted in ([*range(9)], [0], [0, 1, 2, 3]):
                    await set_queues(w, len(wanted))
                    await asyncio.sleep(75)
                    assert owned() == wanted

    run_virtual(main())


def test_closing_a_consumer_while_it_joins_logs_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        for delay_ms in range(24):
            async with recording() as w:
                consumer = w.consumer()
                start = asyncio.create_task(consumer.start())
                await asyncio.sleep(delay_ms / 1000)
                await consumer.close()
                await asyncio.gather(start, return_exceptions=True)

    with caplog.at_level(logging.WARNING, logger="kourou.client"):
        run_virtual(main())
    assert caplog.messages == []

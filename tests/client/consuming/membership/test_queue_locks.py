"""A lock is valid from the time of its request, and lost if another member may have held it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kourou.broker.consuming import queue_locks as of_broker
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.membership.queue_locks import BROKER_EXPIRY_S, LockGrants, QueueLocks
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.remoting.steady_time import steady_ms
from kourou.testing.inspection import instance_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from tests.client.consuming.ordered_rig import Ordered

GROUP = "consumers"
QUEUE = MessageQueue(TOPIC, "broker-0", 0)
OTHER = MessageQueue(TOPIC, "broker-0", 1)


def locks_of(w: Recording) -> of_broker.QueueLocks:
    """Return the queue locks of the only broker."""
    return w.cluster.broker().components.queue_locks


def holder(w: Recording, queue: MessageQueue = QUEUE) -> str | None:
    return locks_of(w).holder(GROUP, queue, steady_ms())


@asynccontextmanager
async def locking(w: Recording) -> AsyncIterator[QueueLocks]:
    """Yield the locks of a member that requests none by itself."""
    async with w.consumer(group="bystanders") as member:
        yield QueueLocks(instance_of(member), GROUP, PushConsumerConfig())


def test_a_lock_is_invalid_after_the_machine_was_suspended() -> None:
    async def main() -> None:
        suspended_s = [1_000.0]
        async with recording() as w, w.consumer(group="bystanders") as member:
            locks = QueueLocks(
                instance_of(member), GROUP, PushConsumerConfig(), lambda: suspended_s[0]
            )
            await locks.lock([QUEUE])
            suspended_s[0] += 29.0
            assert locks.is_held(QUEUE)
            suspended_s[0] += 2.0
            assert not locks.is_held(QUEUE)
            assert await locks.lock([QUEUE]) == {QUEUE}
            assert locks.is_held(QUEUE)
            await locks.close()

    run_virtual(main())


def test_a_queue_is_lost_after_a_suspension_longer_than_the_broker_s_expiry() -> None:
    async def main() -> None:
        suspended_s, lost = [0.0], list[MessageQueue]()
        async with recording() as w, w.consumer(group="bystanders") as member:
            locks = QueueLocks(
                instance_of(member), GROUP, PushConsumerConfig(), lambda: suspended_s[0]
            )
            locks.on_lost = lost.append
            await locks.lock([QUEUE])
            suspended_s[0] += BROKER_EXPIRY_S + 1
            await locks.renew()
            assert lost == [QUEUE]
            await locks.close()

    run_virtual(main())


@pytest.mark.parametrize(("renewed_s", "is_own"), [(60.0, True), (60.1, False), (200.0, False)])
def test_a_lock_renewed_after_the_broker_s_expiry_is_lost(
    renewed_s: float, *, is_own: bool
) -> None:
    terms = LockGrants(30.0)
    assert terms.grant(QUEUE, 0.0, 0.5)
    assert terms.grant(QUEUE, renewed_s, renewed_s) is is_own
    assert BROKER_EXPIRY_S * 1000 == of_broker.EXPIRY_MS


def test_a_lock_s_validity_counts_from_before_its_request() -> None:
    async def main() -> None:
        async with recording() as w, locking(w) as locks:
            asking = asyncio.create_task(locks.lock([QUEUE]))
            await asyncio.sleep(0)
            w.cluster.network.stall(w.cluster.broker_address())
            await asyncio.sleep(0.9)
            w.cluster.network.heal(w.cluster.broker_address())
            assert await asking == {QUEUE}
            age_s = locks.age_s(QUEUE)
            assert age_s is not None
            assert age_s >= 0.9
            await locks.close()

    run_virtual(main())


def test_a_lock_released_during_its_renewal_stays_released() -> None:
    async def main() -> None:
        async with recording() as w, w.consumer(group="bystanders") as member:
            locks = QueueLocks(instance_of(member), GROUP, PushConsumerConfig())
            await locks.lock([QUEUE, OTHER])
            await asyncio.gather(locks.renew(), locks.unlock([QUEUE]))
            assert not locks.is_held(QUEUE)
            assert locks.is_held(OTHER)
            await locks.renew()
            assert (holder(w), holder(w, OTHER)) == (None, member.client_id)
            await locks.close()
            assert holder(w, OTHER) is None

    run_virtual(main())


def test_a_waiting_renewal_omits_locks_released_before_it() -> None:
    async def main() -> None:
        async with recording() as w, locking(w) as locks:
            await locks.lock([QUEUE])
            await asyncio.gather(locks.lock([OTHER]), locks.unlock([QUEUE]), locks.renew())
            assert holder(w) is None
            assert locks.is_held(OTHER)
            await locks.close()

    run_virtual(main())


def test_a_member_that_lost_its_lock_restarts_at_the_other_s_offset() -> None:
    async def main() -> None:
        async def work(_: MessageExt) -> None:
            await asyncio.sleep(1)

        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(*[b"%02d" % number for number in range(60)])
            async with rig.consumer(work, instance_name="a") as member:
                await w.until(lambda: len(rig.received[0]) == 5)
                taken = steal(w, member)
                async with w.cluster.pull_consumer(GROUP) as other:
                    await w.until(lambda: not own(member), timeout_s=25)
                    count = len(rig.received[0])
                    await asyncio.sleep(10)
                    assert len(rig.received[0]) == count, "nothing is committed without the lock"
                    await other.commit_offset(QUEUE, 50)
                    await asyncio.sleep(10)
                    assert await other.committed(QUEUE) == 50, "its earlier results are ignored"
                    assert locks_of(w).unlock(GROUP, taken, [QUEUE]) == [QUEUE]
                await w.until(lambda: b"59" in rig.received[0], timeout_s=30)
            assert rig.received[0][count:] == [b"%02d" % number for number in range(50, 60)]

    run_virtual(main())


def test_a_member_commits_nothing_while_its_lock_may_be_lost() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            rig = Ordered(w)
            await w.send(*[b"%02d" % number for number in range(60)])
            member = rig.consumer(
                lambda _: asyncio.sleep(1), pull_batch_size=1, pull_suspend_timeout_ms=1_000
            )
            async with member:
                await w.until(lambda: len(rig.received[0]) == 5)
                w.cluster.network.stall(w.cluster.broker_address())
                await asyncio.sleep(BROKER_EXPIRY_S + 10)
                assert locks_of(w).lock(GROUP, "heir", [QUEUE], steady_ms()) == [QUEUE]
                count, offsets = len(rig.received[0]), offsets_of(w)
                offsets.commit(GROUP, TOPIC, 0, 50)
                w.cluster.network.heal(w.cluster.broker_address())
                for _ in range(2_000):
                    await asyncio.sleep(0.01)
                    assert offsets.query(GROUP, TOPIC, 0) == 50
                assert len(rig.received[0]) == count

    run_virtual(main())


def offsets_of(w: Recording) -> ConsumerOffsets:
    """Return the committed offsets of the only broker."""
    return w.cluster.broker().components.tables.offsets


def steal(w: Recording, member: PushConsumer) -> str:
    """Grant a member's lock to another client, as a broker that lost it would; return its id."""
    locks = locks_of(w)
    assert locks.unlock(GROUP, member.client_id, [QUEUE]) == [QUEUE]
    assert locks.lock(GROUP, "thief", [QUEUE], steady_ms()) == [QUEUE]
    return "thief"


def own(member: PushConsumer) -> list[MessageQueue]:
    return [queue for queue in member.queues if queue.topic == TOPIC]

"""Reports, resets and clones of consumer offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.administration.admin import AdminClient, OffsetReset
from kourou.errors import (
    GroupNotFoundError,
    NoRouteError,
    RemoteSystemError,
    TopicNotFoundError,
    UsageError,
)
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import Recording, recording

Body = Callable[[Recording, AdminClient], Coroutine[Any, Any, None]]
BODIES = (b"1", b"2", b"3", b"4", b"5", b"6")


def queue(number: int) -> MessageQueue:
    return MessageQueue("T", "broker-0", number)


def with_consumed(body: Body, **options: Any) -> None:
    """Run `body` after the group `consumers` has consumed six messages, three in each queue."""

    async def main() -> None:
        async with recording(queues=2, **options) as w, w.cluster.admin() as admin:
            async with w.consumer():
                await w.send(*BODIES)
                await w.until_received(*BODIES)
            assert await w.committed() == len(BODIES)
            await body(w, admin)

    run_virtual(main())


def test_offline_group_is_reset_to_the_oldest_message() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        moves = await admin.reset_offset("consumers", "T", to="earliest")
        assert moves == [OffsetReset(queue(0), 3, 0), OffsetReset(queue(1), 3, 0)]
        assert [move.moved for move in moves] == [-3, -3]
        async with w.consumer():
            await w.until_received(*BODIES, *BODIES)

    with_consumed(body)


def test_live_members_follow_a_reset() -> None:
    async def main() -> None:
        async with recording(queues=2) as w, w.cluster.admin() as admin, w.consumer():
            await w.send(*BODIES)
            await w.until_received(*BODIES)
            await asyncio.sleep(10)  # until their offsets are committed
            await admin.reset_offset("consumers", "T", to="earliest")
            await w.until_received(*BODIES, *BODIES)
            await asyncio.sleep(10)
            assert (await admin.describe_group("consumers")).lag == 0

    run_virtual(main())


def test_group_is_reset_by_time() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        at_ms = w.cluster.runtime.clock.now_ms() + 30_000
        await asyncio.sleep(60)
        await w.send(b"7", b"8")
        moves = await admin.reset_offset("consumers", "T", at_ms=at_ms)
        assert {move.queue: move.new_offset for move in moves} == {queue(0): 3, queue(1): 3}
        first = min(message.store_at_ms for message in w.deliveries)
        moves = await admin.reset_offset("consumers", "T", at_ms=first)
        assert {move.new_offset for move in moves} == {0}

    with_consumed(body)


def test_backlog_is_skipped() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        await w.send(b"7", b"8")
        assert (await admin.describe_group("consumers")).lag == 2
        moves = await admin.skip_backlog("consumers", "T")
        assert [move.moved for move in moves] == [1, 1]
        assert (await admin.describe_group("consumers")).lag == 0
        async with w.consumer():
            await w.send(b"9")
            await w.until_received(b"9")
        assert b"7" not in w.received

    with_consumed(body)


def test_dry_run_returns_the_resets_and_changes_nothing() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        for asked in ({"to": "earliest"}, {"at_ms": 0}, {"queue": queue(1), "offset": 0}):
            moves = await admin.reset_offset("consumers", "T", dry_run=True, **asked)
            assert moves[-1] == OffsetReset(queue(1), 3, 0)
        assert await w.committed() == len(BODIES)

    with_consumed(body)


def test_single_queue_is_reset_to_an_offset() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        moves = await admin.reset_offset("consumers", "T", queue=queue(1), offset=2)
        assert moves == [OffsetReset(queue(1), 3, 2)]
        assert await w.committed() == len(BODIES) - 1
        moves = await admin.reset_offset("consumers", "T", queue=queue(1), to="earliest")
        assert moves == [OffsetReset(queue(1), 2, 0)]
        with pytest.raises(RemoteSystemError, match=r"offset 9 not in .*\[0-3\]"):
            await admin.reset_offset("consumers", "T", queue=queue(1), offset=9)

    with_consumed(body)


def test_reset_covers_every_broker_of_a_topic() -> None:
    async def main() -> None:
        async with recording(queues=1, brokers=2) as w, w.cluster.admin() as admin:
            async with w.consumer():
                await w.send(*BODIES)
                await w.until_received(*BODIES)
            moves = await admin.reset_offset("consumers", "T", to="earliest")
            assert [(move.queue.broker_name, move.moved) for move in moves] == [
                ("broker-0", -3),
                ("broker-1", -3),
            ]

    run_virtual(main())


@pytest.mark.parametrize("with_queue", [False, True])
def test_old_broker_forwards_a_reset_and_offline_group_is_reset_by_commit(
    with_queue: bool,
) -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        asked: dict[str, Any] = {"queue": queue(0), "offset": 0} if with_queue else {"at_ms": 0}
        moves = await admin.reset_offset("consumers", "T", **asked)
        assert moves[0] == OffsetReset(queue(0), 3, 0)
        assert await w.committed() == (3 if with_queue else 0)

    with_consumed(body, use_server_side_reset_offset=False)


def test_old_broker_resets_a_group_that_never_committed() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        await admin.create_group(SubscriptionGroup("fresh"))
        moves = await admin.skip_backlog("fresh", "T")
        assert [move.new_offset for move in moves] == [3, 3]
        assert await w.committed("fresh") == len(BODIES)
        await admin.create_group(SubscriptionGroup("one"))
        await admin.reset_offset("one", "T", queue=queue(1), offset=2)
        assert await w.committed("one") == 2

    with_consumed(body, use_server_side_reset_offset=False)


def test_old_broker_does_not_reset_other_queues() -> None:
    async def main() -> None:
        async with (
            recording(queues=2, use_server_side_reset_offset=False) as w,
            w.cluster.admin() as admin,
            w.consumer(),
        ):
            await w.send(*BODIES)
            await w.until_received(*BODIES)
            await asyncio.sleep(10)
            with pytest.raises(RemoteSystemError, match="stop the members of consumers"):
                await admin.reset_offset("consumers", "T", queue=queue(0), offset=0)
            await asyncio.sleep(10)
            assert len(w.received) == len(BODIES)
            await admin.reset_offset("consumers", "T", to="earliest")
            await w.until_received(*BODIES, *BODIES)

    run_virtual(main())


def test_offsets_are_cloned_to_another_group() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        await w.send(b"7", b"8")
        await admin.clone_offsets("consumers", "twins", "T")
        assert await w.committed("twins") == len(BODIES)
        async with w.consumer(group="twins"):
            await w.until_received(b"7", b"8")
        assert len(w.received) == len(BODIES) + 2

    with_consumed(body)


def test_consume_stats_cover_all_queues_or_those_of_one_topic() -> None:
    async def body(w: Recording, admin: AdminClient) -> None:
        await w.send(b"7")
        found = await admin.consume_stats("consumers", "T")
        assert list(found.offsets) == [queue(0), queue(1)]
        lag = [at.broker_offset - at.consumer_offset for at in found.offsets.values()]
        assert sorted(lag) == [0, 1]
        every = (await admin.consume_stats("consumers")).offsets
        assert found.offsets.items() <= every.items()
        assert (await admin.consume_stats("nobody")).offsets == {}

    with_consumed(body)


def test_invalid_reset_is_refused_before_any_change() -> None:
    async def main() -> None:
        async with Cluster(seed=2, brokers=2) as cluster, cluster.admin() as admin:
            await admin.create_topic("T", queues=1)
            with pytest.raises(TopicNotFoundError, match="absent"):
                await admin.reset_offset("g", "absent", at_ms=0)
            with pytest.raises(GroupNotFoundError, match="broker-0, broker-1"):
                await admin.reset_offset("g", "T", at_ms=0)
            await admin.create_group(SubscriptionGroup("g"), broker_name="broker-0")
            with pytest.raises(GroupNotFoundError, match="g does not exist on broker-1"):
                await admin.reset_offset("g", "T", at_ms=0, dry_run=True)
            with pytest.raises(NoRouteError, match="queue 5 on broker-0"):
                await admin.reset_offset("g", "T", queue=queue(5), offset=0)

    run_virtual(main())


@pytest.mark.parametrize(
    ("asked", "reported"),
    [
        ({}, "one of at_ms, to and offset"),
        ({"at_ms": 1, "to": "latest"}, "one of at_ms, to and offset"),
        ({"offset": 1}, "requires queue"),
        ({"offset": -1, "queue": queue(0)}, "0 or more"),
        ({"at_ms": -1}, "epoch milliseconds"),
        ({"to": "now"}, "earliest or latest"),
        ({"to": "latest", "queue": MessageQueue("other", "broker-0", 0)}, "one of topic other"),
    ],
)
def test_reset_requires_a_valid_target(asked: dict[str, Any], reported: str) -> None:
    async def main() -> None:
        async with Cluster(seed=2) as cluster, cluster.admin() as admin:
            with pytest.raises(UsageError, match=reported):
                await admin.reset_offset("g", "T", **asked)

    run_virtual(main())

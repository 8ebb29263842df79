"""Polled queues that change during polls: takeovers, resets, cancelled calls."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from kourou.errors import UsageError
from kourou.model.group import ConsumeFromWhere
from kourou.store.config import StoreConfig
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording
from tests.client.consuming.polling.test_polling import BODIES, Q0, Q1, poll_bodies, poller


def test_a_takeover_in_a_new_group_skips_no_unacknowledged_message() -> None:
    async def main() -> None:
        store = StoreConfig(
            commitlog_segment_bytes=64 * 1024, consumequeue_file_bytes=2000, resident_bytes=1000
        )
        async with recording(queues=1, store=store) as w:
            await w.send(*[b"old"] * 30)
            at_the_end = ConsumeFromWhere.LAST_OFFSET
            async with poller(w, consume_from_where=at_the_end) as first:
                await first.assign([Q0])
                await asyncio.sleep(1)
                await w.send(b"new")
                assert await poll_bodies(first, 1) == [b"new"]
            async with poller(w, consume_from_where=at_the_end) as second:
                await second.assign([Q0])
                assert await poll_bodies(second, 1) == [b"new"]

    run_virtual(main())


def test_a_cancelled_assignment_leaves_no_queue_unpulled() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            await w.send(*BODIES)
            async with poller(w) as consumer:
                await consumer.assign([Q0])
                received = await poll_bodies(consumer, 10)
                assert await consumer.poll(0) is not None
                cut_short = asyncio.create_task(consumer.assign([Q1]))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                cut_short.cancel()
                await asyncio.gather(cut_short, return_exceptions=True)
                await consumer.assign([Q0, Q1])
                while set(received) < set(BODIES):
                    messages = await consumer.poll()
                    assert messages
                    received += [message.body for message in messages]

    run_virtual(main())


def test_of_two_concurrent_assignments_the_later_wins() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            await w.send(*BODIES)
            async with poller(w) as consumer:
                await consumer.assign([Q0])
                await poll_bodies(consumer, 10)
                await consumer.poll(0)
                await asyncio.gather(consumer.assign([Q1]), consumer.assign([Q0, Q1]))
                assert consumer.queues == [Q0, Q1]

    run_virtual(main())


def test_a_queue_being_released_cannot_be_sought() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            async with poller(w) as consumer:
                await consumer.assign([Q0])
                await poll_bodies(consumer, 10)
                await consumer.poll(0)
                seeking = asyncio.create_task(consumer.seek(Q0, 3))
                await asyncio.gather(consumer.assign([]), asyncio.sleep(1))
                with pytest.raises(UsageError, match="assign it first"):
                    await seeking
                assert consumer.queues == []
                assert await consumer.poll(1000) == []

    run_virtual(main())


def test_a_reset_group_is_delivered_everything_from_the_new_offset() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, poller(w) as consumer, w.cluster.admin() as admin:
            await w.send(*BODIES)
            await consumer.assign([Q0])
            await poll_bodies(consumer, 30)
            await consumer.commit()
            [moved] = await admin.reset_offset("consumers", TOPIC, queue=Q0, offset=12)
            assert moved.queue == Q0
            assert await poll_bodies(consumer, 18) == BODIES[12:]
            await consumer.commit()
            assert await w.committed() == 30
            await admin.reset_offset("consumers", TOPIC, to="latest")
            await w.send(b"after")
            assert await poll_bodies(consumer, 1) == [b"after"]

    run_virtual(main())


def test_a_reset_of_a_member_with_held_messages_applies() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.admin() as admin:
            await w.send(*BODIES)
            consumer = poller(w)
            consumer.subscribe(TOPIC)
            async with consumer:
                first = await poll_bodies(consumer, 10)
                await consumer.commit()
                await admin.reset_offset("consumers", TOPIC, to="earliest")
                await asyncio.sleep(2)
                received = first + await poll_bodies(consumer, 30)
                assert Counter(received) >= Counter(BODIES)
                assert received.count(b"0") == 2, "it starts over"
                await consumer.commit()
                assert await w.committed() == 30

    run_virtual(main())


def test_a_topic_created_again_is_polled_from_its_start() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, poller(w, auto_commit=False) as consumer:
            await w.send(*BODIES)
            await consumer.assign([Q0])
            await poll_bodies(consumer, 30)
            await consumer.commit()
            async with w.cluster.admin() as admin:
                await admin.delete_topic(TOPIC)
                await asyncio.sleep(1)
                await admin.create_topic(TOPIC, queues=1)
            await w.send(b"anew")
            [message] = await consumer.poll(30_000)  # the broker holds the pending pull for 20 s
            assert message.body == b"anew"
            await consumer.commit()
            assert await consumer.committed(Q0) == 1

    run_virtual(main())


def test_a_topic_known_before_it_is_watched_reports_new_queues() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, poller(w) as consumer:
            await consumer.assign([Q0])
            await asyncio.sleep(1)
            seen: list[int] = []
            consumer.on_topic_queues_changed(TOPIC, lambda _, queues: seen.append(len(queues)))
            await asyncio.sleep(1)
            async with w.cluster.admin() as admin:
                await admin.create_topic(TOPIC, queues=3)
            await asyncio.sleep(61)
            assert seen == [3]

    run_virtual(main())


@pytest.mark.parametrize("is_pushed", [False, True])
@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_closing_a_poller_while_it_joins_logs_no_warning(
    turns: int, caplog: pytest.LogCaptureFixture, *, is_pushed: bool
) -> None:
    async def main() -> None:
        async with recording(queues=4) as w:
            await w.send(b"1")
            if is_pushed:
                async with w.consumer():
                    await asyncio.sleep(0.0005 * turns)
            else:
                reader = w.cluster.pull_consumer("readers")
                reader.subscribe(TOPIC)
                async with reader:
                    await asyncio.sleep(0.0005 * turns)

    run_virtual(main())
    assert [one.getMessage() for one in caplog.records if one.levelno > logging.INFO] == []

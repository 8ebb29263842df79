"""Dead letters are listed with their reason and redriven once, also after crashes."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import suppress

import pytest

from kourou.client.administration.admin import AdminClient, Redrive
from kourou.client.calls_send import Outgoing
from kourou.client.consuming.acknowledging.redelivery import DeadLetter
from kourou.errors import KourouError, TopicNotFoundError, UsageError
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.sysflag import COMPRESSED, COMPRESSION_ZLIB
from kourou.model.topic import dlq_topic, retry_topic
from kourou.remoting.steady_time import steady_ms
from kourou.store.config import StoreConfig
from kourou.testing.inspection import sender_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

GROUP = "consumers"


def refuse(message: MessageExt) -> None:
    raise DeadLetter(f"no {message.body.decode()}")


async def kill(w: Recording, *bodies: bytes) -> None:
    """Send messages that the group fails to consume."""
    await w.send(*bodies)
    w.received.clear()
    async with w.consumer(refuse):
        await w.until_received(*bodies)
    w.received.clear()
    w.deliveries.clear()


async def bodies(admin: AdminClient) -> list[bytes]:
    return [dead.message.body for dead in await admin.dead_letters(GROUP)]


def test_dead_letters_have_origin_and_reason() -> None:
    async def main() -> None:
        async with recording(brokers=2) as w, w.cluster.admin() as admin:
            assert await admin.dead_letters(GROUP) == []
            await w.send(b"a", b"b", b"c", b"d")
            sent = {}
            async with w.consumer(refuse):
                await w.until_received(b"a", b"b", b"c", b"d")
                sent = {one.body: one for one in w.deliveries}
            dead = await admin.dead_letters(GROUP)
            assert [one.died_at_ms for one in dead] == sorted(one.died_at_ms for one in dead)
            assert {one.message.broker_name for one in dead} == {"broker-0", "broker-1"}
            for one in dead:
                origin = sent[one.message.body]
                assert (one.topic, one.message.msg_id) == (TOPIC, origin.msg_id)
                assert one.message.properties["ORIGIN_MESSAGE_ID"] == origin.offset_msg_id
                assert one.reason == f"no {one.message.body.decode()}"
                assert (one.deliveries, one.is_redriven) == (1, False)
            assert [one.message for one in await admin.dead_letters(GROUP, max_messages=2)] == [
                one.message for one in dead[:2]
            ]
            later = await admin.dead_letters(GROUP, begin_ms=dead[-1].died_at_ms + 1)
            assert later == []

    run_virtual(main())


def test_all_dead_letters_are_redriven_once() -> None:
    async def main() -> None:
        async with recording(brokers=2) as w, w.cluster.admin() as admin:
            await kill(w, b"a", b"b", b"c")
            reported: list[tuple[int, int]] = []
            done = await admin.redrive_all(GROUP, on_progress=lambda *far: reported.append(far))
            assert done == Redrive(sent=3)
            assert reported[-1] == (3, 3)
            assert {total for _, total in reported} == {3}
            assert await admin.redrive_all(GROUP) == Redrive()
            async with w.consumer():
                await w.until_received(b"a", b"b", b"c")
                await asyncio.sleep(60)
            assert sorted(w.received) == [b"a", b"b", b"c"]
            assert {one.topic for one in w.deliveries} == {TOPIC}
            assert {one.reconsume_times for one in w.deliveries} == {0}
            assert "KOUROU_DLQ_REASON" not in w.deliveries[0].properties
            assert all(dead.is_redriven for dead in await admin.dead_letters(GROUP))

            await kill(w, b"d")
            assert await admin.redrive_all(GROUP) == Redrive(sent=1)

    run_virtual(main())


def test_message_that_dies_again_can_be_redriven() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.admin() as admin:
            await kill(w, b"a")
            for _ in range(3):
                assert await admin.redrive_all(GROUP) == Redrive(sent=1)
                async with w.consumer(refuse):
                    await w.until_received(b"a")
                w.received.clear()
            assert await bodies(admin) == [b"a"] * 4

    run_virtual(main())


def test_redrive_to_topic_reaches_all_groups() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.admin() as admin:
            await kill(w, b"a")
            async with w.consumer(group="others"):
                await w.until_received(b"a")
                [dead] = await admin.dead_letters(GROUP)
                receipt = await admin.redrive(GROUP, dead.message, to_topic=True)
                assert receipt is not None
                assert receipt.queue.topic == TOPIC
                assert await admin.redrive(GROUP, dead.message, to_topic=True) is None
                await w.until_received(b"a", b"a")
                assert "RETRY_TOPIC" not in w.deliveries[-1].properties
                assert w.deliveries[-1].msg_id == dead.message.msg_id

    run_virtual(main())


def test_redrive_all_skips_single_redrives_unless_again() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.admin() as admin:
            await kill(w, b"a", b"b", b"c")
            dead = {one.message.body: one.message for one in await admin.dead_letters(GROUP)}
            receipt = await admin.redrive(GROUP, dead[b"b"])
            assert receipt is not None
            assert receipt.queue.topic == retry_topic(GROUP)
            assert await admin.redrive(GROUP, dead[b"b"]) is None
            assert await admin.redrive_all(GROUP) == Redrive(sent=2, skipped=1)
            assert await admin.redrive(GROUP, dead[b"b"], again=True) is not None

    run_virtual(main())


def test_redrive_without_index_counts_as_unchecked() -> None:
    async def main() -> None:
        store = StoreConfig(
            commitlog_segment_bytes=64 * 1024,
            consumequeue_file_bytes=20 * 100,
            message_index_enable=False,
        )
        async with recording(store=store) as w, w.cluster.admin() as admin:
            await kill(w, b"a", b"b")
            assert await admin.redrive_all(GROUP) == Redrive(sent=2, unchecked=2)

    run_virtual(main())


@pytest.mark.parametrize("answers", range(8))
def test_interrupted_redrive_continues_without_duplicates(answers: int) -> None:
    async def main() -> None:
        async with recording() as w:
            await kill(w, *[b"%d" % n for n in range(5)])
            await asyncio.sleep(6)  # until the commits are on the broker's disk
            async with w.cluster.admin() as admin:
                redriving = asyncio.create_task(admin.redrive_all(GROUP))
                await asyncio.sleep(0.004 * answers)
                await w.cluster.kill_broker()
                with suppress(KourouError):  # the kill may have come too early or too late
                    await redriving
            await w.cluster.restart_broker()
            async with w.cluster.admin() as admin:
                done = await admin.redrive_all(GROUP)
                assert done.sent + done.skipped <= 5
                assert await admin.redrive_all(GROUP) == Redrive()
            async with w.consumer():
                await w.until_received(*[b"%d" % n for n in range(5)])
                await asyncio.sleep(60)
            assert sorted(w.received) == [b"%d" % n for n in range(5)]

    run_virtual(main())


def test_unreachable_broker_is_skipped_and_redriven_later() -> None:
    async def main() -> None:
        async with recording(brokers=2) as w:
            await kill(w, *[b"%d" % n for n in range(8)])
            await asyncio.sleep(6)
            async with w.cluster.admin() as admin:
                dead = await admin.dead_letters(GROUP)
                there = {one.message.body for one in dead if one.message.broker_name == "broker-1"}
                assert 0 < len(there) < 8
                address = w.cluster.broker_address(1)
                w.cluster.network.cut(address)
                done = await admin.redrive_all(GROUP)
                assert done.sent == 8 - len(there)
                assert list(done.left) == ["broker-1"]
                w.cluster.network.heal(address)
                assert await admin.redrive_all(GROUP) == Redrive(sent=len(there))
            async with w.consumer():
                await w.until_received(*[b"%d" % n for n in range(8)])
                await asyncio.sleep(60)
            assert len(w.received) == 8

    run_virtual(main())


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_cancelled_redrive_commits_its_progress(turns: int) -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.admin() as admin:
            await kill(w, *[b"%d" % n for n in range(5)])
            redriving = asyncio.create_task(admin.redrive_all(GROUP))
            await asyncio.sleep(0.0005 * turns)
            redriving.cancel()
            await asyncio.gather(redriving, return_exceptions=True)
            done = await admin.redrive_all(GROUP)
            assert done.left == {}
            async with w.consumer():
                await w.until_received(*[b"%d" % n for n in range(5)])
                await asyncio.sleep(60)
            assert sorted(w.received) == [b"%d" % n for n in range(5)]

    run_virtual(main())


def test_crash_before_the_commit_causes_no_duplicates() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.admin() as admin:
            await kill(w, b"a", b"b")
            await asyncio.sleep(6)
            await admin.redrive_all(GROUP)
            # The broker loses the last commits: it writes them to disk every 5 seconds.
            await w.cluster.crash_broker()
            await w.cluster.restart_broker()
            assert await admin.redrive_all(GROUP) == Redrive(skipped=2)
            async with w.consumer():
                await w.until_received(b"a", b"b")
                await asyncio.sleep(60)
            assert sorted(w.received) == [b"a", b"b"]

    run_virtual(main())


def test_compressed_body_is_redriven_unchanged() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.admin() as admin, w.cluster.producer() as producer:
            body = b"x" * 10_000
            packed = Outgoing(
                TOPIC, ("id",), zlib.compress(body), "", 0, COMPRESSED | COMPRESSION_ZLIB
            )
            await sender_of(producer).send(packed, None, MessageQueue(TOPIC, "broker-0", 0))
            async with w.consumer(refuse):
                await w.until_received(body)
            [dead] = await admin.dead_letters(GROUP)
            assert dead.message.body == body
            assert await admin.redrive(GROUP, dead.message) is not None
            async with w.consumer():
                await w.until_received(body, body)
            assert w.deliveries[1].store_size < 1000

    run_virtual(main())


def test_ordered_group_gets_its_dead_letters_again() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.admin() as admin:
            await kill(w, b"a")
            locks, queue = (
                w.cluster.broker().components.queue_locks,
                MessageQueue(TOPIC, "broker-0", 0),
            )
            assert locks.lock(GROUP, "other", [queue], steady_ms()) == [queue]
            assert await admin.redrive_all(GROUP) == Redrive(sent=1)
            async with w.consumer():
                await w.until_received(b"a")
            assert len(await admin.dead_letters(GROUP)) == 1

    run_virtual(main())


def test_invalid_redrive_is_refused() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.admin() as admin, w.cluster.producer() as producer:
            await kill(w, b"a")
            queue = MessageQueue(TOPIC, "broker-0", 0)
            receipt = await producer.send(Message(TOPIC, b"alive"), queue=queue)
            alive = await admin.message_at(queue, receipt.queue_offset)
            with pytest.raises(UsageError, match=f"is in {TOPIC}, not in {dlq_topic(GROUP)}"):
                await admin.redrive(GROUP, alive)
            with pytest.raises(UsageError, match="at least 1"):
                await admin.dead_letters(GROUP, max_messages=0)
            await admin.delete_topic(TOPIC)
            with pytest.raises(TopicNotFoundError):
                await admin.redrive_all(GROUP, to_topic=True)
            assert await admin.redrive_all(GROUP) == Redrive(sent=1)
            assert await admin.redrive_all("nobody") == Redrive()

    run_virtual(main())

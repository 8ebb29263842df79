"""Tests of options and administration of Kourou's consumers with the Java broker.

Machine rooms, hanging listeners, direct calls, permissions, changed filters, resets, pauses, dead
letters, every kind of pull: each with the Java broker 5.5.0 and, to verify the test, with Kourou.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kourou import (
    AdminClient,
    MachineRooms,
    Message,
    MessageExt,
    MessageModel,
    Producer,
    PullConsumer,
    PullResult,
    PullStatus,
    PushConsumer,
    RetryLater,
)
from kourou.errors import NoPermissionError, NoRouteError
from kourou.model.topic import PERM_READ, PERM_WRITE
from kourou.protocol.running_info import ConsumeResult
from tests.interop.ledger import make_topics, read_all
from tests.interop.members import PATIENCE_S, SETTLE_S, Inbox, config_of, consumer_of, name_of


async def _until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - what others say has no event here
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"in vain: {what()}") from None


async def _send(namesrv_addr: str, topic: str, *bodies: str, tags: str | None = None) -> None:
    async with Producer("sending", namesrv_addr) as producer:
        for body in bodies:
            message = Message(topic, body.encode(), tags=tags, keys=[f"key-{body}"])
            await producer.send(message, timeout_ms=15_000)


def _numbers(begin: int, end: int) -> list[str]:
    return [str(number) for number in range(begin, end)]


def test_queues_are_assigned_within_their_machine_room(namesrv_addr: str) -> None:
    topic = name_of("Rooms")
    inbox = Inbox()

    def member(room: str) -> PushConsumer:
        consumer = PushConsumer(
            f"{topic}-{room}", namesrv_addr, config=config_of(allocation=MachineRooms({room}))
        )
        consumer.subscribe(topic)
        consumer.listen(inbox.take)
        return consumer

    def count(consumer: PushConsumer) -> int:
        return sum(queue.topic == topic for queue in consumer.queues)

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=5)
        first, second, elsewhere = member("room-1"), member("room-1"), member("room-2")
        async with first, second, elsewhere:
            await _until(
                lambda: {count(first), count(second)} == {2, 3},
                lambda: (first.queues, second.queues),
            )
            assert count(elsewhere) == 0
            await _send(namesrv_addr, topic, *_numbers(0, 15))
            assert sorted(map(int, await inbox.exactly(15))) == list(range(15))

    asyncio.run(run())


def test_message_of_a_hanging_listener_is_redelivered(namesrv_addr: str) -> None:
    topic = name_of("Hanging")
    inbox, hung = Inbox(), asyncio.Event()

    async def listen(message: MessageExt) -> None:
        if message.body == b"0" and not message.reconsume_times:
            hung.set()
            await asyncio.sleep(PATIENCE_S)
            return
        await inbox.take(message)

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=1)
        consumer = consumer_of(
            namesrv_addr,
            topic,
            listen,
            consume_timeout_ms=1_500,
            shutdown_timeout_ms=0,
            persist_offset_interval_ms=200,
        )
        async with consumer, AdminClient(namesrv_addr) as admin:
            await _send(namesrv_addr, topic, *_numbers(0, 4))
            assert sorted(await inbox.exactly(4)) == _numbers(0, 4)
            assert hung.is_set()
            (again,) = [message for message in inbox.messages if message.body == b"0"]
            assert again.reconsume_times == 1
            async with asyncio.timeout(PATIENCE_S):
                while (await admin.describe_group(f"{topic}-group")).lag:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    asyncio.run(run())


@pytest.mark.parametrize("is_ordered", [False, True], ids=["concurrently", "in order"])
def test_direct_call_consumes_a_message_and_returns_the_result(
    namesrv_addr: str, is_ordered: bool
) -> None:
    topic = name_of("Direct")

    async def listen(message: MessageExt) -> None:
        if message.body == b"later":
            raise RetryLater("not now")
        if message.body == b"raises":
            raise ValueError("told to")

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        consumer = PushConsumer(f"{topic}-group", namesrv_addr, config=config_of())
        consumer.subscribe(topic, tags="none")  # nothing is delivered by pulls
        (consumer.listen_orderly if is_ordered else consumer.listen)(listen)
        async with (
            consumer,
            AdminClient(namesrv_addr) as admin,
            Producer("handing", namesrv_addr) as producer,
        ):
            reported = {}
            for body in ("fine", "later", "raises"):
                message = Message(topic, body.encode(), tags="some")
                receipt = await producer.send(message, timeout_ms=15_000)
                result = await admin.consume_directly(
                    f"{topic}-group", consumer.client_id, receipt.offset_msg_id
                )
                reported[body] = result.consume_result
                assert result.order is is_ordered
                if body == "raises":
                    assert "told to" in str(result.remark)
        assert reported == {
            "fine": ConsumeResult.SUCCESS,
            "later": ConsumeResult.LATER,
            "raises": ConsumeResult.THROW_EXCEPTION,
        }

    asyncio.run(run())


def test_topic_permissions_apply_until_restored(namesrv_addr: str) -> None:
    topic = name_of("Closed")

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        inbox = Inbox()
        await _send(namesrv_addr, topic, "first")
        async with AdminClient(namesrv_addr) as admin:
            await admin.update_topic(topic, perm=PERM_READ)
            with pytest.raises(NoRouteError):
                await _send(namesrv_addr, topic, "refused")
            async with (
                consumer_of(namesrv_addr, topic, inbox.take),
                PullConsumer("pulling", namesrv_addr) as reader,
            ):
                await inbox.exactly(1)
                queue, *_ = await reader.fetch_subscribe_message_queues(topic)
                await admin.update_topic(topic, perm=PERM_WRITE)
                await _send(namesrv_addr, topic, "second")
                with pytest.raises(NoPermissionError):
                    await reader.pull(queue, 0)
                assert await reader.fetch_subscribe_message_queues(topic) == []
                await admin.update_topic(topic, perm=PERM_READ | PERM_WRITE)
                await _send(namesrv_addr, topic, "third")
                assert sorted(await inbox.exactly(3)) == ["first", "second", "third"]

    asyncio.run(run())


def test_group_with_a_changed_filter_receives_matching_messages(
    namesrv_addr: str,
) -> None:
    topic = name_of("Refiltered")

    async def consume(sql: str, prefix: str, *wanted: str) -> list[str]:
        inbox = Inbox()
        consumer = PushConsumer(f"{topic}-group", namesrv_addr, config=config_of())
        consumer.subscribe(topic, sql=sql)
        consumer.listen(inbox.take)
        async with consumer, Producer("filtering", namesrv_addr) as producer:
            for price in range(6):
                body = f"{prefix}{price}".encode()
                message = Message(topic, body, properties={"price": str(price)})
                await producer.send(message, timeout_ms=15_000)
            await _until(lambda: set(wanted) <= set(inbox.bodies()), inbox.bodies)
            await asyncio.sleep(SETTLE_S)
            return sorted(inbox.bodies())

    async def run() -> None:
        await make_topics(namesrv_addr, topic)
        assert await consume("price < 2", "a", "a0", "a1") == ["a0", "a1"]
        received = await consume("price >= 2 AND price < 5", "b", "b2", "b3", "b4")
        # When the group left, its offset was not yet past the messages after the last match.
        assert [body for body in received if body not in {"a2", "a3", "a4"}] == ["b2", "b3", "b4"]

    asyncio.run(run())


def test_running_consumer_changes_its_subscriptions(
    namesrv_addr: str,
) -> None:
    topic, other = name_of("Resubscribed"), name_of("Later")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, other)
        inbox = Inbox()
        consumer = PushConsumer(f"{topic}-group", namesrv_addr, config=config_of())
        consumer.subscribe(topic, tags="a")
        consumer.listen(inbox.take)
        async with consumer:
            await _send(namesrv_addr, topic, "a1", tags="a")
            assert await inbox.exactly(1) == ["a1"]
            await _send(namesrv_addr, other, "o1")
            consumer.subscribe(other)
            assert sorted(await inbox.exactly(2)) == ["a1", "o1"]
            consumer.subscribe(topic, sql="TAGS = 'b'")
            await asyncio.sleep(1)
            await _send(namesrv_addr, topic, "a2", tags="a")
            await _send(namesrv_addr, topic, "b2", "b3", tags="b")
            assert sorted(await inbox.exactly(4)) == ["a1", "b2", "b3", "o1"]
            consumer.unsubscribe(other)
            await _until(lambda: {queue.topic for queue in consumer.queues} <= _own(topic), list)
            await _send(namesrv_addr, other, "o2")
            await _send(namesrv_addr, topic, "b4", tags="b")
            assert sorted(await inbox.exactly(5)) == ["a1", "b2", "b3", "b4", "o1"]

    asyncio.run(run())


def _own(topic: str) -> set[str]:
    return {topic, f"%RETRY%{topic}-group"}


@pytest.mark.parametrize("kind", ["concurrently", "in order", "broadcast"])
def test_group_reset_during_consumption_continues_there(
    namesrv_addr: str, kind: str, tmp_path: Path
) -> None:
    topic = name_of("Reset")
    inbox = Inbox()

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=2)
        model = MessageModel.BROADCASTING if kind == "broadcast" else MessageModel.CLUSTERING
        config = config_of(
            message_model=model, local_offset_directory=tmp_path, persist_offset_interval_ms=200
        )
        consumer = PushConsumer(f"{topic}-group", namesrv_addr, config=config)
        consumer.subscribe(topic)
        (consumer.listen_orderly if kind == "in order" else consumer.listen)(inbox.take)
        async with consumer, AdminClient(namesrv_addr) as admin:
            await _send(namesrv_addr, topic, *_numbers(0, 10))
            await inbox.exactly(10)
            await admin.reset_offset(f"{topic}-group", topic, to="earliest")
            assert Counter(await inbox.exactly(20)) == dict.fromkeys(_numbers(0, 10), 2)
            await _send(namesrv_addr, topic, *_numbers(10, 14))
            assert sorted((await inbox.exactly(24))[20:]) == _numbers(10, 14)
        if kind == "in order":
            for number in range(2):
                offsets = [m.queue_offset for m in inbox.messages if m.queue_id == number]
                again = offsets.index(0, 1)
                assert offsets[:again] == sorted(offsets[:again])
                assert offsets[again:] == sorted(offsets[again:])

    asyncio.run(run())


def test_paused_consumer_keeps_its_queues_and_continues(namesrv_addr: str) -> None:
    topic = name_of("Paused")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=2)
        inbox = Inbox()
        consumer = consumer_of(namesrv_addr, topic, inbox.take)
        async with consumer:
            await _send(namesrv_addr, topic, *_numbers(0, 6))
            await inbox.exactly(6)
            consumer.pause()
            await _send(namesrv_addr, topic, *_numbers(6, 26))
            await asyncio.sleep(2)
            held = len(inbox.messages)
            assert held < 26, "a pull that was held brings what comes first"
            consumer.consume_threads = 3
            consumer.resume()
            assert sorted(map(int, await inbox.exactly(26))) == list(range(26))

    asyncio.run(run())


@pytest.mark.parametrize("is_ordered", [False, True], ids=["concurrently", "in order"])
def test_message_that_fails_too_often_is_a_dead_letter_that_can_be_redriven(
    namesrv_addr: str, is_ordered: bool
) -> None:
    topic = name_of("Failing")
    group = f"{topic}-group"
    tries: Counter[str] = Counter()
    inbox = Inbox()

    async def listen(message: MessageExt) -> None:
        tries[message.body.decode()] += 1
        if message.body == b"bad" and tries["bad"] <= 3:
            raise ValueError("no good")
        await inbox.take(message)

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=1)
        config = config_of(max_reconsume_times=2, suspend_queue_ms=100)
        consumer = PushConsumer(group, namesrv_addr, config=config)
        consumer.subscribe(topic)
        (consumer.listen_orderly if is_ordered else consumer.listen)(listen)
        async with consumer, AdminClient(namesrv_addr) as admin:
            await _send(namesrv_addr, topic, "good", "bad", "better")
            assert sorted(await inbox.exactly(2)) == ["better", "good"]
            async with asyncio.timeout(PATIENCE_S):
                while not (dead := await admin.dead_letters(group)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert [(letter.message.body, letter.message.keys) for letter in dead] == [
                (b"bad", ["key-bad"])
            ]
            assert tries == {"good": 1, "bad": 3, "better": 1}
            done = await admin.redrive_all(group, to_topic=is_ordered)
            assert done.sent == 1
            assert sorted(await inbox.exactly(3)) == ["bad", "better", "good"]
            assert (await admin.redrive_all(group, to_topic=is_ordered)).sent == 0

    asyncio.run(run())


def test_pulls_of_every_kind_return_the_requested_messages(namesrv_addr: str) -> None:
    topic = name_of("Pulled")

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=1)
        await _send(namesrv_addr, topic, *_numbers(0, 8), tags="even")
        stored = await read_all(namesrv_addr, topic)
        async with PullConsumer(f"{topic}-group", namesrv_addr) as consumer:
            (queue,) = await consumer.fetch_subscribe_message_queues(topic)
            found = await consumer.pull(queue, 0, max_messages=3)
            assert (found.status, found.next_offset) == (PullStatus.FOUND, 3)
            assert (found.min_offset, found.max_offset) == (0, 8)
            statuses = [
                (await consumer.pull(queue, 8)).status,
                (await consumer.pull(queue, 99)).status,
                (await consumer.pull(queue, 0, tags="odd")).status,
            ]
            assert statuses == [
                PullStatus.NO_NEW_MSG,
                PullStatus.OFFSET_ILLEGAL,
                PullStatus.NO_MATCHED_MSG,
            ]
            by_sql = await consumer.pull(queue, 0, sql="TAGS = 'even' AND KEYS = 'key-5'")
            assert [message.body for message in by_sql.messages] == [b"5"]
            results: asyncio.Queue[PullResult] = asyncio.Queue()
            consumer.pull_with_callback(queue, 6, results.put_nowait)
            assert len((await asyncio.wait_for(results.get(), PATIENCE_S)).messages) == 2
            waiting = asyncio.create_task(consumer.pull_or_wait(queue, 8))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            await _send(namesrv_addr, topic, "8", tags="odd")
            assert [message.body for message in (await waiting).messages] == [b"8"]
            assert await consumer.offset_for_time(queue, stored[3].store_at_ms) <= 3
            await consumer.commit_offset(queue, 5)
            assert await consumer.committed(queue) == 5
        consumer = PullConsumer(f"{topic}-group", namesrv_addr)
        consumer.subscribe(topic, tags="even")
        async with consumer:
            bodies = [message.body for message in await consumer.poll(30_000)]
            assert bodies == [b"5", b"6", b"7"], "it goes on where the group committed"
            await consumer.seek_to_time(queue, 0)
            assert (await consumer.poll(30_000))[0].body == b"0"
            consumer.pause([queue])
            await consumer.seek_to_end(queue)
            await _send(namesrv_addr, topic, "9", tags="even")
            assert await consumer.poll(1_000) == []
            consumer.resume([queue])
            assert [message.body for message in await consumer.poll(30_000)] == [b"9"]

    asyncio.run(run())

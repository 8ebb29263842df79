"""Polling queues that were assigned or topics that were subscribed, on a simulated network."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.watching.consume_hooks import ConsumeContext
from kourou.errors import ClosedError, KourouError, UsageError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

BODIES = [b"%d" % number for number in range(30)]
Q0, Q1 = (MessageQueue(TOPIC, "broker-0", number) for number in range(2))


def poller(w: Recording, **options: Any) -> PullConsumer:
    options = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET, **options}
    return w.cluster.pull_consumer("consumers", PullConsumerConfig(**options))


async def poll_bodies(consumer: PullConsumer, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        messages = await consumer.poll()
        assert messages, f"only {len(got)} of {count} came"
        got += [message.body for message in messages]
    return got


def test_assigned_queues_are_polled_completely_and_committed() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            await w.send(*BODIES)
            async with poller(w) as consumer:
                await consumer.assign([Q0, Q1])
                assert sorted(await poll_bodies(consumer, 30)) == sorted(BODIES)
                assert await consumer.poll(100) == []
                await asyncio.sleep(5.5)
                assert await w.committed() == 30
            async with poller(w) as consumer:
                await consumer.assign([Q0, Q1])
                assert await consumer.poll(1000) == [], "committed messages are not delivered again"

    run_virtual(main())


def test_messages_of_the_last_poll_are_delivered_again_after_close() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            async with poller(w) as consumer:
                await consumer.assign([Q0])
                assert len(await consumer.poll()) == 10
                assert len(await consumer.poll()) == 10
            assert await w.committed() == 10
            async with poller(w) as consumer:
                await consumer.assign([Q0])
                [first] = await consumer.poll(max_messages=1)
                assert first.body == b"10"
                await consumer.commit()
            assert await w.committed() == 11, "commit includes the messages of the last poll"

    run_virtual(main())


def test_nothing_is_committed_without_auto_commit() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            async with poller(w, auto_commit=False) as consumer:
                await consumer.assign([Q0])
                await poll_bodies(consumer, 30)
                await consumer.poll(0)
                await asyncio.sleep(20)
            assert await w.committed() == 0

    run_virtual(main())


def test_a_message_wakes_a_poll_and_a_close_ends_it() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            consumer = poller(w)
            await consumer.start()
            await consumer.assign([Q0])
            waiting = asyncio.create_task(consumer.poll(60_000))
            await asyncio.sleep(1)
            await w.send(b"x")
            async with asyncio.timeout(0.1):
                [message] = await waiting
            assert (message.body, message.broker_name) == (b"x", "broker-0")
            with pytest.raises(UsageError, match="max_messages is 0"):
                await consumer.poll(max_messages=0)
            waiting = asyncio.create_task(consumer.poll(60_000))
            await asyncio.sleep(1)
            with pytest.raises(UsageError, match="another task polls"):
                await consumer.poll()
            await consumer.close()
            assert await waiting == []
            with pytest.raises(ClosedError):
                await consumer.poll()

    run_virtual(main())


def test_iteration_acknowledges_the_message_before() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            async with poller(w) as consumer:
                await consumer.assign([Q0])
                async for message in consumer:
                    if message.body == b"12":
                        break
            assert await w.committed() == 12

    run_virtual(main())


def test_seek_moves_the_position_of_the_next_poll() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*BODIES)
            async with poller(w) as consumer:
                await consumer.assign([Q0])
                assert len(await poll_bodies(consumer, 30)) == 30
                await consumer.seek(Q0, 7)
                assert consumer.position(Q0) == 7
                [message] = await consumer.poll(max_messages=1)
                assert message.queue_offset == 7
                await consumer.seek_to_beginning(Q0)
                [message] = await consumer.poll(max_messages=1)
                assert message.queue_offset == 0
                await consumer.seek_to_end(Q0)
                assert await consumer.poll(100) == []
                with pytest.raises(UsageError, match=r"cannot seek 31: .* has offsets 0 to 30"):
                    await consumer.seek(Q0, 31)
                with pytest.raises(UsageError, match="assign it first"):
                    await consumer.seek(Q1, 0)
                await consumer.seek(Q0, 3)
            assert await w.committed() == 3, "the group continues at the sought offset"

    run_virtual(main())


def test_seek_to_time_continues_at_the_first_message_not_older() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(b"old", b"older")
            await asyncio.sleep(60)
            noon_ms = w.cluster.runtime.clock.now_ms()
            await asyncio.sleep(60)
            await w.send(b"new", b"newer")
            async with poller(w) as consumer:
                [queue] = await consumer.fetch_subscribe_message_queues(TOPIC)
                await consumer.assign([queue])
                for at_ms, first in ((noon_ms, b"new"), (0, b"old")):
                    await consumer.seek_to_time(queue, at_ms)
                    assert (await consumer.poll())[0].body == first
                await consumer.seek_to_time(queue, noon_ms + 3_600_000)
                assert await consumer.poll(timeout_ms=1_000) == []
                with pytest.raises(UsageError, match="is not assigned to this"):
                    await consumer.seek_to_time(MessageQueue(TOPIC, "broker-0", 9), 0)

    run_virtual(main())


def test_commit_soon_commits_returned_messages() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*[b"%d" % number for number in range(10)])
            consumer = poller(w, auto_commit=False)
            async with consumer:
                await consumer.assign(await consumer.fetch_subscribe_message_queues(TOPIC))
                given = await consumer.poll(max_messages=4)
                consumer.commit_soon()
                await asyncio.sleep(1)
                assert await w.committed() == len(given)
            with pytest.raises(ClosedError):
                consumer.commit_soon()

    run_virtual(main())


def test_a_paused_queue_returns_nothing_until_resumed() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            await w.send(*BODIES)
            async with poller(w) as consumer:
                await consumer.assign([Q0, Q1])
                await asyncio.sleep(1)
                consumer.pause([Q0])
                first = [await consumer.poll(100) for _ in range(10)]
                assert {one.queue_id for messages in first for one in messages} == {1}
                waiting = asyncio.create_task(consumer.poll(60_000))
                await asyncio.sleep(1)
                consumer.resume([Q0])
                assert {one.queue_id for one in await waiting} == {0}

    run_virtual(main())


def test_subscribed_topics_are_shared_with_push_consumers() -> None:
    async def main() -> None:
        async with recording(queues=4) as w:
            changes: list[tuple[str, int, int]] = []
            consumer = poller(w, instance_name="pulls")
            consumer.subscribe(TOPIC)
            consumer.on_queues_changed(
                lambda topic, all_queues, own: changes.append((topic, len(all_queues), len(own)))
            )
            async with consumer:
                await w.until(lambda: len(consumer.queues) == 4)
                async with w.consumer() as pushed:
                    await w.until(lambda: len(consumer.queues) == 2)
                    own = [queue for queue in pushed.queues if queue.topic == TOPIC]
                    assert sorted(own + consumer.queues) == sorted(
                        await consumer.fetch_subscribe_message_queues(TOPIC)
                    )
                    await w.send(*BODIES)
                    await asyncio.sleep(10)  # two queues of four hold 14 to 16 of them
                    assert 14 <= len(w.received) <= 16
                    got = await poll_bodies(consumer, len(BODIES) - len(w.received))
                    assert Counter(got) + Counter(w.received) == Counter(BODIES)
                await w.until(lambda: len(consumer.queues) == 4)
            assert changes == [(TOPIC, 4, 4), (TOPIC, 4, 2), (TOPIC, 4, 4)]

    run_virtual(main())


def test_tags_may_change_and_a_topic_may_be_unsubscribed() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, poller(w) as consumer:
            consumer.subscribe(TOPIC, "a")
            await w.until(lambda: len(consumer.queues) == 1)
            await w.send(b"no", tags="b")
            await w.send(b"yes", tags="a")
            assert await poll_bodies(consumer, 1) == [b"yes"]
            consumer.subscribe(TOPIC, "b")
            await w.send(b"now", tags="b")
            assert await poll_bodies(consumer, 1) == [b"now"]
            await consumer.commit()
            consumer.unsubscribe(TOPIC)
            await w.until(lambda: not consumer.queues)
            assert await w.committed() == 3
            with pytest.raises(UsageError, match="not both"):
                await consumer.assign([Q0])

    run_virtual(main())


def test_a_poll_without_queues_is_refused() -> None:
    async def main() -> None:
        async with recording() as w, poller(w) as consumer:
            with pytest.raises(UsageError, match="nothing to poll"):
                await consumer.poll()
            with pytest.raises(UsageError, match="without a queue"):
                await consumer.commit(offset=3)
            await consumer.assign([Q0])
            with pytest.raises(UsageError, match="not both"):
                consumer.subscribe(TOPIC)

    run_virtual(main())


def test_a_broker_crash_skips_no_message() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, poller(w) as consumer:
            await consumer.assign([Q0])
            await w.send(*BODIES[:10])
            got = await poll_bodies(consumer, 10)
            await w.cluster.crash_broker()
            assert await consumer.poll(3000) == []
            assert consumer.health().problems
            await w.cluster.restart_broker()
            await w.send(*BODIES[10:])
            got += await poll_bodies(consumer, 20)
            assert Counter(got) >= Counter(BODIES)
            assert not consumer.health().problems

    run_virtual(main())


def test_held_messages_stay_within_the_limits() -> None:
    async def main() -> None:
        async with recording(queues=2) as w:
            await w.send(*[b"%050d" % number for number in range(200)])
            async with poller(w, pull_threshold_all=40) as consumer:
                await consumer.assign([Q0, Q1])
                await asyncio.sleep(5)
                assert 40 < consumer.health().held_messages <= 40 + 2 * 10
                assert len(await poll_bodies(consumer, 200)) == 200

    run_virtual(main())


def test_callbacks_get_results_or_errors() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, poller(w) as consumer:
            results: list[list[MessageExt]] = []
            errors: list[KourouError] = []
            consumer.pull_with_callback(Q0, 0, lambda result: results.append(result.messages))
            await asyncio.sleep(1)
            assert not results
            await w.send(b"x")
            await w.until(lambda: bool(results), 0.1)
            assert [message.body for message in results[0]] == [b"x"]
            consumer.pull_with_callback(
                Q0, 0, lambda result: results.append(result.messages), errors.append, tags="||"
            )
            await w.until(lambda: bool(errors), 0.1)
            assert len(results) == 1

    run_virtual(main())


def test_closing_the_consumer_calls_no_callback() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            outcomes: list[object] = []
            for end in (PullConsumer.close, PullConsumer.abort):
                consumer = poller(w)
                await consumer.start()
                consumer.pull_with_callback(Q0, 0, outcomes.append, outcomes.append)
                await asyncio.sleep(1)
                ending = end(consumer)
                if ending is not None:
                    await ending
                await asyncio.sleep(30)
            assert outcomes == []

    run_virtual(main())


def test_a_watched_topic_reports_its_new_queues() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, poller(w) as consumer:
            seen: list[int] = []
            consumer.on_topic_queues_changed(TOPIC, lambda _, queues: seen.append(len(queues)))
            await asyncio.sleep(1)
            async with w.cluster.admin() as admin:
                await admin.create_topic(TOPIC, queues=3)
            await asyncio.sleep(61)
            assert seen == [3]

    run_virtual(main())


def test_hooks_and_statistics_see_polled_messages() -> None:
    async def main() -> None:
        class Hook:
            def __init__(self) -> None:
                self.calls: list[tuple[str, int]] = []

            def before(self, context: ConsumeContext) -> None:
                assert context.outcome is None
                self.calls.append(("before", len(context.messages)))

            def after(self, context: ConsumeContext) -> None:
                assert context.outcome is not None
                self.calls.append((context.outcome.value, len(context.messages)))
                raise ValueError("a hook's failure changes nothing")

        async with recording(queues=1) as w, poller(w) as consumer:
            hook = Hook()
            consumer.add_hook(hook)
            await consumer.assign([Q0])
            await w.send(*BODIES[:10])
            await asyncio.sleep(1)
            await poll_bodies(consumer, 10)
            assert hook.calls[:2] == [("before", 10), ("SUCCESS", 10)] or len(hook.calls) > 2
            await asyncio.sleep(30)
            stats = consumer.stats()[TOPIC]
            assert stats.pull_tps == pytest.approx(10 / 30, rel=0.1)
            assert stats.consume_ok_tps == pytest.approx(10 / 30, rel=0.1)

    run_virtual(main())


def test_a_sought_queue_keeps_the_filter_of_its_assignment() -> None:
    async def main() -> None:
        async with recording(queues=2) as w, w.cluster.producer() as producer:
            for body in (b"a0", b"b0", b"a1", b"b1"):
                message = Message(TOPIC, body, tags=body[:1].decode())
                await producer.send(message, queue=(Q0, Q1)[int(body[1:])])
            async with poller(w) as consumer:
                await consumer.assign([Q0], tags="a")
                await consumer.assign([Q0, Q1], tags="b")
                assert sorted(await poll_bodies(consumer, 2)) == [b"a0", b"b1"]
                await consumer.seek(Q0, 0)
                assert await poll_bodies(consumer, 1) == [b"a0"]

    run_virtual(main())

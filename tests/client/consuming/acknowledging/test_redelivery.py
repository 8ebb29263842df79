"""Redelivery as requested by a listener's exception."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from kourou.broker.timer.timer_config import TimerConfig
from kourou.client.consuming.acknowledging.redelivery import (
    DeadLetter,
    Redelivery,
    RetryLater,
    is_instruction,
    level_not_shorter,
    reason_of,
    redelivery_of,
)
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.errors import UsageError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.topic import dlq_topic
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from tests.client.consuming.messages import message_at

GROUP = "consumers"


async def dead_letters(w: Recording, group: str = GROUP) -> list[MessageExt]:
    async with w.cluster.pull_consumer() as reader:
        [queue] = await reader.fetch_subscribe_message_queues(dlq_topic(group))
        return (await reader.pull(queue, 0)).messages


def test_an_ordinary_failure_is_redelivered_with_its_reason() -> None:
    assert redelivery_of(ValueError("no\x01such\naccount"), message_at()) == Redelivery(
        reason="ValueError: no such account"
    )
    assert not is_instruction(ValueError())


def test_an_instruction_sets_the_delay() -> None:
    assert redelivery_of(RetryLater(), message_at()) == Redelivery()
    assert redelivery_of(RetryLater(level=5), message_at()) == Redelivery(5, is_requested=True)
    assert redelivery_of(RetryLater("busy", delay_ms=1), message_at()) == Redelivery(
        0, 1, "busy", is_requested=True
    )
    assert redelivery_of(DeadLetter("bad"), message_at()) == Redelivery(
        -1, None, "bad", is_requested=True
    )


def test_unnamed_messages_of_a_batch_are_done() -> None:
    done, late, dead = message_at(0), message_at(1), message_at(2)
    several = ExceptionGroup(
        "", [RetryLater(level=2, messages=[late]), DeadLetter(messages=[dead])]
    )
    assert redelivery_of(several, done) is None
    assert redelivery_of(several, late) == Redelivery(2, is_requested=True)
    assert redelivery_of(several, dead) == Redelivery(-1, is_requested=True)
    assert is_instruction(several)


def test_a_failure_beside_instructions_applies_to_unnamed_messages() -> None:
    named, other = message_at(0), message_at(1)
    both = ExceptionGroup("", [KeyError("k"), RetryLater(level=2, messages=[named])])
    assert redelivery_of(both, named) == Redelivery(2, is_requested=True)
    assert redelivery_of(both, other) == Redelivery(reason="KeyError: 'k'")
    assert not is_instruction(both)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_a_reason_is_one_short_line_whatever_was_raised() -> None:
    assert reason_of(UnprintableError()) == "UnprintableError"
    assert reason_of(ValueError("x" * 10_000)) == "ValueError: " + "x" * 288
    assert reason_of(DeadLetter("a\r\n\x00b\ud800")) == "a b"


@pytest.mark.parametrize(
    ("delay_ms", "level"), [(1, 1), (1_000, 1), (1_001, 2), (7_200_000, 18), (10**9, 18)]
)
def test_a_delay_becomes_the_shortest_level_that_is_not_shorter(delay_ms: int, level: int) -> None:
    assert level_not_shorter(delay_ms) == level


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"level": 1, "delay_ms": 1}, "not both"),
        ({"level": 0}, "level is 0"),
        ({"level": 101}, "allowed are 1 to 100"),
        ({"delay_ms": 0}, "delay_ms is 0"),
    ],
)
def test_invalid_delays_are_refused_with_their_range(
    options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        RetryLater(**options)


def test_a_listener_chooses_the_level_of_each_redelivery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        times = []

        def later(message: MessageExt) -> None:
            times.append(asyncio.get_running_loop().time())
            if message.reconsume_times < 3:
                raise RetryLater("not yet", level=(5, 1, 4)[message.reconsume_times])

        async with recording() as w:
            await w.send(b"pay")
            async with w.consumer(later):
                await w.until_received(*[b"pay"] * 4, timeout_s=200)
                await asyncio.sleep(300)
            waits = [after - before for before, after in pairwise(times)]
            assert waits == pytest.approx([60, 1, 30], abs=1)
            assert w.received == [b"pay"] * 4
            assert await w.committed() == 1

    run_virtual(main())
    assert not [one for one in caplog.records if one.levelno > logging.INFO], "it is not an error"


def test_a_dead_letter_is_not_redelivered_and_keeps_its_reason() -> None:
    async def main() -> None:
        def refuse(_: MessageExt) -> None:
            raise DeadLetter("no such account")

        async with recording() as w:
            await w.send(b"pay")
            async with w.consumer(refuse):
                await w.until_received(b"pay")
                await asyncio.sleep(1_200)
            assert w.received == [b"pay"]
            [dead] = await dead_letters(w)
            assert (dead.body, dead.msg_id) == (b"pay", w.deliveries[0].msg_id)
            assert dead.properties["KOUROU_DLQ_REASON"] == "no such account"
            assert await w.committed() == 1

    run_virtual(main())


def test_the_last_failure_is_the_reason_of_the_dead_letter() -> None:
    async def main() -> None:
        def fail(message: MessageExt) -> None:
            raise ValueError(f"try {message.reconsume_times}")

        async with recording() as w:
            await w.send(b"bad")
            async with w.consumer(fail, max_reconsume_times=2):
                await asyncio.sleep(600)
            [dead] = await dead_letters(w)
            assert dead.properties["KOUROU_DLQ_REASON"] == "ValueError: try 2"
            again = [m.properties.get("KOUROU_DLQ_REASON") for m in w.deliveries]
            assert again == [None, None, None]

    run_virtual(main())


def test_only_named_messages_of_a_batch_are_redelivered() -> None:
    async def main() -> None:
        calls: list[list[bytes]] = []

        def take(messages: list[MessageExt]) -> None:
            calls.append([one.body for one in messages])
            failed = [m for m in messages if m.body in {b"2", b"4"} and not m.reconsume_times]
            if failed:
                raise RetryLater(level=1, messages=failed)

        async with recording(queues=1) as w, w.cluster.producer() as producer:
            await producer.send_batch([Message(TOPIC, b"%d" % n) for n in range(6)])
            consumer = w.cluster.push_consumer(
                GROUP,
                PushConsumerConfig(
                    consume_batch_size=16, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
                ),
            )
            consumer.subscribe(TOPIC)
            consumer.listen_in_batches(take)
            async with consumer:
                await w.until(lambda: sum(map(len, calls)) == 8)
                await asyncio.sleep(60)
            again = [body for call in calls[1:] for body in call]
            assert (calls[0], sorted(again)) == ([b"%d" % n for n in range(6)], [b"2", b"4"])
            assert await w.committed() == 6

    run_virtual(main())


def test_a_dead_letter_waits_for_a_broker_and_is_not_delivered_meanwhile() -> None:
    async def main() -> None:
        async with recording() as w:
            address = w.cluster.broker_address()

            def refuse(_: MessageExt) -> None:
                w.cluster.network.cut(address)
                raise DeadLetter("never")

            await w.send(b"x")
            async with w.consumer(refuse):
                await w.until_received(b"x")
                await asyncio.sleep(120)
                w.cluster.network.heal(address)
                await asyncio.sleep(30)
                assert w.received == [b"x"]
            [dead] = await dead_letters(w)
            assert dead.properties["KOUROU_DLQ_REASON"] == "never"
            assert await w.committed() == 1

    run_virtual(main())


@pytest.mark.parametrize(
    ("has_timers", "waits_s"),
    [(True, 45.3), (False, 60.0)],
    ids=["at its time", "at the next level"],
)
def test_a_delay_is_never_shorter_than_requested(has_timers: bool, waits_s: float) -> None:
    async def main() -> None:
        times = []

        def later(message: MessageExt) -> None:
            times.append(asyncio.get_running_loop().time())
            if message.reconsume_times == 0:
                raise RetryLater(delay_ms=45_300)

        async with recording(timer=TimerConfig(timer_wheel_enable=has_timers)) as w:
            await w.send(b"pay")
            async with w.consumer(later):
                await w.until_received(b"pay", b"pay", timeout_s=200)
            assert times[1] - times[0] == pytest.approx(waits_s, abs=0.5)
            assert w.deliveries[1].reconsume_times == 1
            assert w.deliveries[1].topic == TOPIC

    run_virtual(main())


@pytest.mark.parametrize("gives_back", [False, True], ids=["raised", "given back"])
@pytest.mark.parametrize("delay_ms", [0, 20_000], ids=["sent at once", "sent with a delay"])
def test_every_redelivery_waits_for_the_requested_delay(delay_ms: int, *, gives_back: bool) -> None:
    async def main() -> None:
        times: list[float] = []
        now_s = asyncio.get_running_loop().time

        async with recording(queues=1) as w, w.cluster.producer() as producer:
            times.append(now_s())
            await producer.send(Message(TOPIC, b"pay", delay_ms=delay_ms))
            config = PushConsumerConfig(
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=3
            )
            consumer = w.cluster.push_consumer(GROUP, config)
            consumer.subscribe(TOPIC)

            def later(message: MessageExt) -> None:
                times.append(now_s())
                raise RetryLater("not yet", delay_ms=90_500)

            async def give_back_all() -> None:
                async for message in consumer:
                    times.append(now_s())
                    await consumer.give_back(message, RetryLater("not yet", delay_ms=90_500))

            if gives_back:
                async with consumer:
                    loop = asyncio.create_task(give_back_all())
                    await asyncio.sleep(400)
                    loop.cancel()
            else:
                consumer.listen(later)
                async with consumer:
                    await asyncio.sleep(400)
            waits_s = [later - before for before, later in pairwise(times)]
            expected = [delay_ms / 1000, 90.5, 90.5, 90.5]
            assert waits_s == pytest.approx(expected, abs=1), waits_s
            [dead] = await dead_letters(w)
            assert dead.properties["KOUROU_DLQ_REASON"] == "not yet"

    run_virtual(main())

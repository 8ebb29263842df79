"""Pulls held by the fast path have the outcome of the general path, whatever changes meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.broker.writing.put import PutResult
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import PERM_WRITE, TopicConfig
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.record.decode import decode_messages
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.pulling.test_fast_pull import differing, fast_path, fill, frame, state_of

WAITING: dict[str, object] = {"suspendTimeoutMillis": "15000"}
"""The first pull of an empty queue that waits for its first message."""


def connect(
    broker: SimulatedBroker, *, is_fast: bool = True, pause_bytes: int = 1 << 20
) -> LoneConnection:
    lone = LoneConnection(
        {RequestCode.PULL_MESSAGE: broker.pulls.on_pull_message},
        fast_path(broker) if is_fast else None,
        output_pause_bytes=pause_bytes,
    )
    lone.connection.on_closed.append(broker.held_pulls.on_connection_closed)
    return lone


def is_all_answered(lone: LoneConnection) -> bool:
    """Return whether no request of the connection counts as unanswered."""
    most = lone.connection.limits
    return lone.connection.unanswered.has_room(
        most.unanswered_bytes_max, most.unanswered_requests_max
    )


def change(broker: SimulatedBroker, dice: random.Random) -> None:
    """Change something that pull checks depend on, or change it back."""
    changes: list[Callable[[], object]] = [
        lambda: broker.topics.put(TopicConfig("T", 4, 4, perm=PERM_WRITE)),
        lambda: broker.topics.put(TopicConfig("T", 4, 4)),
        lambda: broker.topics.put(TopicConfig("T", 4, 4)),
        lambda: broker.topics.put(TopicConfig("T", 2, 4)),
        lambda: broker.topics.put(TopicConfig("T", 4, 4, topic_sys_flag=2)),
        lambda: broker.groups.put(SubscriptionGroup("g", consume_enable=False)),
        lambda: broker.groups.put(SubscriptionGroup("g")),
        lambda: broker.groups.put(SubscriptionGroup("g")),
        lambda: broker.live_config.update({"longPollingEnable": dice.choice(("true", "false"))}, 1),
        lambda: broker.offsets.reset("g", "T", 1, 0),
        lambda: broker.held_pulls.on_offset_reset("g", "T", 1),
    ]
    dice.choice(changes)()


async def live(broker: SimulatedBroker, dice: random.Random, lone: LoneConnection) -> None:
    """Send random pulls, most of which are held, messages that wake some, and changes; wait."""
    for number in range(150):
        step = dice.randrange(10)
        if step < 5:
            queue_id = dice.randrange(4)
            end = broker.store.reader.max_offset("T", queue_id)
            fields: dict[str, object] = {
                "queueId": str(queue_id),
                "queueOffset": str(max(0, end + dice.choice((0, 0, 0, 0, -1, 1)))),
                "suspendTimeoutMillis": dice.choice(("15000", "15000", "700", "0", "-1", "9" * 12)),
                "commitOffset": str(dice.randrange(9)),
            }
            if dice.random() < 0.3:
                fields |= {**differing(dice), **fields}
            lone.receive_bytes(frame(fields, opaque=number, body=dice.choice((b"", b"ignored"))))
        elif step < 8:
            count = dice.choice((1, 1, 1, 3))
            tags = dice.choice(("", "TagA"))
            drafts = [broker.draft(queue_id=dice.randrange(4), tags=tags) for _ in range(count)]
            await asyncio.gather(*(broker.store_messages([draft]) for draft in drafts))
        elif step < 9:
            change(broker, dice)
        else:
            await asyncio.sleep(dice.choice((0.05, 1, 5)))
        await asyncio.sleep(0)
    await asyncio.sleep(61)
    await broker.later.close()


@pytest.mark.parametrize("seed", range(5))
def test_held_pulls_have_the_same_outcome_on_both_paths(seed: int) -> None:
    answers: list[dict[int, tuple[object, ...]]] = []
    left: list[object] = []

    def run(*, is_fast: bool) -> Callable[[SimulatedBroker], Coroutine[Any, Any, None]]:
        async def test(broker: SimulatedBroker) -> None:
            dice = random.Random(seed)
            await fill(broker, dice, 10)
            lone = connect(broker, is_fast=is_fast)
            await live(broker, dice, lone)
            # Of pulls woken together, the general path answers one loop iteration later.
            answers.append({one.opaque: (one.code, one.remark, one.ext_fields, one.body)
                            for one in lone.sent()})  # fmt: skip
            left.append((state_of(broker), broker.stats.store.missed))
            assert len(broker.held_pulls) == 0
            assert is_all_answered(lone)
            lone.end()

        return test

    run_with_broker(run(is_fast=False))
    run_with_broker(run(is_fast=True))

    assert answers[0] == answers[1]
    assert left[0] == left[1]


def test_a_held_pull_is_answered_before_the_producer() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.get_or_create("g")
        lone = connect(broker)
        lone.receive_bytes(frame(WAITING))
        assert len(broker.held_pulls) == 1
        assert lone.transport.writes == []
        writes_then: list[int] = []

        def done(_: PutResult) -> None:
            writes_then.append(len(lone.transport.writes))

        broker.commit.put([broker.draft(b"news")], broker.clock.now_ms(), done)
        await asyncio.sleep(1)

        assert writes_then == [1]
        assert [message.body for message in decode_messages(lone.sent()[0].body)] == [b"news"]
        lone.end()

    run_with_broker(test)


def test_all_groups_with_held_pulls_share_one_read() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        counts = {f"g{number}": number % 2 + 1 for number in range(6)}
        lones = {}
        for group, count in counts.items():
            broker.groups.get_or_create(group)
            lones[group] = connect(broker)
            asked = {"consumerGroup": group, "maxMsgNums": str(count)}
            lones[group].receive_bytes(frame(WAITING | asked))

        await broker.store_messages([broker.draft(b"one"), broker.draft(b"two")])
        await asyncio.sleep(0)

        for group, count in counts.items():
            answer = lones[group].sent()[0]
            bodies = [message.body for message in decode_messages(answer.body)]
            assert bodies == [b"one", b"two"][:count]
            assert broker.offsets.pulled(group, "T", 0) == count
            lones[group].end()
        gets = {group: [item.messages for item in items] for _, group, items in broker.stats.gets()}
        assert {group: sum(items) for group, items in gets.items()} == counts

    run_with_broker(test)


def test_woken_pulls_of_one_connection_are_answered_in_one_write() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.get_or_create("g")
        lone = connect(broker)
        for queue_id in range(3):
            lone.receive_bytes(frame({**WAITING, "queueId": str(queue_id)}, opaque=queue_id))

        drafts = [broker.draft(queue_id=queue_id) for queue_id in range(3)]
        await asyncio.gather(*(broker.store_messages([draft]) for draft in drafts))
        await asyncio.sleep(0)

        assert len(lone.transport.writes) == 1
        assert [answer.opaque for answer in lone.sent()] == [0, 1, 2]
        lone.end()

    run_with_broker(test)


def test_a_held_pull_counts_as_unanswered_until_it_is_answered() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.get_or_create("g")
        lone = connect(broker)
        lone.receive_bytes(frame(WAITING))
        assert not is_all_answered(lone)

        await broker.store_messages([broker.draft()])

        assert is_all_answered(lone)
        lone.end()

    run_with_broker(test)


def test_a_held_pull_is_dropped_with_its_connection() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.get_or_create("g")
        lone = connect(broker)
        lone.receive_bytes(frame(WAITING))

        lone.end()

        assert len(broker.held_pulls) == 0
        await broker.store_messages([broker.draft()])
        assert lone.transport.writes == []

    run_with_broker(test)


def test_a_held_pull_with_an_invalid_header_closes_its_connection() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.get_or_create("g")
        lone = connect(broker)
        lone.receive_bytes(frame({**WAITING, "bname": []}))
        assert len(broker.held_pulls) == 1

        await asyncio.sleep(16)

        assert not lone.connection.is_open
        lone.end()

    run_with_broker(test)


def test_a_held_pull_that_fails_is_answered_by_the_general_path(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.get_or_create("g")
        lone = connect(broker)
        lone.receive_bytes(frame(WAITING))
        monkeypatch.setattr(broker.store.reader, "get_fast", None)

        await broker.store_messages([broker.draft(b"news")])

        assert [message.body for message in decode_messages(lone.sent()[0].body)] == [b"news"]
        assert "held_pull.failed" in caplog.text
        lone.end()

    run_with_broker(test)


def test_held_pulls_of_the_fast_path_are_limited() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.get_or_create("g")
        lone = connect(broker)
        lone.receive_bytes(frame(WAITING, opaque=1))
        lone.receive_bytes(frame({**WAITING, "queueId": "1"}, opaque=2))

        assert [(one.opaque, one.code) for one in lone.sent()] == [(2, 19)]
        lone.end()

    run_with_broker(test, config=small_config(held_pulls_max=1))


@pytest.mark.parametrize("is_fast", [False, True])
def test_held_pulls_of_a_paused_connection_wait_until_it_resumes(*, is_fast: bool) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.get_or_create("g")
        lone = connect(broker, is_fast=is_fast, pause_bytes=1)
        for queue_id in range(4):
            lone.receive_bytes(frame({"queueId": str(queue_id), **WAITING}))
        lone.transport.on_write = lone.connection.pause_writing  # each answer pauses it

        for queue_id in range(3):
            await broker.store_messages([broker.draft(b"news", queue_id=queue_id)])
        await asyncio.sleep(61)  # beyond the deadline of the fourth
        assert len(lone.sent()) == 1
        assert len(broker.held_pulls) == 3
        assert not is_all_answered(lone)

        for count in (2, 3, 4):
            lone.connection.resume_writing()
            await asyncio.sleep(0.1)
            assert len(lone.sent()) == count
        assert [one.code for one in lone.sent()] == [0, 0, 0, ResponseCode.PULL_NOT_FOUND]
        assert len(broker.held_pulls) == 0
        assert is_all_answered(lone)
        lone.end()

    run_with_broker(test)


def test_held_pulls_of_a_paused_connection_are_dropped_when_it_closes() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.get_or_create("g")
        lone = connect(broker)
        lone.receive_bytes(frame(WAITING))
        lone.connection.pause_writing()
        await broker.store_messages([broker.draft(b"news")])
        assert len(broker.held_pulls) == 1

        lone.end()
        assert len(broker.held_pulls) == 0
        assert lone.sent() == []

    run_with_broker(test)

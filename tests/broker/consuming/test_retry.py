"""Send backs: redelivery with growing delays, dead letters, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.model.delay import DELAY_LEVELS_MS
from kourou.model.group import SubscriptionGroup
from kourou.model.message import MessageExt
from kourou.model.topic import PERM_READ, SCHEDULE_TOPIC, TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.record.decode import decode_message
from kourou.protocol.sending import ConsumerSendMsgBackRequestHeader
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import (
    BROKER,
    PRODUCER,
    SimulatedBroker,
    run_with_broker,
    small_config,
)

RETRY, DLQ = "%RETRY%g", "%DLQ%g"


def run(test: Callable[[SimulatedBroker], Coroutine[Any, Any, None]], **options: object) -> None:
    """Run `test` by `run_with_broker` with a broker that delivers delayed messages."""
    run_with_broker(test, config=small_config(**options), is_delivering=True)


async def send_back(
    broker: SimulatedBroker, offset: int, *, version: int = 513, reason: str = "", **fields: Any
) -> RemotingCommand:
    """Send a message back, and return the answer."""
    peer = FakePeer()
    defaults: dict[str, Any] = {"offset": offset, "group": "g", "delay_level": 0}
    header = ConsumerSendMsgBackRequestHeader(**defaults | fields)
    asked = peer.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    asked.command.version = version
    if reason:
        asked.command.ext_fields["KOUROU_DLQ_REASON"] = reason
    peer.ask(broker.send_backs.on_consumer_send_msg_back, asked)
    await broker.later.close()
    return peer.sent[0]


def stored(
    broker: SimulatedBroker, topic: str, queue_offset: int = 0, queue_id: int = 0
) -> MessageExt:
    entry = broker.store.reader.entry(topic, queue_id, queue_offset)
    assert entry is not None, f"nothing at {queue_offset} of {topic}"
    record = broker.store.reader.read_record(entry.physical_offset)
    assert record is not None
    return decode_message(record)


async def one_message(broker: SimulatedBroker, **fields: Any) -> int:
    result = await broker.store_messages([broker.draft(b"body", tags="tag", **fields)])
    return result.appended[0].physical_offset


def test_a_sent_back_message_is_redelivered_after_its_delay() -> None:
    async def test(broker: SimulatedBroker) -> None:
        physical_offset = await one_message(broker, properties={"KEYS": "k", "mine": "1"})
        original = stored(broker, "T")

        answer = await send_back(broker, physical_offset)
        assert (answer.code, answer.remark) == (0, None)
        waiting = stored(broker, SCHEDULE_TOPIC, queue_id=2)
        await asyncio.sleep(9.9)
        assert broker.store.reader.max_offset(RETRY, 0) == 0
        await asyncio.sleep(0.2)

        again = stored(broker, RETRY)
        assert again.body == b"body"
        assert again.reconsume_times == waiting.reconsume_times == 1
        assert (again.born_at_ms, again.born_host) == (original.born_at_ms, PRODUCER)
        assert again.store_host == BROKER
        assert (
            again.properties
            == waiting.properties
            == {
                "KEYS": "k",
                "mine": "1",
                "TAGS": "tag",
                "RETRY_TOPIC": "T",
                "ORIGIN_MESSAGE_ID": original.offset_msg_id,
                "WAIT": "false",
                "DELAY": "3",
                "REAL_TOPIC": RETRY,
                "REAL_QID": "0",
            }
        )
        entry = broker.store.reader.entry(RETRY, 0, 0)
        first = broker.store.reader.entry("T", 0, 0)
        assert entry is not None
        assert first is not None
        assert entry.tags_code == first.tags_code

    run(test)


def test_sixteen_retries_with_growing_delays_precede_the_dead_letter() -> None:
    async def test(broker: SimulatedBroker) -> None:
        physical_offset = await one_message(broker)
        first = stored(broker, "T")

        for tries, delay_ms in enumerate(DELAY_LEVELS_MS[2:]):
            given_back_at_ms = broker.clock.now_ms()
            assert (await send_back(broker, physical_offset)).code == 0
            await asyncio.sleep(delay_ms / 1000 + 0.1)
            again = stored(broker, RETRY, tries)
            assert again.reconsume_times == tries + 1
            assert 0 <= again.store_at_ms - given_back_at_ms - delay_ms < 100
            physical_offset = again.physical_offset
        assert (await send_back(broker, physical_offset)).code == 0

        dead = stored(broker, DLQ)
        assert dead.reconsume_times == 17
        assert dead.properties["ORIGIN_MESSAGE_ID"] == first.offset_msg_id
        assert dead.properties["RETRY_TOPIC"] == "T"
        assert dead.properties["DELAY"] == "0"
        assert broker.store.reader.max_offset(RETRY, 0) == 16
        assert broker.topics.get(DLQ) == TopicConfig(DLQ, 1, 1, 6)

    run(test)


def test_a_group_may_have_its_own_delays() -> None:
    async def test(broker: SimulatedBroker) -> None:
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [0, 0, 4_000, 60_000]}}
        broker.groups.put(SubscriptionGroup("g", group_retry_policy=policy))
        physical_offset = await one_message(broker)
        await send_back(broker, physical_offset)
        assert stored(broker, SCHEDULE_TOPIC, queue_id=1).delay_level == 2
        await asyncio.sleep(5.1)
        await send_back(broker, stored(broker, RETRY).physical_offset)
        assert stored(broker, SCHEDULE_TOPIC, queue_id=4).delay_level == 5
        await send_back(broker, physical_offset, delay_level=3)
        assert stored(broker, SCHEDULE_TOPIC, queue_id=2).delay_level == 3

    run(test)


def test_the_reason_of_a_dead_letter_is_kept_if_it_fits() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for number, (limit, kept) in enumerate(
            [("no\x02account\n", "no account "), ("x" * 1_000, "x" * 300), ("", None)]
        ):
            await send_back(broker, await one_message(broker), delay_level=-1, reason=limit)
            assert stored(broker, DLQ, number).properties.get("KOUROU_DLQ_REASON") == kept
        # Neither for a redelivery, nor from an earlier dead letter.
        await send_back(broker, await one_message(broker), delay_level=1, reason="busy")
        assert "KOUROU_DLQ_REASON" not in stored(broker, SCHEDULE_TOPIC).properties
        await send_back(broker, stored(broker, DLQ, 0).physical_offset, delay_level=-1)
        assert "KOUROU_DLQ_REASON" not in stored(broker, DLQ, 3).properties
        huge = await one_message(broker, properties={"p": "v" * 32_500})
        await send_back(broker, huge, delay_level=-1, reason="y" * 300)
        assert "p" in stored(broker, DLQ, 4).properties

    run(test)


def test_a_negative_level_makes_a_dead_letter_at_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        physical_offset = await one_message(broker)

        assert (await send_back(broker, physical_offset, delay_level=-1)).code == 0

        assert stored(broker, DLQ).body == b"body"
        assert broker.topics.is_saved(DLQ)  # so the dead letter can be read after a crash

    run(test)


@pytest.mark.parametrize(("asked", "used"), [(1, 1), (18, 18), (99, 18), (2**31 - 1, 18)])
def test_the_requested_level_is_used_up_to_the_highest(asked: int, used: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        physical_offset = await one_message(broker)
        await send_back(broker, physical_offset, delay_level=asked)
        assert stored(broker, SCHEDULE_TOPIC, queue_id=used - 1).delay_level == used

    run(test)


@pytest.mark.parametrize(
    ("limit", "version", "topic"),
    [(None, 513, SCHEDULE_TOPIC), (0, 513, DLQ), (0, 120, SCHEDULE_TOPIC)],
)
def test_newer_clients_may_set_the_limit_of_redeliveries(
    limit: int | None, version: int, topic: str
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        physical_offset = await one_message(broker)
        await send_back(broker, physical_offset, version=version, max_reconsume_times=limit)
        assert [one.topic for one in broker.arrivals] == ["T", topic]

    run(test)


def test_the_groups_limit_applies_without_a_clients_limit() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.groups.put(SubscriptionGroup("g", retry_max_times=0))
        await send_back(broker, await one_message(broker))
        assert broker.arrivals[-1].topic == DLQ

    run(test)


def test_a_send_back_is_answered_when_the_message_is_durable() -> None:
    async def test(broker: SimulatedBroker) -> None:
        physical_offset = await one_message(broker)
        broker.flusher.stall()
        answering = asyncio.create_task(send_back(broker, physical_offset))
        await asyncio.sleep(1)
        assert not answering.done()
        broker.flusher.release()
        assert (await answering).code == 0
        assert broker.store.reader.synced_position == broker.store.reader.written_position

    run(test)


def test_a_send_back_that_cannot_be_stored_is_answered_with_an_error() -> None:
    async def test(broker: SimulatedBroker) -> None:
        physical_offset = await one_message(broker)
        broker.flusher.stall()
        waiting = asyncio.create_task(one_message(broker))
        await asyncio.sleep(0.1)

        answer = await send_back(broker, physical_offset)

        assert answer.code == 1
        assert (answer.remark or "").startswith("BUSY: ")
        broker.flusher.release()
        await waiting

    run(test, pending_requests_max=1)


# Refusals, in the order of the checks


def test_an_unknown_group_is_refused_without_auto_creation() -> None:
    async def test(broker: SimulatedBroker) -> None:
        assert (await send_back(broker, await one_message(broker))).code == 26

    run(test, auto_create_subscription_group=False)


def test_a_broker_that_is_not_writable_refuses_send_backs() -> None:
    async def test(broker: SimulatedBroker) -> None:
        assert (await send_back(broker, await one_message(broker))).code == 16

    run(test, broker_permission=PERM_READ)


def test_send_backs_of_a_group_without_retry_queues_are_dropped() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.groups.put(SubscriptionGroup("g", retry_queue_nums=0))
        assert (await send_back(broker, await one_message(broker))).code == 0
        assert len(broker.arrivals) == 1
        assert broker.topics.get(RETRY) is None

    run(test)


def test_a_retry_topic_that_is_not_writable_refuses_send_backs() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig(RETRY, 1, 1, PERM_READ))
        assert (await send_back(broker, await one_message(broker))).code == 16

    run(test)


@pytest.mark.parametrize("wrong_by", [1, 10_000, -10_000])
def test_a_log_position_without_a_message_is_refused(wrong_by: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        physical_offset = await one_message(broker)
        answer = await send_back(broker, physical_offset + wrong_by)
        assert answer.code == 1
        assert str(physical_offset + wrong_by) in (answer.remark or "")
        assert len(broker.arrivals) == 1

    run(test)


def test_the_retry_topic_gets_the_queues_of_the_group() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.groups.put(SubscriptionGroup("g", retry_queue_nums=3))
        physical_offset = await one_message(broker)
        for _ in range(20):
            await send_back(broker, physical_offset, delay_level=1, unit_mode=True)
        assert broker.topics.get(RETRY) == TopicConfig(RETRY, 3, 3, 6, topic_sys_flag=2)
        await asyncio.sleep(1.1)
        assert all(broker.store.reader.max_offset(RETRY, queue_id) > 0 for queue_id in range(3))

    run(test)


def test_statistics_count_only_under_existing_topics() -> None:
    """Otherwise producers could fill the memory with keys that they choose."""

    async def test(broker: SimulatedBroker) -> None:
        physical_offset = await one_message(broker, properties={"RETRY_TOPIC": "x" * 20_000})

        assert (await send_back(broker, physical_offset)).code == 0

        origin = stored(broker, SCHEDULE_TOPIC, queue_id=2).properties["RETRY_TOPIC"]
        assert origin == "x" * 20_000  # the message itself keeps it
        assert broker.stats.named("SNDBCK_PUT_NUMS") == {"T@g": 1}

    run(test)

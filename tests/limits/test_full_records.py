"""Records without room for another property, as RocketMQ stores them, are not lost or stuck.

Each record is put into the store of a stopped broker, without a seal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
from kourou.client.sending.transaction import TransactionState
from kourou.model.message import MessageExt
from kourou.model.properties import PROPERTIES_SIZE_MAX, encode_properties
from kourou.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.layout import SEAL_BYTES
from kourou.store.message_store import MessageStore
from kourou.store.timer.slot_choice import out_ms
from kourou.testing.cluster import Cluster
from tests.limits.life_cycles import (
    STORE,
    Sent,
    acknowledge,
    consumed,
    consumer_of,
    run_life_cycle,
)

UNIQUE_KEY = "0" * 32
SENT = Sent(tags=None, keys=())
_WINDOW_MS = 60_000


def full(less: int = 0, **system: str) -> tuple[Sent, dict[str, str]]:
    """Return a message and the properties of its record, `less` bytes from full."""
    properties = {"UNIQ_KEY": UNIQUE_KEY, **system}
    own = encode_properties({**properties, "long": ""})
    long = "v" * (PROPERTIES_SIZE_MAX - len(own) - less)
    return replace(SENT, properties={"long": long}), {**properties, "long": long}


async def store(
    cluster: Cluster,
    topic: str,
    *several: dict[str, str] | bytes,
    queue_id: int = 0,
    has_seals: bool = False,
) -> None:
    """Stop the broker, store records with these properties, and start it again.

    The records have no seals, as by default in RocketMQ, unless `has_seals`.
    """
    await asyncio.sleep(60)  # the topic is saved
    await cluster.stop_broker()
    now_ms = cluster.runtime.clock.now_ms()
    plain = replace(STORE, append_property_crc=has_seals)
    messages = MessageStore.open(cluster.disk(), plain, now_ms, pid=1)
    for one in several:
        text = one if isinstance(one, bytes) else encode_properties(one)
        draft = RecordDraft(
            topic=topic.encode(),
            queue_id=queue_id,
            flag=0,
            sys_flag=0,
            born_at_ms=now_ms,
            born_host=("127.0.0.1", 1),
            store_host=("127.0.0.1", 10_911),
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=SENT.body,
            properties=text,
        )
        messages.writer.append(draft, now_ms)
    messages.writer.write()
    plan = messages.writer.sync_plan()
    assert plan is not None
    messages.writer.run_sync(plan)
    messages.writer.synced(plan)
    messages.writer.dispatch(messages.reader.synced_position)
    messages.close(now_ms)
    await cluster.restart_broker()


async def nothing() -> None:
    """Send nothing: the message is already stored."""


def check_full(
    less: int,
    topic: str,
    live: Callable[[Cluster, Sent], Awaitable[MessageExt]],
    system: Callable[[int], dict[str, str]] = lambda _: {},
    queue_id: int = 0,
) -> None:
    """Store a full record, and check the message delivered by `live`."""

    async def life_cycle(cluster: Cluster, _: Sent) -> MessageExt:
        sent, properties = full(less, **system(cluster.runtime.clock.now_ms()))
        await store(cluster, topic, properties, queue_id=queue_id)
        received = await live(cluster, sent)
        assert sent.as_received(received) == sent
        return received

    assert run_life_cycle(life_cycle, SENT) == SENT


_RETRY_BYTES = len(
    "RETRY_TOPIC\x01T\x02DELAY\x013\x02REAL_TOPIC\x01%RETRY%consumers\x02REAL_QID\x010\x02"
)
"""Properties that the broker adds to a record that waits for its retry."""


@pytest.mark.parametrize(
    ("less", "retries"),
    [(0, 0), (1, 0), (21, 0), (_RETRY_BYTES - 1, 0), (_RETRY_BYTES, 1), (_RETRY_BYTES + 21, 1)],
)
def test_a_full_record_that_fails_is_retried_or_becomes_a_dead_letter(
    less: int, retries: int
) -> None:
    async def fails(cluster: Cluster, sent: Sent) -> MessageExt:
        times: list[int] = []

        def listener(message: MessageExt) -> None:
            times.append(message.reconsume_times)
            raise DeadLetter("é" * 300) if message.reconsume_times else ValueError("first")

        async with consumer_of(cluster, sent, listener):
            await asyncio.sleep(60)
            async with cluster.admin() as admin:
                [dead] = await admin.dead_letters(sent.group)
        assert times == list(range(retries + 1))
        return dead.message

    check_full(less, SENT.topic, fails)


@pytest.mark.parametrize("less", [0, 21, 100, 400])
def test_a_full_dead_letter_can_be_redriven(less: int) -> None:
    async def is_redriven(cluster: Cluster, sent: Sent) -> MessageExt:
        def dies(message: MessageExt) -> None:
            raise DeadLetter("never")

        async with consumer_of(cluster, sent, dies):
            await asyncio.sleep(10)

        async def redrive() -> None:
            async with cluster.admin() as admin:
                done = await admin.redrive_all(sent.group)
                assert (done.sent, dict(done.left)) == (1, {})

        return await consumed(cluster, sent, redrive, acknowledge)

    check_full(less, SENT.topic, is_redriven)


@pytest.mark.parametrize("less", [0, 21, 400])
def test_a_full_record_with_a_retry_after_a_delay_is_not_stuck(less: int) -> None:
    async def is_retried(cluster: Cluster, sent: Sent) -> MessageExt:
        ends: list[MessageExt] = []

        def listener(message: MessageExt) -> None:
            if message.reconsume_times == 0:
                raise RetryLater(delay_ms=2_500)
            ends.append(message)

        async with consumer_of(cluster, sent, listener):
            await asyncio.sleep(60)
            async with cluster.admin() as admin:
                ends += [dead.message for dead in await admin.dead_letters(sent.group)]
        [end] = ends
        return end

    check_full(less, SENT.topic, is_retried)


async def is_delivered(cluster: Cluster, sent: Sent) -> MessageExt:
    return await consumed(cluster, sent, nothing, acknowledge)


@pytest.mark.parametrize("less", [0, 20, 21, 22])
def test_a_full_delayed_record_is_delivered(less: int) -> None:
    check_full(
        less,
        SCHEDULE_TOPIC,
        is_delivered,
        lambda _: {"DELAY": "5", "REAL_TOPIC": SENT.topic, "REAL_QID": "1"},
        queue_id=4,
    )


@pytest.mark.parametrize("delay_ms", [90_000, 4 * _WINDOW_MS], ids=["once", "rolled"])
@pytest.mark.parametrize("less", [0, 21, 33, 66, 100])
def test_a_full_scheduled_record_is_delivered(less: int, delay_ms: int) -> None:
    check_full(
        less,
        TIMER_TOPIC,
        is_delivered,
        lambda now_ms: {
            "TIMER_DELAY_MS": str(delay_ms),
            "TIMER_OUT_MS": str(out_ms(now_ms + delay_ms)),
            "REAL_TOPIC": SENT.topic,
            "REAL_QID": "1",
        },
    )


@pytest.mark.parametrize("less", [0, 21, 60, 82, 100, 200])
@pytest.mark.parametrize("answers", [1, 3])
def test_a_full_half_message_delays_no_other_check(less: int, answers: int) -> None:
    asked: list[str] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.properties["id"])
        is_over = asked.count(message.properties["id"]) >= answers
        return TransactionState.COMMIT if is_over else TransactionState.UNKNOWN

    async def are_committed(cluster: Cluster, _: Sent) -> MessageExt:
        marks = {
            "TRAN_MSG": "true",
            "PGROUP": "producers",
            "REAL_TOPIC": SENT.topic,
            "REAL_QID": "1",
        }
        sent, first = full(less, id="full", **marks)
        await store(
            cluster, TRANS_HALF_TOPIC, first, {"UNIQ_KEY": "1" * 32, "id": "other", **marks}
        )
        received: dict[str, MessageExt] = {}

        def listener(message: MessageExt) -> None:
            received[message.properties["id"]] = message

        async with (
            cluster.transaction_producer(check) as producer,
            consumer_of(cluster, sent, listener),
        ):
            await producer.fetch_publish_message_queues(SENT.topic)
            await asyncio.sleep(400)
        assert sorted(asked) == ["full"] * answers + ["other"] * answers
        assert sent.as_received(received["full"]) == sent
        return received["other"]

    assert run_life_cycle(are_committed, SENT) == SENT


def test_a_full_record_with_invalid_utf_8_becomes_an_unchanged_dead_letter() -> None:
    text = f"UNIQ_KEY\x01{UNIQUE_KEY}\x02long\x01".encode()
    text += b"\xff" * (PROPERTIES_SIZE_MAX - SEAL_BYTES - len(text) - 1) + b"\x02"

    async def dies(cluster: Cluster, _: Sent) -> MessageExt:
        await store(cluster, SENT.topic, text, has_seals=True)

        def listener(message: MessageExt) -> None:
            raise ValueError(message.msg_id)

        async with consumer_of(cluster, SENT, listener):
            await asyncio.sleep(60)
            async with cluster.admin() as admin:
                [dead] = await admin.dead_letters(SENT.group)
        assert len(dead.message.properties["long"]) == text.count(b"\xff")
        return dead.message

    assert run_life_cycle(dies, SENT) == SENT

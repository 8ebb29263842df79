"""Messages at the limits of what a producer may send, through each life cycle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

import pytest

from kourou.broker.timer.timer_config import TimerConfig
from kourou.client.config import ProducerConfig
from kourou.client.consuming.acknowledging.redelivery import RetryLater
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.sending.transaction import TransactionState
from kourou.errors import (
    InvalidGroupError,
    InvalidMessageError,
    InvalidTopicError,
    MessageIllegalError,
)
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.model.topic import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.limits.life_cycles import (
    BODY_MAX,
    LIFE_CYCLES,
    LONG_REASON,
    STORE,
    Sent,
    consumed,
    consumer_of,
    run_life_cycle,
    sending,
)

_OF_A_TRANSACTION = len("TRAN_MSG\x01true\x02PGROUP\x01producers\x02")
_OF_A_DELAY = len("TIMER_DELAY_MS\x01432000000\x02")


def properties_of(more: int) -> Sent:
    """Return a message whose property text, as sent, exceeds the limit by `more` bytes."""
    return fill(Sent(), more)


def keys_of(more: int) -> Sent:
    return fill(Sent(keys=("k1", "k2")), more, "keys")


def tag_of(more: int) -> Sent:
    return fill(Sent(), more, "tags")


def body_of(more: int) -> Sent:
    return Sent(body=Random(1).randbytes(BODY_MAX + more))  # it cannot be compressed


def names_of(more: int) -> Sent:
    return Sent(topic="t" * (TOPIC_LENGTH_MAX + more), group="g" * (GROUP_LENGTH_MAX + more))


def all_of(more: int) -> Sent:
    names = names_of(more)
    return fill(replace(body_of(more), topic=names.topic, group=names.group), more)


def fill(
    sent: Sent, more: int, what: str = "properties", marks: int = _OF_A_TRANSACTION + _OF_A_DELAY
) -> Sent:
    """Return the message with its property text filled up to the limit plus `more` bytes.

    `marks`: bytes reserved for the properties of a transaction or a delay.
    """
    text = sent.message().property_text("0" * 32)
    room = SENT_PROPERTIES_SIZE_MAX + more - len(text) - marks
    if what == "keys":
        room -= 1  # the separator
        return replace(sent, keys=(*sent.keys, "é" * (room // 2) + "e" * (room % 2)))
    if what == "tags":
        return replace(sent, tags=f"{sent.tags}{'é' * (room // 2)}{'e' * (room % 2)}")
    value = room - len("long\x01\x02")
    return replace(sent, properties={"long": "é" * (value // 2) + "e" * (value % 2)})


CASES = {
    "properties": properties_of(0),
    "keys": keys_of(0),
    "tag": tag_of(0),
    "all": all_of(0),
    "almost all": all_of(-1),
}
WITHOUT_BATCH = [name for name in LIFE_CYCLES if name != "is sent in a batch"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("life_cycle", WITHOUT_BATCH)
def test_a_message_at_a_limit_survives_each_life_cycle(life_cycle: str, case: str) -> None:
    assert run_life_cycle(LIFE_CYCLES[life_cycle], CASES[case]) == CASES[case]


@pytest.mark.parametrize("case", ["properties", "keys", "tag"])
def test_a_message_at_a_limit_survives_in_a_batch(case: str) -> None:
    assert run_life_cycle(LIFE_CYCLES["is sent in a batch"], CASES[case]) == CASES[case]


@pytest.mark.parametrize("life_cycle", [name for name in WITHOUT_BATCH if name != "is committed"])
def test_a_stored_message_survives_a_lowered_limit_of_bodies(life_cycle: str) -> None:
    sent = replace(all_of(0), lowers_limit=True)
    assert run_life_cycle(LIFE_CYCLES[life_cycle], sent) == sent


@pytest.mark.parametrize(
    ("sent", "error", "pattern"),
    [
        (fill(Sent(), 1, marks=0), InvalidMessageError, "30001 bytes, at most 30000"),
        (fill(Sent(), 1, "keys", marks=0), InvalidMessageError, "30001 bytes, at most 30000"),
        (fill(Sent(), 1, "tags", marks=0), InvalidMessageError, "30001 bytes, at most 30000"),
        (body_of(1), InvalidMessageError, f"{BODY_MAX + 1} bytes exceed"),
        (Sent(topic="t" * 128), InvalidTopicError, "128 characters, the limit is 127"),
    ],
    ids=["properties", "keys", "tag", "body", "topic"],
)
@pytest.mark.parametrize("kind", ["message", "batch", "transaction"])
def test_a_message_above_a_limit_is_refused_before_it_is_sent(
    kind: str, sent: Sent, error: type[Exception], pattern: str
) -> None:
    async def main() -> None:
        config = ProducerConfig(max_message_size_bytes=BODY_MAX)
        async with (
            Cluster(store=STORE) as cluster,
            cluster.producer(config=config) as producer,
            cluster.transaction_producer(lambda _: TransactionState.COMMIT, "tp", config) as halves,
        ):
            sends: dict[str, Callable[[Message], Awaitable[object]]] = {
                "message": producer.send,
                "batch": lambda message: producer.send_batch([message]),
                "transaction": halves.begin_transaction,
            }
            with pytest.raises(error, match=pattern):
                await sends[kind](sent.message())

    run_virtual(main())


def test_a_half_message_above_the_limit_by_its_marks_is_refused() -> None:
    async def main() -> None:
        async with (
            Cluster(store=STORE) as cluster,
            cluster.transaction_producer(lambda _: TransactionState.COMMIT) as producer,
        ):
            with pytest.raises(InvalidMessageError, match="30001 bytes, at most 30000"):
                await producer.begin_transaction(fill(Sent(), 1, marks=_OF_A_TRANSACTION).message())

    run_virtual(main())


@pytest.mark.parametrize("more", [0, 1])
def test_a_broker_refuses_a_body_that_only_its_producer_allows(more: int) -> None:
    async def main() -> None:
        async with (
            Cluster(store=STORE, max_message_size_bytes=BODY_MAX) as cluster,
            cluster.producer(config=ProducerConfig(compress_body_over_bytes=None)) as producer,
        ):
            sending = producer.send(body_of(more).message())
            if more:
                with pytest.raises(MessageIllegalError, match=f"body of {BODY_MAX + 1} bytes"):
                    await sending
            else:
                assert (await sending).queue_offset == 0

    run_virtual(main())


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_batch_is_as_large_as_a_body_may_be(more: int) -> None:
    async def main() -> None:
        size = BODY_MAX + more
        first = [Message("T", b"b" * 1000) for _ in range(8)]
        async with (
            Cluster(store=STORE, max_message_size_bytes=BODY_MAX) as cluster,
            cluster.producer(config=ProducerConfig(max_message_size_bytes=BODY_MAX)) as producer,
        ):
            item_bytes = 22 + 1000 + len(first[0].property_text("0" * 32))
            rest = size - len(first) * item_bytes - (item_bytes - 1000)
            sending = producer.send_batch([*first, Message("T", b"b" * rest)])
            if more > 0:
                with pytest.raises(InvalidMessageError, match=f"{size} bytes exceed"):
                    await sending
            else:
                assert len(await sending) == 9

    run_virtual(main())


def test_a_group_above_the_limit_of_names_is_refused() -> None:
    with pytest.raises(InvalidGroupError, match="121 characters, the limit is 120"):
        PushConsumer("g" * 121, "127.0.0.1:9876")


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_longest_delay_is_accepted_and_a_longer_one_refused(more: int) -> None:
    async def main() -> None:
        timer = TimerConfig(timer_max_delay_sec=100)
        async with Cluster(store=STORE, timer=timer) as cluster, cluster.producer() as producer:
            sending = producer.send(Message("T", b"x", delay_ms=100_000 + more))
            if more > 0:
                with pytest.raises(MessageIllegalError, match="bigger than the max delay 100000ms"):
                    await sending
            else:
                await sending

    run_virtual(main())


def test_a_retry_after_more_than_the_longest_delay_waits_at_a_level() -> None:
    sent, waited_s = Sent(), []

    async def is_retried_after_very_long(cluster: Cluster, sent: Sent) -> MessageExt:
        began_s = asyncio.get_running_loop().time()

        def listener(message: MessageExt) -> None:
            waited_s.append(asyncio.get_running_loop().time() - began_s)
            if message.reconsume_times == 0:
                raise RetryLater(delay_ms=100_001)

        return await consumed(cluster, sent, sending(cluster, sent), listener)

    timer = TimerConfig(timer_max_delay_sec=100)
    assert run_life_cycle(is_retried_after_very_long, sent, timer=timer) == sent
    assert waited_s[1] - waited_s[0] == pytest.approx(120, abs=1)


@pytest.mark.parametrize(("level", "waits_s"), [(17, 3), (18, 4), (19, 4), (100, 4)])
def test_a_level_above_the_highest_has_its_delay(level: int, waits_s: int) -> None:
    async def is_delayed(cluster: Cluster, sent: Sent) -> MessageExt:
        times: list[float] = []
        now_s = asyncio.get_running_loop().time

        def listener(message: MessageExt) -> None:
            times.append(now_s())
            if message.reconsume_times == 0:
                raise RetryLater(level=level)

        send = sending(cluster, sent, delay_level=level)
        received = await consumed(cluster, sent, send, listener)
        assert times[1] - times[0] == pytest.approx(waits_s, abs=1)
        return received

    levels = "1s " * 16 + "3s 4s"
    assert run_life_cycle(is_delayed, Sent(), message_delay_level=levels) == Sent()


@pytest.mark.parametrize("tries", [0, 1, 2])
def test_a_message_is_a_dead_letter_after_as_many_retries_as_its_group_allows(tries: int) -> None:
    async def dies(cluster: Cluster, sent: Sent) -> MessageExt:
        deliveries = 0

        def listener(_: MessageExt) -> None:
            nonlocal deliveries
            deliveries += 1
            raise RetryLater(delay_ms=1_500)

        async with consumer_of(cluster, sent, listener, max_reconsume_times=tries):
            await sending(cluster, sent)()
            await asyncio.sleep(30)
            async with cluster.admin() as admin:
                [dead] = await admin.dead_letters(sent.group)
        assert (deliveries, dead.deliveries) == (tries + 1, tries + 1)
        return dead.message

    assert run_life_cycle(dies, CASES["all"]) == CASES["all"]


@pytest.mark.parametrize("case", ["properties", "all"])
def test_a_message_at_a_limit_survives_an_ordered_consumer(case: str) -> None:
    received: list[Sent] = []

    async def dies_in_order(cluster: Cluster, sent: Sent) -> MessageExt:
        config = PushConsumerConfig(
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=2
        )
        consumer = cluster.push_consumer(sent.group, config)
        consumer.subscribe(sent.topic)

        def listener(message: MessageExt) -> None:
            received.append(sent.as_received(message))
            raise ValueError(LONG_REASON)

        consumer.listen_orderly(listener)
        async with consumer:
            await sending(cluster, sent)()
            await asyncio.sleep(60)
            async with cluster.admin() as admin:
                [dead] = await admin.dead_letters(sent.group)
        return dead.message

    assert run_life_cycle(dies_in_order, CASES[case]) == CASES[case]
    assert received == [CASES[case]] * 3, "each delivery"


@pytest.mark.parametrize("delay_ms", [None, 2_500], ids=["level", "delay"])
def test_a_message_of_a_batch_in_one_record_can_be_retried(delay_ms: int | None) -> None:
    async def is_retried(cluster: Cluster, sent: Sent) -> MessageExt:
        async with cluster.admin() as admin:
            await admin.create_topic("Batched", attributes={"queue.type": "BatchCQ"})
        batched = replace(sent, topic="Batched")
        others: list[bytes] = []

        async def send() -> None:
            async with cluster.producer() as producer:
                await producer.send_batch([batched.message(), Message("Batched", b"other")])

        def listener(message: MessageExt) -> None:
            if message.body == b"other":
                others.append(message.body)
            elif message.reconsume_times < 2:
                raise RetryLater(delay_ms=delay_ms)

        taken: list[MessageExt] = []

        def note(message: MessageExt) -> None:
            listener(message)
            taken.append(message)

        async with consumer_of(cluster, batched, note):
            await send()
            await asyncio.sleep(300)
        [received] = [message for message in taken if message.body != b"other"]
        assert others == [b"other"]
        return received

    assert run_life_cycle(is_retried, CASES["properties"]) == CASES["properties"]

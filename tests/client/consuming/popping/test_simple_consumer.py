"""Receiving and settling with a simple consumer, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
from kourou.client.consuming.simple_consumer import SimpleConsumer
from kourou.client.pop_result import PoppedMessage
from kourou.errors import (
    ClosedError,
    NoRouteError,
    RequestNotSupportedError,
    RequestTimeoutError,
    UsageError,
)
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.testing.loop import run_virtual
from tests.client.consuming.messages import message_at
from tests.client.consuming.popping.pop_peers import PopRig, pop_peers

Body = Callable[[PopRig, SimpleConsumer], Coroutine[Any, Any, None]]


def with_consumer(body: Body, brokers: int = 1, tags: str = "*", **options: Any) -> None:
    async def main() -> None:
        async with pop_peers(brokers) as rig, rig.consumer(tags=tags, **options) as consumer:
            await body(rig, consumer)

    run_virtual(main())


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_acknowledged_message_is_not_delivered_again_and_an_expired_one_is() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        rig.peers[0].add(b"1", b"2")
        first, second = await consumer.receive(invisible_ms=5_000)
        assert (first.topic, first.broker_name, first.receipt.invisible_ms) == ("T", "b0", 5_000)
        await consumer.ack(first)
        assert await consumer.receive(wait_ms=0) == []
        (again,) = await consumer.receive(wait_ms=10_000)
        assert again.body == second.body

    with_consumer(body)


def test_batch_is_acknowledged_by_one_request_to_each_broker() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        for peer in rig.peers:
            peer.add(*[b"x"] * 40)
        received: list[PoppedMessage] = []
        while len(received) < 80:
            received += await consumer.receive(wait_ms=1_000)
        await consumer.ack_all(received)
        assert [peer.unacked for peer in rig.peers] == [0, 0]
        assert [peer.count(RequestCode.BATCH_ACK_MESSAGE) for peer in rig.peers] == [1, 1]
        await consumer.ack_all([])

    with_consumer(body, brokers=2)


def test_broker_without_batches_gets_single_acknowledgements() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        peer = rig.peers[0]
        peer.add(b"1", b"2")
        peer.answers[RequestCode.BATCH_ACK_MESSAGE] = [ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
        await consumer.ack_all(await consumer.receive())
        assert (peer.unacked, peer.count(RequestCode.ACK_MESSAGE)) == (0, 2)

    with_consumer(body)


def test_waiting_receive_returns_with_the_first_message_of_any_broker() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        waiting = asyncio.create_task(consumer.receive(wait_ms=10_000))
        await asyncio.sleep(3)
        rig.peers[2].add(b"x")
        began_s = now_s()
        (message,) = await waiting
        assert (message.broker_name, now_s() - began_s < 0.1) == ("b2", True)
        assert all(peer.count(RequestCode.NOTIFICATION) == 1 for peer in rig.peers)

    with_consumer(body, brokers=3)


def test_brokers_with_messages_are_read_in_turn() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        for peer in rig.peers[:2]:
            peer.add(*[b"x"] * 6)
        names = [(await consumer.receive(2))[0].broker_name for _ in range(6)]
        assert sorted(names) == ["b0"] * 3 + ["b1"] * 3
        assert names[:2] != ["b0", "b0"]

    with_consumer(body, brokers=3)


def test_silent_broker_does_not_keep_messages_of_others_back() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        rig.peers[0].silent.add(RequestCode.POP_MESSAGE)
        rig.peers[1].add(*[b"x"] * 20)
        began_s = now_s()
        for _ in range(20):
            (message,) = await consumer.receive(1, wait_ms=10_000)
            await consumer.ack(message)
        assert now_s() - began_s < 2
        await asyncio.sleep(4)
        assert any("b0" in text for text in consumer.health().problems)

    with_consumer(body, brokers=2)


def test_receive_without_messages_ends_after_its_wait() -> None:
    async def body(_: PopRig, consumer: SimpleConsumer) -> None:
        for wait_ms in (0, 2_000):
            began_s = now_s()
            assert await consumer.receive(wait_ms=wait_ms) == []
            assert now_s() - began_s == pytest.approx(wait_ms / 1000, abs=0.2)

    with_consumer(body)
    with_consumer(body, brokers=2)


def test_messages_of_a_cancelled_receive_are_returned_by_the_next() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await consumer.receive(wait_ms=10_000)
        rig.peers[0].add(b"x")
        (message,) = await consumer.receive(wait_ms=10_000)
        assert message.body == b"x"
        assert rig.peers[0].count(RequestCode.POP_MESSAGE) == 1

    with_consumer(body)


def test_messages_that_no_receive_returned_are_given_back_at_the_end() -> None:
    async def main() -> None:
        async with pop_peers() as rig:
            peer = rig.peers[0]
            async with rig.consumer() as consumer:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1):
                        await consumer.receive(wait_ms=10_000)
                peer.add(b"x")
                await asyncio.sleep(1)
                assert consumer.health().held_messages == 1
            async with rig.consumer() as other:
                (message,) = await other.receive(wait_ms=0)
                assert message.body == b"x"

    run_virtual(main())


def test_given_back_message_is_delivered_at_once_and_changed_one_later() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        rig.peers[0].add(b"x")
        (message,) = await consumer.receive()
        old = message.receipt
        await consumer.give_back(message)
        (message,) = await consumer.receive(wait_ms=0)
        await consumer.change_invisible(message, 7_000)
        assert message.receipt not in (old, None)
        assert message.receipt.revive_at_ms == rig.runtime.clock.now_ms() + 7_000
        assert await consumer.receive(wait_ms=6_000) == []
        await consumer.ack(message)
        assert rig.peers[0].unacked == 0

    with_consumer(body)


def test_dead_letter_is_sent_back_and_acknowledged() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        rig.peers[0].add(b"x")
        (message,) = await consumer.receive()
        await consumer.dead_letter(message, "no such\naccount")
        assert rig.peers[0].dead == [(-1, "no such account")]
        assert rig.peers[0].unacked == 0

    with_consumer(body)


def test_scope_acknowledges_or_gives_back() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        peer = rig.peers[0]
        peer.add(b"x")
        (message,) = await consumer.receive()
        with pytest.raises(RuntimeError, match="not now"):
            async with consumer.message_scope(message):
                raise RuntimeError("not now")
        (message,) = await consumer.receive(wait_ms=0)
        async with consumer.message_scope(message):
            raise RetryLater(delay_ms=5_000)
        assert await consumer.receive(wait_ms=4_500) == []
        (message,) = await consumer.receive(wait_ms=1_000)
        async with consumer.message_scope(message) as same:
            assert same is message
        assert (peer.unacked, peer.dead) == (0, [])
        peer.add(b"y")
        (message,) = await consumer.receive()
        async with consumer.message_scope(message):
            raise DeadLetter("broken")
        assert (peer.unacked, peer.dead) == (0, [(-1, "broken")])

    with_consumer(body)


def test_cancelled_scope_gives_back_in_the_background() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        rig.peers[0].add(b"x")
        (message,) = await consumer.receive()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), consumer.message_scope(message):
                await asyncio.sleep(60)
        (again,) = await consumer.receive(wait_ms=1_000)
        assert again.body == b"x"

    with_consumer(body)


def test_renewed_message_stays_invisible_until_it_is_acknowledged() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        peer = rig.peers[0]
        peer.add(b"x")
        (message,) = await consumer.receive(invisible_ms=2_000)
        async with consumer.message_scope(message, renew_ms=60_000):
            assert consumer.health().renewals == 1
            assert await consumer.receive(wait_ms=20_000) == []
        assert (peer.unacked, peer.messages[0].times) == (0, 1)
        changes = peer.count(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        assert 18 <= changes <= 21
        await asyncio.sleep(10)
        assert consumer.health().renewals == 0
        assert peer.count(RequestCode.CHANGE_MESSAGE_INVISIBLETIME) == changes

    with_consumer(body)


def test_acknowledgement_waits_for_a_renewal_in_progress() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        peer = rig.peers[0]
        peer.add(b"x")
        (message,) = await consumer.receive(invisible_ms=2_000)
        consumer.renew(message)
        while not peer.count(RequestCode.CHANGE_MESSAGE_INVISIBLETIME):  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        await consumer.ack(message)
        assert peer.unacked == 0

    with_consumer(body)


def test_failed_renewal_is_repeated_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        peer, change = rig.peers[0], RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        peer.add(b"x")
        (message,) = await consumer.receive(invisible_ms=10_000)
        consumer.renew(message)
        peer.answers[change] = [ResponseCode.MESSAGE_ILLEGAL] * 3
        assert await consumer.receive(wait_ms=30_000) == []
        await consumer.ack(message)
        assert (peer.unacked, peer.answers[change]) == (0, [])

    with caplog.at_level(logging.INFO, logger="kourou.client.consuming.popping"):
        with_consumer(body)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["renewal.failed"]


def test_renewal_ends_with_its_limit_and_with_the_message() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        rig.peers[0].add(b"x", b"y")
        first, second = await consumer.receive(invisible_ms=2_000)
        consumer.renew(first, limit_ms=5_000)
        consumer.renew(second)
        second_body = second.body
        del second
        gc.collect()
        (dropped,) = await consumer.receive(wait_ms=3_000, invisible_ms=60_000)
        assert dropped.body == second_body
        (limited,) = await consumer.receive(wait_ms=6_000)
        assert limited.body == first.body

    with_consumer(body)


def test_message_delivered_too_often_becomes_a_dead_letter_before_the_program_gets_it() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        peer = rig.peers[0]
        peer.add(b"x")
        for _ in range(2):
            (message,) = await consumer.receive(wait_ms=1_000)
            await consumer.give_back(message)
            peer.set_reconsume_times(0, message.reconsume_times + 1)
        assert await consumer.receive(wait_ms=1_000) == []
        assert peer.unacked == 0
        ((level, reason),) = peer.dead
        assert (level, "max_reconsume_times is 1" in reason) == (-1, True)

    with_consumer(body, max_reconsume_times=1)


def test_message_with_another_tag_of_the_same_hash_is_acknowledged_unseen() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        rig.peers[0].add(b"no", tags="BB")
        rig.peers[0].add(b"yes", tags="Aa")
        (message,) = await consumer.receive()
        assert message.body == b"yes"
        await consumer.ack(message)
        await asyncio.sleep(1)
        assert rig.peers[0].unacked == 0
        assert (rig.peers[0].pops[0].exp_type, rig.peers[0].pops[0].exp) == ("TAG", "Aa")

    with_consumer(body, tags="Aa")


def test_ordered_pop_without_answer_is_repeated_with_its_attempt_id() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        peer = rig.peers[0]
        peer.silent.add(RequestCode.POP_MESSAGE)
        waiting = asyncio.create_task(consumer.receive(wait_ms=1_000))
        with pytest.raises(RequestTimeoutError):
            await waiting
        peer.silent.clear()
        peer.add(b"x")
        await asyncio.sleep(10)
        (message,) = await consumer.receive(wait_ms=5_000)
        await consumer.receive(wait_ms=0)
        assert message.body == b"x"
        assert all(pop.order for pop in peer.pops)
        *repeated, last = [pop.attempt_id for pop in peer.pops]
        assert (len(repeated), len(set(repeated)), last in repeated) == (2, 1, False)

    with_consumer(body, ordered=True)


def test_refusal_of_all_brokers_is_raised_at_once_and_that_of_one_is_a_problem() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        unsupported = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        for peer in rig.peers:
            peer.answers[RequestCode.POP_MESSAGE] = [unsupported]
        began_s = now_s()
        with pytest.raises(RequestNotSupportedError):
            await consumer.receive(wait_ms=60_000)
        assert now_s() - began_s < 1
        rig.peers[0].answers[RequestCode.POP_MESSAGE] = [unsupported] * 9
        await asyncio.sleep(5)
        rig.peers[1].add(b"x")
        assert [one.body for one in await consumer.receive(wait_ms=5_000)] == [b"x"]

    with_consumer(body, brokers=2)


def test_wrong_use_is_refused_before_any_request() -> None:
    async def main() -> None:
        async with pop_peers() as rig:
            consumer = rig.consumer()
            with pytest.raises(ClosedError, match="the simple consumer is not started"):
                await consumer.receive()
            async with consumer:
                for wrong, text in (
                    ({"max_messages": 33}, "max_messages is 33: allowed are 1 to 32"),
                    ({"invisible_ms": 999}, "invisible_ms is 999: allowed are 1000 to"),
                    ({"wait_ms": -1}, "wait_ms is -1: allowed are 0 to"),
                ):
                    with pytest.raises(UsageError, match=text):
                        await consumer.receive(**wrong)
                with pytest.raises(UsageError, match="not received by a simple consumer"):
                    await consumer.ack(message_at())  # type: ignore[arg-type]
                with pytest.raises(UsageError, match="is a retry topic"):
                    consumer.subscribe("%RETRY%g")
                consumer.unsubscribe("T")
                with pytest.raises(UsageError, match="no topic is subscribed"):
                    await consumer.receive()
                assert rig.peers[0].requests == []
                consumer.subscribe("absent")
                with pytest.raises(NoRouteError, match="the topic absent"):
                    await consumer.receive(wait_ms=0)
            with pytest.raises(ClosedError, match="the simple consumer is closed"):
                await consumer.receive()

    run_virtual(main())


def test_close_ends_a_waiting_receive() -> None:
    async def body(_: PopRig, consumer: SimpleConsumer) -> None:
        waiting = asyncio.create_task(consumer.receive(wait_ms=60_000))
        await asyncio.sleep(1)
        await consumer.close()
        with pytest.raises(ClosedError, match="closed"):
            await waiting

    with_consumer(body)
    with_consumer(body, brokers=2)


def test_received_message_is_pickled_with_its_receipt() -> None:
    async def body(rig: PopRig, consumer: SimpleConsumer) -> None:
        rig.peers[0].add(b"x", tags="a")
        (message,) = await consumer.receive()
        copied = pickle.loads(pickle.dumps(message))  # noqa: S301 - our own
        assert (copied.body, copied.tags, copied.receipt) == (b"x", "a", message.receipt)

    with_consumer(body)

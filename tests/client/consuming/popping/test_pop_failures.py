"""Push consumers that pop from brokers which refuse, are silent, or do not know pops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.message import MessageExt
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.testing.loop import run_virtual
from tests.client.consuming.popping.pop_peers import TOPIC, PopRig, pop_peers

Listen = Callable[[MessageExt], Awaitable[object] | object]
FOREVER = 10_000


def popping(rig: PopRig, listener: Listen | None = None, **options: Any) -> PushConsumer:
    config = PushConsumerConfig(mode="pop", **options)
    address = f"127.0.0.1:{rig.peers[0].port}"
    consumer = PushConsumer("g", address, config=config, runtime=rig.runtime)
    consumer.subscribe(TOPIC)

    async def ignore(_: MessageExt) -> None:
        pass

    consumer.listen(listener or ignore)
    return consumer


def with_rig(body: Callable[[PopRig], Coroutine[Any, Any, None]], brokers: int = 1) -> None:
    async def main() -> None:
        async with pop_peers(brokers) as rig:
            await body(rig)

    run_virtual(main())


def logged(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if text in one.getMessage()]


def test_acknowledgements_of_calls_that_end_together_share_a_request() -> None:
    async def body(rig: PopRig) -> None:
        peer = rig.peers[0]
        peer.add(*[b"x"] * 32)
        async with popping(rig):
            await asyncio.sleep(5)
            assert peer.unacked == 0
            acks = peer.count(RequestCode.BATCH_ACK_MESSAGE) + peer.count(RequestCode.ACK_MESSAGE)
            assert acks <= 3

    with_rig(body)


def test_broker_without_pops_is_reported_once_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(rig: PopRig) -> None:
        old, new = rig.peers
        old.answers[RequestCode.POP_MESSAGE] = [ResponseCode.REQUEST_CODE_NOT_SUPPORTED] * FOREVER
        new.add(b"x")
        async with popping(rig) as consumer:
            await asyncio.sleep(60)
            assert new.unacked == 0
            (problem,) = consumer.health().problems
            assert "pops need RocketMQ 5 or Kourou" in problem
            assert old.count(RequestCode.POP_MESSAGE) < 70

    with caplog.at_level(logging.WARNING):
        with_rig(body, brokers=2)
    assert len(logged(caplog, "pop.failed")) == 1


@pytest.mark.parametrize(
    "code", [ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_BUSY]
)
def test_refused_pops_are_reported_once_and_tried_again(
    code: ResponseCode, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(rig: PopRig) -> None:
        peer = rig.peers[0]
        peer.add(b"x")
        peer.answers[RequestCode.POP_MESSAGE] = [code] * FOREVER
        async with popping(rig) as consumer:
            await asyncio.sleep(60)
            assert any("its pops fail" in text for text in consumer.health().problems)
            assert peer.count(RequestCode.POP_MESSAGE) < 70
            peer.answers.clear()
            await asyncio.sleep(30)
            assert peer.unacked == 0
            assert consumer.health().is_ok

    with caplog.at_level(logging.WARNING):
        with_rig(body)
    assert len(logged(caplog, "pop.failed")) == 1


@pytest.mark.parametrize("code", [ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT])
def test_broker_that_holds_no_pops_is_not_asked_all_the_time(code: ResponseCode) -> None:
    async def body(rig: PopRig) -> None:
        peer = rig.peers[0]
        peer.answers[RequestCode.POP_MESSAGE] = [code] * FOREVER
        async with popping(rig) as consumer:
            await asyncio.sleep(60)
            assert peer.count(RequestCode.POP_MESSAGE) <= 60 * 20 + 1
            assert consumer.health().is_ok
            peer.add(b"x")
            peer.answers.clear()
            await asyncio.sleep(5)
            assert peer.unacked == 0

    with_rig(body)


def test_silent_broker_does_not_delay_the_messages_of_others() -> None:
    async def body(rig: PopRig) -> None:
        silent, other = rig.peers
        silent.silent.add(RequestCode.POP_MESSAGE)
        other.add(*[b"x"] * 100)
        async with popping(rig):
            await asyncio.sleep(2)
            assert other.unacked == 0

    with_rig(body, brokers=2)


def test_acknowledgements_are_tried_again_until_the_invisible_time_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(rig: PopRig) -> None:
        peer = rig.peers[0]
        peer.add(b"x")
        peer.silent |= {RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE}
        async with popping(rig) as consumer:
            await asyncio.sleep(30)
            assert peer.unacked == 1
            assert any("acknowledgements" in text for text in consumer.health().problems)
            peer.silent.clear()
            await asyncio.sleep(10)
            assert (peer.unacked, peer.messages[0].times) == (0, 1)
            assert consumer.health().is_ok
            assert consumer.health().lost_acks == 0

    with caplog.at_level(logging.WARNING):
        with_rig(body)
    assert len(logged(caplog, "ack.failed")) == 1


def test_acknowledgement_that_fails_for_good_is_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(rig: PopRig) -> None:
        peer = rig.peers[0]
        peer.add(b"x")
        refused = [ResponseCode.MESSAGE_ILLEGAL] * FOREVER
        peer.answers[RequestCode.ACK_MESSAGE] = list(refused)
        peer.answers[RequestCode.BATCH_ACK_MESSAGE] = list(refused)
        async with popping(rig, pop_invisible_ms=10_000) as consumer:
            await asyncio.sleep(35)
            assert consumer.health().lost_acks == peer.messages[0].times == 4
            peer.answers.clear()
            await asyncio.sleep(10)
            assert peer.unacked == 0
            assert consumer.health().is_ok

    with caplog.at_level(logging.WARNING):
        with_rig(body)
    assert len(logged(caplog, "ack.failed")) == 1


def test_message_whose_change_fails_comes_back_by_itself() -> None:
    async def body(rig: PopRig) -> None:
        peer = rig.peers[0]
        peer.add(b"x")
        peer.silent.add(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        times: list[float] = []

        def fail(_: MessageExt) -> None:
            times.append(asyncio.get_running_loop().time())
            if len(times) == 1:
                raise ValueError("once")

        async def listen(message: MessageExt) -> None:
            fail(message)

        async with popping(rig, listen, pop_invisible_ms=20_000) as consumer:
            await asyncio.sleep(60)
            assert len(times) == 2
            assert times[1] - times[0] == pytest.approx(20, abs=1)
            assert (peer.unacked, consumer.health().held_messages) == (0, 0)

    with_rig(body)


def test_message_that_expires_while_it_waits_is_not_delivered() -> None:
    async def body(rig: PopRig) -> None:
        peer = rig.peers[0]
        peer.add(b"1", b"2")
        received: list[bytes] = []

        async def work(message: MessageExt) -> None:
            received.append(message.body)
            if len(received) == 1:
                peer.silent.add(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
                await asyncio.sleep(25)
                peer.silent.clear()

        async with popping(rig, work, pop_invisible_ms=10_000, consume_threads=1) as consumer:
            await asyncio.sleep(60)
            assert consumer.health().held_messages == 0
            assert peer.unacked == 0
            # Both were popped again after 10 s; the old copy of 2 was dropped.
            assert sorted(received) == [b"1", b"1", b"2"]

    with_rig(body)


def test_pops_carry_the_options() -> None:
    async def body(rig: PopRig) -> None:
        peer = rig.peers[0]
        options: dict[str, Any] = {"pop_batch_size": 7, "pop_invisible_ms": 45_000}
        async with popping(rig, **options) as consumer:
            await asyncio.sleep(1)
            (pop,) = peer.pops
            assert (pop.max_msg_nums, pop.invisible_time, pop.poll_time) == (7, 45_000, 15_000)
            assert not pop.order
            consumer.reconfigure(pop_batch_size=9)
            await asyncio.sleep(16)
            assert peer.pops[-1].max_msg_nums == 9

    with_rig(body)

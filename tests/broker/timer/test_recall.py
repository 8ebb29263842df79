"""Recalls of scheduled messages, from the producer's call to the broker's delivery."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kourou.broker.timer.timer_config import TimerConfig
from kourou.errors import (
    IllegalOperationError,
    InvalidMessageError,
    InvalidTopicError,
    NoRouteError,
    RemoteError,
    RequestTimeoutError,
    UsageError,
)
from kourou.model.message import Message
from kourou.model.recall_handle import RecallHandle, decode_recall_handle
from kourou.store.tools.info import store_info
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

ALLOWED = TimerConfig()
REFUSED = TimerConfig(recall_message_enable=False)


async def _bodies(cluster: Cluster, wait_s: float) -> list[bytes]:
    received: list[bytes] = []
    consumer = cluster.push_consumer("c")
    consumer.subscribe("T")
    consumer.listen(lambda message: received.append(message.body))
    async with consumer:
        await asyncio.sleep(wait_s)
    return received


def test_a_recalled_message_is_never_delivered() -> None:
    async def main() -> None:
        async with Cluster(timer=ALLOWED) as cluster, cluster.producer() as producer:
            await producer.send(Message("T", b"now"))
            kept = await producer.send(Message("T", b"kept", delay_ms=20_000))
            gone = await producer.send(Message("T", b"gone", delay_ms=20_000))
            assert kept.recall_handle
            assert gone.recall_handle
            assert await producer.recall("T", gone.recall_handle) == gone.msg_id
            assert await producer.recall("T", gone.recall_handle) == gone.msg_id
            assert await _bodies(cluster, 60) == [b"now", b"kept"]

    run_virtual(main())


def test_a_recall_survives_a_kill() -> None:
    async def main() -> None:
        async with Cluster(timer=ALLOWED) as cluster, cluster.producer() as producer:
            gone = await producer.send(Message("T", b"gone", delay_ms=20_000))
            assert gone.recall_handle
            await producer.recall("T", gone.recall_handle)
            await cluster.kill_broker()
            await cluster.restart_broker()
            assert await _bodies(cluster, 60) == []

    run_virtual(main())


def test_recalls_are_refused_for_javas_reasons_with_javas_codes() -> None:
    async def main() -> None:
        async with Cluster(timer=ALLOWED) as cluster, cluster.producer() as producer:
            sent = await producer.send(Message("T", b"x", delay_ms=60_000))
            await producer.send(Message("Other", b"x"))
            handle = decode_recall_handle(sent.recall_handle or "")
            assert handle.topic == "T"
            assert handle.unique_id == sent.msg_id
            past, far = handle._replace(time="1000"), handle._replace(time="9" * 15)
            odd = handle._replace(time="soon")
            for topic, bad, words in (
                ("Other", handle, "the handle is of topic T, not Other"),
                ("T", past, "the message is due at 1000, now it is 17"),
                ("T", far, "by less than 316224000000 ms .timerMaxDelaySec"),
                ("T", odd, "the message is due at soon"),
            ):
                with pytest.raises(IllegalOperationError, match=words):
                    await producer.recall(topic, bad.encode(), timeout_ms=1_000)

    run_virtual(main())


def test_delivered_messages_and_those_of_other_brokers_cannot_be_recalled() -> None:
    async def main() -> None:
        async with Cluster(timer=ALLOWED) as cluster, cluster.producer() as producer:
            sent = await producer.send(Message("T", b"x", delay_ms=2_000))
            handle = decode_recall_handle(sent.recall_handle or "")
            others = handle._replace(broker_name="broker-b")
            with pytest.raises(NoRouteError, match="broker-b"):
                await producer.recall("T", others.encode(), timeout_ms=1_000)
            await asyncio.sleep(5)
            with pytest.raises(IllegalOperationError, match="timestamp invalid"):
                await producer.recall("T", handle.encode(), timeout_ms=1_000)
            assert await _bodies(cluster, 5) == [b"x"]

    run_virtual(main())


def test_a_message_that_is_not_scheduled_has_no_recall_handle() -> None:
    async def main() -> None:
        async with Cluster(timer=ALLOWED) as cluster, cluster.producer() as producer:
            handle: Any = (await producer.send(Message("T", b"x"))).recall_handle
            with pytest.raises(UsageError, match="sent without a delivery time"):
                await producer.recall("T", handle)

    run_virtual(main())


def test_a_message_recalled_twice_hides_no_other_in_store_listings() -> None:
    async def main() -> None:
        async with Cluster(timer=ALLOWED) as cluster, cluster.producer() as producer:
            await producer.send(Message("T", b"kept", delay_ms=3_600_000))
            gone = await producer.send(Message("T", b"gone", delay_ms=1_800_000))
            for _ in range(2):
                await producer.recall("T", gone.recall_handle or "")
            await asyncio.sleep(60)
            timers = store_info(cluster.disk()).timers
        assert timers is not None
        assert (timers.waiting, timers.first_at_ms) == (1, timers.last_at_ms)

    run_virtual(main())


def test_recalls_are_allowed_by_default() -> None:
    assert TimerConfig().recall_message_enable


def test_recalls_are_refused_with_the_option_off() -> None:
    async def main() -> None:
        async with Cluster(timer=REFUSED) as cluster, cluster.producer() as producer:
            sent = await producer.send(Message("T", b"x", delay_ms=5_000))
            with pytest.raises(
                RemoteError, match=r"kourou broker set .* recallMessageEnable=true"
            ) as caught:
                await producer.recall("T", sent.recall_handle or "", timeout_ms=1_000)
            assert caught.value.code == 16

    run_virtual(main())


def test_an_invalid_handle_is_refused_by_the_client() -> None:
    async def main() -> None:
        async with Cluster() as cluster, cluster.producer() as producer:
            for handle in ("", "not-a-handle", "djIgYSBiIDEgaQ=="):
                with pytest.raises(UsageError, match="recall handle"):
                    await producer.recall("T", handle)
            with pytest.raises(InvalidTopicError):
                await producer.recall("%RETRY%g", RecallHandle("T", "b", "1", "i").encode())

    run_virtual(main())


def test_handles_equal_javas() -> None:
    text = (
        "djEgR29sZGVuRGVsYXkgYnJva2VyLWEgMTc5NTIyODM4MDAwMSBDMDAwMDIwMjAzRTU0RTBFMkYyQTY3OEIz"
        "NkY4MDAwRg=="
    )
    handle = RecallHandle(
        "GoldenDelay", "broker-a", "1795228380001", "C000020203E54E0E2F2A678B36F8000F"
    )
    assert decode_recall_handle(text) == decode_recall_handle(text.rstrip("=")) == handle
    assert handle.encode() == text


@pytest.mark.parametrize(
    "times",
    [
        {"deliver_at_ms": -1},
        {"delay_ms": 1.5},
        {"delay_ms": True},
        {"deliver_at_ms": 10**17},
        {"delay_ms": 5, "delay_level": 1},
        {"delay_ms": 5, "deliver_at_ms": 5},
    ],
)
def test_a_message_accepts_one_time_in_whole_milliseconds(times: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError):
        Message("T", b"x", **times)


def test_a_recall_with_a_late_sync_is_retried_until_it_is_synced() -> None:
    async def main() -> None:
        async with Cluster(timer=ALLOWED) as cluster, cluster.producer() as producer:
            gone = await producer.send(Message("T", b"gone", delay_ms=40_000))
            cluster.flusher().stall()
            handle = gone.recall_handle or ""
            recalling = asyncio.create_task(producer.recall("T", handle, timeout_ms=20_000))
            await asyncio.sleep(8)
            assert not recalling.done()
            cluster.flusher().release()
            assert await recalling == gone.msg_id
            assert await _bodies(cluster, 60) == []

    run_virtual(main())


def test_a_recall_that_is_not_synced_in_time_is_an_error() -> None:
    async def main() -> None:
        async with Cluster(timer=ALLOWED) as cluster, cluster.producer() as producer:
            sent = await producer.send(Message("T", b"x", delay_ms=40_000))
            cluster.flusher().stall()
            try:
                with pytest.raises(RequestTimeoutError, match="the sync did not end within"):
                    await producer.recall("T", sent.recall_handle or "", timeout_ms=8_000)
            finally:
                cluster.flusher().release()

    run_virtual(main())

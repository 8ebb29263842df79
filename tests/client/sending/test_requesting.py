"""Requests get the reply of their consumer, or fail with an error that names the cause."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.sending.requesting import REPLY_TRIES_MAX
from kourou.errors import (
    ClosedError,
    InvalidMessageError,
    NotARequestError,
    RemoteSystemError,
    ReplyTimeoutError,
    TooManyRequestsError,
    UsageError,
)
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.sysflag import COMPRESSED
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

REPLIES = "DefaultCluster_REPLY_TOPIC"


@asynccontextmanager
async def answering(cluster: Cluster, *, copies: int = 1) -> AsyncIterator[list[MessageExt]]:
    """Run a consumer that replies with each request's body in upper case; yield the requests."""
    requests: list[MessageExt] = []
    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = cluster.push_consumer("answerers", config)
    consumer.subscribe(TOPIC)
    async with cluster.producer("answerers") as producer:

        async def answer(question: MessageExt) -> None:
            requests.append(question)
            for _ in range(copies):
                await producer.reply(question, question.body.upper(), properties={"by": "us"})

        consumer.listen(answer)
        async with consumer:
            yield requests


async def stored_replies(cluster: Cluster) -> list[MessageExt]:
    """Return the messages of the reply topic."""
    async with cluster.pull_consumer() as reader:
        queues = await reader.fetch_subscribe_message_queues(REPLIES)
        found: list[MessageExt] = []
        for queue in queues:
            found += (await reader.pull(queue, 0)).messages
        return found


def test_request_returns_its_reply() -> None:
    async def main() -> None:
        async with (
            recording() as w,
            answering(w.cluster) as requests,
            w.cluster.producer("askers") as producer,
        ):
            reply = await producer.request(Message(TOPIC, b"how much?"), timeout_ms=5_000)
            assert (reply.topic, reply.body) == (REPLIES, b"HOW MUCH?")
            assert reply.properties["by"] == "us"
            (question,) = requests
            assert question.properties["TTL"] == "5000"
            assert question.properties["REPLY_TO_CLIENT"] == producer.client_id
            reported = {"MSG_TYPE": "reply", "TTL": "5000", "REPLY_TO_CLIENT": producer.client_id}
            assert reported.items() <= reply.properties.items()
            assert uuid.UUID(reply.properties["CORRELATION_ID"]).version == 4
            set_on_the_way = {"ARRIVE_TIME", "PUSH_REPLY_TIME", "MSG_REGION", "TRACE_ON"}
            assert set_on_the_way <= reply.properties.keys()
            (stored,) = await stored_replies(w.cluster)
            assert (stored.body, stored.msg_id) == (reply.body, reply.msg_id)
            assert "PUSH_REPLY_TIME" not in stored.properties

    run_virtual(main())


def test_concurrent_requests_get_their_own_replies() -> None:
    async def main() -> None:
        async with (
            recording(brokers=2) as w,
            answering(w.cluster),
            w.cluster.producer("askers") as producer,
        ):
            bodies = [b"question %d" % index for index in range(200)]
            replies = await asyncio.gather(
                *(producer.request(Message(TOPIC, body), timeout_ms=30_000) for body in bodies)
            )
            assert [reply.body for reply in replies] == [body.upper() for body in bodies]

    run_virtual(main())


@pytest.mark.parametrize("broker_name", ["broker-0", "broker-1"])
def test_reply_is_sent_to_the_broker_that_stored_the_request(broker_name: str) -> None:
    async def main() -> None:
        async with (
            recording(brokers=2) as w,
            answering(w.cluster),
            w.cluster.producer("askers") as producer,
        ):
            queue = MessageQueue(TOPIC, broker_name, 0)
            for body in (b"a", b"b", b"c"):
                await producer.request(Message(TOPIC, body), timeout_ms=5_000, queue=queue)
            stored = await stored_replies(w.cluster)
            assert [reply.broker_name for reply in stored] == [broker_name] * 3

    run_virtual(main())


def test_reply_is_sent_to_another_broker_if_requester_is_unknown() -> None:
    async def main() -> None:
        async with (
            recording(brokers=2) as w,
            w.consumer(),
            w.cluster.producer("askers") as asker,
            w.cluster.producer("answerers") as answerer,
        ):
            queue = MessageQueue(TOPIC, "broker-0", 0)
            asking = asyncio.create_task(
                asker.request(Message(TOPIC, b"?"), timeout_ms=20_000, queue=queue)
            )
            await w.until_received(b"?")
            await w.cluster.kill_broker(0)
            await w.cluster.restart_broker(0)
            await answerer.reply(w.deliveries[0], b"!")
            assert (await asking).body == b"!"
            stored = await stored_replies(w.cluster)
            assert [reply.broker_name for reply in stored] == ["broker-0", "broker-1"]

    run_virtual(main())


def test_first_of_several_replies_is_returned() -> None:
    async def main() -> None:
        async with (
            recording() as w,
            answering(w.cluster, copies=3),
            w.cluster.producer("askers") as producer,
        ):
            for body in (b"a", b"b"):
                reply = await producer.request(Message(TOPIC, body), timeout_ms=5_000)
                assert reply.body == body.upper()

    run_virtual(main())


def test_large_reply_is_compressed() -> None:
    async def main() -> None:
        async with (
            recording() as w,
            answering(w.cluster),
            w.cluster.producer("askers") as producer,
        ):
            body = b"0123456789" * 1_000
            reply = await producer.request(Message(TOPIC, body), timeout_ms=5_000)
            assert reply.body == body
            assert not reply.sys_flag & COMPRESSED
            (stored,) = await stored_replies(w.cluster)
            assert stored.body == body
            assert stored.store_size < 2_000

    run_virtual(main())


def test_request_without_consumer_times_out_as_stored() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.producer("askers") as producer:
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(
                ReplyTimeoutError, match="check that a consumer of the topic replies"
            ):
                await producer.request(Message(TOPIC, b"?"), timeout_ms=2_000)
            assert asyncio.get_running_loop().time() - began_s == pytest.approx(2, abs=0.01)
            assert await w.committed() == 0
            async with answering(w.cluster) as requests:
                await w.until(lambda: bool(requests))  # its late reply is dropped
                reply = await producer.request(Message(TOPIC, b"again"), timeout_ms=5_000)
                assert reply.body == b"AGAIN"

    run_virtual(main())


def test_waiting_requests_are_limited() -> None:
    async def main() -> None:
        config = ProducerConfig(requests_waiting_max=2)
        async with recording() as w, w.cluster.producer("askers", config) as producer:
            waiting = [
                asyncio.create_task(producer.request(Message(TOPIC, b"?"), timeout_ms=3_000))
                for _ in range(2)
            ]
            await asyncio.sleep(0.5)
            with pytest.raises(TooManyRequestsError, match="requests_waiting_max"):
                await producer.request(Message(TOPIC, b"?"))
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(end) for end in ends] == [ReplyTimeoutError] * 2

    run_virtual(main())


def test_cancelled_request_stops_waiting() -> None:
    async def main() -> None:
        config = ProducerConfig(requests_waiting_max=1)
        async with recording() as w, w.cluster.producer("askers", config) as producer:
            waiting = asyncio.create_task(producer.request(Message(TOPIC, b"?")))
            await asyncio.sleep(0.5)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(ReplyTimeoutError):
                await producer.request(Message(TOPIC, b"?"), timeout_ms=500)

    run_virtual(main())


def test_close_ends_the_wait_for_replies() -> None:
    async def main() -> None:
        config = ProducerConfig(close_timeout_ms=1_000)
        async with recording() as w:
            producer = w.cluster.producer("askers", config)
            await producer.start()
            waiting = asyncio.create_task(producer.request(Message(TOPIC, b"?"), timeout_ms=60_000))
            await asyncio.sleep(0.5)
            await producer.close()
            (end,) = await asyncio.gather(waiting, return_exceptions=True)
            assert "closed before the reply arrived" in str(end)
            with pytest.raises(ClosedError):
                await producer.request(Message(TOPIC, b"?"))

    run_virtual(main())


def test_plain_message_cannot_be_replied_to() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.producer() as producer:
            await w.send(b"no question")
            async with w.consumer():
                await w.until_received(b"no question")
            with pytest.raises(NotARequestError, match="CORRELATION_ID"):
                await producer.reply(w.deliveries[0], b"answer")
            with pytest.raises(UsageError):
                await producer.request(Message("bad topic", b"?"))

    run_virtual(main())


def test_reply_to_a_disconnected_requester_is_refused_and_stored() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.producer("answerers") as answerer:
            async with w.cluster.producer("askers") as asker:
                with pytest.raises(ReplyTimeoutError):
                    await asker.request(Message(TOPIC, b"?"), timeout_ms=500)
            async with w.consumer():
                await w.until_received(b"?")
            with pytest.raises(RemoteSystemError, match=r"channel of <.*> not found"):
                await answerer.reply(w.deliveries[0], b"too late")
            with pytest.raises(InvalidMessageError):
                await answerer.reply(w.deliveries[0], b"")
            stored = await stored_replies(w.cluster)
            assert [message.body for message in stored] == [b"too late"] * REPLY_TRIES_MAX

    run_virtual(main())


def test_replies_are_not_stored_if_switched_off() -> None:
    async def main() -> None:
        async with (
            recording(store_reply_message_enable=False) as w,
            answering(w.cluster),
            w.cluster.producer("askers") as producer,
        ):
            reply = await producer.request(Message(TOPIC, b"?!"), timeout_ms=5_000)
            assert reply.body == b"?!"
            assert await stored_replies(w.cluster) == []

    run_virtual(main())


def test_request_survives_a_broker_restart() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.producer("askers") as producer:
            await producer.send(Message(TOPIC, b"warm"))
            waiting = asyncio.create_task(
                producer.request(Message(TOPIC, b"still there?"), timeout_ms=60_000)
            )
            await asyncio.sleep(1)
            await w.cluster.kill_broker()
            await asyncio.sleep(1)
            await w.cluster.restart_broker()
            await asyncio.sleep(31)  # until both sides have sent heartbeats
            async with answering(w.cluster):
                reply = await waiting
                assert reply.body == b"STILL THERE?"

    run_virtual(main())

"""Fast path of sends: same results as the general path for all answers of the broker.

A hook without effect makes a producer use the general path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.first_try import FirstTry, plain_bytes_end
from kourou.client.sending.producer import Producer
from kourou.client.sending.send_hooks import SendAttempt, SendOutcome
from kourou.errors import (
    ConnectionLostError,
    KourouError,
    RemoteError,
    RequestTimeoutError,
)
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.route import BrokerData, QueueData, TopicRoute
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.routes import encode_topic_route
from kourou.protocol.sending import SendMessageResponseHeader
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.server import RemotingServer
from kourou.testing.inspection import instance_of, sender_of
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime

ADDRESS = ("127.0.0.1", 9876)
OFFSET_MSG_ID = "7F00000100002A9F0000000000000000"


class NoEffectHook:
    """A hook that disables the fast path."""

    def before_send(self, attempt: SendAttempt) -> None:
        """Do nothing."""

    def after_send(self, attempt: SendAttempt, outcome: SendOutcome) -> None:
        """Do nothing."""


class Broker:
    """Answers sends by a script, the last answer repeatedly, and records the requests."""

    def __init__(self, answers: list[Handler]) -> None:
        self.answers = answers
        self.requests: list[Request] = []

    def on_send(self, request: Request) -> RemotingCommand | None:
        self.requests.append(request)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return answer(request)

    def on_route(self, request: Request) -> RemotingCommand:
        brokers = [BrokerData("c", "b", {0: "127.0.0.1:9876"})]
        route = TopicRoute([QueueData("b", 4, 4, 6)], brokers)
        return response(request.command, body=encode_topic_route(route, standard=True))


Body = Callable[[Producer, Broker], Coroutine[Any, Any, None]]


def against(answers: list[Handler], body: Body, *, hooks: Any = (), **options: Any) -> None:
    """Run `body` with a producer that has a cached route and an open connection."""

    async def main() -> None:
        runtime = sim_runtime()
        broker = Broker([stored, *answers])
        handlers: dict[int, Handler] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: broker.on_route,
            RequestCode.SEND_MESSAGE_V2: broker.on_send,
            RequestCode.HEART_BEAT: lambda request: response(request.command),
            RequestCode.UNREGISTER_CLIENT: lambda request: response(request.command),
        }
        server = RemotingServer(runtime, handlers, ConnectionLimits(), "scripted")
        await server.start(ADDRESS)
        config = ProducerConfig(**options)
        async with Producer(
            "g", "127.0.0.1:9876", config=config, hooks=hooks, runtime=runtime
        ) as producer:
            await producer.send(Message("T", b"first"))
            broker.requests.clear()
            await body(producer, broker)
        await server.stop()

    run_virtual(main())


def stored(request: Request) -> RemotingCommand:
    """Answer that the message is stored in its queue."""
    queue_id = int(request.command.ext_fields["e"])
    return response(request.command, header=SendMessageResponseHeader(OFFSET_MSG_ID, queue_id, 17))


def answered(code: int, **fields: str) -> Handler:
    """Answer with these fields instead of the usual ones."""

    def answer(request: Request) -> RemotingCommand:
        found = response(request.command, code, "scripted")
        found.ext_fields = fields
        return found

    return answer


def silent(_: Request) -> None:
    """Do not answer."""


def close_connection(request: Request) -> None:
    """Close the connection instead of answering."""
    request.connection.abort("scripted")


WHOLE = {"msgId": OFFSET_MSG_ID, "queueId": "3", "queueOffset": "17"}

SCRIPTS: dict[str, list[Handler]] = {
    "stored": [stored],
    "busy, then stored": [answered(2), stored],
    "busy to the end": [answered(2)],
    "no permission": [answered(16)],
    "refused for good": [answered(13)],
    "a code nobody knows": [answered(9_999)],
    "go away, then stored": [answered(1500), stored],
    "go away to the end": [answered(1500)],
    "connection lost, then stored": [close_connection, stored],
    "connection lost to the end": [close_connection],
    "silent, then stored": [silent, stored],
    "silent to the end": [silent],
    "disk late": [answered(10, **WHOLE)],
    "in another queue": [answered(0, **WHOLE)],
    "durable": [answered(0, **WHOLE, KOUROU_DURABILITY="DISK")],
    "durable as nobody knows": [answered(0, **WHOLE, KOUROU_DURABILITY="GOLD")],
    "nowhere": [answered(0)],
    "two offset ids": [answered(0, **{**WHOLE, "msgId": f"{OFFSET_MSG_ID},{OFFSET_MSG_ID}"})],
    "an offset with a sign": [answered(0, **{**WHOLE, "queueOffset": "+17"})],
    "an offset of letters": [answered(0, **{**WHOLE, "queueOffset": "1_7"})],
    "an offset without end": [answered(0, **{**WHOLE, "queueOffset": "9" * 19})],
}


def outcome_of(answers: list[Handler], *, submit: bool, hooks: Any) -> list[object]:
    """Return the observable results of a send: outcome, duration, requests and statistics."""
    seen: list[object] = []

    async def body(producer: Producer, broker: Broker) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        message = Message("T", b"body", tags="eu", keys=["k"], properties={"who": 'ä\\"'}, flag=7)
        try:
            if submit:
                receipt = await (await producer.submit(message, timeout_ms=2_000))
            else:
                receipt = await producer.send(message, timeout_ms=2_000)
            seen.append((receipt.queue, receipt.queue_offset, receipt.durability, receipt.status))
            seen.append(receipt.offset_msg_id)
        except KourouError as error:
            seen.append((type(error), str(error)))
        stats = producer.stats()
        seen.append((stats.sent_total, stats.failed_total, stats.retries_total, stats.in_flight))
        # The delay before a retry is random, and a timeout may be late by a hundredth.
        seen.append(round(loop.time() - began_s))
        ids = set()
        first = broker.requests[0].command
        for request in broker.requests[:2]:
            command = request.command
            fields = dict(command.ext_fields)
            ids.add(fields["i"].split("UNIQ_KEY")[1])
            fields["i"] = fields["i"].split("UNIQ_KEY")[0]
            distance = (int(fields.pop("e")) - int(first.ext_fields["e"])) % 4
            del fields["g"]
            seen.append((command.code, command.body, command.flag, fields, distance))
        assert len(ids) == 1

    against(list(answers), body, hooks=hooks, attempt_timeout_ms=500)
    return seen


@pytest.mark.parametrize("submit", [False, True], ids=["send", "submit"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_fast_path_gives_the_result_of_the_general_path(script: str, submit: bool) -> None:
    fast = outcome_of(SCRIPTS[script], submit=submit, hooks=())
    general = outcome_of(SCRIPTS[script], submit=submit, hooks=[NoEffectHook()])
    assert fast == general


def test_only_messages_of_the_general_path_create_a_task() -> None:
    async def body(producer: Producer, broker: Broker) -> None:
        assert isinstance(await producer.submit(Message("T", b"x")), FirstTry)
        assert isinstance(await producer.submit(Message("T", b"x" * 5_000)), asyncio.Task)
        assert isinstance(await producer.submit(Message("U", b"x")), asyncio.Task), "no route yet"
        await producer.flush()
        assert isinstance(await producer.submit(Message("U", b"x")), FirstTry)
        await producer.flush()
        assert len(broker.requests) == 4

    against([stored], body)


def test_cancelled_submit_is_released_at_once_and_its_answer_dropped() -> None:
    async def body(producer: Producer, broker: Broker) -> None:
        first = await producer.submit(Message("T", b"given up"))
        waiting = asyncio.create_task(producer.submit(Message("T", b"next")))
        await asyncio.sleep(0)
        assert not waiting.done(), "only one message may be in flight"
        assert first.cancel()
        assert not first.cancel()
        assert producer.stats().in_flight == 0
        await (await waiting)
        assert first.cancelled()
        assert [request.command.body for request in broker.requests] == [b"given up", b"next"]
        assert producer.stats().sent_total == 2, "the message of the setup and the last one"

    against([stored], body, in_flight_messages_max=1)


def test_submit_cancelled_between_tries_is_not_retried() -> None:
    async def body(producer: Producer, broker: Broker) -> None:
        future = await producer.submit(Message("T", b"x"))
        await asyncio.sleep(0.05)  # it was refused, and waits for the retry
        future.cancel()
        await producer.flush()
        assert future.cancelled()
        assert len(broker.requests) == 1
        assert producer.stats().in_flight == 0

    against([answered(2)], body, retry_backoff_min_ms=500)


@pytest.mark.parametrize("hooks", [(), [NoEffectHook()]], ids=["fast path", "general path"])
def test_second_go_away_is_not_retried(hooks: Any) -> None:
    async def body(producer: Producer, broker: Broker) -> None:
        with pytest.raises(RemoteError):
            await producer.send(Message("T", b"x"), timeout_ms=200)
        assert len(broker.requests) == 2

    against([answered(1500)], body, hooks=hooks, retry_backoff_min_ms=500)


def test_send_cancelled_before_the_general_path_is_counted_once() -> None:
    def refuse(queues: Any, _: Message) -> MessageQueue:
        raise LookupError

    async def body(producer: Producer, broker: Broker) -> None:
        never_sent = await producer.submit(Message("T", b"x"), queue=refuse)
        never_sent.cancel()
        lost = await producer.submit(Message("T", b"x"))
        await asyncio.sleep(0.05)
        for connection in instance_of(producer).pool.connections():
            connection.abort("scripted")
        lost.cancel()
        await producer.flush()
        stats = producer.stats()
        assert (stats.sent_total, stats.failed_total, stats.in_flight) == (1, 0, 0)

    against([silent], body)


def test_lost_connection_is_retried() -> None:
    async def body(producer: Producer, broker: Broker) -> None:
        lost: list[Request] = []

        def once(request: Request) -> RemotingCommand | None:
            if request.command.body == b"50" and not lost:
                lost.append(request)
                request.connection.abort("scripted")
                return None
            return stored(request)

        broker.answers[:] = [once]
        futures = [await producer.submit(Message("T", b"%d" % number)) for number in range(100)]
        receipts: list[SendReceipt] = await asyncio.gather(*futures)
        assert len({receipt.msg_id for receipt in receipts}) == 100
        assert len(lost) == 1
        stats = producer.stats()
        assert (stats.sent_total, stats.failed_total, stats.in_flight) == (101, 0, 0)
        assert stats.retries_total >= 50

    against([stored], body)


def test_thousand_timeouts_expire_on_time() -> None:
    def answer_partially(request: Request) -> RemotingCommand | None:
        return stored(request) if request.command.body == b"alive" else None

    async def body(producer: Producer, broker: Broker) -> None:
        loop = asyncio.get_running_loop()

        async def one(number: int) -> float:
            await asyncio.sleep(number / 10_000)
            began_s = loop.time()
            timeout_ms = 100 + number % 7
            with pytest.raises(RequestTimeoutError):
                await producer.send(Message("T", b"x"), timeout_ms=timeout_ms)
            return loop.time() - began_s - timeout_ms / 1000

        async def keep_alive() -> None:
            while True:  # a connection without any bytes during a request is closed
                await producer.send(Message("T", b"alive"))

        living = asyncio.create_task(keep_alive())
        late_s = await asyncio.gather(*map(one, range(1_000)))
        living.cancel()
        assert min(late_s) > -1e-6
        assert max(late_s) < 0.0101
        assert sum(request.command.body == b"x" for request in broker.requests) == 1_000

    against([answer_partially], body)


def test_close_fails_messages_in_flight_and_leaves_no_task() -> None:
    async def body(producer: Producer, broker: Broker) -> None:
        submitted = [await producer.submit(Message("T", b"x")) for _ in range(10)]
        sending = [asyncio.create_task(producer.send(Message("T", b"y"))) for _ in range(10)]
        await asyncio.sleep(0.01)
        await producer.close()
        for future in (*submitted, *sending):
            with pytest.raises(ConnectionLostError):
                await future
        assert not sender_of(producer).fallbacks
        assert len(broker.requests) == 20

    against([silent], body, close_timeout_ms=50)


def test_plain_bytes_end_depends_on_config() -> None:
    def end(*, is_binary: bool = False, has_hooks: bool = False, **options: Any) -> int:
        config = ProducerConfig(**options)
        return plain_bytes_end(config, is_binary=is_binary, has_hooks=has_hooks)

    assert end() == 4_096
    assert end(compress_body_over_bytes=None, max_message_size_bytes=10_000) == 10_001
    assert end(max_message_size_bytes=100) == 101
    assert end(linger_ms=5) == 0
    assert end(latency_fault_tolerance=True) == 0
    assert end(is_binary=True) == 0
    assert end(has_hooks=True) == 0

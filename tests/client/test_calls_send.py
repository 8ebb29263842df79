"""Answers of a scripted broker, and the receipts and errors that a producer derives from them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Durability, Producer, SendStatus
from kourou.errors import (
    MalformedHeaderError,
    NoPermissionError,
    RemoteError,
    SystemBusyError,
    TransportError,
)
from kourou.model.message import Message
from kourou.model.properties import decode_properties
from kourou.model.route import BrokerData, QueueData, TopicRoute
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.routes import encode_topic_route
from kourou.protocol.sending import SendMessageRequestHeaderV2, SendMessageResponseHeader
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.server import RemotingServer
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime

ADDRESS = ("127.0.0.1", 9876)
STORED = SendMessageResponseHeader("7F00000100002A9F0000000000000000", 3, 17)


def against(
    answers: list[Handler],
    body: Callable[[Producer], Coroutine[Any, Any, None]],
    order_topic_conf: str | None = None,
) -> None:
    """Run `body` with a producer whose sends get these answers in order, then always the last."""

    async def main() -> None:
        runtime = sim_runtime()

        def on_route(request: Request) -> RemotingCommand:
            brokers = [BrokerData("c", "b", {0: "127.0.0.1:9876"})]
            route = TopicRoute([QueueData("b", 4, 4, 6)], brokers, order_topic_conf)
            return response(request.command, body=encode_topic_route(route, standard=True))

        def on_send(request: Request) -> RemotingCommand | None:
            return (answers[0] if len(answers) == 1 else answers.pop(0))(request)

        handlers: dict[int, Handler] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: on_route,
            RequestCode.SEND_MESSAGE_V2: on_send,
            RequestCode.SEND_BATCH_MESSAGE: on_send,
            RequestCode.HEART_BEAT: lambda request: response(request.command),
            RequestCode.UNREGISTER_CLIENT: lambda request: response(request.command),
        }
        server = RemotingServer(runtime, handlers, ConnectionLimits(), "scripted")
        await server.start(ADDRESS)
        config = ProducerConfig(attempt_timeout_ms=500)
        async with Producer("g", "127.0.0.1:9876", config=config, runtime=runtime) as producer:
            await body(producer)
        await server.stop()

    run_virtual(main())


def stored(code: int = 0, **extra: str) -> Handler:
    """Answer that the message is stored."""

    def answer(request: Request) -> RemotingCommand:
        found = response(request.command, code, header=STORED)
        found.ext_fields |= extra
        return found

    return answer


def refused(code: int) -> Handler:
    """Answer that the message is not stored."""
    return lambda request: response(request.command, code, "scripted")


def silent(_: Request) -> None:
    """Do not answer."""


def close_connection(request: Request) -> None:
    """Close the connection instead of answering."""
    request.connection.abort("scripted")


@pytest.mark.parametrize(
    ("code", "extra", "durability", "status"),
    [
        (0, {"KOUROU_DURABILITY": "DISK"}, Durability.DISK, SendStatus.SEND_OK),
        (0, {"KOUROU_DURABILITY": "MEMORY"}, Durability.MEMORY, SendStatus.SEND_OK),
        (
            0,
            {"KOUROU_DURABILITY": "REPLICATED", "KOUROU_COPIES": "3"},
            Durability.REPLICATED,
            SendStatus.SEND_OK,
        ),
        (0, {"KOUROU_DURABILITY": "GOLD"}, Durability.UNKNOWN, SendStatus.SEND_OK),
        (0, {}, Durability.UNKNOWN, SendStatus.SEND_OK),
        (10, {"KOUROU_DURABILITY": "DISK"}, Durability.MEMORY, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, {}, Durability.UNKNOWN, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, {}, Durability.UNKNOWN, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_receipt_has_the_durability_the_broker_reported(
    code: int, extra: dict[str, str], durability: Durability, status: SendStatus
) -> None:
    async def body(producer: Producer) -> None:
        receipt = await producer.send(Message("T", b"x"))
        assert (receipt.durability, receipt.status) == (durability, status)
        assert receipt.copies == (3 if durability is Durability.REPLICATED else None)
        assert (receipt.queue.queue_id, receipt.queue_offset) == (3, 17)

    against([stored(code, **extra)], body)


@pytest.mark.parametrize(
    "failure",
    [
        refused(1),
        refused(2),
        refused(14),
        refused(16),
        refused(17),
        refused(1500),
        close_connection,
        silent,
    ],
    ids=lambda answer: answer.__qualname__,
)
def test_transient_failure_is_retried_with_the_same_id(failure: Handler) -> None:
    ids = []

    def note(request: Request) -> RemotingCommand | None:
        header = request.command.header(SendMessageRequestHeaderV2)
        ids.append((header.properties or "").partition("UNIQ_KEY\x01")[2].partition("\x02")[0])
        return failure(request) if len(ids) < 3 else stored()(request)

    async def body(producer: Producer) -> None:
        receipt = await producer.send(Message("T", b"x"))
        assert len(ids) >= 3
        assert set(ids) == {receipt.msg_id}

    against([note], body)


def test_busy_until_timeout_raises_system_busy() -> None:
    async def body(producer: Producer) -> None:
        with pytest.raises(SystemBusyError, match="scripted"):
            await producer.send(Message("T", b"x"))

    against([refused(2)], body)


def test_forbidden_send_is_tried_three_times() -> None:
    tries = []

    def note(request: Request) -> RemotingCommand:
        tries.append(request)
        return response(request.command, 16, "scripted")

    async def body(producer: Producer) -> None:
        with pytest.raises(NoPermissionError):
            await producer.send(Message("T", b"x"))
        assert len(tries) == 3

    against([note], body)


@pytest.mark.parametrize("code", [13, 26, 29, 3, 777])
def test_permanent_refusal_is_raised_with_its_code(code: int) -> None:
    async def body(producer: Producer) -> None:
        with pytest.raises(RemoteError, match="scripted") as caught:
            await producer.send(Message("T", b"x"))
        assert caught.value.code == code

    against([refused(code)], body)


def test_answer_without_offset_ids_is_an_error() -> None:
    async def body(producer: Producer) -> None:
        with pytest.raises(MalformedHeaderError):
            await producer.send(Message("T", b"x"))
        with pytest.raises(MalformedHeaderError, match="to 3 messages has 2 offset message ids"):
            await producer.send_batch([Message("T", b"x")] * 3)

    two = SendMessageResponseHeader("A,B", 0, 0)
    against(
        [
            lambda request: response(request.command),
            lambda request: response(request.command, header=two),
        ],
        body,
    )


def test_batch_stored_as_one_record_has_one_offset_id() -> None:
    async def body(producer: Producer) -> None:
        receipts = await producer.send_batch([Message("T", b"x")] * 3)
        assert {receipt.offset_msg_id for receipt in receipts} == {STORED.msg_id}
        assert [receipt.queue_offset for receipt in receipts] == [17, 18, 19]

    header = SendMessageResponseHeader(STORED.msg_id, 3, 17, batch_uniq_id="B")
    against([lambda request: response(request.command, header=header)], body)


@pytest.mark.parametrize(("waits", "reported"), [(True, "true"), (False, "false")])
def test_batch_sends_wait_store_ok(reported: str, *, waits: bool) -> None:
    properties_sent: list[dict[str, str]] = []

    def store(request: Request) -> RemotingCommand:
        header = request.command.header(SendMessageRequestHeaderV2)
        properties_sent.append(decode_properties((header.properties or "").encode()))
        return response(request.command, header=STORED)

    async def body(producer: Producer) -> None:
        await producer.send_batch([Message("T", b"x", wait_store_ok=waits)] * 2)
        assert properties_sent[0]["WAIT"] == reported
        assert properties_sent[0].keys() == {"WAIT", "UNIQ_KEY"}

    against([store], body)


def test_no_answer_until_timeout_is_a_transport_error() -> None:
    async def body(producer: Producer) -> None:
        with pytest.raises(TransportError):
            await producer.send(Message("T", b"x"), timeout_ms=1200)

    against([silent], body)


def test_ordered_topic_has_the_queues_of_its_configuration() -> None:
    queue_ids: list[int] = []

    def store(request: Request) -> RemotingCommand:
        queue_ids.append(request.command.header(SendMessageRequestHeaderV2).queue_id)
        return response(request.command, header=STORED)

    async def body(producer: Producer) -> None:
        for number in range(4):
            await producer.send(Message("T", b"x"))
            await producer.send(Message("T", b"x"), sharding_key=f"{number}")

    against([store], body, order_topic_conf="b:2")
    assert set(queue_ids) == {0, 1}, "not the four queues of the route data"
    assert queue_ids[1::2] == [0, 1, 0, 1], 'the hash of "0" is 48'

"""Calls: answers, errors, deadlines, cancellation, refusals."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import logging

import pytest

from kourou.errors import GrpcError
from kourou.http2 import frames
from kourou.http2.calls import Call, Method
from kourou.http2.frames import ErrorCode, Setting
from kourou.http2.grpc_messages import GrpcStatus
from kourou.http2.limits import GrpcLimits, Http2Limits
from kourou.http2.turns import TURN_FRAMES
from tests.http2.grpc_rig import Client, GrpcRig, bidi, echo, run, unary
from tests.http2.peer import REQUEST, body, frame, goaway, message, of_kind, of_stream, trailers

RESPONSE = {
    ":status": "200",
    "content-type": "application/grpc",
    "grpc-accept-encoding": "identity,gzip",
}

AT_ONCE = (0.001, 0.001)
"""Latencies with which the bytes of several clients arrive in the same turn."""


async def status_of(client: Client, stream_id: int = 1) -> tuple[str, str]:
    """Return status and text of a stream's trailers."""
    fields = trailers(await client.answer(stream_id), stream_id)
    return fields["grpc-status"], fields.get("grpc-message", "")


def test_unary_call_is_answered_with_headers_message_and_trailers() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1, b"hello"))
        head, data, end = await client.answer(1)

        assert head.fields == RESPONSE
        assert data.payload == message(b"hello")
        assert end.fields == {"grpc-status": "0"}
        assert rig.server.calls == 0

    run(test, unary(echo))


def test_call_has_metadata_addresses_and_deadline() -> None:
    seen: list[Call] = []

    def handle(call: Call, request: bytes) -> None:
        seen.append(call)
        call.reply(request)

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        binary = base64.b64encode(b"\0\xff").decode()
        more = [("grpc-timeout", "5S"), ("x-mq-a", "1"), ("x-mq-a", "2"), ("k-bin", binary)]
        request = client.peer.data(1, message(b""), ends=True)
        client.send(client.peer.headers(1, [*REQUEST, *more]), request)
        await client.answer(1)
        (call,) = seen

        assert call.metadata == {
            "content-type": "application/grpc",
            "te": "trailers",
            "grpc-timeout": "5S",
            "x-mq-a": "1,2",
            "k-bin": binary,
        }
        assert call.head.authority == b"localhost"
        assert call.timeout_s == 5.0
        assert call.deadline_s is not None
        assert 0 < call.deadline_s - asyncio.get_running_loop().time() < 5.0
        assert call.connection.remote_address[0] == "127.0.0.1"
        assert call.connection.local_address == ("127.0.0.1", 8081)
        assert not call.connection.is_tls

    run(test, unary(handle))


def test_messages_of_a_stream_precede_its_status() -> None:
    def handle(call: Call, request: bytes) -> None:
        for _ in range(3):
            call.send(request)
        call.finish(GrpcStatus.ABORTED, "grund: 100 % voll \u00fc")

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1, b"x"))
        received = await client.answer(1)

        assert body(received, 1) == message(b"x") * 3
        assert received[0].fields == RESPONSE
        assert trailers(received, 1) == {
            "grpc-status": "10",
            "grpc-message": "grund: 100 %25 voll %C3%BC",
        }

    run(test, unary(handle))


def test_stream_is_answered_at_once_if_it_need_not_wait() -> None:
    held: list[Call] = []

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect((Setting.INITIAL_WINDOW_SIZE, 50_000))
        client.send(*(client.peer.call(number) for number in (1, 3, 5)))
        await asyncio.sleep(0.1)
        outgoing = held[0].connection.outgoing
        messages = [b"one", bytes(20_000)]  # in two frames
        assert not held[0].reply_all([bytes(60_000)])
        assert held[0].reply_all(messages)
        unwritten = [outgoing.pending_bytes]
        assert not held[0].reply_all(messages)
        assert held[1].reply_all(messages)
        unwritten.append(outgoing.pending_bytes)
        assert [bool(size) for size in unwritten] == [False, True], "only the first one is written"
        client.send(frame(frames.RST_STREAM, 0, 5, ErrorCode.CANCEL.to_bytes(4)))
        await asyncio.sleep(0.1)
        assert not held[2].reply_all(messages)
        for number in (1, 3):
            received = await client.answer(number)
            assert received[0].fields == RESPONSE
            assert body(received, number) == message(messages[0]) + message(messages[1])
            assert trailers(received, number) == {"grpc-status": "0"}

    run(test, unary(lambda call, _: held.append(call)))


def test_error_without_a_message_is_one_frame() -> None:
    def handle(call: Call, _: bytes) -> None:
        call.finish(GrpcStatus.NOT_FOUND, "no such topic")

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1))
        (only,) = await client.answer(1)
        assert only.fields == {**RESPONSE, "grpc-status": "5", "grpc-message": "no such topic"}

    run(test, unary(handle))


def test_bidi_call_begins_with_its_headers_and_sees_each_message_and_the_end() -> None:
    log: list[object] = []

    def end(call: Call) -> None:
        log.append("end")
        call.send(b"bye")
        call.finish()

    def handle(call: Call, request: bytes) -> None:
        assert request == b""
        call.send_headers()
        call.on_message = log.append
        call.on_end = lambda: end(call)

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.headers(1))
        (head,) = await client.until(bool)
        assert head.fields == RESPONSE
        both = message(b"one") + message(b"two" * 20_000)
        for at in range(0, len(both), 7_000):
            client.send(client.peer.data(1, both[at : at + 7_000]))
        client.send(client.peer.data(1, message(b"")), client.peer.data(1, b"", ends=True))
        received = await client.answer(1)

        assert log == [b"one", b"two" * 20_000, b"", "end"]
        assert body(received, 1) == message(b"bye")

    run(test, bidi(handle))


@pytest.mark.parametrize("is_sent_before", [False, True])
def test_error_of_a_method_ends_its_call_only(
    caplog: pytest.LogCaptureFixture, *, is_sent_before: bool
) -> None:
    def handle(call: Call, request: bytes) -> None:
        if request == b"good":
            call.reply(b"")
            return
        if is_sent_before:
            call.send(b"part")
        raise KeyError("lost")

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1, b"bad"), client.peer.call(3, b"good"))
        assert await status_of(client) == ("13", "KeyError: 'lost'")
        assert await status_of(client, 3) == ("0", "")

    with caplog.at_level(logging.ERROR):
        run(test, unary(handle))
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None
    assert record.getMessage().startswith("call.failed path=/t.Echo/Unary")


def test_grpc_error_of_a_method_is_the_status() -> None:
    def handle(_: Call, __: bytes) -> None:
        raise GrpcError(GrpcStatus.PERMISSION_DENIED, "no")

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1))
        assert await status_of(client) == ("7", "no")

    run(test, unary(handle))


def test_answers_after_the_end_are_ignored() -> None:
    def handle(call: Call, _: bytes) -> None:
        call.reply(b"first")
        call.reply(b"second")
        call.send(b"third")
        call.finish(GrpcStatus.INTERNAL)
        assert not call.is_active

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1), client.peer.call(3))
        await client.answer(3)
        assert body(client.received, 1) == message(b"first")
        assert trailers(client.received, 1) == {"grpc-status": "0"}

    run(test, unary(handle))


# The end without an answer


def test_deadline_ends_the_call_in_time() -> None:
    log: list[str] = []

    def handle(call: Call, _: bytes) -> None:
        call.on_cancel = lambda: log.append(f"cancelled, active: {call.is_active}")

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        began_s = asyncio.get_running_loop().time()
        client.send(client.peer.call(1, grpc_timeout="2S"), client.peer.call(3))
        assert await status_of(client) == ("4", "not answered within 2 s")

        assert 2.0 <= asyncio.get_running_loop().time() - began_s < 2.1
        assert log == ["cancelled, active: True"]
        assert rig.server.calls == 1, "the call without a deadline is still open"

    run(test, unary(handle))


def test_answered_call_passes_its_deadline_unnoticed() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1, grpc_timeout="100m"))
        await client.answer(1)
        await asyncio.sleep(1)
        assert len(client.received) == 3

    run(test, unary(echo))


@pytest.mark.parametrize("way", ["reset", "lost", "stopped"])
def test_cancel_is_reported_once(way: str) -> None:
    log: list[str] = []
    calls: list[Call] = []

    def handle(call: Call, _: bytes) -> None:
        calls.append(call)
        call.on_cancel = lambda: log.append("cancelled")

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1, grpc_timeout="9S"))
        await asyncio.sleep(1)
        if way == "reset":
            client.send(frame(frames.RST_STREAM, 0, 1, ErrorCode.CANCEL.to_bytes(4)))
        elif way == "lost":
            client.transport.abort()
        else:
            await rig.server.stop(0.0)
        await asyncio.sleep(20)
        assert log == ["cancelled"]
        (call,) = calls
        assert not call.is_active
        call.reply(b"late")
        assert of_kind(client.received, frames.HEADERS) == []

    run(test, unary(handle))


def test_error_in_a_cancel_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise KeyError("in the callback")

    def handle(call: Call, _: bytes) -> None:
        call.on_cancel = fail

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1))
        client.send(
            frame(frames.RST_STREAM, 0, 1, bytes(4)), client.peer.call(3, grpc_timeout="1S")
        )
        assert (await status_of(client, 3))[0] == "4"

    run(test, unary(handle))
    assert [r.getMessage().split()[0] for r in caplog.records if r.levelno >= logging.ERROR] == [
        "call.cancel_failed",
        "call.cancel_failed",
    ]


# Refusals


@pytest.mark.parametrize(
    ("more", "data", "status", "text"),
    [
        ({":path": "/t.Echo/No"}, message(b""), "12", "Method not found: t.Echo/No"),
        (
            {"grpc-encoding": "zstd"},
            message(b""),
            "12",
            "grpc-encoding 'zstd' is not supported: use identity or gzip",
        ),
        ({"grpc-timeout": "1x"}, message(b""), "13", "grpc-timeout '1x' is malformed"),
        ({"x": "y" * 3000}, message(b""), "8", "exceeds the limit of 2000 bytes"),
        ({}, b"", "13", "the call ended without a request"),
        ({}, message(b"ab")[:-1], "13", "the last request is incomplete"),
        ({}, b"\0\0", "13", "the last request is incomplete"),
        ({}, message(b"a") * 2, "13", "more than one request in a unary call"),
        ({}, message(bytes(5001)), "8", "a message of 5001 bytes exceeds the limit"),
        ({}, message(b"a", flag=1), "13", "a compressed message without grpc-encoding"),
    ],
)
def test_call_is_refused_with_a_reason(
    more: dict[str, str], data: bytes, status: str, text: str
) -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        fields = [(name, more.get(name, value)) for name, value in REQUEST]
        fields += [pair for pair in more.items() if pair[0] != ":path"]
        client.send(client.peer.headers(1, fields), client.peer.data(1, data, ends=True))
        client.send(client.peer.call(3, b"next"))
        got, reason = await status_of(client)
        assert got == status
        assert text in reason
        assert (await status_of(client, 3))[0] == "0"

    limits = GrpcLimits(message_bytes_max=5000, http2=Http2Limits(header_list_bytes_max=2000))
    run(test, unary(echo), limits)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_request_of_a_browser_gets_a_text(method: str) -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        fields = [(":method", method), (":scheme", "http"), (":path", "/"), ("accept", "*/*")]
        client.send(client.peer.headers(1, fields, ends=True))
        received = await client.answer(1)
        text = body(received, 1).decode()

        assert received[0].fields[":status"] == "415"
        assert ("This port serves gRPC" in text) == (method != "HEAD")

    run(test, unary(echo))


def test_request_that_is_not_grpc_is_answered_at_its_end() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.headers(1, [*REQUEST[:4], ("content-type", "application/json")]))
        for _ in range(40):  # more than the window
            client.send(client.peer.data(1, bytes(16_384)))
            await asyncio.sleep(0.1)
        assert of_kind(client.received, frames.HEADERS) == []
        client.send(client.peer.data(1, b"", ends=True))
        received = await client.answer(1)
        assert b"POST with content-type 'application/json' is not a call" in body(received, 1)

    run(test, unary(echo))


def test_compressed_request_is_inflated() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        packed = message(gzip.compress(b"x" * 50_000), flag=1)
        client.send(client.peer.headers(1, [*REQUEST, ("grpc-encoding", "gzip")]))
        client.send(client.peer.data(1, packed, ends=True))
        assert body(await client.answer(1), 1) == message(b"x" * 50_000)

    run(test, unary(echo))


def test_bombs_of_gzip_close_the_connection() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        bomb = message(gzip.compress(bytes(500_000)), flag=1)
        for number in range(1, 200, 2):
            client.send(client.peer.headers(number, [*REQUEST, ("grpc-encoding", "gzip")]))
            client.send(client.peer.data(number, bomb, ends=True))
        code, text = goaway(await client.closed())
        assert code == ErrorCode.ENHANCE_YOUR_CALM
        assert "costly messages" in text

    def answer(call: Call, _: bytes) -> None:
        call.reply(b"")

    run(test, unary(answer), GrpcLimits(http2=Http2Limits(cheap_frames_burst=1_000)))


def noting(served: list[bytes]) -> dict[str, Method]:
    """Return a method that notes its requests in the order in which they are served."""

    def note(call: Call, request: bytes) -> None:
        served.append(request)
        call.reply(b"")

    return unary(note)


def test_calls_of_another_client_are_served_between_those_of_a_flood() -> None:
    served: list[bytes] = []

    async def test(rig: GrpcRig) -> None:
        busy, other = await rig.connect(), await rig.connect()
        busy.send(*(busy.peer.call(number, b"busy") for number in range(1, 2_000, 2)))
        other.send(other.peer.call(1, b"other"))
        await busy.answer(1_999)
        assert len(served) == 1_001
        assert 0 < served.index(b"other") <= TURN_FRAMES

    run(test, noting(served), latency_s=AT_ONCE)


def test_floods_of_two_clients_share_each_turn() -> None:
    served: list[bytes] = []

    async def test(rig: GrpcRig) -> None:
        first, second = await rig.connect(), await rig.connect()
        for client, name in ((first, b"first"), (second, b"second")):
            client.send(*(client.peer.call(number, name) for number in range(1, 2_000, 2)))
        await first.answer(1_999)
        await second.answer(1_999)
        # The first is alone until the second has sent, and the second when the first is done.
        runs = [len(list(calls)) for _, calls in itertools.groupby(served)][1:-1]
        assert len(runs) > 10
        assert max(runs) * 2 <= TURN_FRAMES // 2  # a call has two frames

    run(test, noting(served), latency_s=AT_ONCE)


def test_bidi_call_whose_data_is_refused_is_cancelled() -> None:
    log: list[str] = []

    def handle(call: Call, _: bytes) -> None:
        call.on_message = lambda _: log.append("message")
        call.on_cancel = lambda: log.append("cancelled")

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.headers(1), client.peer.data(1, message(b"a", flag=7)))
        assert (await status_of(client))[0] == "13"
        assert log == ["cancelled"]

    run(test, bidi(handle))


# Memory


def test_large_request_gets_its_window_at_once() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        request = message(bytes(3_000_000))
        client.send(client.peer.headers(1), client.peer.data(1, request[:100]))
        (update,) = await client.until(bool)
        assert (update.kind, update.stream_id) == (frames.WINDOW_UPDATE, 1)
        assert int.from_bytes(update.payload) == 3_000_005 - 256 * 1024
        assert rig.server.shared.memory.total_bytes == 3_000_005

        client.send(client.peer.data(1, request[100:], ends=True))
        received = await client.until(lambda got: len(body(got, 1)) >= 65_535)
        assert received
        assert rig.server.shared.memory.total_bytes == 0

    run(test, unary(echo))


def test_large_requests_of_all_clients_wait_for_each_other() -> None:
    async def test(rig: GrpcRig) -> None:
        one, two = await rig.connect(), await rig.connect()
        large = message(bytes(1_000_000))
        one.send(one.peer.headers(1), one.peer.data(1, large[:10]))
        await one.until(bool)
        two.send(two.peer.headers(1), two.peer.data(1, large[: 256 * 1024]))
        await asyncio.sleep(1)
        assert of_kind(two.received, frames.WINDOW_UPDATE) == []

        one.send(one.peer.data(1, large[10:], ends=True))
        (update,) = await two.until(lambda got: of_kind(got, frames.WINDOW_UPDATE))
        assert int.from_bytes(update.payload) == len(large) - 256 * 1024
        two.send(two.peer.data(1, large[256 * 1024 :], ends=True))
        await two.until(lambda got: len(body(got, 1)) >= 65_535)

    limits = GrpcLimits(incomplete_bytes_max=2_000_000, message_bytes_max=1_500_000)
    run(test, unary(echo), limits)


def test_oldest_incomplete_requests_fail_above_their_memory() -> None:
    async def test(rig: GrpcRig) -> None:
        clients = [await rig.connect() for _ in range(8)]
        part = message(bytes(100_000))[:60_000]
        for client in clients:
            client.send(client.peer.headers(1), client.peer.data(1, part))
            await asyncio.sleep(1)
            assert rig.server.shared.memory.total_bytes <= 250_000
        outcomes = [bool(client.received) for client in clients]

        assert outcomes == [True] * 4 + [False] * 4
        status, text = await status_of(clients[0])
        assert status == "8"
        assert "exceed 250000 bytes: send fewer at once" in text

    limits = GrpcLimits(incomplete_bytes_max=1_000_000, message_bytes_max=700_000)
    run(test, unary(echo), limits)


def test_call_above_the_memory_of_open_calls_is_refused() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        for number in range(1, 41, 2):
            client.send(client.peer.call(number, x="y" * 1000))
        await asyncio.sleep(1)
        refused = [number for number in range(1, 41, 2) if of_stream(client.received, number)]
        assert 2 * 8 + 1 <= refused[0] <= 2 * 9 + 1
        assert refused[-1] == 39
        assert (await status_of(client, 39))[0] == "8"

        client.send(frame(frames.RST_STREAM, 0, 1, bytes(4)), client.peer.call(41))
        await asyncio.sleep(1)
        assert of_stream(client.received, 41) == []

    def hold(call: Call, _: bytes) -> None:
        pass

    run(test, unary(hold), GrpcLimits(open_calls_bytes_max=12_000))


def test_connection_with_the_most_open_calls_is_closed_for_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(rig: GrpcRig) -> None:
        large, small = await rig.connect(), await rig.connect()
        for number in range(1, 17, 2):
            large.send(large.peer.call(number, x="y" * 1000))
        await asyncio.sleep(1)
        small.send(*(small.peer.call(number, x="y" * 1000) for number in (1, 3, 5)))
        await large.closed()
        assert of_kind(small.received, frames.HEADERS) == []
        assert len(rig.server.connections) == 1

    run(test, unary(lambda _, __: None), GrpcLimits(open_calls_bytes_max=12_000))
    assert "metadata of open calls, the most of all" in caplog.text


def test_request_that_is_not_grpc_cannot_take_the_memory_of_calls() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        html = [*REQUEST[:4], ("content-type", "text/html"), ("x", "y" * 3000)]
        client.send(client.peer.headers(1, html))
        assert (await status_of(client))[0] == "8"
        assert rig.server.shared.calls.open_bytes == 0

    run(test, unary(echo), GrpcLimits(http2=Http2Limits(header_list_bytes_max=2000)))


def test_long_text_of_a_status_is_cut() -> None:
    def handle(call: Call, _: bytes) -> None:
        call.finish(GrpcStatus.INTERNAL, "\u2713" * 5000)

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.call(1))
        assert (await status_of(client))[1] == "%E2%9C%93" * 341

    run(test, unary(handle))


def test_memory_is_released_when_a_client_leaves() -> None:
    async def test(rig: GrpcRig) -> None:
        client = await rig.connect()
        client.send(client.peer.headers(1), client.peer.data(1, message(bytes(9_000_000))[:10]))
        client.send(client.peer.headers(3), client.peer.data(3, message(bytes(1000))[:10]))
        client.send(frame(frames.DATA, 0, 3, bytes(16_384))[:-1])
        await asyncio.sleep(1)
        assert rig.server.shared.memory.total_bytes == 9_000_005 + 10
        assert rig.server.shared.partials.total_bytes == 9 + 16_383
        client.transport.abort()
        await asyncio.sleep(1)
        assert rig.server.shared.memory.total_bytes == 0

    run(test, unary(echo))


def test_slow_reader_of_a_stream_makes_its_method_wait() -> None:
    sent: list[int] = []

    def handle(call: Call, _: bytes) -> None:
        def produce() -> None:
            while call.writable and len(sent) < 500:
                call.send(bytes(10_000))
                sent.append(call.unsent_bytes)
            if len(sent) == 500:
                call.on_writable = None
                call.finish()

        call.on_writable = produce
        produce()

    async def test(rig: GrpcRig) -> None:
        client = await rig.connect((Setting.INITIAL_WINDOW_SIZE, 50_000))
        client.send(client.peer.call(1))
        await asyncio.sleep(5)
        assert len(sent) <= 6
        while not any(one.ends for one in client.received):
            client.send(*(frame(frames.WINDOW_UPDATE, 0, n, (99_999).to_bytes(4)) for n in (0, 1)))
            await asyncio.sleep(1)

        assert len(body(client.received, 1)) == 500 * 10_005
        assert max(sent) <= 10_005

    run(test, unary(handle))

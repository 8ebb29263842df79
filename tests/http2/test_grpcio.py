"""Calls of grpcio, the C implementation of gRPC, against the server over TCP and TLS."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kourou.http2.grpc_messages import GrpcStatus
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.transport_config import TransportConfig
from tests.http2.echo_server import MESSAGE_MAX, PATIENCE_S, Served
from tests.remoting.certificates import Authority
from tests.remoting.tls_rig import RUNNERS

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]


@pytest.fixture(params=sorted(RUNNERS))
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with Served().running(RUNNERS[request.param]) as served:
        yield served


@pytest.fixture
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{served.port}", OPTIONS) as channel:
        yield channel


def unary(channel: grpc.Channel, name: str, request: bytes, **more: Any) -> bytes:
    call: Any = channel.unary_unary(f"/t.Echo/{name}")
    answer: bytes = call(request, **{"timeout": PATIENCE_S, **more})
    return answer


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 1_000_000, 20_000_000])
def test_unary_call_of_any_size(channel: grpc.Channel, size: int) -> None:
    request = bytes(size)

    assert unary(channel, "Echo", request) == request


def test_many_calls_at_once(channel: grpc.Channel) -> None:
    call: Any = channel.unary_unary("/t.Echo/Echo")
    futures = [call.future(b"%d" % n, timeout=PATIENCE_S) for n in range(2000)]

    assert [future.result() for future in futures] == [b"%d" % n for n in range(2000)]


def test_metadata_arrives(channel: grpc.Channel) -> None:
    metadata = (("x-mq-client-id", "a@b"), ("key-bin", b"\0\xff"), ("x-long", "y" * 3000))
    described = unary(channel, "Describe", b"", metadata=metadata, timeout=5).decode()

    assert "|x-mq-client-id=a@b|" in described
    assert "|key-bin=AP8|" in described
    assert f"|x-long={'y' * 3000}" in described
    assert "grpc-timeout=" in described


def test_server_stream(channel: grpc.Channel) -> None:
    call: Any = channel.unary_stream("/t.Echo/Repeat")
    request = bytes(300_000)

    assert list(call(request, timeout=PATIENCE_S)) == [b"%d:" % n + request for n in range(5)]


def test_bidi_stream_is_a_conversation(channel: grpc.Channel) -> None:
    call: Any = channel.stream_stream("/t.Echo/Converse")
    received: list[bytes] = []
    more = threading.Semaphore(1)

    def requests() -> Iterator[bytes]:
        for size in (1, 200_000, 0, 3_000_000, 7):
            assert more.acquire(timeout=PATIENCE_S)
            yield bytes(size)

    for answer in call(requests(), timeout=PATIENCE_S):
        received.append(answer)
        more.release()
    assert [len(one) for one in received] == [1, 200_000, 0, 3_000_000, 7]


@pytest.mark.parametrize("status", [GrpcStatus.NOT_FOUND, GrpcStatus.UNAUTHENTICATED])
def test_status_and_its_text(channel: grpc.Channel, status: GrpcStatus) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Refuse", b"%d" % status)
    error: Any = caught.value

    assert error.code().value[0] == status
    assert error.details() == "100 % sch\u00f6n \u2713"


def test_unknown_method(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Missing", b"")
    error: Any = caught.value

    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details() == "Method not found: t.Echo/Missing"


def test_message_above_the_limit(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Echo", bytes(MESSAGE_MAX + 1))
    error: Any = caught.value

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert unary(channel, "Echo", b"next") == b"next"


def test_deadline_passes(served: Served, channel: grpc.Channel) -> None:
    for timeout_s in (0.2, 2, PATIENCE_S):  # a busy machine may connect later than that
        with pytest.raises(grpc.RpcError) as caught:
            unary(channel, "Hold", b"", timeout=timeout_s)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if served.held.is_set():
            break

    assert served.cancelled.wait(PATIENCE_S)


def test_client_cancels(served: Served, channel: grpc.Channel) -> None:
    call: Any = channel.unary_unary("/t.Echo/Hold")
    future = call.future(b"", timeout=PATIENCE_S)
    assert served.held.wait(PATIENCE_S)
    future.cancel()

    assert served.cancelled.wait(PATIENCE_S)
    assert future.code() is grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("count", [0, 10, 700_000])
def test_compressed_request(channel: grpc.Channel, count: int) -> None:
    request = b"".join(b"%07d" % number for number in range(count))

    assert unary(channel, "Echo", request, compression=grpc.Compression.Gzip) == request


def test_deflate_is_refused_with_the_encodings_that_are_supported(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Echo", bytes(1000), compression=grpc.Compression.Deflate)
    error: Any = caught.value

    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "use identity or gzip" in error.details()


@pytest.mark.parametrize("runner", sorted(RUNNERS))
def test_tls_and_plain_connections_share_a_port(runner: str, tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server", "localhost")
    config = TransportConfig(tls_server_cert_path=files.cert, tls_server_key_path=files.key)
    admission = config.admission(ConnectionLimits(), alpn=("h2",))
    credentials = grpc.ssl_channel_credentials(files.root.read_bytes())
    with Served(admission).running(RUNNERS[runner]) as served:
        address = f"localhost:{served.port}"
        with grpc.secure_channel(address, credentials, OPTIONS) as channel:
            assert unary(channel, "Describe", b"").endswith(b"|tls=True")
            assert len(unary(channel, "Echo", bytes(5_000_000))) == 5_000_000
        with grpc.insecure_channel(address, OPTIONS) as channel:
            assert unary(channel, "Describe", b"").endswith(b"|tls=False")

"""The end of connections over TCP, where unread input discards output."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from kourou.http2 import frames
from kourou.http2.frames import ErrorCode
from tests.http2.echo_server import PATIENCE_S, Served
from tests.http2.peer import Peer, body, frame, goaway, message
from tests.remoting.tls_rig import RUNNERS


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
def test_flooding_client_reads_why_it_is_disconnected(
    runner: Callable[[Any], None],
) -> None:
    peer = Peer()
    with (
        Served().running(runner) as served,
        socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as client,
    ):
        client.sendall(peer.preface() + frame(frames.PING, 0, 0, bytes(8)) * 40_000)
        data = b""
        while piece := client.recv(1 << 20):
            data += piece

    assert goaway(peer.parse(data)) == (
        ErrorCode.ENHANCE_YOUR_CALM,
        "too many frames, the last of them pings",
    )


def test_client_that_ends_its_direction_gets_what_was_answered() -> None:
    peer = Peer()
    with (
        Served().running(asyncio.run) as served,
        socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as client,
    ):
        client.sendall(peer.preface() + peer.call(1, b"x" * 50_000, "/t.Echo/Echo"))
        client.shutdown(socket.SHUT_WR)
        data = b""
        while piece := client.recv(1 << 20):
            data += piece

    assert body(peer.parse(data), 1) == message(b"x" * 50_000)

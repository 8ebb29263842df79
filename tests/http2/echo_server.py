"""A gRPC server on a thread of its own, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kourou.http2.calls import Call, Kind, Method
from kourou.http2.grpc_messages import GrpcStatus
from kourou.http2.limits import GrpcLimits
from kourou.http2.server import GrpcServer
from kourou.remoting.network import TcpNetwork

PATIENCE_S = 60.0
MESSAGE_MAX = 40_000_000


def echo(call: Call, request: bytes) -> None:
    call.reply(request)


def describe(call: Call, _: bytes) -> None:
    text = "|".join(f"{name}={value}" for name, value in sorted(call.metadata.items()))
    call.reply(f"{text}|tls={call.connection.is_tls}".encode())


def repeat(call: Call, request: bytes) -> None:
    for number in range(5):
        call.send(b"%d:" % number + request)
    call.finish()


def converse(call: Call, _: bytes) -> None:
    call.send_headers()
    call.on_message = call.send
    call.on_end = call.finish


def refuse(call: Call, request: bytes) -> None:
    call.finish(GrpcStatus(int(request)), "100 % sch\u00f6n \u2713")


class Served:
    """The server; `held` and `cancelled` are set when a call of `Hold` arrives and is cancelled."""

    def __init__(self, admission: Any = None) -> None:
        self.held = threading.Event()
        self.cancelled = threading.Event()
        self.port = 0
        self._admission = admission
        self._started = threading.Event()
        self._stop: Callable[[], object] = lambda: None

    def run(self, runner: Callable[[Any], None]) -> None:
        """Serve until `stop`."""
        runner(self._serve())

    async def _serve(self) -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stopping.set)
        methods = {
            "/t.Echo/Echo": Method(Kind.UNARY, echo),
            "/t.Echo/Describe": Method(Kind.UNARY, describe),
            "/t.Echo/Refuse": Method(Kind.UNARY, refuse),
            "/t.Echo/Hold": Method(Kind.UNARY, self._hold),
            "/t.Echo/Repeat": Method(Kind.SERVER_STREAM, repeat),
            "/t.Echo/Converse": Method(Kind.BIDI, converse),
        }
        limits = GrpcLimits(message_bytes_max=MESSAGE_MAX)
        server = GrpcServer(TcpNetwork(), methods, limits, admission=self._admission)
        (_, self.port) = await server.start(("127.0.0.1", 0))
        self._started.set()
        await stopping.wait()
        await server.stop(PATIENCE_S)

    def _hold(self, call: Call, _: bytes) -> None:
        call.on_cancel = self.cancelled.set
        self.held.set()

    @contextmanager
    def running(self, runner: Callable[[Any], None]) -> Iterator[Served]:
        """Serve on a thread."""
        thread = threading.Thread(target=self.run, args=(runner,))
        thread.start()
        assert self._started.wait(PATIENCE_S)
        try:
            yield self
        finally:
            self._stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

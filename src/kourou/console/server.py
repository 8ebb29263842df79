"""HTTP server for monitoring systems, on threads: it answers even while the event loop is busy.

    /metrics   metrics in Prometheus' text format
    /healthz   200 if the event loop responds; 503 means that the process must be restarted
    /readyz    200 if clients are served and sends are accepted; else 503 with the reasons

It serves GET and HEAD only and changes nothing. State of the event loop is read on the loop, with a
timeout. At most `_REQUESTS_MAX` requests are served at once, each within a time limit.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, TypeVar

from kourou.errors import AddressInUseError, ClosedError, ListenFailedError
from kourou.metrics import Family

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOP_TIMEOUT_S: Final = 2.0
"""Time within which the event loop must respond to count as healthy."""
METRICS_TIMEOUT_S: Final = 8.0
"""Timeout for reading all metrics on the event loop, which does other work in between."""

_REQUESTS_MAX: Final = 16
_REQUEST_TIMEOUT_S: Final = 5.0
_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_NO_EXTRA: Final = (
    "metrics need the package prometheus-client, which is not installed: "
    "pip install 'kourou[server]'\n"
)

ReadMetrics = Callable[[], Coroutine[Any, Any, Sequence[Family]]]
ReadReasons = Callable[[], Sequence[str]]
_Answer = tuple[HTTPStatus, str, bytes]


class Console:
    """HTTP server on one port, from `start` until `stop`. Created and started on the event loop."""

    def __init__(self, read_metrics: ReadMetrics, read_unready_reasons: ReadReasons) -> None:
        """Create a server that does not listen yet.

        Args:
            read_metrics: returns the metric families. Runs on the event loop.
            read_unready_reasons: returns the reasons why clients are not served or sends not
                accepted; empty if the process is ready. Runs on the event loop.
        """
        self._read_metrics = read_metrics
        self._read_unready_reasons = read_unready_reasons
        self._loop = asyncio.get_running_loop()
        self._server: _Server | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The address on which it listens, with the real port.

        Raises:
            ClosedError: it does not listen.
        """
        if self._server is None:
            raise ClosedError("the console does not listen")
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address with the real port.

        Raises:
            AddressInUseError: another socket already listens on the address.
            ListenFailedError: the address is not one of this machine, or is not permitted.
        """
        try:
            server = _Server((host, port), self)
        except OSError as error:
            where = f"{host}:{port}"
            if error.errno == errno.EADDRINUSE:
                raise AddressInUseError(where) from error
            raise ListenFailedError(where, error.strerror or str(error)) from error
        self._server = server
        threading.Thread(
            target=server.serve_forever, args=(0.1,), name="kourou-console", daemon=True
        ).start()
        log.info("console.started address=%s", "{}:{}".format(*self.address))
        return self.address

    async def stop(self) -> None:
        """Stop listening. Requests in progress end by themselves; they change nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        log.info("console.stopped")

    def answer(self, path: str) -> _Answer:
        """Return the answer to a GET of the path. Called on the threads of requests."""
        page = {
            "/": self._index,
            "/metrics": self._metrics,
            "/healthz": self._health,
            "/readyz": self._readiness,
        }.get(path.partition("?")[0])
        if page is None:
            return HTTPStatus.NOT_FOUND, _TEXT, b"not found; pages: /metrics, /healthz, /readyz\n"
        try:
            return page()
        except TimeoutError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{error}\n".encode()
        except FutureCancelledError:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"the process is stopping\n"
        except Exception:  # an error in one page must not stop the others
            log.exception("console.page_failed path=%r", path)
            text = "internal error; the log has the details\n"
            return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, text.encode()

    def _index(self) -> _Answer:
        return HTTPStatus.OK, _TEXT, b"kourou: /metrics /healthz /readyz\n"

    def _metrics(self) -> _Answer:
        try:
            # Imported at the first request for metrics: prometheus_client is large.
            from kourou.console.exposition import (  # noqa: PLC0415
                exposition,
                process_exposition,
            )
        except ImportError:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, _NO_EXTRA.encode()
        families = self._on_loop(self._read_metrics(), METRICS_TIMEOUT_S)
        return HTTPStatus.OK, _METRICS, exposition(families) + process_exposition()

    def _health(self) -> _Answer:
        self._on_loop(_call(lambda: None), LOOP_TIMEOUT_S)
        return HTTPStatus.OK, _JSON, b'{"status": "ok"}\n'

    def _readiness(self) -> _Answer:
        reasons = list(self._on_loop(_call(self._read_unready_reasons), LOOP_TIMEOUT_S))
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        content = {"status": "not ready" if reasons else "ok", "reasons": reasons}
        return status, _JSON, json.dumps(content).encode() + b"\n"

    def _on_loop(self, read: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run `read` on the event loop and return its result.

        Raises:
            TimeoutError: the loop did not respond in time, or is closed.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(read, self._loop)
        except RuntimeError as error:  # the loop is closed
            read.close()
            raise TimeoutError("the event loop is closed") from error
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            text = f"the event loop did not answer within {timeout_s:g} s"
            raise TimeoutError(text) from None


async def _call(function: Callable[[], T]) -> T:
    return function()


class _Server(ThreadingHTTPServer):
    """HTTP server with a thread for each connection; closes connections beyond the limit."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], console: Console) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.console = console
        self._free_slots = threading.Semaphore(_REQUESTS_MAX)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without the base class's look-up of the host name, because DNS may be slow."""
        TCPServer.server_bind(self)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]  # typeshed allows datagrams
        if not self._free_slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:  # no thread can be started
            self._free_slots.release()
            log.warning("console.refused reason=%s", error)
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]  # as above
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_slots.release()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        log.debug("console.request_failed peer=%s reason=%s", client_address, sys.exception())


_NOT_HTTP: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request; the connection is closed after it."""

    server: _Server
    server_version = "kourou"
    sys_version = ""
    timeout = _REQUEST_TIMEOUT_S

    def setup(self) -> None:
        """Set a time limit for the whole request; the socket's timeout covers a single read."""
        super().setup()
        self._deadline = threading.Timer(2 * _REQUEST_TIMEOUT_S, self._abort)
        self._deadline.daemon = True
        self._deadline.start()

    def handle_one_request(self) -> None:
        """Serve a request; refuse other protocols at once, such as RocketMQ's remoting protocol."""
        try:
            begin = self.rfile.peek(1)[:1]  # type: ignore[attr-defined]  # it is a BufferedReader
        except TimeoutError:
            begin = b""
        if begin.isalpha():
            super().handle_one_request()
            return
        self.close_connection = True
        if begin:
            self.wfile.write(_NOT_HTTP)

    def finish(self) -> None:
        self._deadline.cancel()
        super().finish()

    def _abort(self) -> None:
        with suppress(OSError):  # it may have ended just now
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._serve(with_body=True)

    def do_HEAD(self) -> None:
        self._serve(with_body=False)

    def _serve(self, *, with_body: bool) -> None:
        status, kind, body = self.server.console.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log at DEBUG instead of writing to stderr, because monitors poll every few seconds."""
        log.debug("console.request line=%r", format % args)

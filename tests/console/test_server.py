"""Tests of the HTTP server for monitoring systems."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from http.server import ThreadingHTTPServer

import pytest

from kourou.console import server as console_server
from kourou.console.server import Console
from kourou.errors import AddressInUseError, ClosedError, ListenFailedError
from kourou.metrics import Distribution, Family, Kind, Sample

GAUGE = Family("rocketmq_topic_number", Kind.GAUGE, "Topics.", [Sample({"cluster": "c"}, 3)])


class Rig:
    """A console on a free port of this machine."""

    def __init__(self) -> None:
        self.families: list[Family] = [GAUGE]
        self.troubles: list[str] = []
        self.console = Console(self.metrics, lambda: self.troubles)
        self.url = "http://{}:{}".format(*self.console.start("127.0.0.1", 0))

    async def metrics(self) -> list[Family]:
        return self.families

    def get_now(self, path: str, method: str = "GET") -> tuple[int, str, str]:
        """Return status, content type and body; blocks."""
        request = urllib.request.Request(self.url + path, method=method)  # noqa: S310 - http
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    async def get(self, path: str, method: str = "GET") -> tuple[int, str, str]:
        """Return the same without blocking the event loop."""
        return await asyncio.to_thread(self.get_now, path, method)


def run(test: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = Rig()
        try:
            await test(rig)
        finally:
            await rig.console.stop()

    asyncio.run(main())


def test_metrics_are_served_in_prometheus_text() -> None:
    async def test(rig: Rig) -> None:
        sizes = Distribution({"kind": "x"}, (1, 10), (1, 1, 1), 56)
        rig.families += [
            Family("rocketmq_in_total", Kind.COUNTER, "In.", [Sample({"topic": 'a"b'}, 2)]),
            Family("rocketmq_size", Kind.HISTOGRAM, "Sizes.", [sizes]),
        ]
        status, kind, text = await rig.get("/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        of_broker, of_process = text.split("# HELP process_", 1)
        assert of_broker.splitlines() == [
            "# HELP rocketmq_topic_number Topics.",
            "# TYPE rocketmq_topic_number gauge",
            'rocketmq_topic_number{cluster="c"} 3.0',
            "# HELP rocketmq_in_total In.",
            "# TYPE rocketmq_in_total counter",
            'rocketmq_in_total{topic="a\\"b"} 2.0',
            "# HELP rocketmq_size Sizes.",
            "# TYPE rocketmq_size histogram",
            'rocketmq_size_bucket{kind="x",le="1.0"} 1.0',
            'rocketmq_size_bucket{kind="x",le="10.0"} 2.0',
            'rocketmq_size_bucket{kind="x",le="+Inf"} 3.0',
            'rocketmq_size_count{kind="x"} 3.0',
            'rocketmq_size_sum{kind="x"} 56.0',
        ]
        names = {line.partition(" ")[0].partition("{")[0] for line in of_process.splitlines()}
        assert names >= {
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_open_fds",
            "process_start_time_seconds",
            "python_gc_collections_total",
            "python_info",
        }

    run(test)


def test_without_the_library_metrics_name_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kourou.console.exposition", None)

    async def test(rig: Rig) -> None:
        status, _, text = await rig.get("/metrics")
        assert status == 503
        assert "pip install 'kourou[server]'" in text
        assert (await rig.get("/healthz"))[0] == 200

    run(test)


def test_readyz_is_200_without_troubles() -> None:
    async def test(rig: Rig) -> None:
        status, _, text = await rig.get("/readyz?from=probe")
        assert (status, json.loads(text)) == (200, {"status": "ok", "reasons": []})
        rig.troubles.append("the store is read-only")
        status, _, text = await rig.get("/readyz")
        assert status == 503
        assert json.loads(text) == {"status": "not ready", "reasons": ["the store is read-only"]}

    run(test)


def test_blocked_event_loop_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_server, "LOOP_TIMEOUT_S", 0.05)

    async def test(rig: Rig) -> None:
        # The request is sent and answered while this call blocks the event loop.
        answers: list[tuple[int, str, str]] = []
        asking = threading.Thread(target=lambda: answers.append(rig.get_now("/healthz")))
        asking.start()
        asking.join(60)
        (answer,) = answers
        assert answer[0] == 503
        assert "did not answer within 0.05 s" in answer[2]

    run(test)


def test_other_paths_and_methods_are_refused() -> None:
    async def test(rig: Rig) -> None:
        assert (await rig.get("/etc/passwd"))[0] == 404
        assert (await rig.get("/metrics", "POST"))[0] == 501
        assert await rig.get("/healthz", "HEAD") == (200, "application/json", "")
        assert (await rig.get("/"))[0] == 200

    run(test)


def test_failing_page_is_500_and_the_next_request_is_served() -> None:
    async def test(rig: Rig) -> None:
        rig.families = [Family("x", Kind.HISTOGRAM, "Not one.", [Sample({}, 1)])]
        status, _, text = await rig.get("/metrics")
        assert (status, text) == (500, "internal error; the log has the details\n")
        rig.families = [GAUGE]
        assert (await rig.get("/metrics"))[0] == 200

    run(test)


def test_more_connections_than_allowed_are_closed_at_once() -> None:
    async def test(rig: Rig) -> None:
        host, port = rig.console.address
        silent = [socket.create_connection((host, port)) for _ in range(16)]
        try:
            with socket.create_connection((host, port), timeout=60) as one_more:
                assert await asyncio.to_thread(one_more.recv, 1) == b""
        finally:
            for connection in silent:
                connection.close()

    run(test)


def test_request_is_refused_while_no_thread_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def test(rig: Rig) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(ThreadingHTTPServer, "process_request", fail)
            for _ in range(20):  # more than are served at once
                with socket.create_connection(rig.console.address, timeout=60) as refused:
                    assert await asyncio.to_thread(refused.recv, 1) == b""
        assert (await rig.get("/healthz"))[0] == 200

    run(test)


def test_listening_makes_no_dns_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DNS look-up would block the event loop, with clients connected."""

    def fail(*_: object) -> str:
        raise AssertionError("asked")

    monkeypatch.setattr(socket, "getfqdn", fail)

    async def test(rig: Rig) -> None:
        assert (await rig.get("/healthz"))[0] == 200

    run(test)


def test_taken_port_and_foreign_address_are_errors() -> None:
    async def test(rig: Rig) -> None:
        other = Console(rig.metrics, list)
        with pytest.raises(AddressInUseError):
            other.start(*rig.console.address)
        with pytest.raises(ListenFailedError):
            other.start("203.0.113.7", 0)
        with pytest.raises(ClosedError):
            _ = other.address

    run(test)


def test_stopped_console_does_not_listen() -> None:
    async def test(rig: Rig) -> None:
        address = rig.console.address
        await rig.console.stop()
        await rig.console.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=60)

    run(test)

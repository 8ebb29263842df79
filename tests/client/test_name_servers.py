"""Name servers are looked up by a URL, and a changed response is followed."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ParamSpec, TypeVar

import pytest

from kourou.client.name_servers import fetch_text
from kourou.client.namesrv_addr import as_url, parse_namesrv_addr
from kourou.client.sending.producer import Producer
from kourou.errors import ConfigError, ConnectFailedError
from kourou.model.message import Message
from kourou.testing.cluster import Cluster
from kourou.testing.inspection import instance_of
from kourou.testing.loop import run_virtual

P = ParamSpec("P")
T = TypeVar("T")

URL = "http://names.example/rocketmq/nsaddr"


class Page:
    """Response of the URL, for a simulated client."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    async def offload(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert function is fetch_text
        self.asked.append(args)
        await asyncio.sleep(0.01)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]


def producer_by(page: Page, cluster: Cluster) -> Producer:
    runtime = dataclasses.replace(cluster.runtime, offload=page.offload)
    return Producer("p", URL, runtime=runtime)


def test_concurrent_requests_share_one_lookup_and_use_the_first_line() -> None:
    async def main() -> None:
        page = Page("127.0.0.1:9876;127.0.0.1:9877\r\nand a second line\n")
        async with Cluster(seed=2, namesrvs=2) as cluster, producer_by(page, cluster) as producer:
            await asyncio.gather(*(producer.send(Message(f"T{n}", b"x")) for n in range(3)))
            assert page.asked == [(URL, 3.0)]
            names = instance_of(producer).name_servers
            assert await names.all() == ("127.0.0.1:9876", "127.0.0.1:9877")

    run_virtual(main())


def test_lookup_repeats_every_two_minutes_and_keeps_addresses_on_failure() -> None:
    async def main() -> None:
        gone = ConnectFailedError("gone")
        page = Page("127.0.0.1:9876", gone, "", "not an address:x", "127.0.0.1:9877")
        async with Cluster(seed=2, namesrvs=2) as cluster, producer_by(page, cluster) as producer:
            names = instance_of(producer).name_servers
            await producer.send(Message("T", b"x"))
            await asyncio.sleep(3 * 120 + 1)
            assert len(page.asked) == 4
            assert names.addresses == ("127.0.0.1:9876",)
            await asyncio.sleep(120)
            assert names.addresses == ("127.0.0.1:9877",)
            cluster.network.cut(("127.0.0.1", 9876))
            await producer.fetch_publish_message_queues("T")

    run_virtual(main())


def test_lookup_failure_names_the_url() -> None:
    async def main() -> None:
        page = Page("\n")
        async with Cluster(seed=2) as cluster, producer_by(page, cluster) as producer:
            with pytest.raises(ConnectFailedError, match=f"{URL} names no name servers"):
                await producer.send(Message("T", b"x"), timeout_ms=500)
            assert URL in producer.health().problems[0]

    run_virtual(main())


def test_close_cancels_a_lookup_in_progress() -> None:
    async def main() -> None:
        page = Page("127.0.0.1:9876")
        async with Cluster(seed=2) as cluster, producer_by(page, cluster) as producer:
            await producer.send(Message("T", b"x"))
            closing = asyncio.create_task(instance_of(producer).name_servers.refresh())
            await asyncio.sleep(0)
            instance_of(producer).name_servers.close()
            with pytest.raises(ConnectFailedError, match="closed while it looked up"):
                await closing

    run_virtual(main())


@contextmanager
def web_server(status: int, body: bytes) -> Iterator[str]:
    """Serve one response at a real port, and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/nsaddr"
        finally:
            server.shutdown()
            thread.join()


def test_addresses_are_read_over_http() -> None:
    with web_server(200, b"10.0.0.1:9876\n") as url:
        assert fetch_text(url, 30.0) == "10.0.0.1:9876\n"


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (404, b"", "404"),
        (200, b"\xff\xfe", "returned no name servers"),
        (200, b"x" * 70_000, "answered more than 65536 bytes"),
    ],
)
def test_invalid_http_response_is_refused(status: int, body: bytes, text: str) -> None:
    with web_server(status, body) as url, pytest.raises(ConnectFailedError, match=text):
        fetch_text(url, 30.0)


def test_unreachable_web_server_is_named() -> None:
    with web_server(200, b"") as url:
        pass
    with pytest.raises(ConnectFailedError, match=url):
        fetch_text(url, 30.0)


def test_urls_are_distinguished_from_addresses() -> None:
    assert as_url(f" {URL} ") == URL
    assert as_url("HTTPS://host") == "HTTPS://host"
    assert as_url("http:9876") is None, "http is a valid host name"
    assert parse_namesrv_addr("http:9876") == ("http:9876",)
    for bad in ("http://", "http:///path", "http://[::1/path"):
        with pytest.raises(ConfigError, match="has no host"):
            as_url(bad)


def test_addresses_that_are_not_str_are_refused() -> None:
    several: Any = ["a:1", "b:2"]
    with pytest.raises(ConfigError, match="expected a str, host:port or several joined by ';'"):
        as_url(several)

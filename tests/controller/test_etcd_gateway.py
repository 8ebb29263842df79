"""HTTP calls of etcd: errors, other endpoints, kept connections, tokens, TLS."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kourou.controller.etcd_gateway import EtcdConfig, EtcdGateway
from kourou.errors import ConfigError, EtcdError
from kourou.remoting.runtime import Runtime
from tests.remoting.certificates import Authority

OK: dict[str, Any] = {"header": {"revision": "1"}}
TOKEN = {"token": "t-1"}
PASSWORD = uuid.uuid4().hex
REFUSED = {"error": "etcdserver: invalid auth token", "code": 16}


class Scripted:
    """An HTTP server that sends scripted answers, and remembers the requests.

    An answer is a JSON value with the status 200, a status with a value, or raw bytes; None closes
    the connection without an answer, and after "end" the server closes it.
    """

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.connection_count = 0
        self.url = ""

    async def start(self, context: ssl.SSLContext | None = None) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        try:
            while self._answers and await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:  # also if the test ends first
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["Content-Length"])))
        self.requests.append((lines[0], headers, body))
        answer = self._answers.pop(0)
        if answer is None:
            return False
        status, value = answer if isinstance(answer, tuple) else (200, answer)
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(text), text))
        await writer.drain()
        if self._answers[:1] == ["end"]:
            self._answers.pop(0)
            return False
        return True


def run(
    test: Callable[[EtcdGateway], Coroutine[Any, Any, None]],
    *servers: Scripted,
    context: ssl.SSLContext | None = None,
    **options: Any,
) -> None:
    """Run the test with a gateway whose endpoints are the servers."""

    async def with_gateway() -> None:
        running = [await server.start(context) for server in servers]
        urls = tuple(server.url for server in servers)
        gateway = EtcdGateway(EtcdConfig(etcd=urls, **options), Runtime.system().offload)
        await test(gateway)
        gateway.close()
        for server in running:
            server.close()

    asyncio.run(with_gateway())


def test_calls_are_posts_of_json_on_one_connection() -> None:
    server = Scripted(OK, OK)

    async def test(gateway: EtcdGateway) -> None:
        assert await gateway.call("kv/range", {"key": "YQ=="}) == OK
        assert await gateway.call("kv/txn", {}) == OK

    run(test, server)
    assert [(line, body) for line, _, body in server.requests] == [
        ("POST /v3/kv/range HTTP/1.1", {"key": "YQ=="}),
        ("POST /v3/kv/txn HTTP/1.1", {}),
    ]
    assert server.connection_count == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((404, {"error": "lease not found", "code": 5}), "etcd refused: lease not found"),
        ({"error": {"message": "no leader"}}, "etcd refused: no leader"),
        ((503, {}), "etcd refused: HTTP status 503"),
        ((200, b"<html>"), "did not answer kv/range: Expecting value"),
        ((200, b"[1]"), "no JSON object"),
        (None, "did not answer kv/range"),
    ],
)
def test_failed_call_raises_an_error_with_the_reason(answer: object, reason: str) -> None:
    async def test(gateway: EtcdGateway) -> None:
        with pytest.raises(EtcdError, match=reason):
            await gateway.call("kv/range", {})

    run(test, Scripted(answer))


def test_next_call_goes_to_the_next_endpoint_after_a_failure() -> None:
    first, second = Scripted(None, OK), Scripted(OK, None)

    async def test(gateway: EtcdGateway) -> None:
        with pytest.raises(EtcdError):
            await gateway.call("kv/range", {})
        assert await gateway.call("kv/range", {}) == OK
        with pytest.raises(EtcdError):
            await gateway.call("kv/range", {})
        assert await gateway.call("kv/range", {}) == OK

    run(test, first, second)
    assert (len(first.requests), len(second.requests)) == (2, 2)


def test_call_on_an_idle_connection_that_etcd_has_closed_is_sent_again() -> None:
    server = Scripted(OK, "end", OK)

    async def test(gateway: EtcdGateway) -> None:
        assert await gateway.call("kv/range", {}) == OK
        assert await gateway.call("kv/range", {}) == OK

    run(test, server)
    assert server.connection_count == 2


def test_silent_etcd_is_given_up_after_the_timeout() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            config = EtcdConfig(etcd=(url,), etcd_timeout_ms=50)
            gateway = EtcdGateway(config, Runtime.system().offload)
            with pytest.raises(EtcdError, match="timed out"):
                await gateway.call("kv/range", {})
            gateway.close()

    asyncio.run(test())


def test_user_gets_a_token_and_another_one_when_it_has_expired() -> None:
    server = Scripted(TOKEN, OK, (401, REFUSED), {"token": "t-2"}, OK)

    async def test(gateway: EtcdGateway) -> None:
        await gateway.call("kv/range", {})
        await gateway.call("kv/range", {})

    run(test, server, etcd_user="u", etcd_password=PASSWORD)
    assert [
        (line.split()[1], headers.get("Authorization")) for line, headers, _ in server.requests
    ] == [
        ("/v3/auth/authenticate", None),
        ("/v3/kv/range", "t-1"),
        ("/v3/kv/range", "t-1"),
        ("/v3/auth/authenticate", None),
        ("/v3/kv/range", "t-2"),
    ]
    assert server.requests[0][2] == {"name": "u", "password": PASSWORD}


def test_tls_verifies_etcd_and_sends_the_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    served, own = authority.issue("etcd", "127.0.0.1"), authority.issue("own", "controller")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=served.root)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(served.cert, served.key)
    trusted = {"etcd_ca_file": served.root}
    complete = {**trusted, "etcd_cert_file": own.cert, "etcd_key_file": own.key}

    async def works(gateway: EtcdGateway) -> None:
        assert await gateway.call("kv/range", {}) == OK

    async def fails(gateway: EtcdGateway) -> None:
        with pytest.raises(EtcdError):
            await gateway.call("kv/range", {})

    run(works, Scripted(OK), context=context, **complete)
    run(fails, Scripted(OK), context=context, **trusted)
    run(fails, Scripted(OK), context=context)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"etcd": ("127.0.0.1:2379",)}, "it must be http://host:port"),
        ({"etcd": ("http://",)}, "it must be http://host:port"),
        ({"etcd": ("http://127.0.0.1:99999",)}, "it must be http://host:port"),
        ({"etcd": ("http://127.0.0.1:0",)}, "it must be http://host:port"),
        ({"etcd": ("http://[::1",)}, "it must be http://host:port"),
        ({"etcd_user": "u"}, "must be set together"),
        ({"etcd_key_file": Path("x")}, "must be set together"),
        ({"etcd_prefix": "/"}, "etcd_prefix is empty"),
        ({"etcd_ttl_s": 1}, "at least 2"),
        ({"etcd_timeout_ms": 0}, "at least 1"),
    ],
)
def test_wrong_option_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        EtcdConfig(**options)


def test_endpoints_are_separated_by_commas_or_semicolons() -> None:
    config = EtcdConfig(etcd=("http://a:1, http://b:2/", "https://c:3"))

    assert config.endpoints == ["http://a:1", "http://b:2", "https://c:3"]


def test_missing_certificate_is_refused(tmp_path: Path) -> None:
    config = EtcdConfig(etcd=("https://a:1",), etcd_ca_file=tmp_path / "missing.pem")

    with pytest.raises(ConfigError, match="cannot be used"):
        EtcdGateway(config, Runtime.system().offload)

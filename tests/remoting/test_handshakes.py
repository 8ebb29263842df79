"""Many TLS clients at once: bounded handshakes, a few at a time, none after a stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kourou.remoting import admission
from kourou.remoting.limits import ConnectionLimits
from kourou.testing.raw_client import RawClient
from tests.remoting.certificates import Authority
from tests.remoting.tls_rig import HOST, PATIENCE_S, RUNNERS, Served, of_client, of_server, serve

HELLO = b"\x16\x03\x01\x02\x00"
"""The start of a handshake; the rest is never sent."""


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Any:
    return RUNNERS[request.param]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def hello(served: Served) -> RawClient:
    client = await RawClient.connect(served.runtime.network, served.address)
    client.write(HELLO)
    return client


def test_a_handshake_above_the_limit_is_closed_and_plain_clients_are_served(
    run: Any, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.issue("server", HOST)

    async def test(served: Served) -> None:
        begun = [await hello(served) for _ in range(3)]
        one_more = await hello(served)
        await one_more.closed()
        assert not any(client.is_closed for client in begun)
        assert await served.ping(None) == b"ping"
        for client in begun:
            client.close()
            await client.closed()
        assert await served.ping(of_client(files)) == b"ping"

    run(serve(of_server(files), test, ConnectionLimits(handshakes_max=3)))
    assert "reason='3 TLS handshakes are in progress'" in caplog.text


def test_clients_that_connect_at_once_are_all_served(run: Any, authority: Authority) -> None:
    files = authority.issue("server", HOST)
    count = 5 * admission.HANDSHAKES_BEGUN_MAX

    async def test(served: Served) -> None:
        bodies = [str(number).encode() for number in range(count)]
        pings = (served.ping(of_client(files), body) for body in bodies)
        assert await asyncio.gather(*pings) == bodies

    run(serve(of_server(files), test))


def test_stop_closes_connections_queued_for_their_handshake(
    run: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = authority.issue("server", HOST)

    async def test(served: Served) -> None:
        monkeypatch.setattr(admission, "HANDSHAKES_BEGUN_MAX", 0)  # they wait forever
        waiting = [await hello(served) for _ in range(3)]
        assert await served.ping(None) == b"ping"  # all are accepted by now
        async with asyncio.timeout(PATIENCE_S):
            await served.server.stop()
        for client in waiting:
            await client.closed()

    run(serve(of_server(files), test))

"""Addresses are parsed and formatted in all forms; bad ones are refused with their text."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kourou.errors import ConfigError, ConnectFailedError, ListenFailedError
from kourou.remoting.admission import Admission
from kourou.remoting.network import TcpNetwork, format_address, is_loopback, parse_address
from kourou.testing.raw_client import RawClient

PLAIN_ONLY = Admission(
    tls=None,
    accepts_plain=True,
    proxies=None,
    first_bytes_timeout_s=5,
    handshake_timeout_s=5,
    handshakes_max=1,
    connecting_max=1,
)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104  # compared, not bound
        ("::", False),
        ("10.0.0.1", False),
        ("broker.example", False),
        ("", False),
    ],
)
def test_only_loopback_hosts_are_loopback(host: str, *, expected: bool) -> None:
    assert is_loopback(host) == expected


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9876", ("localhost", 9876)),
        (" 10.0.0.1:1 ", ("10.0.0.1", 1)),
        ("broker.example", ("broker.example", 10911)),
        ("[::1]:9876", ("::1", 9876)),
        ("[fe80::1]", ("fe80::1", 10911)),
        ("2001:db8::7", ("2001:db8::7", 10911)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
    ],
)
def test_an_address_is_parsed(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, 10911) == address


@pytest.mark.parametrize("address", [("localhost", 9876), ("10.0.0.1", 1), ("::1", 65535)])
def test_a_formatted_address_parses_to_itself(address: tuple[str, int]) -> None:
    assert parse_address(format_address(address)) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no host"),
        (":9876", "names no host"),
        ("[]:9876", "names no host"),
        ("localhost", "names no port"),
        ("localhost:", "names no port"),
        ("::1", "names no port"),
        ("localhost:http", "not a number from 0 to 65535"),
        ("localhost:65536", "not a number from 0 to 65535"),
        ("localhost:-1", "not a number from 0 to 65535"),
        ("localhost:\u0661", "not a number from 0 to 65535"),
        pytest.param(f"localhost:{'1' * 5_000}", "not a number from 0 to 65535", id="long port"),
        ("[::1:9876", r"expected \[IPv6 address\]:port"),
        ("[::1]9876", r"expected \[IPv6 address\]:port"),
        ("local host:9876", "a space within the host"),
    ],
)
def test_a_bad_address_is_refused_with_its_text(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_address(text)


def test_listening_on_an_address_of_another_machine_fails() -> None:
    async def main() -> None:
        with pytest.raises(ListenFailedError, match=r"cannot listen on 192\.0\.2\.1:9876"):
            await TcpNetwork().listen(("192.0.2.1", 9876), RawClient)

    asyncio.run(main())


@pytest.mark.parametrize("admission", [None, PLAIN_ONLY], ids=["bare", "admission"])
def test_tcp_sends_small_frames_without_delay(admission: Admission | None) -> None:
    async def main() -> None:
        network = TcpNetwork()
        accepted: asyncio.Queue[RawClient] = asyncio.Queue()

        def accept() -> RawClient:
            server = RawClient()
            accepted.put_nowait(server)
            return server

        listener = await network.listen(("127.0.0.1", 0), accept, admission=admission)
        client = await RawClient.connect(network, listener.address)
        client.write(b"hello")
        server = await asyncio.wait_for(accepted.get(), 30)
        await server.until(lambda: server.received == b"hello")  # connected by now
        for side in (client, server):
            assert side.transport is not None
            options = side.transport.get_extra_info("socket")
            assert options.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        listener.close()
        client.close()
        await client.closed()

    asyncio.run(main())


def test_connecting_fails_after_its_timeout() -> None:
    async def main() -> None:
        with pytest.raises(ConnectFailedError, match=r"no connection to 127\.0\.0\.1:\d+ within 0"):
            await TcpNetwork().connect(("127.0.0.1", 9), RawClient, 0)

    asyncio.run(main())

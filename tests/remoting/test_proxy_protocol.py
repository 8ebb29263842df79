"""A trusted load balancer's well-formed preamble sets the address of the connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.errors import ConfigError, MalformedFrameError
from kourou.protocol.command import RemotingCommand, request, response
from kourou.protocol.frame import encode_frame
from kourou.remoting.connection import Request
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address
from kourou.remoting.proxy_protocol import claimed_source, preamble_bytes
from kourou.remoting.runtime import Runtime
from kourou.remoting.server import RemotingServer
from kourou.remoting.transport_config import TransportConfig
from kourou.testing.raw_client import RawClient
from tests.documented_errors import only_raises

WHO = 10
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def version_2(command: int, family: int, addresses: bytes, tlvs: bytes = b"") -> bytes:
    body = addresses + tlvs
    return SIGNATURE + struct.pack(">BBH", command, family, len(body)) + body


V4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + struct.pack(">HH", 51234, 10911)
V6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + struct.pack(">HH", 51234, 10911)
)

GOOD: list[tuple[bytes, Address | None]] = [
    (b"PROXY TCP4 192.0.2.7 10.0.0.1 51234 10911\r\n", ("192.0.2.7", 51234)),
    (b"PROXY TCP6 2001:db8::7 2001:db8::1 51234 10911\r\n", ("2001:db8::7", 51234)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    (version_2(0x21, 0x11, V4), ("192.0.2.7", 51234)),
    (version_2(0x21, 0x11, V4, b"\x04\x00\x01x"), ("192.0.2.7", 51234)),
    (version_2(0x21, 0x21, V6), ("2001:db8::7", 51234)),
    (version_2(0x20, 0x00, b""), None),
    (version_2(0x21, 0x31, bytes(216)), None),
]

BAD = [
    b"PROXI TCP4 192.0.2.7 10.0.0.1 51234 10911\r\n",
    b"PROXY " + b"x" * 110,
    b"PROXY TCP5 192.0.2.7 10.0.0.1 51234 10911\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 51234\r\n",
    b"PROXY TCP4 192.0.2 10.0.0.1 51234 10911\r\n",
    b"PROXY TCP4 192.0.2.7 10.0.0.1 65536 10911\r\n",
    b"PROXY TCP6 192.0.2.7 10.0.0.1 -1 10911\r\n",
    b"\r\n\r\n\x00\r\nQUIX\n" + bytes(4),
    version_2(0x22, 0x11, V4),
    version_2(0x11, 0x11, V4),
    version_2(0x21, 0x11, V4[:-1]),
]


@pytest.mark.parametrize(("preamble", "source"), GOOD)
def test_a_preamble_names_the_source(preamble: bytes, source: Address | None) -> None:
    assert preamble_bytes(preamble + b"\x00\x00\x01\x00rest") == len(preamble)
    assert claimed_source(preamble) == source


@pytest.mark.parametrize(("preamble", "_source"), GOOD)
def test_a_partial_preamble_needs_more_bytes(preamble: bytes, _source: object) -> None:
    for end in range(1, len(preamble)):
        assert preamble_bytes(preamble[:end]) in (None, len(preamble))


@pytest.mark.parametrize("preamble", BAD)
def test_a_malformed_preamble_is_refused(preamble: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        claimed_source(preamble[: preamble_bytes(preamble)])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([b"PROXY ", b"PROXY TCP4 ", SIGNATURE, b""]), st.binary(max_size=120))
def test_arbitrary_bytes_are_parsed_or_refused(start: bytes, rest: bytes) -> None:
    data = start + rest
    with only_raises(MalformedFrameError):
        size = preamble_bytes(data)
        if size is not None and size <= len(data):
            claimed_source(data[:size])


def test_a_trusted_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="proxy_protocol_trusted: 'load-balancer'"):
        TransportConfig(proxy_protocol_trusted=("load-balancer",))


def _who(asked: Request) -> RemotingCommand:
    return response(asked.command, remark=f"{asked.remote_address}")


async def served(trusted: str, test: Callable[[RawClient], Coroutine[Any, Any, None]]) -> None:
    """Run `test` with a client of a server that answers with the request's address."""
    runtime = Runtime.system()
    limits = ConnectionLimits()
    admission = TransportConfig(proxy_protocol_trusted=(trusted,)).admission(limits)
    server = RemotingServer(runtime, {WHO: _who}, limits, "test", admission=admission)
    address = await server.start(("127.0.0.1", 0))
    client = await RawClient.connect(runtime.network, address)
    await test(client)
    assert client.transport is not None
    client.transport.abort()
    await server.stop()


@pytest.mark.parametrize(("preamble", "source"), GOOD)
def test_requests_have_the_address_from_a_trusted_proxy(
    preamble: bytes, source: Address | None
) -> None:
    async def test(client: RawClient) -> None:
        assert client.transport is not None
        client.write(preamble + encode_frame(request(WHO)))
        (answer,) = await client.take(1)
        assert answer.remark == str(source or client.transport.get_extra_info("sockname"))

    asyncio.run(served("127.0.0.0/8", test))


def test_a_preamble_may_arrive_byte_by_byte() -> None:
    async def test(client: RawClient) -> None:
        for byte in GOOD[0][0] + encode_frame(request(WHO)):
            client.write(bytes([byte]))
            await asyncio.sleep(0)  # each byte in its own packet
        (answer,) = await client.take(1)
        assert answer.remark == "('192.0.2.7', 51234)"

    asyncio.run(served("127.0.0.1", test))


def test_a_trusted_proxy_need_not_send_a_preamble() -> None:
    async def test(client: RawClient) -> None:
        client.write(encode_frame(request(WHO)))
        (answer,) = await client.take(1)
        assert "127.0.0.1" in str(answer.remark)

    asyncio.run(served("127.0.0.1", test))


@pytest.mark.parametrize("preamble", BAD)
def test_a_connection_with_a_malformed_preamble_is_closed(preamble: bytes) -> None:
    async def test(client: RawClient) -> None:
        client.write(preamble + encode_frame(request(WHO)))
        await client.closed()
        assert not client.received

    asyncio.run(served("127.0.0.1", test))


def test_an_untrusted_peer_cannot_claim_an_address() -> None:
    async def test(client: RawClient) -> None:
        client.write(GOOD[0][0] + encode_frame(request(WHO)))
        await client.closed()
        assert not client.received

    asyncio.run(served("10.0.0.1", test))

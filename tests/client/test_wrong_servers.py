"""Addresses of servers that are not name servers are reported by the error."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kourou import Message, Producer
from kourou.client.config import ProducerConfig
from kourou.console.server import Console
from kourou.errors import (
    ConnectFailedError,
    FrameTooLargeError,
    RequestNotSupportedError,
    RequestTimeoutError,
)
from kourou.protocol.frame import frame_size
from kourou.remoting.network import format_address
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual


def test_broker_address_given_as_name_server_is_reported() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            address = format_address(cluster.broker_address())
            producer = Producer(namesrv_addr=address, runtime=cluster.runtime)
            async with producer:
                with pytest.raises(
                    RequestNotSupportedError,
                    match=rf"{address} is no name server.* A broker answers like this.* 9876",
                ):
                    await producer.send(Message("T", b"x"))

    run_virtual(main())


@pytest.mark.parametrize(
    ("begin", "text"),
    [(b"HTTP/1.1 400", "speaks HTTP"), (b"\x15\x03\x01\0\x02", "speaks TLS")],
)
def test_other_protocol_read_as_a_frame_is_reported(begin: bytes, text: str) -> None:
    with pytest.raises(FrameTooLargeError, match=text):
        frame_size(begin)


def test_metrics_port_given_as_name_server_is_reported() -> None:
    async def main() -> None:
        async def nothing() -> list[object]:
            return []

        console = Console(nothing, list)  # type: ignore[arg-type]  # no metrics are asked for
        address = format_address(console.start("127.0.0.1", 0))
        try:
            config = ProducerConfig(send_timeout_ms=500)
            async with Producer(namesrv_addr=address, config=config) as producer:
                # The timeout names the try before: it ends the last one on a busy machine.
                failures = (ConnectFailedError, RequestTimeoutError)
                with pytest.raises(failures, match="the peer speaks HTTP"):
                    await producer.send(Message("T", b"x"))
            assert await asyncio.to_thread(asked_by_http, console.address) == b"HTTP/1.0 200 OK"
        finally:
            await console.stop()

    asyncio.run(main())


def asked_by_http(address: tuple[str, int]) -> bytes:
    """Return the first line of the answer to a request that is sent byte by byte."""
    with socket.create_connection(address, timeout=60) as connection:
        for byte in b"GET /healthz HTTP/1.0\r\n\r\n":
            connection.sendall(bytes([byte]))
        return connection.makefile("rb").readline().strip()

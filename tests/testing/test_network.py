"""The faults of MemoryNetwork have their documented effects, identical for the same seed."""

from __future__ import annotations

import asyncio

import pytest

from kourou.errors import ConnectFailedError
from kourou.remoting.network import Address
from kourou.testing.loop import run_virtual
from kourou.testing.network import MemoryNetwork
from kourou.testing.raw_client import RawClient


async def connected(network: MemoryNetwork) -> tuple[RawClient, RawClient, Address]:
    """Return both ends of a new connection, and the listener's address."""
    server = RawClient()
    listener = await network.listen(("10.0.0.1", 0), lambda: server)
    return await RawClient.connect(network, listener.address), server, listener.address


def test_a_cut_ends_connections_and_refuses_new_ones_until_heal() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        client, server, address = await connected(network)
        client.write(b"lost on the way")
        network.cut(address)

        await client.closed()
        await server.closed()
        assert not server.received
        with pytest.raises(ConnectFailedError, match="refused"):
            await RawClient.connect(network, address)

        network.heal(address)
        again = await RawClient.connect(network, address)
        again.close()
        await again.closed()

    run_virtual(main())


def test_a_cut_does_not_affect_other_addresses() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        _, _, cut = await connected(network)
        client, server, _ = await connected(network)
        network.cut(cut)
        client.write(b"hello")

        await server.until(lambda: server.received == b"hello")
        assert not client.is_closed

    run_virtual(main())


def test_a_stall_holds_bytes_until_heal() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        client, server, address = await connected(network)
        network.stall(address)
        client.write(b"to the server")
        server.write(b"to the client")
        await asyncio.sleep(60)
        assert not client.received
        assert not server.received
        assert not client.is_closed

        network.heal(address)
        await server.until(lambda: server.received == b"to the server")
        await client.until(lambda: client.received == b"to the client")

    run_virtual(main())


def test_connecting_to_a_stalled_address_times_out() -> None:
    async def main() -> float:
        network = MemoryNetwork()
        network.stall(("10.0.0.1", 1))
        with pytest.raises(ConnectFailedError, match="within 3 s"):
            await network.connect(("10.0.0.1", 1), RawClient, 3.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(3.0)


def test_travel_times_are_within_the_limits() -> None:
    async def main() -> float:
        network = MemoryNetwork(latency_s=(0.2, 0.3))
        client, server, _ = await connected(network)
        started_s = asyncio.get_running_loop().time()
        client.write(b"?")
        await server.until(lambda: server.received == b"?")
        return asyncio.get_running_loop().time() - started_s

    assert 0.2 <= run_virtual(main()) <= 0.3


def test_the_same_seed_gives_the_same_times_and_pieces() -> None:
    async def main(seed: int) -> list[tuple[float, int]]:
        arrivals = []

        class Recorder(RawClient):
            def buffer_updated(self, nbytes: int) -> None:
                super().buffer_updated(nbytes)
                arrivals.append((asyncio.get_running_loop().time(), nbytes))

        server = Recorder()
        network = MemoryNetwork(seed)
        listener = await network.listen(("10.0.0.1", 0), lambda: server)
        client = await RawClient.connect(network, listener.address)
        for _ in range(40):
            client.write(bytes(100))
        await server.until(lambda: len(server.received) == 4_000)
        return arrivals

    assert run_virtual(main(1)) == run_virtual(main(1))
    assert run_virtual(main(1)) != run_virtual(main(2))
    assert len(run_virtual(main(1))) > 40, "some writes arrive in two pieces"


def test_a_listener_on_all_hosts_is_reached_by_any_host() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        accepted: list[RawClient] = []

        def accept() -> RawClient:
            accepted.append(RawClient())
            return accepted[-1]

        await network.listen(("0.0.0.0", 9876), accept)  # noqa: S104 - not a real socket
        for host in ("localhost", "10.0.0.7"):
            client = await RawClient.connect(network, (host, 9876))
            client.write(host.encode())
            client.close()
            await client.closed()
            await accepted[-1].closed()
        assert [end.received for end in accepted] == [b"localhost", b"10.0.0.7"]

    run_virtual(main())


def test_a_writer_to_a_closed_end_is_reset() -> None:
    async def main() -> None:
        client, server, _ = await connected(MemoryNetwork())
        server.pause()  # so that it does not read the end of the stream
        client.close()
        await client.closed()
        server.write(b"anybody?")

        server.resume()
        await server.closed()
        assert not client.received

    run_virtual(main())

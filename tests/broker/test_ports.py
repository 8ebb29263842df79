"""The VIP port serves all requests except those that wait, and is optional."""

from __future__ import annotations

from pathlib import Path

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.ports import NOT_ON_VIP_PORT, BrokerPorts
from kourou.broker.server import Broker
from kourou.errors import ConfigError, ConnectFailedError
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request, response
from kourou.protocol.frame import decode_frame, encode_frame
from kourou.remoting.connection import Connection, FastPath, Request
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import Address, format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.transport_config import TransportConfig
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from kourou.testing.raw_client import RawClient
from kourou.testing.runtime import sim_runtime

MAIN: Address = ("127.0.0.1", 10911)
VIP: Address = ("127.0.0.1", 10909)
SERVED = (RequestCode.SEND_MESSAGE, *sorted(NOT_ON_VIP_PORT))


def _answer(asked: Request) -> RemotingCommand:
    return response(asked.command)


def _ignore(_: Connection) -> None:
    """Do nothing."""


def _ports(
    runtime: Runtime, config: BrokerConfig, fast: dict[int, FastPath] | None = None
) -> BrokerPorts:
    return BrokerPorts(config, runtime, dict.fromkeys(SERVED, _answer), _ignore, fast)


async def _codes(runtime: Runtime, address: Address) -> list[int]:
    """Return the response codes of the requests of `SERVED` at a port."""
    pool = ConnectionPool(runtime, {}, ConnectionLimits())
    name = format_address(address)
    codes = [(await pool.request(name, request(code), 3.0)).code for code in SERVED]
    await pool.close()
    return codes


def test_the_vip_port_serves_all_requests_except_those_that_wait() -> None:
    async def main() -> None:
        runtime = sim_runtime()
        ports = _ports(runtime, BrokerConfig())
        assert await ports.start() == MAIN
        assert await _codes(runtime, MAIN) == [0] * len(SERVED)
        assert await _codes(runtime, VIP) == [0] + [3] * len(NOT_ON_VIP_PORT)
        await ports.stop()
        for address in (MAIN, VIP):
            with pytest.raises(ConnectFailedError):
                await _codes(runtime, address)

    run_virtual(main())


def _fast(code: int) -> FastPath:
    """Return a fast path that answers single requests of the code with 77."""

    def serve(connection: Connection, buffer: bytearray, start: int, end: int) -> int:
        command = decode_frame(buffer[start + 4 : end])
        if command.code != code:
            return start
        connection.send_frames(encode_frame(response(command, 77)))
        return end

    return serve


def test_a_fast_path_is_tried_where_its_request_is_served() -> None:
    async def main() -> None:
        runtime = sim_runtime()
        codes = (RequestCode.PULL_MESSAGE, RequestCode.SEND_MESSAGE)
        fast: dict[int, FastPath] = {code: _fast(code) for code in codes}
        ports = _ports(runtime, BrokerConfig(), fast)
        await ports.start()

        assert await _codes(runtime, MAIN) == [77 if code in fast else 0 for code in SERVED]
        assert await _codes(runtime, VIP) == [77] + [3] * len(NOT_ON_VIP_PORT)
        await ports.stop()

    run_virtual(main())


@pytest.mark.parametrize(
    ("config", "vip"),
    [
        (BrokerConfig(vip_port_enable=False), VIP),
        (BrokerConfig(port=2), ("127.0.0.1", 0)),
        (BrokerConfig(port=0), ("127.0.0.1", 29_998)),
    ],
)
def test_the_vip_port_can_be_absent(config: BrokerConfig, vip: Address) -> None:
    async def main() -> None:
        runtime = sim_runtime()
        ports = _ports(runtime, config)
        assert (await _codes(runtime, await ports.start()))[0] == 0
        with pytest.raises(ConnectFailedError):
            await _codes(runtime, vip)
        await ports.stop()

    run_virtual(main())


def test_a_vip_port_in_use_is_logged_and_the_broker_runs_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        runtime = sim_runtime()
        taken = await runtime.network.listen(VIP, RawClient)
        ports = _ports(runtime, BrokerConfig())
        assert await ports.start() == MAIN
        assert await _codes(runtime, MAIN) == [0] * len(SERVED)
        await ports.stop()
        taken.close()

    run_virtual(main())
    assert "vip_port.not_opened" in caplog.text
    assert "10909" in caplog.text


def test_abort_closes_both_ports() -> None:
    async def main() -> None:
        runtime = sim_runtime()
        ports = _ports(runtime, BrokerConfig())
        await ports.start()
        clients = [await RawClient.connect(runtime.network, each) for each in (MAIN, VIP)]
        ports.abort()
        for client in clients:
            await client.closed()
        for each in (MAIN, VIP):
            with pytest.raises(ConnectFailedError):
                await RawClient.connect(runtime.network, each)

    run_virtual(main())


def test_a_broker_with_a_bad_certificate_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        bad = TransportConfig(
            tls_server_cert_path=tmp_path / "no.crt", tls_server_key_path=tmp_path / "no.key"
        )
        disk = SimDisk()
        broker = Broker(BrokerConfig(transport=bad), disk, sim_runtime(), SimFlusher)
        with pytest.raises(ConfigError, match=r"no\.crt"):
            await broker.start()
        again = Broker(BrokerConfig(), disk, sim_runtime(), SimFlusher)
        await again.start()
        await again.stop()

    run_virtual(main())

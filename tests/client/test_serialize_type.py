"""Request headers have the encoding set by the client or the environment."""

from __future__ import annotations

import asyncio

import pytest

from kourou.client.config import (
    SERIALIZE_TYPE_VARIABLE,
    ProducerConfig,
    serialize_type_of_environment,
)
from kourou.client.sending.producer import Producer
from kourou.errors import ConfigError
from kourou.model.message import Message
from kourou.protocol.command import RemotingCommand, SerializeType, request, response
from kourou.remoting.connection import Request
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.server import RemotingServer
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime


def test_requests_are_binary_if_the_code_fits_and_both_sides_support_it() -> None:
    async def main() -> None:
        seen: list[tuple[int, SerializeType]] = []

        def on_any(asked: Request) -> RemotingCommand:
            seen.append((asked.command.code, asked.command.serialize_type))
            return response(asked.command, remark="ä")

        runtime = sim_runtime()
        handlers = dict.fromkeys((10, 200073), on_any)
        server = RemotingServer(runtime, handlers, ConnectionLimits(), "any")
        await server.start(("127.0.0.1", 9876))
        binary = SerializeType.ROCKETMQ
        pool = ConnectionPool(runtime, {}, ConnectionLimits(), serialize_type=binary)
        for code in (10, 200_073):
            answer = await pool.request("127.0.0.1:9876", request(code), 3.0)
            assert answer.remark == "ä"
        await pool.oneway("127.0.0.1:9876", request(10, oneway=True))
        await asyncio.sleep(0.1)
        assert seen == [(10, binary), (200_073, SerializeType.JSON), (10, binary)]
        await pool.close()
        await server.stop()

    run_virtual(main())


def test_producer_with_binary_headers_sends_complete_messages() -> None:
    async def main() -> None:
        config = ProducerConfig(serialize_type=SerializeType.ROCKETMQ)
        async with Cluster(seed=4) as cluster, cluster.producer(config=config) as producer:
            receipt = await producer.send(Message("T", b"x", keys=["ä"]))
            assert receipt.queue_offset == 0

    run_virtual(main())


def test_environment_sets_the_encoding_unless_the_client_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SERIALIZE_TYPE_VARIABLE, raising=False)
    assert serialize_type_of_environment() is SerializeType.JSON
    monkeypatch.setenv(SERIALIZE_TYPE_VARIABLE, "ROCKETMQ")
    assert serialize_type_of_environment() is SerializeType.ROCKETMQ
    monkeypatch.setenv(SERIALIZE_TYPE_VARIABLE, "XML")
    with pytest.raises(ConfigError, match=r"ROCKETMQ_SERIALIZE_TYPE is 'XML': .* JSON and"):
        Producer("p", "127.0.0.1:9876", runtime=sim_runtime())
    config = ProducerConfig(serialize_type=SerializeType.JSON)
    Producer("p", "127.0.0.1:9876", config=config, runtime=sim_runtime())

"""Compares the times of routes, registrations and new topics with 50 and with 5,000 topics.

    python -m bench.namesrv [--topics N] [--rounds R]

One process runs a name server and a broker on loopback, with a store in a temporary directory.
Prints the medians with few and with many topics, and their ratio; 1 means independent of the number
of topics. The time of a registration of all topics is given per topic.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.server import Broker
from kourou.disk import OsDisk
from kourou.model.topic import TopicConfig
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.data_version import DataVersion
from kourou.protocol.routes import GetRouteInfoRequestHeader
from kourou.protocol.topic_table import (
    RegisterBody,
    RegisterBrokerRequestHeader,
    TopicConfigTable,
    encode_register_body,
)
from kourou.protocol.topics import CreateTopicRequestHeader, encode_topic_config_list
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime

FEW: Final = 50
_TIMEOUT_S: Final = 30
_WHOLE_ROUNDS: Final = 5


class Bench:
    """A name server, a broker, and a client of both."""

    def __init__(self, directory: Path, rounds: int) -> None:
        self._runtime = Runtime.system()
        self._rounds = rounds
        self._pool = ConnectionPool(self._runtime, {}, ConnectionLimits())
        self._namesrv = NameServer(NamesrvConfig(port=0), self._runtime)
        self._disk = OsDisk(directory)
        self._topic_count = 0

    async def run(self, topics: int) -> dict[str, tuple[float, float]]:
        """Return each figure with few and with many topics, in ms."""
        self._namesrv_addr = format_address(await self._namesrv.start())
        config = BrokerConfig(port=0, namesrv_addr=(self._namesrv_addr,))
        broker = Broker(config, self._disk, self._runtime)
        self._broker_addr = format_address(await broker.start())
        try:
            await self._grow_to(FEW)
            few = await self._measure(FEW)
            await self._grow_to(topics)
            many = await self._measure(topics)
        finally:
            await self._pool.close()
            await broker.stop()
            await self._namesrv.stop()
            self._disk.close()
        return {name: (few[name], many[name]) for name in few}

    async def _grow_to(self, count: int) -> None:
        """Create topics up to `count`, and wait until the name server has them."""
        new = [TopicConfig(f"Topic{number}", 4, 4) for number in range(self._topic_count, count)]
        self._topic_count = count
        body = encode_topic_config_list(new)
        code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        await self._request(self._broker_addr, request(code, None, body))
        await asyncio.sleep(1)
        await self._route(count - 1)

    async def _measure(self, count: int) -> dict[str, float]:
        return {
            "route query": await self._median(lambda number: self._route(number % count)),
            "new topic": await self._median(self._create),
            "registration of a change": await self._median(self._register_change),
            "registration of all, per topic": await self._register_all(count),
        }

    async def _median(self, action: Callable[[int], Awaitable[None]]) -> float:
        times = []
        for number in range(self._rounds):
            before = time.perf_counter()
            await action(number)
            times.append(time.perf_counter() - before)
        return statistics.median(times) * 1000

    async def _route(self, number: int) -> None:
        header = GetRouteInfoRequestHeader(topic=f"Topic{number}")
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        await self._request(self._namesrv_addr, command)

    async def _create(self, _: int) -> None:
        self._topic_count += 1
        header = CreateTopicRequestHeader(
            f"Topic{self._topic_count - 1}", "TBW102", 4, 4, 6, "SINGLE_TAG", 0
        )
        await self._request(self._broker_addr, request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))

    async def _register_change(self, number: int) -> None:
        body = _body([TopicConfig("Topic0", 4, 4)], number)
        await self._register("broker-a", self._broker_addr, body)

    async def _register_all(self, count: int) -> float:
        topics = [TopicConfig(f"Topic{number}", 4, 4) for number in range(count)]
        times = []
        for number in range(_WHOLE_ROUNDS):
            body = _body(topics, number)
            before = time.perf_counter()
            await self._register("other", "127.0.0.1:1", body)
            times.append(time.perf_counter() - before)
        return statistics.median(times) * 1000 / count

    async def _register(self, name: str, address: str, body: bytes) -> None:
        header = RegisterBrokerRequestHeader(name, address, "DefaultCluster", "", 0)
        command = request(RequestCode.REGISTER_BROKER, header, body)
        await self._request(self._namesrv_addr, command)

    async def _request(self, address: str, command: RemotingCommand) -> None:
        raise_for_response(await self._pool.request(address, command, _TIMEOUT_S))


def _body(topics: list[TopicConfig], counter: int) -> bytes:
    """Return the body of a registration; a new counter makes it a change of all topics."""
    version = DataVersion(counter, 0, 1)
    return encode_register_body(
        RegisterBody(TopicConfigTable({topic.name: topic for topic in topics}, version))
    )


async def measure(directory: Path, topics: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return each figure with few and with many topics, in ms."""
    return await Bench(directory, rounds).run(topics)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = asyncio.run(measure(Path(directory), arguments.topics, arguments.rounds))
    print(f"{'median, ms':32}{FEW:>10} topics{arguments.topics:>10} topics{'ratio':>8}")
    for name, (few, many) in figures.items():
        print(f"{name:32}{few:>17.3f}{many:>17.3f}{many / few:>8.2f}")


if __name__ == "__main__":
    main()

"""Measures sends on a gRPC connection that also holds many receives, as a FIFO consumer does.

    python -m bench.held_receives [--receives 1000] [--topics 1] [--rounds 8] [--seconds 3]
                                  [--window 64]

Runs two `kourou serve` with asynchronous flush, each with one connection, which take turns: one
holds a receive for each of many queues of some topics, the other one none. A receive reads all
queues of its topic, and `popPollingSize` (1,024) receives of a group wait for one topic, as in
Java. Prints the ratios of sends a second, of the server's CPU a send, and of the p99, each the
median of the rounds. The exit code is 1 if the rate with held receives is below `--ratio` times
that without, or if a receive failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from kourou.client.administration.admin import AdminClient
from kourou.model.group import SubscriptionGroup
from kourou.proxy.pb import v2
from kourou.proxy.times import duration, timestamp
from kourou.remoting.network import TcpNetwork, parse_address
from kourou.testing.process import Serving
from tests.proxy.grpc_client import ClientCall, GrpcClient
from tests.proxy.proxy_rig import consumer_settings

SENDS: Final = "sends"
HELD: Final = "held"
_GROUP: Final = "orderly"
_POLL_MS: Final = 20_000
_BODY: Final = bytes(1024)
WARM_UP_S: Final = 2.0


@dataclass(frozen=True)
class Turn:
    """Sends of one connection: their number a second, CPU of the server in us, and p99 in ms."""

    rate: float
    cpu_us: float
    p99_ms: float


@dataclass(frozen=True)
class Side:
    """A server and the client of it."""

    pid: int
    client: GrpcClient


async def hold(client: GrpcClient, counts: Sequence[int], failed: list[str]) -> None:
    """Hold one receive for each queue of each topic, and begin another one at its end.

    Args:
        client: the connection.
        counts: number of queues, by topic.
        failed: notes the texts of failures.
    """
    stream = client.open("Telemetry", None)
    settings = consumer_settings(v2.ClientType.PUSH_CONSUMER, _GROUP, held_topic(0))
    stream.send(v2.TelemetryCommand(settings=settings))
    answer = await stream.next()
    assert answer is not None, stream.text
    assert answer.status.code == v2.Code.OK, answer
    queues = [
        (held_topic(at), queue_id) for at, count in enumerate(counts) for queue_id in range(count)
    ]
    await asyncio.gather(*(_receive(client, *queue, failed) for queue in queues))


async def _receive(client: GrpcClient, topic: str, queue_id: int, failed: list[str]) -> None:
    asked = v2.ReceiveMessageRequest(
        group=v2.Resource(name=_GROUP),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=queue_id),
        filter_expression=v2.FilterExpression(type=v2.FilterType.TAG, expression="*"),
        batch_size=32,
        auto_renew=True,
        long_polling_timeout=duration(_POLL_MS),
    )
    while True:
        call: ClientCall = client.open("ReceiveMessage", _POLL_MS / 1000 + 10)
        call.send(asked, ends=True)
        answers = await call.rest()
        if not answers or answers[0].status.code != v2.Code.MESSAGE_NOT_FOUND:
            failed.append(answers[0].status.message if answers else call.text)


async def send(side: Side, window: int, seconds: float) -> Turn:
    """Send with some calls in flight."""
    client, pid = side.client, side.pid
    latencies: list[float] = []
    ends_at_s = time.perf_counter() + seconds

    async def worker(number: int) -> None:
        sent = 0
        while (began_s := time.perf_counter()) < ends_at_s:
            sent += 1
            answer = await client.call("SendMessage", _message(f"{number:017d}{sent:017d}"))
            assert answer.status.code == v2.Code.OK, answer
            latencies.append(time.perf_counter() - began_s)

    cpu_s = _cpu_s(pid)
    await asyncio.gather(*map(worker, range(window)))
    cpu_s = _cpu_s(pid) - cpu_s
    p99_ms = statistics.quantiles(latencies, n=100)[98] * 1000
    return Turn(len(latencies) / seconds, cpu_s * 1e6 / len(latencies), p99_ms)


def _message(message_id: str) -> v2.SendMessageRequest:
    properties = v2.SystemProperties(
        message_id=message_id, born_timestamp=timestamp(int(time.time() * 1000)), born_host="bench"
    )
    message = v2.Message(topic=v2.Resource(name=SENDS), system_properties=properties, body=_BODY)
    return v2.SendMessageRequest(messages=[message])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def held_topic(number: int) -> str:
    """Return the name of a topic whose messages the receives wait for."""
    return f"{HELD}{number}"


async def connect(serving: Serving, counts: Sequence[int]) -> Side:
    """Create topics and group, and connect."""
    async with AdminClient(serving.namesrv) as admin:
        await admin.create_topic(SENDS, queues=8, attributes={"message.type": "NORMAL"})
        for number, queues in enumerate(counts):
            topic, attributes = held_topic(number), {"message.type": "FIFO"}
            await admin.create_topic(topic, queues=queues, attributes=attributes)
        await admin.create_group(SubscriptionGroup(_GROUP, consume_message_orderly=True))
    fields = {"x-mq-client-id": "measured", "x-mq-language": "JAVA"}
    client = await GrpcClient.connect(TcpNetwork(), parse_address(serving.grpc), fields)
    return Side(serving.process.pid, client)


async def measure(
    bare: Side, holding: Side, counts: Sequence[int], arguments: argparse.Namespace
) -> float:
    """Measure and print; return the ratio of the rates."""
    failed: list[str] = []
    held = asyncio.create_task(hold(holding.client, counts, failed))
    await asyncio.sleep(WARM_UP_S)
    rounds = [
        [
            await send(side, arguments.window, arguments.seconds)
            for side in ((bare, holding), (holding, bare))[number % 2]
        ][:: 1 - 2 * (number % 2)]
        for number in range(arguments.rounds)
    ]
    held.cancel()
    ratios = {}
    for name, unit in (("rate", "sends/s"), ("cpu_us", "us of CPU a send"), ("p99_ms", "ms, p99")):
        values = [[float(getattr(side, name)) for side in one] for one in rounds]
        without, with_held = (statistics.median(one[side] for one in values) for side in range(2))
        ratio = ratios[name] = statistics.median(one[1] / one[0] for one in values)
        print(f"{without:,.1f} {unit}; with held receives {with_held:,.1f}: ratio {ratio:.2f}")
    if failed:
        print(f"{len(failed):,} receives failed, such as: {failed[0]}")
        return 0.0
    return ratios["rate"]


async def run(arguments: argparse.Namespace, servers: Sequence[Serving]) -> float:
    """Connect to the servers, and measure."""
    count, topics = arguments.receives, arguments.topics
    counts = [count // topics + (number < count % topics) for number in range(topics)]
    bare, holding = [await connect(one, counts) for one in servers]
    for side in (bare, holding):
        await send(side, arguments.window, WARM_UP_S)
    return await measure(bare, holding, counts, arguments)


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--receives", type=int, default=1_000)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--ratio", type=float, default=0.8, help="limit of the ratio of rates")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as running:
        servers = [
            running.enter_context(
                Serving.start(Path(directory) / name, "--flush", "async", grpc=True)
            )
            for name in ("bare", "holding")
        ]
        return int(uvloop.run(run(arguments, servers)) < arguments.ratio)


if __name__ == "__main__":
    sys.exit(main())

"""Measures held pops, and messages in flight, in a live broker.

    python -m bench.pops_live [--messages 1000000] [--unacknowledged 100000]

    held        10,000 held pops of 100 groups on 100 connections: their memory, and the longest
                time to the answer of a small request while 2,000 a second arrived and were ended
    in flight   messages popped 32 at a time and not acknowledged: memory, and the time until the
                broker accepts sends again after kill -9
    revive      popped and unacknowledged messages whose invisible time is over: the time until all
                are in the retry topic

Goals: 40 MB and 20 ms for the held pops, 200 MB and 5 s for a million in flight, 10 s for a hundred
thousand to revive. Memory is anonymous memory of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from bench import load_generator
from bench.fan_out import RawClient, frame
from bench.servers import Server, start_kourou

TOPIC: Final = "bench-pops"
QUEUES: Final = 8
HELD: Final = 10_000
CONNECTIONS: Final = 100
POP_MAX: Final = 32
HOLD_MS: Final = 15_000
INVISIBLE_MS: Final = 10_000
_POP, _MAX_OFFSET, _CREATE_TOPIC = 200_050, 30, 17
_FOUND: Final = 0
ARRIVALS_PER_S: Final = 2_000
_POLL_S: Final = 0.05
_ASK_S: Final = 0.002
_REST_S: Final = 2
_REVIVE_S: Final = 120


def pop(topic: str, group: str, *, poll_ms: int = 0, invisible_ms: int = 600_000) -> bytes:
    """Return the frame of a pop of all queues."""
    fields: dict[str, object] = {
        "consumerGroup": group, "topic": topic, "queueId": -1, "maxMsgNums": POP_MAX,
        "invisibleTime": invisible_ms, "pollTime": poll_ms, "bornTime": time.time_ns() // 1_000_000,
        "initMode": 0, "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip
    return frame(_POP, fields)


async def connect(broker_addr: str, count: int) -> list[RawClient]:
    """Open connections."""
    host, port = broker_addr.split(":")
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(RawClient, host, int(port)))[1] for _ in range(count)]


async def create(client: RawClient, topic: str) -> None:
    """Create a topic."""
    fields: dict[str, object] = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
        "order": "false",
    }  # fmt: skip
    await client.request(frame(_CREATE_TOPIC, fields))


def longest_answer_s(broker_addr: str, for_s: float) -> float:
    """Return the longest time to the answer of a small request, asked for that many seconds.

    Runs in a process of its own: what the pops cost their client is not the broker's time.
    """

    async def ask() -> float:
        [client] = await connect(broker_addr, 1)
        longest_s, ends_s = 0.0, time.perf_counter() + for_s
        while (began_s := time.perf_counter()) < ends_s:
            await client.request(frame(_MAX_OFFSET, {"topic": TOPIC, "queueId": 0}))
            longest_s = max(longest_s, time.perf_counter() - began_s)
            await asyncio.sleep(_ASK_S)
        client.close()
        return longest_s

    return asyncio.run(ask())


async def hold(server: Server) -> None:
    """Hold pops on an empty topic, and print their memory."""
    clients = await connect(server.broker_addr, CONNECTIONS)
    for topic in ("bench-held", TOPIC):
        await create(clients[0], topic)
    groups = [f"held-{number}" for number in range(HELD // CONNECTIONS)]
    for group in groups:  # creates them
        await clients[0].request(pop("bench-held", group))
    await asyncio.sleep(_REST_S)
    before_mb = server.anonymous_mb()
    loop = asyncio.get_running_loop()
    for_s = HELD / ARRIVALS_PER_S + HOLD_MS / 1000 + _REST_S
    asker = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    asking = loop.run_in_executor(asker, longest_answer_s, server.broker_addr, for_s)
    for group in groups:
        for client in clients:
            client.write(pop("bench-held", group, poll_ms=HOLD_MS))
        await asyncio.sleep(CONNECTIONS / ARRIVALS_PER_S)
    memory_mb = server.anonymous_mb() - before_mb
    await asyncio.sleep(HOLD_MS / 1000 + _REST_S)
    longest_ms = await asking * 1e3
    asker.shutdown()
    print(f"{HELD:,} held pops: {memory_mb:.0f} MB, longest time to an answer {longest_ms:.0f} ms")
    for client in clients:
        client.close()


async def pop_all(server: Server, group: str, count: int, invisible_ms: int) -> float:
    """Pop messages without acknowledging them; return the seconds it took."""
    clients = await connect(server.broker_addr, 8)
    left = -(-count // POP_MAX)
    began_s = time.monotonic()

    async def work(client: RawClient) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            answer = await client.request(pop(TOPIC, group, invisible_ms=invisible_ms))
            if answer["code"] != _FOUND:
                left += 1
                await asyncio.sleep(0.001)

    await asyncio.gather(*map(work, clients))
    for client in clients:
        client.close()
    return time.monotonic() - began_s


async def revive(server: Server, count: int) -> None:
    """Pop messages, leave them unacknowledged, and print when all are visible again."""
    took_s = await pop_all(server, "revived", count, INVISIBLE_MS)
    due_s = time.monotonic() + INVISIBLE_MS / 1000
    [client] = await connect(server.broker_addr, 1)
    asked = frame(_MAX_OFFSET, {"topic": f"%RETRY%revived_{TOPIC}", "queueId": 0})
    revived = 0
    while revived < count and time.monotonic() - due_s < _REVIVE_S:
        fields = (await client.request(asked)).get("extFields", {})
        revived = int(fields.get("offset", 0))
        await asyncio.sleep(_POLL_S)
    late_s = time.monotonic() - due_s
    client.close()
    print(
        f"{count:,} unacknowledged messages, popped within {took_s:.1f} s: {revived:,} visible "
        f"again {late_s:.1f} s after the last one was due"
    )


def fly(server: Server, home: Path, count: int) -> Server:
    """Bring messages in flight, kill the broker, and print its memory and its restart."""
    before_mb = server.anonymous_mb()
    took_s = asyncio.run(pop_all(server, "flying", count, 3_600_000))
    memory_mb = server.anonymous_mb() - before_mb
    server.kill()
    again = start_kourou(home, "async")
    print(
        f"{count:,} messages in flight after {took_s:.0f} s: {memory_mb:.0f} MB; sends accepted "
        f"{again.ready_s:.1f} s after kill -9"
    )
    return again


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--unacknowledged", type=int, default=100_000)
    arguments = parser.parse_args()
    load_generator.build()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        server = start_kourou(home, "async")
        try:
            asyncio.run(hold(server))
            flags = {"topic": TOPIC, "conns": 8, "batch": 32, "size": 100, "dur": "300s"}
            # One for each pop more, because the last pops of a queue find fewer than 32.
            server.load("send", count=arguments.messages + QUEUES * POP_MAX, **flags)
            asyncio.run(revive(server, arguments.unacknowledged))
            server = fly(server, home, arguments.messages)
        finally:
            server.kill()


if __name__ == "__main__":
    main()

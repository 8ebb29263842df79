"""Compares the rates of a `PushConsumer` with and without order, with 1 KB messages.

    python -m bench.orderly [--messages N] [--loop asyncio|uvloop] [--ways WAY,...]

Starts a broker, fills 8 queues, and lets a new group consume them from their beginning, once for
each way: in any order and in order, with a coroutine function and with a plain function on the
consumer's threads, and in order in batches of 32. Prints messages per second and the CPU time of
this process per message, and fails if the messages of a queue arrive out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import load_generator
from bench.client_consume import CONSUME_SECONDS_MAX, TOPIC, fill
from bench.servers import kourou
from kourou import ConsumeFromWhere, MessageExt, PushConsumer, PushConsumerConfig

MESSAGES: Final = 100_000
BATCH: Final = 32


class _Counter:
    """Counts messages, checks their order, and sets `done` at the last one."""

    def __init__(self, messages: int, *, is_ordered: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._messages = messages
        self._is_ordered = is_ordered
        self._next: defaultdict[int, int] = defaultdict(int)
        self.done = asyncio.Event()

    async def on_loop(self, message: MessageExt) -> None:
        self.count(message)

    async def batch(self, messages: list[MessageExt]) -> None:
        for message in messages:
            self.count(message)

    def count(self, message: MessageExt) -> None:
        if self._is_ordered:
            expected = self._next[message.queue_id]
            assert message.queue_offset == expected, f"{message.queue_offset}, not {expected}"
            self._next[message.queue_id] = expected + 1
        if next(self._numbers) == self._messages:
            self._loop.call_soon_threadsafe(self.done.set)


WAYS: Final[dict[str, Callable[[PushConsumer, _Counter], object]]] = {
    "any order, coroutine": lambda consumer, counter: consumer.listen(counter.on_loop),
    "in order, coroutine": lambda consumer, counter: consumer.listen_orderly(counter.on_loop),
    "any order, function": lambda consumer, counter: consumer.listen(counter.count),
    "in order, function": lambda consumer, counter: consumer.listen_orderly(counter.count),
    "in order, batches": lambda consumer, counter: consumer.listen_orderly_in_batches(
        counter.batch
    ),
}


async def consume(namesrv_addr: str, way: str, messages: int) -> tuple[float, float]:
    """Consume all messages of the topic; return messages per second and CPU us per message."""
    config = PushConsumerConfig(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_batch_size=BATCH
    )
    consumer = PushConsumer(f"orderly-{time.monotonic_ns()}", namesrv_addr, config=config)
    consumer.subscribe(TOPIC)
    counter = _Counter(messages, is_ordered=way.startswith("in order"))
    WAYS[way](consumer, counter)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    async with asyncio.timeout(CONSUME_SECONDS_MAX), consumer:
        await counter.done.wait()
        took_s = time.perf_counter() - began_s
        cpu_s = time.process_time() - began_cpu_s
    return messages / took_s, cpu_s * 1e6 / messages


def _run(loop: str, namesrv_addr: str, way: str, messages: int) -> tuple[float, float]:
    consuming = consume(namesrv_addr, way, messages)
    if loop == "asyncio":
        return asyncio.run(consuming)
    import uvloop  # noqa: PLC0415  # absent in a bare install

    figures: tuple[float, float] = uvloop.run(consuming)
    return figures


def main() -> None:
    """Fill a topic, and consume it in each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="uvloop")
    parser.add_argument("--ways", default=";".join(WAYS))
    arguments = parser.parse_args()
    load_generator.build()
    table = Table(title=f"catching up on 1 KB messages of 8 queues, {arguments.loop}")
    table.add_column("way")
    table.add_column("messages/s", justify="right")
    table.add_column("CPU us a message", justify="right")
    with tempfile.TemporaryDirectory() as home, kourou(Path(home), flush="async") as server:
        fill(server, arguments.messages)
        for way in arguments.ways.split(";"):
            rate, cpu_us = _run(arguments.loop, server.namesrv_addr, way, arguments.messages)
            table.add_row(way, f"{rate:,.0f}", f"{cpu_us:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()

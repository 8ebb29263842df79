"""Measures the catch-up rate of one consumer with 1 KB messages.

    python -m bench.client_consume [--messages N] [--loop asyncio|uvloop] [--ways WAY,...]

Starts a broker, fills 8 queues, and lets a new group consume them from their beginning, once for
each way to consume: with a coroutine function, with a plain function on the consumer's threads,
with `async for`, by pops (`mode="pop"`), and by a `SimpleConsumer` that acknowledges what it
received at once. Prints messages per second and the CPU time of this process per message, which is
comparable also on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench import load_generator
from bench.servers import Server, kourou
from kourou import (
    ConsumeFromWhere,
    MessageExt,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
    SimpleConsumerConfig,
)

TOPIC: Final = "bench-consume"
MESSAGES: Final = 200_000
BODY_BYTES: Final = 1024
CONSUME_SECONDS_MAX: Final = 120
"""Timeout. If it is exceeded, messages are missing because the fill did not complete in time."""
WAYS: Final = ("coroutine", "function", "async for", "pop", "receive")
RECEIVERS: Final = 4
RECEIVE_MAX: Final = 32
RECEIVE_WAIT_MS: Final = 500


class _Counter:
    """Counts messages, and sets `done` at the last one."""

    def __init__(self, messages: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._messages = messages
        self.done = asyncio.Event()

    async def on_loop(self, message: MessageExt) -> None:
        self.count(message)

    def count(self, message: MessageExt) -> bool:
        """Count a message; return whether it was the last."""
        assert len(message.body) == BODY_BYTES
        if next(self._numbers) == self._messages:  # atomic: called from several threads
            self._loop.call_soon_threadsafe(self.done.set)
            return True
        return False

    def count_all(self, messages: Sequence[MessageExt]) -> None:
        """Count messages on the event loop; of any other way, none is counted."""
        assert {len(message.body) for message in messages} <= {BODY_BYTES}
        self._messages -= len(messages)
        if self._messages <= 0:
            self.done.set()


async def _iterate(consumer: PushConsumer, counter: _Counter) -> None:
    async for message in consumer:
        if counter.count(message):
            return


async def _receive(consumer: SimpleConsumer, counter: _Counter) -> None:
    while not counter.done.is_set():
        messages = await consumer.receive(RECEIVE_MAX)
        counter.count_all(messages)
        await consumer.ack_all(messages)


def _prepare(
    way: str, namesrv_addr: str, counter: _Counter
) -> tuple[PushConsumer | SimpleConsumer, list[Callable[[], Coroutine[Any, Any, None]]]]:
    """Return the consumer of a way to consume, and the tasks that it needs besides."""
    group = f"{way.replace(' ', '-')}-{time.monotonic_ns()}"
    first = ConsumeFromWhere.FIRST_OFFSET
    if way == "receive":
        config = SimpleConsumerConfig(consume_from_where=first, wait_ms=RECEIVE_WAIT_MS)
        simple = SimpleConsumer(group, namesrv_addr, config=config)
        simple.subscribe(TOPIC)
        return simple, [lambda: _receive(simple, counter)] * RECEIVERS
    push_config = PushConsumerConfig(
        consume_from_where=first, mode="pop" if way == "pop" else "pull"
    )
    push = PushConsumer(group, namesrv_addr, config=push_config)
    push.subscribe(TOPIC)
    if way == "async for":
        return push, [lambda: _iterate(push, counter)]
    push.listen(counter.count if way == "function" else counter.on_loop)
    return push, []


async def consume(namesrv_addr: str, way: str, messages: int) -> tuple[float, float]:
    """Consume all messages of the topic; return messages per second and CPU us per message."""
    counter = _Counter(messages)
    consumer, works = _prepare(way, namesrv_addr, counter)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    async with asyncio.timeout(CONSUME_SECONDS_MAX), consumer, asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(work())
        await counter.done.wait()
        took_s = time.perf_counter() - began_s
        cpu_s = time.process_time() - began_cpu_s
    return messages / took_s, cpu_s * 1e6 / messages


def fill(server: Server, messages: int) -> None:
    """Send the messages to 8 queues."""
    where: dict[str, Any] = {"addr": server.broker_addr, "topic": TOPIC}
    load_generator.run("setup", **where, queues=8)
    load_generator.run(
        "send", **where, conns=64, window=4, size=BODY_BYTES, count=messages, dur="90s"
    )


def _run(loop: str, consuming: Coroutine[Any, Any, tuple[float, float]]) -> tuple[float, float]:
    """Run a consumption on the given event loop."""
    if loop == "asyncio":
        return asyncio.run(consuming)
    import uvloop  # noqa: PLC0415  # absent in a bare install

    figures: tuple[float, float] = uvloop.run(consuming)
    return figures


def _print(rows: Sequence[tuple[str, float, float]], loop: str) -> None:
    table = Table(title=f"one consumer catching up on 1 KB messages, {loop}")
    table.add_column("listener")
    table.add_column("messages/s", justify="right")
    table.add_column("CPU us a message", justify="right")
    for way, rate, cpu_us in rows:
        table.add_row(way, f"{rate:,.0f}", f"{cpu_us:.2f}")
    Console().print(table)


def main() -> None:
    """Fill a topic, and consume it in each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="uvloop")
    parser.add_argument("--ways", default=",".join(WAYS))
    arguments = parser.parse_args()
    load_generator.build()
    with tempfile.TemporaryDirectory() as home, kourou(Path(home), flush="async") as server:
        fill(server, arguments.messages)
        rows = [
            (way, *_run(arguments.loop, consume(server.namesrv_addr, way, arguments.messages)))
            for way in arguments.ways.split(",")
        ]
    _print(rows, arguments.loop)


if __name__ == "__main__":
    main()

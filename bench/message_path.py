"""Measures the path of one plain message through the code: modules, calls, transitions.

    python -m bench.message_path [--calls]

A producer, a broker and a push consumer run in one virtual-time loop. After some messages that fill
the caches, one more is sent, delivered to a listener and acknowledged while every call of a Kourou
function is recorded. Simulated clock, network and disk (`kourou.testing`) do not count.

Prints the modules in the order in which the message first enters them, with the number of calls in
each, and as totals:

    modules      through which the message passes
    calls        of functions
    transitions  calls from a function of one module to a function of another
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

WARM_UP_MESSAGES: Final = 40
_SETTLED_S: Final = 61.0
"""Virtual time until registration, heartbeats and rebalances have ended."""
_BETWEEN_TICKS_S: Final = 0.35
"""Virtual time to a moment at which no background loop runs."""
_TURNS: Final = 3
_PACKAGE: Final = "kourou."
_SIMULATED: Final = "kourou.testing."


class Path:
    """Records calls as a profile function of the interpreter.

    Attributes:
        calls: (module, function) of each call, in order.
        transitions: number of calls from another module of Kourou.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.transitions = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401 - any object
        """Record one event."""
        module = _module_of(frame)
        if event != "call" or module is None:
            return
        self.calls.append((module, frame.f_code.co_qualname))
        caller = frame.f_back
        while caller is not None and not caller.f_globals.get("__name__", "").startswith(_PACKAGE):
            caller = caller.f_back
        if caller is not None and _module_of(caller) not in (None, module):
            self.transitions += 1


def _module_of(frame: FrameType) -> str | None:
    name = str(frame.f_globals.get("__name__", ""))
    return name if name.startswith(_PACKAGE) and not name.startswith(_SIMULATED) else None


async def trace() -> Path:
    """Return the path of one message from `send` to the update of the consumer's offset."""
    path, keys = Path(), asyncio.Queue[str]()
    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with Cluster(seed=1) as cluster, cluster.producer("senders") as producer:
        await producer.send(_message("first"))
        consumer = cluster.push_consumer("listeners", config=config)
        consumer.subscribe("T")

        @consumer.listen
        async def on_message(message: MessageExt) -> None:
            keys.put_nowait(message.keys[0])

        async with consumer:
            await asyncio.sleep(_SETTLED_S)
            await keys.get()
            for number in range(WARM_UP_MESSAGES):
                await producer.send(_message(f"warm-up-{number}"))
                await keys.get()
            await asyncio.sleep(_BETWEEN_TICKS_S)
            sys.setprofile(path)
            try:
                await producer.send(_message("traced"))
                await keys.get()
                for _ in range(_TURNS):  # the acknowledgement, and the next pull
                    await asyncio.sleep(0)
            finally:
                sys.setprofile(None)
    return path


def _message(key: str) -> Message:
    return Message("T", b"body", keys=[key], tags="a")


def main() -> None:
    """Trace one message and print its path."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", action="store_true", help="print every call in order")
    arguments = parser.parse_args()
    paths: list[Path] = []

    async def run() -> None:
        paths.append(await trace())

    run_virtual(run())
    (path,) = paths
    console = Console()
    if arguments.calls:
        for module, function in path.calls:
            console.print(f"{module.removeprefix(_PACKAGE)}  {function}", highlight=False)
    table = Table("module", "calls")
    for module, calls in Counter(module for module, _ in path.calls).items():
        table.add_row(module.removeprefix(_PACKAGE), str(calls))
    console.print(table)
    modules = len({module for module, _ in path.calls})
    console.print(f"{modules} modules, {len(path.calls)} calls, {path.transitions} transitions")


if __name__ == "__main__":
    main()

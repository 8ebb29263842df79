"""Measures how soon a replica serves that becomes master, with many timers and open transactions.

    python -m bench.become_master [--timers 1000000] [--halves 100000] [--dir DIRECTORY]

Builds the store of a single broker with that many scheduled messages and half messages, adopts it
as the store of a set's first master, and copies it to a second replica. Starts both with a name
server and a controller, waits until the second one follows the timers of the first, and makes it
the master. Prints the times from the election to the first acknowledged send of a client, and to
the delivery of a message that became due just after the election; then the entries of the new
master's log with their times from the election on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from bench.servers import free_ports
from kourou.broker.timer.scheduling import schedule
from kourou.broker.transactions.half_messages import place_half
from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.sending.producer import Producer
from kourou.disk import OsDisk
from kourou.errors import KourouError
from kourou.model import properties as names
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.properties import encode_properties
from kourou.model.sysflag import TRANSACTION_PREPARED
from kourou.protocol.record.encode import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.store.tools.adopt import adopt_log, plan_adoption
from kourou.store.tools.closed_store import rebuild_closed_timers

_TOPIC: Final = "bench-master"
_BODY: Final = b"x" * 128
_DAY_MS: Final = 86_400_000
_WRITTEN_TOGETHER: Final = 500
_DUE_AFTER_S: Final = 0.3
"""When the timed message is due, after the election."""
_SENT_BEFORE_S: Final = 1.5
_GOAL_S: Final = 1.0
_PATIENCE_S: Final = 600.0
_ENTRIES: Final = (
    "controller.role_changed", "broker.stopped", "store.opened", "broker.started",
    "timers.opened", "timers.following", "timer_files.remade", "transactions.caught_up",
    "in_sync_set.changed",
)  # fmt: skip
_CONSOLE: Final = Console(width=160)


def _draft(number: int, now_ms: int, dice: Random, *, is_half: bool) -> RecordDraft:
    properties = {names.UNIQ_KEY: f"{number:032X}"}
    if is_half:
        properties["TRAN_MSG"] = "true"
        placed = place_half(_TOPIC, 0, properties, "bench")
    else:
        properties[names.TIMER_DELIVER_MS] = str(now_ms + _DAY_MS + dice.randrange(_DAY_MS // 24))
        placed = schedule(_TOPIC, 0, properties, now_ms, 2 * _DAY_MS)
    return RecordDraft(
        topic=placed.topic.encode(),
        queue_id=placed.queue_id,
        flag=0,
        sys_flag=TRANSACTION_PREPARED if is_half else 0,
        born_at_ms=now_ms,
        born_host=("127.0.0.1", 40_000),
        store_host=("127.0.0.1", 10_911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=_BODY,
        properties=encode_properties(properties),
    )


def build(root: Path, timers: int, halves: int) -> None:
    """Fill a store, close it, and adopt it as that of a first master."""
    root.mkdir()
    disk, dice, now_ms = OsDisk(root), Random(1), int(time.time() * 1000)
    config = StoreConfig(message_index_enable=False, free_bytes_min=1)
    store = MessageStore.open(disk, config, now_ms, pid=os.getpid())
    for number in range(timers + halves):
        draft = _draft(number, now_ms, dice, is_half=number >= timers)
        store.writer.append(draft, now_ms)
        if number % _WRITTEN_TOGETHER == 0:
            store.writer.write()
            store.writer.dispatch(store.reader.written_position)
    store.writer.write()
    for plan in (store.writer.sync_plan(), store.writer.queue_sync_plan()):
        if plan is not None:
            store.writer.run_sync(plan)
            store.writer.synced(plan)
    store.writer.dispatch(store.reader.synced_position)
    store.close(now_ms)
    rebuild_closed_timers(disk, now_ms)
    adopt_log(disk, plan_adoption(disk))
    disk.close()


@contextmanager
def _running(log: Path, *arguments: str) -> Iterator[None]:
    command = (sys.executable, "-m", "kourou.cli.main", *arguments)
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class _Set:
    """Addresses and logs of the processes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.namesrv = f"127.0.0.1:{free_ports()}"
        self.controller = f"127.0.0.1:{free_ports()}"
        self.brokers = [f"127.0.0.1:{free_ports((-2, 0, 1))}" for _ in range(2)]

    def start(self, stack: ExitStack, name: str, *arguments: str) -> None:
        stack.enter_context(_running(self.home / f"{name}.log", *arguments))

    def start_servers(self, stack: ExitStack) -> None:
        port, state = self.controller.split(":")[1], str(self.home / "controller")
        self.start(stack, "controller", "controller", "--file", state, "--port", port)
        port = self.namesrv.split(":")[1]
        names = str(self.home / "namesrv")
        self.start(stack, "namesrv", "serve", "namesrv", "--dir", names, "--port", port)

    def start_broker(self, stack: ExitStack, number: int) -> None:
        config = self.home / f"broker-{number}.conf"
        config.write_text(
            f"brokerName=broker-a\nenableControllerMode=true\ncontrollerAddr={self.controller}\n"
            f"namesrvAddr={self.namesrv}\nmessageIndexEnable=false\nfreeBytesMin=1\n"
        )
        store, port = str(self.home / f"store-{number}"), self.brokers[number].split(":")[1]
        arguments = ("--config", str(config), "--namesrv", self.namesrv, "--store", store)
        options = ("--port", port, "--no-grpc", "--no-console", "--quiet", "--log-level", "info")
        self.start(stack, f"broker-{number}", "serve", *arguments, *options)

    def entries(self, number: int, began: float) -> list[tuple[float, str]]:
        """Return the entries of a broker's log since a time, with the seconds since then."""
        found = []
        for line in (self.home / f"broker-{number}.log").read_text().splitlines():
            with suppress(ValueError, KeyError):
                entry = json.loads(line)
                after_s = datetime.fromisoformat(entry.pop("at")).timestamp() - began
                if after_s >= 0 and entry["event"] in _ENTRIES:
                    del entry["level"], entry["logger"]
                    found.append((after_s, " ".join(f"{k}={v}" for k, v in entry.items())))
        return found


async def _in_sync(admin: AdminClient, running: _Set, count: int) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            with suppress(KourouError):
                sets = await admin.broker_sets(running.controller, ["broker-a"])
                found = sets.get("broker-a")
                if found is not None and len(found.in_sync_replicas) == count:
                    return
            await asyncio.sleep(0.5)


async def _first_send(producer: Producer, message: Message) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            with suppress(KourouError):
                await producer.send(message)
                return
            await asyncio.sleep(0.01)


async def _until_followed(running: _Set) -> None:
    """Wait until the slave follows the timers of the master."""
    async with asyncio.timeout(_PATIENCE_S):
        while not any("event=timers.following" in text for _, text in running.entries(1, 0)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.5)


def _line(what: str, took_s: float) -> None:
    missed = "" if took_s <= _GOAL_S else f" (goal: {_GOAL_S:g} s)"
    load = os.getloadavg()[0]
    _CONSOLE.print(f"{what}: {took_s:.2f} s{missed}; load average {load:.1f}")


async def measure(running: _Set) -> None:
    """Move the master, and print the times."""
    with ExitStack() as stack:
        running.start_servers(stack)
        running.start_broker(stack, 0)
        config = ProducerConfig(send_timeout_ms=500)
        delivered: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        async def listen(message: MessageExt) -> None:
            if message.body == b"timed" and not delivered.done():
                delivered.set_result(time.perf_counter())

        consumer = PushConsumer(
            "bench",
            running.namesrv,
            config=PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET),
        )
        consumer.subscribe(_TOPIC)
        consumer.listen(listen)
        async with (
            AdminClient(running.namesrv) as admin,
            Producer("bench", running.namesrv, config=config) as producer,
            AsyncExitStack() as consumers,
        ):
            await _in_sync(admin, running, 1)
            await _first_send(producer, Message(_TOPIC, b"first"))
            running.start_broker(stack, 1)
            await _in_sync(admin, running, 2)
            await _until_followed(running)
            await consumers.enter_async_context(consumer)
            await asyncio.sleep(5)  # the slave copies the tables
            due_s = time.time() + _SENT_BEFORE_S + _DUE_AFTER_S
            await _first_send(producer, Message(_TOPIC, b"timed", deliver_at_ms=int(due_s * 1000)))
            await asyncio.sleep(due_s - _DUE_AFTER_S - time.time())
            began, began_s = time.time(), time.perf_counter()
            await admin.elect_master(
                running.controller, cluster="", broker_name="broker-a", broker_id=2
            )
            await _first_send(producer, Message(_TOPIC, b"second"))
            _line("first acknowledged send after the election", time.perf_counter() - began_s)
            async with asyncio.timeout(_PATIENCE_S):
                _line("delivery of a timed message", await delivered - began_s - _DUE_AFTER_S)
            await asyncio.sleep(10)
            while not any("event=timer" in text for _, text in running.entries(1, began)):  # noqa: ASYNC110 - another process
                await asyncio.sleep(1)
            for after_s, text in running.entries(1, began):
                _CONSOLE.print(f"{after_s:8.2f} s  {text}", markup=False)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--halves", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as made:
        running = _Set(Path(made))
        build(running.home / "store-0", arguments.timers, arguments.halves)
        shutil.copytree(running.home / "store-0", running.home / "store-1")
        _CONSOLE.print(f"{arguments.timers:,} timers, {arguments.halves:,} halves: built")
        asyncio.run(measure(running))


if __name__ == "__main__":
    main()

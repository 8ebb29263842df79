"""Measures the delays of the event loop of a broker with 5,000 topics.

    python -m bench.stalls [--topics 5000] [--queues 8] [--groups 50] [--each 1]
                          [--consumers 2000] [--dir DIR]

Runs a name server and a broker on one loop, as `kourou serve` does, in a separate process. Prints
for each step, such as the persistence of config and offsets, its time, the longest delay of the
loop, the longest CPU time of the loop's thread within one iteration, and the longest garbage
collection. The delay also includes waits for other threads and for other programs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice, product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from kourou.broker.config import BrokerConfig
from kourou.broker.consuming.consumer_offsets import FILE_NAME as OFFSETS_FILE
from kourou.broker.groups import FILE_NAME as GROUPS_FILE
from kourou.broker.server import Broker
from kourou.broker.topics import FILE_NAME as TOPICS_FILE
from kourou.broker.writing.kernel_flusher import KernelFlusher
from kourou.cli.process import limit_gc_pauses
from kourou.disk import OsDisk
from kourou.model.group import SubscriptionGroup
from kourou.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from kourou.model.topic import TopicConfig
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.frame import decode_frame, encode_frame
from kourou.protocol.groups import (
    GetAllSubscriptionGroupRequestHeader,
    SubscriptionGroupTable,
    encode_subscription_group_table,
)
from kourou.protocol.offset_table import ConsumerOffsetTable, encode_consumer_offset_table
from kourou.protocol.offsets import UpdateConsumerOffsetRequestHeader
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.protocol.topic_table import (
    GetAllTopicConfigRequestHeader,
    TopicConfigTable,
    encode_topic_config_table,
)
from kourou.protocol.topics import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
)
from kourou.remoting.network import format_address
from kourou.remoting.runtime import Runtime
from kourou.store.config import StoreConfig

try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop

_TICK_S: Final = 0.001
_COMMITS: Final = 50
_COMMIT_PAUSE_S: Final = 0.002
_HELD_AT_ONCE: Final = 5
_HELD_MS: Final = 60_000
_PERSIST_MS: Final = 2_000
_REGISTER_MS: Final = 10_000


class Probe:
    """Runs on the loop every millisecond, and records its delays."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due_s = self._cpu_s = self._gc_s = 0.0
        self.reset()
        self._turn()
        gc.callbacks.append(self._collecting)

    def reset(self) -> None:
        self.stall_s = self.used_s = self.gc_s = 0.0

    def found(self) -> tuple[float, ...]:
        """Return the longest delay, CPU time and garbage collection since the reset, in seconds."""
        return self.stall_s, self.used_s, self.gc_s

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        cpu_s = time.thread_time()
        if phase == "stop":
            self.gc_s = max(self.gc_s, cpu_s - self._gc_s)
        self._gc_s = cpu_s

    def _turn(self) -> None:
        now_s, cpu_s = time.perf_counter(), time.thread_time()
        if self._due_s:
            self.stall_s = max(self.stall_s, now_s - self._due_s)
            self.used_s = max(self.used_s, cpu_s - self._cpu_s)
        self._due_s, self._cpu_s = now_s + _TICK_S, cpu_s
        self._loop.call_later(_TICK_S, self._turn)


def serve(pipe: Connection, root: Path, **options: Any) -> None:  # noqa: ANN401
    """Serve until "stop" arrives on the pipe; answer any other word with the results of the probe.

    The first message on the pipe has the addresses of broker and name server, and the start time in
    seconds.
    """

    async def main() -> None:
        runtime, disk = Runtime.system(), OsDisk(root)
        namesrv = NameServer(NamesrvConfig(port=0), runtime, disk)
        names = await namesrv.start()
        config = BrokerConfig(
            port=0,
            namesrv_addr=(format_address(names),),
            consumer_offset_interval_ms=_PERSIST_MS,
            register_interval_ms=_REGISTER_MS,
            store=StoreConfig(commitlog_segment_bytes=8 << 20, free_bytes_min=1),
            **options,
        )
        broker = Broker(config, disk, runtime, KernelFlusher)
        began_s = time.perf_counter()
        listening = await broker.start()
        pipe.send((listening, names, time.perf_counter() - began_s))
        limit_gc_pauses()
        probe, stop = Probe(), asyncio.Event()

        def on_word() -> None:
            word = pipe.recv()
            if word == "stop":
                stop.set()
            else:
                pipe.send(probe.found())
                probe.reset()

        asyncio.get_running_loop().add_reader(pipe.fileno(), on_word)
        await stop.wait()
        began_s = time.perf_counter()
        await broker.stop()
        pipe.send((probe.stall_s, time.perf_counter() - began_s))
        await namesrv.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


class Client:
    """One connection with one request in flight."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, 60)

    def request(self, code: RequestCode, header: object, body: bytes = b"") -> bytes:
        """Send a request, and return the body of the answer."""
        answer = self.answer(encode_frame(request(code, header, body)))
        if answer.code:
            raise RuntimeError(f"{code.name}: {answer.remark}")
        return answer.body

    def answer(self, frame: bytes) -> RemotingCommand:
        """Send a frame, and return the answer, also an error."""
        self._socket.sendall(frame)
        size = int.from_bytes(self._receive(4), "big")
        return decode_frame(self._receive(size))

    def write(self, command: RemotingCommand) -> None:
        """Send a request without waiting for the answer."""
        self._socket.sendall(encode_frame(command))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def create(self, topic: str, queues: int = 8) -> None:
        """Create a topic, or change its number of queues."""
        header = CreateTopicRequestHeader(topic, "TBW102", queues, queues, 6, "SINGLE_TAG")
        self.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise RuntimeError("the broker closed the connection")
            data += part
        return bytes(data)


class Bench:
    """A broker with many topics, and the steps of the measurement."""

    def __init__(self, root: Path, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.topics = [f"orders-{number:05d}" for number in range(arguments.topics)]
        self.groups = [f"group-{number:03d}" for number in range(arguments.groups)]
        self.queues: int = arguments.queues
        self.keys = [
            (topic, self.groups[(number + more) % len(self.groups)])
            for more in range(arguments.each)
            for number, topic in enumerate(self.topics)
        ]
        self.table = Table("step", "took", "longest stall", "most CPU", "longest gc")
        self._fill(OsDisk(root))
        self._pipe, child_pipe = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=serve, args=(child_pipe, root)
        )
        self._process.start()
        self.address, _, took_s = self._pipe.recv()
        self._consumers: list[Client] = []
        self.table.add_row("start", f"{took_s * 1000:,.0f} ms", "", "", "")
        time.sleep(1.5)

    def _fill(self, disk: OsDisk) -> None:
        disk.make_directory("config")
        topics = {name: TopicConfig(name, self.queues, self.queues) for name in self.topics}
        groups = {name: SubscriptionGroup(name) for name in self.groups}
        at = dict.fromkeys(range(self.queues), 0)
        offsets = {f"{topic}@{group}": at for topic, group in self.keys}
        for name, text in (
            (TOPICS_FILE, encode_topic_config_table(TopicConfigTable(topics), pretty=True)),
            (
                GROUPS_FILE,
                encode_subscription_group_table(SubscriptionGroupTable(groups), pretty=True),
            ),
            (OFFSETS_FILE, encode_consumer_offset_table(ConsumerOffsetTable(offsets), pretty=True)),
        ):
            disk.write(name, 0, [text])

    def step(self, name: str, action: Callable[[], object], *, rest_s: float = 0.2) -> None:
        """Run one step, wait, and add a row."""
        self._read_probe()
        began_s = time.perf_counter()
        action()
        took_s = time.perf_counter() - began_s
        time.sleep(rest_s)
        cells = (took_s, *self._read_probe())
        self.table.add_row(name, *(f"{cell * 1000:,.1f} ms" for cell in cells))

    def stop(self) -> None:
        """Stop the broker, and add a row."""
        self._read_probe()
        self._pipe.send("stop")
        stall_s, took_s = self._pipe.recv()
        self.table.add_row("stop", f"{took_s * 1000:,.0f} ms", f"{stall_s * 1000:,.1f} ms", "", "")
        self._process.join()

    def _read_probe(self) -> tuple[float, ...]:
        self._pipe.send("reset")
        found: tuple[float, ...] = self._pipe.recv()
        return found

    @contextmanager
    def commits(self) -> Iterator[None]:
        """Let every group commit in every queue repeatedly during the `with` block."""
        process = multiprocessing.get_context("fork").Process(target=self._commit)
        process.start()
        try:
            yield
        finally:
            process.terminate()
            process.join()

    def _commit(self) -> None:
        """Commit a few offsets at a time, like many clients with a few queues each."""
        client, known = Client(self.address), GetTopicConfigRequestHeader(self.topics[0])
        everywhere = product(count(1), range(self.queues), self.keys)
        while batch := list(islice(everywhere, _COMMITS)):
            for offset, queue, (topic, group) in batch:
                header = UpdateConsumerOffsetRequestHeader(group, topic, queue, offset)
                client.write(request(RequestCode.UPDATE_CONSUMER_OFFSET, header, oneway=True))
            client.request(RequestCode.GET_TOPIC_CONFIG, known)  # waits until all are processed
            time.sleep(_COMMIT_PAUSE_S)

    def _connect(self, number: int) -> None:
        self._consumers = [Client(self.address) for _ in range(number)]

    def _hang_up(self) -> None:
        for consumer in self._consumers:
            consumer.close()

    def _hold(self) -> None:
        flags = PULL_SUSPEND | PULL_SUBSCRIPTION
        client, known = Client(self.address), GetTopicConfigRequestHeader(self.topics[0])
        for number, (topic, group) in enumerate(self.keys):
            consumer = self._consumers[number % len(self._consumers)]
            if not number % _HELD_AT_ONCE:  # spread over time, not in one iteration of the loop
                client.request(RequestCode.GET_TOPIC_CONFIG, known)
                time.sleep(_COMMIT_PAUSE_S)
            for queue in range(self.queues):
                header = PullMessageRequestHeader(
                    group, topic, queue, 0, 32, flags, 0, _HELD_MS, 0, "*"
                )
                consumer.write(request(RequestCode.PULL_MESSAGE, header))

    def run(self) -> None:
        """Run all steps."""
        client = Client(self.address)
        self.step("nothing", lambda: time.sleep(3))
        self.step("create a topic", lambda: client.create("new-topic"))
        self.step("create 20, one after the other", lambda: _create_many(client, "more"))
        self.step("change one", lambda: client.create("new-topic", 4))
        delete = DeleteTopicRequestHeader("new-topic")
        self.step("delete one", lambda: client.request(RequestCode.DELETE_TOPIC_IN_BROKER, delete))
        everything = GetAllTopicConfigRequestHeader()
        self.step(
            "all topics", lambda: client.request(RequestCode.GET_ALL_TOPIC_CONFIG, everything)
        )
        groups = GetAllSubscriptionGroupRequestHeader()
        self.step(
            "all groups",
            lambda: client.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groups),
        )
        self.step("all offsets", lambda: client.request(RequestCode.GET_ALL_CONSUMER_OFFSET, None))
        self.step("registrations", lambda: time.sleep(2.5 * _REGISTER_MS / 1000))
        number = self._arguments.consumers
        self.step(f"{number:,} consumers connect", lambda: self._connect(number))
        self.step("hold a pull of each queue", self._hold)
        with self.commits():
            time.sleep(1)
            self.step("commits and their persistence", lambda: time.sleep(10))
        self.step("the consumers disconnect", self._hang_up, rest_s=1)


def _create_many(client: Client, name: str) -> None:
    for number in range(20):
        client.create(f"{name}-{number}")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--consumers", type=int, default=2_000, help="connections that hold pulls")
    parser.add_argument("--each", type=int, default=1, help="groups that consume each topic")
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    arguments = parser.parse_args()
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))  # the server inherits it
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        bench = Bench(Path(directory), arguments)
        try:
            bench.run()
        finally:
            bench.stop()
            Console().print(bench.table)


if __name__ == "__main__":
    main()

"""The official Python SDK works with `kourou serve` and `kourou serve proxy`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kourou.testing.process import Serving, run_command
from tests.effort import some
from tests.proxy.proxy_rig import Mode

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"

PUSH = """
import queue
from rocketmq import (
    ClientConfiguration, ConsumeResult, Credentials, FilterExpression, Message, MessageListener,
    Producer, PushConsumer,
)

configuration = ClientConfiguration("localhost:8081", Credentials())
bodies = queue.Queue()

class Listener(MessageListener):
    def consume(self, message):
        bodies.put((message.body.decode(), message.delivery_attempt))
        is_first = message.body == b"2" and message.delivery_attempt == 1
        return ConsumeResult.FAILURE if is_first else ConsumeResult.SUCCESS

producer = Producer(configuration, ("pushed",))
producer.startup()
for number in range(4):
    message = Message()
    message.topic, message.body = "pushed", b"%d" % number
    producer.send(message)
consumer = PushConsumer(configuration, "pushers", Listener(), {"pushed": FilterExpression("*")})
consumer.startup()
for number in range(4, 8):
    message = Message()
    message.topic, message.body = "pushed", b"%d" % number
    producer.send(message)
print(sorted(bodies.get(timeout=30) for _ in range(9)))
consumer.shutdown()
producer.shutdown()
"""


@pytest.fixture(
    scope="module", params=some([Mode.LOCAL, Mode.CLUSTER], 1), ids=lambda mode: mode.value
)
def serving(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    """Return the process whose gRPC port is used: that of the broker, or of a proxy before it."""
    is_local = request.param is Mode.LOCAL
    store = tmp_path_factory.mktemp("store")
    with Serving.start(store, "--console-port", "0", grpc=is_local) as broker:
        for topic in ("orders", "pushed"):
            created = run_command("topic", "create", topic, "--namesrv", broker.namesrv)
            assert created.code == 0, created.err
        if is_local:
            yield broker
            return
        with Serving.start_proxy(broker.namesrv, tmp_path_factory.mktemp("home")) as proxy:
            yield proxy


def run_program(program: str, grpc: str, home: Path) -> str:
    """Run a program of the SDK, which logs below the home directory; return what it prints."""
    ended = subprocess.run(
        [sys.executable, "-c", program.replace("localhost:8081", grpc)],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_program_of_the_page_sends_and_receives(serving: Serving, tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)

    printed = run_program(program, serving.grpc, tmp_path)

    assert re.match(r"sent \w{34}\nreceived 17 eu\n", printed)


def test_push_consumer_gets_each_message_and_a_failed_one_again(
    serving: Serving, tmp_path: Path
) -> None:
    printed = run_program(PUSH, serving.grpc, tmp_path)

    expected = [(str(number), 1) for number in range(8)]
    assert printed == f"{sorted([*expected, ('2', 2)])}\n"


ENDPOINTS = """
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer
from rocketmq import SimpleConsumer

configuration = ClientConfiguration("localhost:8081", Credentials())
consumer = SimpleConsumer(configuration, "mapped", {"orders": FilterExpression("*")})
consumer.startup()
producer = Producer(configuration, ("orders",))
producer.startup()
message = Message()
message.topic, message.body = "orders", b"mapped"
producer.send(message)
found = []
while b"mapped" not in [one.body for one in found]:
    found = consumer.receive(32, 15)
    for one in found:
        consumer.ack(one)
managers = (producer.route_manager, consumer.route_manager)
print(*{one for manager in managers for one in manager.get_all_endpoints()})
consumer.shutdown()
producer.shutdown()
"""


def test_client_uses_only_the_mapped_port(serving: Serving, tmp_path: Path) -> None:
    with mapped_port(serving.grpc) as address:
        printed = run_program(ENDPOINTS, address, tmp_path)

    assert address in printed
    assert serving.grpc not in printed
    assert len(printed.split()) == 1


@contextmanager
def mapped_port(address: str) -> Iterator[str]:
    """Copy what arrives at another port to a server, and back; yield its address."""
    loop = asyncio.new_event_loop()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await reader.read(65_536):
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = address.rpartition(":")
        remote_reader, remote_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, remote_writer), copy(remote_reader, writer))

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(finish(loop))
        loop.close()


async def finish(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the other tasks of a loop."""
    others = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)  # in which closed transports end


@pytest.mark.parametrize("serving", [Mode.LOCAL], indirect=True)
def test_calls_of_the_client_are_among_the_metrics(serving: Serving, tmp_path: Path) -> None:
    run_program(PUSH, serving.grpc, tmp_path)

    url = f"{serving.ready['console']}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - http
        text = answer.read().decode()

    lines = [line for line in text.splitlines() if line.startswith("rocketmq_proxy_")]
    assert any(line.startswith("rocketmq_proxy_up{") and line.endswith(" 1.0") for line in lines)
    sends = [line for line in lines if 'name="SendMessage"' in line]
    assert [("python" in line, 'code="ok"' in line) for line in sends] == [(True, True)]


def test_members_of_a_group_are_shown_with_their_language(serving: Serving, tmp_path: Path) -> None:
    program = """
import subprocess, sys
from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer
consumer = SimpleConsumer(
    ClientConfiguration("localhost:8081", Credentials()), "shown", {"orders": FilterExpression("*")}
)
consumer.startup()
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
consumer.shutdown()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program.replace("localhost:8081", serving.grpc)],
        env={**os.environ, "HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    shown = run_command("group", "describe", "shown", "--namesrv", serving.namesrv)

    process.communicate("\n", timeout=60)
    assert re.search(r"\b127\.0\.0\.1:\d+ +PYTHON +V5_\d+_\d+\n", shown.out)


RECOVERING = """
import sys, time
from rocketmq import (
    ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer,
)

configuration = ClientConfiguration("localhost:8081", Credentials())
consumer = SimpleConsumer(configuration, "recovering", {"orders": FilterExpression("*")})
consumer.startup()
producer = Producer(configuration, ("orders",))
producer.startup()

def exchange(body):
    message = Message()
    message.topic, message.body = "orders", body
    is_sent = False
    for _ in range(60):
        try:
            if not is_sent:
                producer.send(message)
                is_sent = True
            for found in consumer.receive(32, 15) or ():
                consumer.ack(found)
                if found.body == body:
                    return
            is_sent = is_sent and body != b"before"  # the group begins at the end of the queues
        except Exception:
            time.sleep(0.5)
    raise SystemExit(f"{body} was not received")

exchange(b"before")
print("ready", flush=True)
sys.stdin.readline()
exchange(b"after")
print("recovered", flush=True)
consumer.shutdown()
producer.shutdown()
"""


def test_client_recovers_when_broker_and_name_server_were_killed(tmp_path: Path) -> None:
    broker = Serving.start(tmp_path / "store", "--no-console")
    port, namesrv_port = (
        int(address.rpartition(":")[2]) for address in (broker.broker, broker.namesrv)
    )
    created = run_command("topic", "create", "orders", "--namesrv", broker.namesrv)
    assert created.code == 0, created.err
    with Serving.start_proxy(broker.namesrv, tmp_path / "home") as proxy:
        process = subprocess.Popen(
            [sys.executable, "-c", RECOVERING.replace("localhost:8081", proxy.grpc)],
            env={**os.environ, "HOME": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            broker.stop(signal.SIGKILL)
            with Serving.start(
                tmp_path / "store", "--no-console", port=port, namesrv_port=namesrv_port
            ):
                out, _ = process.communicate("go\n", timeout=120)
                assert (process.returncode, out) == (0, "recovered\n")
        finally:
            process.kill()
            broker.stop(signal.SIGKILL)

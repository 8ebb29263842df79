"""The official Python SDK, when `kourou serve` or a client is killed in mid-stream."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kourou.testing.process import Serving, run_command
from tests.held_ports import held_ports

pytestmark = pytest.mark.slow

STREAM = """
import threading, time
from rocketmq import (
    ClientConfiguration, ConsumeResult, Credentials, FilterExpression, Message, MessageListener,
    Producer, PushConsumer,
)
from rocketmq.v5.client import client_telemetry_manager as telemetry

scheduler = telemetry.ClientScheduler
# The SDK sends its settings again every 5 minutes, and only so opens a lost stream.
telemetry.ClientScheduler = lambda name, target, first, _, loop: scheduler(
    name, target, first, 2, loop
)
configuration = ClientConfiguration("localhost:8081", Credentials())
received, lock = {}, threading.Lock()

class Listener(MessageListener):
    def consume(self, message):
        with lock:
            received[message.body] = received.get(message.body, 0) + 1
        return ConsumeResult.SUCCESS

consumer = PushConsumer(configuration, "survivors", Listener(), {"orders": FilterExpression("*")})
consumer.startup()
producer = Producer(configuration, ("orders",))
producer.startup()
sent, ends_at_s = 0, time.monotonic() + 60
while sent < 300 and time.monotonic() < ends_at_s:
    message = Message()
    message.topic, message.body = "orders", b"%d" % sent
    try:
        producer.send(message)
    except Exception:
        time.sleep(0.1)
        continue
    sent += 1
    if sent == 100:
        print("now", flush=True)
while len(received) < sent and time.monotonic() < ends_at_s:
    time.sleep(0.1)
print(sent, len(received), sum(received.values()) - len(received))
consumer.shutdown()
producer.shutdown()
"""

HOLD = """
import time
from rocketmq import (
    ClientConfiguration, Credentials, FilterExpression, Message, MessageListener, Producer,
    PushConsumer,
)

configuration = ClientConfiguration("localhost:8081", Credentials())

class Listener(MessageListener):
    def consume(self, message):
        print("holds", message.body.decode(), flush=True)
        time.sleep(600)

producer = Producer(configuration, ("held",))
producer.startup()
message = Message()
message.topic, message.body = "held", b"17"
producer.send(message)
consumer = PushConsumer(configuration, "holders", Listener(), {"held": FilterExpression("*")})
consumer.startup()
message.body = b"18"
producer.send(message)
time.sleep(600)
"""

TAKE = """
import time
from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

consumer = SimpleConsumer(
    ClientConfiguration("localhost:8081", Credentials()), "holders", {"held": FilterExpression("*")}
)
consumer.startup()
ends_at_s, bodies = time.monotonic() + 60, set()
while "18" not in bodies and time.monotonic() < ends_at_s:
    for message in consumer.receive(32, 15):
        bodies.add(message.body.decode())
        consumer.ack(message)
print("18" in bodies)
consumer.shutdown()
"""


@contextmanager
def running(program: str, grpc: str, home: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program of the SDK, which logs below the home directory, and kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", program.replace("localhost:8081", grpc)],
        env={**os.environ, "HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def create_topic(topic: str, serving: Serving) -> None:
    created = run_command("topic", "create", topic, "--namesrv", serving.namesrv)
    assert created.code == 0, created.err


def test_clients_survive_a_killed_server_without_loss(tmp_path: Path) -> None:
    with held_ports(3) as (port, namesrv_port, grpc_port):

        def start() -> Serving:
            return Serving.start(
                tmp_path / "store", "--no-console", "--grpc-port", str(grpc_port),
                port=port, namesrv_port=namesrv_port, grpc=True,
            )  # fmt: skip

        with start() as serving:
            create_topic("orders", serving)
            with running(STREAM, f"127.0.0.1:{grpc_port}", tmp_path) as clients:
                assert clients.stdout is not None
                assert clients.stdout.readline() == "now\n"
                serving.stop(signal.SIGKILL)
                with start():
                    printed = clients.communicate(timeout=90)[0]

    sent, received, again = map(int, printed.split())
    assert (sent, received) == (300, 300)
    assert again <= 32, "only messages whose acknowledgement was lost come again"


def test_message_of_a_killed_client_reaches_another_one(tmp_path: Path) -> None:
    with Serving.start(tmp_path / "store", "--no-console", grpc=True) as serving:
        create_topic("held", serving)
        grpc = str(serving.ready["grpc"])
        with running(HOLD, grpc, tmp_path) as holder:
            assert holder.stdout is not None
            while "holds 18" not in (line := holder.stdout.readline()):
                assert line, "the program has ended"
        with running(TAKE, grpc, tmp_path) as other:
            assert other.communicate(timeout=90)[0] == "True\n"

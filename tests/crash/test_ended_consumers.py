"""A consumer that ends by SIGTERM or Ctrl-C commits all handled messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kourou import Message
from kourou.blocking import AdminClient, Producer
from kourou.testing.process import Serving

pytestmark = pytest.mark.slow

COUNT = 6
TIMEOUT_S = 60

BEGIN = """
import asyncio, signal, sys, threading, time
import kourou
from kourou import ConsumeFromWhere, PullConsumer, PullConsumerConfig, PushConsumer
from kourou import PushConsumerConfig, blocking

group, namesrv = sys.argv[1:]
first = ConsumeFromWhere.FIRST_OFFSET
config = PushConsumerConfig(consume_from_where=first)

def show(message):
    sys.stdout.write(message.body.decode() + "\\n")  # threads do not mix within a line
    sys.stdout.flush()

def made(kind=PushConsumer):
    consumer = kind(group, namesrv, config=config)
    consumer.subscribe("T")
    return consumer

consumer = made()

def say_when_signals_are_heeded():
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        time.sleep(0.01)
    sys.stdout.write("ready\\n")
    sys.stdout.flush()

threading.Thread(target=say_when_signals_are_heeded, daemon=True).start()
"""

PROGRAMS = {
    "run": "consumer.listen(show); kourou.run(consumer)",
    "run_forever": """
consumer.listen(show)
async def main():
    async with consumer:
        await consumer.run_forever()
asyncio.run(main())
""",
    "task group": """
consumer.listen(show)
async def main():
    async with consumer, asyncio.TaskGroup() as tasks:
        tasks.create_task(consumer.run_forever())
asyncio.run(main())
""",
    "blocking": """
consumer = made(blocking.PushConsumer)
consumer.listen(show)
with consumer:
    consumer.run_forever()
""",
    "iteration": """
async def main():
    async with consumer:
        async for message in consumer:
            show(message)
kourou.run(main())
""",
    "polling": """
async def main():
    config = PullConsumerConfig(consume_from_where=first)
    async with PullConsumer(group, namesrv, config=config) as consumer:
        consumer.subscribe("T")
        while True:
            for message in await consumer.poll():
                show(message)
kourou.run(main())
""",
}
HANDLING = {"iteration": 1, "polling": 1}
"""Messages that a loop may leave uncommitted: only the request for the next one acknowledges."""

STUCK = """
def stuck(message):
    show(message)
    time.sleep(3600)
consumer.listen(stuck); kourou.run(consumer)
"""


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Serving.start(tmp_path_factory.mktemp("serve") / "store") as serving:
        with AdminClient(serving.namesrv) as admin:
            admin.create_topic("T", queues=2)
        with Producer("p", serving.namesrv) as producer:
            for number in range(COUNT):
                producer.send(Message("T", b"%d" % number))
        yield serving.namesrv


def start(program: str, group: str, namesrv: str) -> subprocess.Popen[str]:
    """Start a program; its stdout and stderr are pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + program, group, namesrv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
@pytest.mark.parametrize("name", PROGRAMS)
def test_messages_handled_before_a_signal_are_committed(
    namesrv: str, name: str, number: signal.Signals
) -> None:
    group = f"{name.replace(' ', '-')}-{number.name}"
    process = start(PROGRAMS[name], group, namesrv)
    try:
        assert process.stdout is not None
        lines = {process.stdout.readline() for _ in range(COUNT + 1)}
        assert lines == {"ready\n", *(f"{n}\n" for n in range(COUNT))}
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()
    with AdminClient(namesrv) as admin:
        stats = admin.consume_stats(group)
    lag = sum(at.broker_offset - at.consumer_offset for at in stats.offsets.values())
    assert lag <= HANDLING.get(name, 0)


def test_a_second_signal_ends_a_consumer_with_a_stuck_listener(namesrv: str) -> None:
    process = start(STUCK, "stuck", namesrv)
    try:
        assert process.stdout is not None
        # Before either of these lines, a single signal ends the process.
        lines = {process.stdout.readline()}
        while "ready\n" not in lines or len(lines) == 1:
            lines.add(process.stdout.readline())
            assert "" not in lines, "the consumer ended"
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        assert process.returncode == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()

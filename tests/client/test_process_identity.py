"""Copies of clients in forked processes refuse calls and do not use the parent's connections."""

from __future__ import annotations

import subprocess
import sys

from kourou.client.process_identity import ProcessGuard, local_ip
from kourou.model.host import pack_address

FORKING = """
import asyncio, os, sys
from kourou import Message
from kourou.errors import ForkedError
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

async def refused(call):
    try:
        await call
    except ForkedError as error:
        print(str(error).split(" was created")[0], "create a new producer" in str(error))

async def child(producer):
    message = Message("T", b"from the child")
    await refused(producer.send(message))
    await refused(producer.submit(message))
    await refused(producer.send_oneway(message))
    await refused(producer.send_batch([message]))
    await refused(producer.flush())
    await refused(producer.start())
    await producer.close()
    print("closed")

def run_child(producer):
    asyncio.run(child(producer))
    sys.stdout.flush()
    os._exit(0)

async def main():
    cluster = Cluster(seed=1)
    async with cluster, cluster.producer() as producer:
        await producer.send(Message("T", b"before"))
        pid = os.fork()
        if pid == 0:
            asyncio._set_running_loop(None)
            run_child(producer)
        assert os.waitpid(pid, 0)[1] == 0
        await producer.send(Message("T", b"after"))
        print("sent")

run_virtual(main())
"""


def test_forked_producer_refuses_calls_and_parent_keeps_working() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the producer True"] * 6 + ["closed", "sent"]


FORKING_CONSUMERS = """
import asyncio, os, sys
from kourou import Message
from kourou.errors import ForkedError
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

async def refused(call):
    try:
        await call()
    except ForkedError as error:
        print(str(error).split(" was created")[0])

async def child(pushed, polling):
    queue = MessageQueue(TOPIC, "broker-0", 0)
    await refused(pushed.start)
    await refused(pushed.run_forever)
    await refused(polling.poll)
    await refused(polling.commit)
    await refused(lambda: polling.seek(queue, 0))
    await refused(lambda: polling.pull(queue, 0))
    await pushed.close()
    await polling.close()
    print("closed")

def run_child(*consumers):
    asyncio.run(child(*consumers))
    sys.stdout.flush()
    os._exit(0)

async def main():
    async with recording(queues=1) as w, w.consumer() as pushed:
        polling = w.cluster.pull_consumer("pollers")
        polling.subscribe(TOPIC)
        async with polling:
            await w.send(b"before")
            await w.until_received(b"before")
            pid = os.fork()
            if pid == 0:
                asyncio._set_running_loop(None)
                run_child(pushed, polling)
            assert os.waitpid(pid, 0)[1] == 0
            await w.send(b"after")
            await w.until_received(b"after")
            bodies = []
            while len(bodies) < 2:
                bodies += [message.body for message in await polling.poll()]
            print(len(w.received), len(bodies))

run_virtual(main())
"""


def test_forked_consumers_refuse_calls_and_parents_keep_working() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING_CONSUMERS],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *["the push consumer"] * 2,
        *["the pull consumer"] * 4,
        "closed",
        "2 2",
    ]


def test_guard_passes_in_its_own_process() -> None:
    guard = ProcessGuard()
    guard.check("producer")
    assert not guard.is_forked


def test_local_ip_is_an_address() -> None:
    assert len(pack_address(local_ip())) == 4

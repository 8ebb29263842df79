"""A forked child's copy of a client refuses to work, and leaves its parent's connections alone."""

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
        print(str(error).split(" was made")[0], "make a new producer" in str(error))

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


def test_a_forked_copy_refuses_each_call_and_the_parent_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the producer True"] * 6 + ["closed", "sent"]


def test_a_guard_passes_in_its_own_process() -> None:
    guard = ProcessGuard()
    guard.check("producer")
    assert not guard.is_forked


def test_the_local_address_is_one() -> None:
    assert len(pack_address(local_ip())) == 4

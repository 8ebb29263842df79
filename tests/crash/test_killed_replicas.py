"""A slave in a process of its own has its master's files, although both are killed under load."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from random import Random
from typing import Final

import pytest

from kourou.client.sending.producer import Producer
from kourou.model.message import Message
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import request
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.protocol.record.decode import decode_messages
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.testing.process import Serving, run_command
from tests.held_ports import held_ports

CYCLES = int(os.environ.get("KOUROU_CRASH_CYCLES", "3"))
MASTER_ENVIRON: Final = {"KOUROU_BROKER_BROKER_ROLE": "ASYNC_MASTER"}
SLAVE_ENVIRON: Final = {
    "KOUROU_BROKER_BROKER_ROLE": "SLAVE",
    "KOUROU_BROKER_BROKER_ID": "1",
    "KOUROU_BROKER_SLAVE_READ_ENABLE": "true",
}
PATIENCE_S = 60.0
READ_BYTES = 8 * 1024 * 1024
"""Most of each log file that is read: the test fills less, and the files are sparse."""

pytestmark = pytest.mark.slow


async def send(namesrv: str, rng: Random, count: int) -> None:
    async with Producer("producers", namesrv) as producer:
        for _ in range(count):
            await producer.send(Message("orders", rng.randbytes(rng.randrange(1, 2000))))


def log_of(store: Path) -> bytes:
    data = b""
    for file in sorted((store / "commitlog").iterdir()):
        with file.open("rb") as stream:
            data += stream.read(READ_BYTES).rstrip(b"\0")
    return data


def queues_of(store: Path) -> dict[str, bytes]:
    root = store / "consumequeue"
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }


async def pulled(address: str) -> int:
    """Pull from a broker until all queues are at their end; return the number of messages."""
    count = 0
    pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits())
    try:
        for queue_id in range(4):
            offset = 0
            while True:
                header = PullMessageRequestHeader(
                    consumer_group="readers", topic="orders", queue_id=queue_id,
                    queue_offset=offset, max_msg_nums=32, sys_flag=4, commit_offset=0,
                    suspend_timeout_millis=0, subscription="*", sub_version=0,
                )  # fmt: skip
                command = request(RequestCode.PULL_MESSAGE, header)
                answer = await pool.request(address, command, PATIENCE_S)
                if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                    break
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    await asyncio.sleep(0.5)  # topics are copied each ten seconds
                    continue
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                count += len(decode_messages(answer.body))
                offset = int(answer.ext_fields["nextBeginOffset"])
    finally:
        await pool.close()
    return count


async def wait_equal(master: Path, slave: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while log_of(master) != log_of(slave):  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("killed", ["slave", "master"])
def test_files_are_equal_after_kills(tmp_path: Path, killed: str) -> None:
    stores = {"master": tmp_path / "master", "slave": tmp_path / "slave"}
    rng = Random(5)
    with held_ports(4) as (port, namesrv_port, ha_port, slave_port):

        def start(name: str) -> Serving:
            if name == "master":
                ha = {"KOUROU_BROKER_HA_LISTEN_PORT": str(ha_port)}
                return Serving.start(
                    stores[name], port=port, namesrv_port=namesrv_port, environ=MASTER_ENVIRON | ha
                )
            address = f"127.0.0.1:{namesrv_port}"
            return Serving.start(
                stores[name], "--namesrv", address, port=slave_port, environ=SLAVE_ENVIRON
            )

        running = {"master": start("master")}
        namesrv = running["master"].namesrv
        running["slave"] = start("slave")

        async def cycle() -> None:
            sending = asyncio.create_task(send(namesrv, rng, 300))
            await asyncio.sleep(rng.random() / 2)
            await asyncio.to_thread(running[killed].stop, signal.SIGKILL)
            running[killed] = await asyncio.to_thread(start, killed)
            await sending
            await wait_equal(stores["master"], stores["slave"])

        try:
            for _ in range(CYCLES):
                asyncio.run(cycle())
            assert asyncio.run(pulled(running["slave"].broker)) >= 300 * CYCLES
        finally:
            outcomes = {name: running[name].stop() for name in ("slave", "master")}
    assert [outcome.code for outcome in outcomes.values()] == [0, 0]
    assert len(log_of(stores["slave"])) > 300 * CYCLES * 500
    assert log_of(stores["slave"]) == log_of(stores["master"])
    assert queues_of(stores["slave"]) == queues_of(stores["master"]) != {}
    for store in stores.values():
        assert run_command("store", "check", str(store)).code == 0

"""Comparisons of the stores of a master and a slave in processes of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Final

from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.producer import Producer
from kourou.model.message import Message
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import request
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.protocol.record.decode import decode_messages
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime

TOPIC: Final = "orders"
QUEUES: Final = 4
_AT_END: Final = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND)
"""Codes at the end of a queue, and beyond it on a slave."""
PATIENCE_S: Final = 120.0
READ_BYTES: Final = 8 * 1024 * 1024
"""Most of each log file that is read: tests fill less, and the files are sparse."""


async def send(namesrv: str, rng: Random, count: int) -> list[SendStatus]:
    """Send messages one after the other, and return the status of each."""
    async with Producer(
        "producers", namesrv, config=ProducerConfig(send_timeout_ms=15_000)
    ) as producer:
        return [
            (await producer.send(Message(TOPIC, rng.randbytes(rng.randrange(1, 2000))))).status
            for _ in range(count)
        ]


def log_of(store: Path) -> bytes:
    """Return the bytes of a log without the zeros at the end of each file."""
    data = b""
    for file in sorted((store / "commitlog").iterdir()):
        with file.open("rb") as stream:
            data += stream.read(READ_BYTES).rstrip(b"\0")
    return data


def queues_of(store: Path) -> dict[str, bytes]:
    """Return the entries of all queues that have any."""
    root = store / "consumequeue"
    entries = {
        str(file.relative_to(root)): file.read_bytes().rstrip(b"\0")
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }
    return {name: data for name, data in entries.items() if data}


async def wait_equal(first: Path, second: Path) -> None:
    """Return when both logs are equal."""
    async with asyncio.timeout(PATIENCE_S):
        while log_of(first) != log_of(second):  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.1)


async def pulled(address: str) -> int:
    """Pull from a slave until all queues are at their end; return the number of messages.

    Waits until the slave has copied the topic.
    """
    pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits())
    try:
        async with asyncio.timeout(PATIENCE_S):
            return sum([await _pulled_of(pool, address, queue) for queue in range(QUEUES)])
    finally:
        await pool.close()


async def _pulled_of(pool: ConnectionPool, address: str, queue_id: int) -> int:
    count = offset = 0
    while True:
        header = PullMessageRequestHeader(
            consumer_group="readers", topic=TOPIC, queue_id=queue_id,
            queue_offset=offset, max_msg_nums=32, sys_flag=4, commit_offset=0,
            suspend_timeout_millis=0, subscription="*", sub_version=0,
        )  # fmt: skip
        answer = await pool.request(address, request(RequestCode.PULL_MESSAGE, header), PATIENCE_S)
        if answer.code in _AT_END:
            return count
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            await asyncio.sleep(0.5)
            continue
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        count += len(decode_messages(answer.body))
        offset = int(answer.ext_fields["nextBeginOffset"])

"""Broker processes killed with SIGKILL at given operations of a real disk."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from kourou.disk import OsDisk
from kourou.errors import KourouError
from kourou.model.message import MessageExt
from kourou.model.sysflag import PULL_SUBSCRIPTION
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import request
from kourou.protocol.pulling import PullMessageRequestHeader, PullMessageResponseHeader
from kourou.protocol.record.decode import decode_messages
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.store.tools.check import check_store
from kourou.testing.send_rig import message

PROGRAM = Path(__file__).with_name("dying_broker.py")
SENDERS = 16
QUEUES = 4

pytestmark = pytest.mark.slow


class Process:
    """One broker process; leaving its `with` block kills it."""

    def __init__(self, store: Path, point: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(store), point], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"

    def end(self, number: signal.Signals | None = None) -> int:
        """Send the signal, if any, wait, and return the exit code; negative after a signal."""
        if number is not None:
            self._process.send_signal(number)
        self._process.communicate(timeout=60)
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


async def send_until_it_dies(address: str) -> dict[bytes, tuple[int, int]]:
    """Send numbered messages on several connections; return the acknowledged ones' offsets."""
    acknowledged: dict[bytes, tuple[int, int]] = {}

    async def send(sender: int) -> None:
        pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits())
        for number in range(10_000):
            body = f"{sender}-{number}-".encode().ljust(300, b".")
            try:
                answer = await pool.request(address, message(body, queue_id=sender % QUEUES), 60)
            except KourouError:
                break
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            place = int(answer.ext_fields["queueId"]), int(answer.ext_fields["queueOffset"])
            acknowledged[body] = place
        await pool.close()

    await asyncio.gather(*map(send, range(SENDERS)))
    return acknowledged


async def read_all(address: str) -> dict[int, list[MessageExt]]:
    """Return all messages of each queue, by pulling."""
    pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits())
    stored: dict[int, list[MessageExt]] = {}
    for queue_id in range(QUEUES):
        messages = stored[queue_id] = []
        while True:
            header = PullMessageRequestHeader(
                consumer_group="readers",
                topic="T",
                queue_id=queue_id,
                queue_offset=len(messages),
                max_msg_nums=32,
                sys_flag=PULL_SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                subscription="*",
                sub_version=0,
            )
            answer = await pool.request(address, request(RequestCode.PULL_MESSAGE, header), 60)
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                break  # killed before the topic was saved, so no message was acknowledged
            if answer.code != ResponseCode.SUCCESS:
                assert answer.code == ResponseCode.PULL_NOT_FOUND, answer.remark
                assert answer.header(PullMessageResponseHeader).max_offset == len(messages)
                break
            messages += decode_messages(answer.body)
    await pool.close()
    return stored


@pytest.mark.parametrize(
    "point",
    [
        "write:commitlog/:20:before",
        "write:commitlog/:20:after",
        "sync:commitlog/:20:before",
        "sync:commitlog/:20:after",
        "sync:commitlog/00000000000000065536:1:before",
        "write:consumequeue/:3:after",
        "write:checkpoint:2:after",
        "rename:config/:2:before",
    ],
)
def test_acknowledged_messages_survive_a_kill(tmp_path: Path, point: str) -> None:
    with Process(tmp_path, point) as dying:
        acknowledged = asyncio.run(send_until_it_dies(dying.address))
        assert dying.end() == -signal.SIGKILL, "it did not die by SIGKILL"
    with Process(tmp_path, "never") as again:
        stored = asyncio.run(read_all(again.address))
        assert again.end(signal.SIGINT) == 0

    for messages in stored.values():
        assert [m.queue_offset for m in messages] == list(range(len(messages))), "a hole"
    for body, (queue_id, offset) in acknowledged.items():
        assert stored[queue_id][offset].body == body
    disk = OsDisk(tmp_path)
    assert check_store(disk).findings == []
    disk.close()

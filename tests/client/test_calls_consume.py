"""What is asked of brokers is what Java's clients ask."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from kourou.client import calls_consume
from kourou.errors import SystemBusyError
from kourou.filter.tags import parse_tags
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.frame import encode_frame
from kourou.remoting.pool import ConnectionPool

JAVAS_LITE_PULL = {
    "queueId": "0",
    "commitOffset": "0",
    "subscription": "*",
    "suspendTimeoutMillis": "20000",
    "bname": "broker-a",
    "sysFlag": "22",
    "expressionType": "TAG",
    "topic": "GoldenLitePull",
    "consumerGroup": "golden_lite_assign",
    "maxMsgNums": "10",
    "queueOffset": "2",
    "subVersion": "0",
    "maxMsgBytes": "2147483647",
}
"""Fields of a LITE_PULL_MESSAGE of Java 5.5.0 (golden session litepull-assign-seek)."""


class RefusingPool:
    """Keeps the command, and answers that the broker is busy."""

    def __init__(self) -> None:
        self.commands: list[RemotingCommand] = []

    async def request(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        assert (address, timeout_s) == ("broker:1", 30.0)
        self.commands.append(command)
        return response(command, ResponseCode.SYSTEM_BUSY, "busy")


def test_a_lite_pull_has_the_fields_of_javas() -> None:
    pool = RefusingPool()

    async def main() -> None:
        await calls_consume.pull(
            cast(ConnectionPool, pool),
            "broker:1",
            "golden_lite_assign",
            MessageQueue("GoldenLitePull", "broker-a", 0),
            2,
            subscription=parse_tags("GoldenLitePull", "*", 1795228427632),
            max_messages=10,
            max_bytes=2**31 - 1,
            timeout_s=30.0,
            suspend_ms=20_000,
            is_lite=True,
        )

    with pytest.raises(SystemBusyError):
        asyncio.run(main())
    [command] = pool.commands
    assert command.code == RequestCode.LITE_PULL_MESSAGE
    frame = encode_frame(command)
    for name, value in JAVAS_LITE_PULL.items():
        assert f'"{name}":"{value}"'.encode() in frame, name

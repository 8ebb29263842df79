"""Requests of consumers have the fields of Java's clients."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from kourou.client import calls_consume
from kourou.client.pull_result import PullResult, read_pull_result
from kourou.errors import MalformedHeaderError, SystemBusyError
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
    """Records the command, and answers that the broker is busy."""

    namespace = ""

    def __init__(self) -> None:
        self.commands: list[RemotingCommand] = []

    async def request(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        assert (address, timeout_s) == ("broker:1", 30.0)
        self.commands.append(command)
        return response(command, ResponseCode.SYSTEM_BUSY, "busy")


def test_lite_pull_has_the_fields_of_java() -> None:
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


OFFSETS = {
    "nextBeginOffset": "32",
    "minOffset": "0",
    "maxOffset": "999999999999999999",
    "suggestWhichBrokerId": "1",
}


def pulled(**changed: str | None) -> PullResult:
    """Return the result of a pull whose answer has these fields changed or left out."""
    fields = {name: text for name, text in (OFFSETS | changed).items() if text is not None}
    answer = RemotingCommand(ResponseCode.SUCCESS, fields, flag=1)
    queue, subscription = MessageQueue("T", "b", 0), parse_tags("T", "*", 1)
    return read_pull_result(answer, queue, subscription, 0, namespace="")


def test_offsets_of_a_pull_are_parsed_from_any_number_java_accepts() -> None:
    plain = pulled()
    assert (plain.next_offset, plain.min_offset) == (32, 0)
    assert (plain.max_offset, plain.suggested_broker_id) == (10**18 - 1, 1)
    odd = pulled(nextBeginOffset="+7", minOffset="-1", maxOffset=str(2**63 - 1))
    assert (odd.next_offset, odd.min_offset, odd.max_offset) == (7, -1, 2**63 - 1)


@pytest.mark.parametrize("text", [None, "", "1_0", "\u0661", " 1", "9" * 19])
@pytest.mark.parametrize("name", OFFSETS)
def test_pull_answer_with_invalid_offset_is_refused(name: str, text: str | None) -> None:
    with pytest.raises(MalformedHeaderError, match=name):
        pulled(**{name: text})

"""Clients that send garbage, half frames or nothing, or do not read, do not disturb others.

The tests attack one real process, which serves a producer and a consumer all the time.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.broker.clients import SUBSCRIPTION_BYTES_MAX
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.frame import FRAME_SIZE_MAX, encode_frame
from kourou.remoting.network import TcpNetwork, parse_address
from kourou.testing.process import Serving
from kourou.testing.raw_client import RawClient
from tests.crash.good_clients import PATIENCE_S, good_clients
from tests.crash.hostile_bytes import (
    REFUSED,
    almost_right_requests,
    encoded,
    nonsense_requests,
)

MIB = 1024 * 1024
PARTIAL_BYTES_MAX = 256 * MIB
SLACK_BYTES = 96 * MIB
MANY_CODES = ",".join(map(str, range(140_000)))

pytestmark = pytest.mark.slow


def resident_bytes(serving: Serving) -> int:
    """Return the process's current resident memory."""
    pid = serving.process.pid
    status = Path(f"/proc/{pid}/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    output = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True)
    return int(output.stdout) * 1024


@asynccontextmanager
async def connected(address: str, count: int = 1) -> AsyncIterator[list[RawClient]]:
    """Connect `count` hostile clients; close them at the end of the block."""
    clients: list[RawClient] = []
    try:
        while len(clients) < count:
            clients.append(await RawClient.connect(TcpNetwork(), parse_address(address)))
        yield clients
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("server", ["broker", "namesrv"])
def test_a_protocol_violation_ends_only_its_own_connection(serving: Serving, server: str) -> None:
    async def main() -> None:
        async with (
            good_clients(serving.namesrv, f"garbage-{server}") as good,
            connected(getattr(serving, server), len(REFUSED)) as hostile,
        ):
            for client, data in zip(hostile, REFUSED.values(), strict=True):
                client.write(data)
            for client, what in zip(hostile, REFUSED, strict=True):
                await assert_closed(client, what)
            assert await good.exchange(20) >= 20

    asyncio.run(main())


async def assert_closed(client: RawClient, what: str) -> None:
    try:
        await client.closed()
    except TimeoutError:
        pytest.fail(f"still connected after {what}")


@pytest.mark.parametrize("server", ["broker", "namesrv"])
@pytest.mark.parametrize("seed", range(4))
def test_every_nonsense_request_is_answered(serving: Serving, server: str, seed: int) -> None:
    topic = f"nonsense-{server}-{seed}"
    frames = encoded(nonsense_requests(seed, 300))
    frames += encoded(almost_right_requests(seed, 300, topic))

    async def main() -> None:
        async with connected(getattr(serving, server)) as (client,):
            for at in range(0, len(frames), 50):
                client.write(b"".join(frames[at : at + 50]))
                await client.take(at + 50)
            answered = Counter(answer.opaque for answer in client.frames())
            assert answered == Counter([*range(300), *range(300)]), "each request once"

    asyncio.run(main())


def test_two_hundred_half_frames_cost_bounded_memory(serving: Serving) -> None:
    half = encode_frame(request(RequestCode.SEND_MESSAGE_V2, body=bytes(15 * MIB)))[: 2 * MIB]

    async def main() -> None:
        before = resident_bytes(serving)
        async with (
            good_clients(serving.namesrv, "half-frames") as good,
            connected(serving.broker, 200) as hostile,
        ):
            for client in hostile:
                client.write(half)
            assert await good.exchange(50) >= 50
            offered = len(half) * len(hostile)
            assert offered > PARTIAL_BYTES_MAX + SLACK_BYTES, "the attack is too small"
            for client in hostile[:20]:
                await client.closed()
            assert resident_bytes(serving) - before < PARTIAL_BYTES_MAX + SLACK_BYTES

    asyncio.run(main())


def test_announced_bytes_that_do_not_arrive_cost_nothing(serving: Serving) -> None:
    announced = FRAME_SIZE_MAX.to_bytes(4, "big") + bytes(100)

    async def main() -> None:
        before = resident_bytes(serving)
        async with (
            good_clients(serving.namesrv, "announced") as good,
            connected(serving.broker, 200) as hostile,
        ):
            for client in hostile:
                client.write(announced)
            assert await good.exchange(20) >= 20
            assert not any(client.is_closed for client in hostile)
            assert resident_bytes(serving) - before < SLACK_BYTES

    asyncio.run(main())


def test_silent_clients_do_not_disturb_others(serving: Serving) -> None:
    async def main() -> None:
        async with (
            connected(serving.broker, 200),
            connected(serving.namesrv, 200),
            good_clients(serving.namesrv, "silence") as good,
        ):
            assert await good.exchange(20) >= 20

    asyncio.run(main())


def stored_message(topic: str, body: bytes) -> RemotingCommand:
    fields = {
        "a": "p", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0",
        "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)


def pull(
    topic: str,
    *,
    body: bytes = b"",
    hold: bool = False,
    offset: int = 0,
    subscription: str = "*",
) -> RemotingCommand:
    fields = {
        "consumerGroup": "hostile", "topic": topic, "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "6" if hold else "4", "commitOffset": "0",
        "suspendTimeoutMillis": "60000", "subscription": subscription, "subVersion": "0",
    }  # fmt: skip
    return RemotingCommand(RequestCode.PULL_MESSAGE, fields, body)


def assert_withstands(
    serving: Serving,
    topic: str,
    attack: Callable[[RawClient], Coroutine[Any, Any, None]],
    *,
    bytes_max: int = SLACK_BYTES,
) -> None:
    """Assert that others can send and consume after one client attacks, with bounded memory."""

    async def main() -> None:
        before = resident_bytes(serving)
        async with (
            good_clients(serving.namesrv, f"{topic}-good") as good,
            connected(serving.broker) as (client,),
        ):
            await attack(client)
            assert await good.exchange(20) >= 20
            assert resident_bytes(serving) - before < bytes_max

    asyncio.run(main())


def test_a_client_that_does_not_read_responses_costs_bounded_memory(serving: Serving) -> None:
    async def attack(client: RawClient) -> None:
        client.write(encode_frame(stored_message("unread", bytes(4 * MIB))))
        await client.take(1)
        client.pause()
        client.write(encode_frame(pull("unread")) * 500)  # 2 GB of responses

    assert_withstands(serving, "unread", attack)


def test_held_pulls_cost_bounded_memory(serving: Serving) -> None:
    async def attack(client: RawClient) -> None:
        client.write(encode_frame(stored_message("held", b"makes the topic")))
        await client.take(1)
        frame = encode_frame(pull("held", body=bytes(15 * MIB), hold=True, offset=1))
        for _ in range(20):
            client.write(frame)
        client.write(encode_frame(request(RequestCode.GET_CONSUMER_LIST_BY_GROUP)))
        await client.until(
            lambda: len(client.frames()) == 2, PATIENCE_S
        )  # the requests before it were read

    assert_withstands(serving, "held", attack)


def heartbeat(
    number: int, *, client_id: str = "c", expression: str = "*", codes: str = "", producer: str = ""
) -> bytes:
    """Return the frame of a heartbeat of one consumer and one producer group."""
    subscription = {"topic": "t", "subString": expression, "subVersion": 1}
    consumer = {"groupName": f"hostile-{number}", "subscriptionDataSet": [subscription]}
    body = {"clientID": client_id, "consumerDataSet": [consumer]}
    if producer:
        body["producerDataSet"] = [{"groupName": producer}]
    text = json.dumps(body).replace('"subVersion"', f'"codeSet": [{codes}], "subVersion"')
    return encode_frame(RemotingCommand(RequestCode.HEART_BEAT, {}, text.encode()))


@pytest.mark.parametrize(
    ("count", "frame_of"),
    [
        (20, lambda number: heartbeat(number, expression="x" * 10 * MIB)),
        (200, lambda number: heartbeat(number, expression="x" * 1_000_000)),
        (20, lambda number: heartbeat(number, codes=MANY_CODES)),
        (200, lambda number: heartbeat(number, client_id=str(number).rjust(1_000_000))),
        (200, lambda number: heartbeat(number, producer=str(number).rjust(1_000_000))),
    ],
    ids=["huge", "long expression", "many tags", "long client id", "long producer group"],
)
def test_heartbeats_cost_bounded_memory(
    serving: Serving, count: int, frame_of: Callable[[int], bytes]
) -> None:
    async def attack(client: RawClient) -> None:
        for number in range(count):
            client.write(frame_of(number))
            await client.take(number + 1)

    assert_withstands(serving, "heartbeats", attack, bytes_max=SUBSCRIPTION_BYTES_MAX + SLACK_BYTES)


@pytest.mark.parametrize(
    "body",
    [
        b"{1:[" + b"1," * (7 * MIB) + b"1]}",
        b"{" + b'{"a":1}:1,' * MIB + b"}",
        b'{"clientID":"c","consumerDataSet":[' + b"{}," * (5 * MIB) + b"]",
    ],
    ids=["bare keys", "object keys", "not closed"],
)
def test_a_body_that_is_slow_to_decode_delays_no_other_client(
    serving: Serving, body: bytes
) -> None:
    frame = encode_frame(RemotingCommand(RequestCode.HEART_BEAT, {}, body))

    async def attack(client: RawClient) -> None:
        client.write(frame * 3)
        answers = await client.take(3)
        # The body was refused before it was decoded, which would be slow.
        assert {answer.code for answer in answers} == {ResponseCode.INVALID_PARAMETER}
        assert all("the limit is" in str(answer.remark) for answer in answers)

    assert_withstands(serving, "slow", attack)


def test_a_long_tag_expression_delays_no_other_client(serving: Serving) -> None:
    async def attack(client: RawClient) -> None:
        client.write(encode_frame(stored_message("tags", b"makes the topic")))
        await client.take(1)
        # 390 KiB: a longer header would end the connection.
        tags = "||".join(map(str, range(50_000)))
        client.write(encode_frame(pull("tags", subscription=tags)) * 3)
        answers = await client.take(4)
        assert answers[-1].code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "at most 65536" in str(answers[-1].remark)

    assert_withstands(serving, "tags", attack)

"""Measures the broker's CPU time per delivery of one message to 500 groups with held pulls.

Each group has its own connection and one held pull on the same queue. The next message is sent when
all groups have received the one before, so that the figure does not depend on the speed of this
process. The CPU time of this process is not counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from bench.question import Figure, Question, Values
from bench.turn import Turn

GROUPS: Final = 500
TOPIC: Final = "bench-fan-out"
_WARM_MESSAGES: Final = 20
_ANSWER_SECONDS: Final = 30.0
_BODY: Final = bytes(1024)
_SUSPEND_AND_SUBSCRIPTION: Final = 6
_CREATE_TOPIC, _MAX_OFFSET, _PULL, _SEND = 17, 30, 11, 310
_FOUND: Final = 0


def frame(code: int, fields: dict[str, object], body: bytes = b"") -> bytes:
    """Return a request as Java's clients encode it."""
    header = {
        "code": code,
        "extFields": {name: str(value) for name, value in fields.items()},
        "flag": 0,
        "language": "JAVA",
        "opaque": 1,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


class RawClient(asyncio.Protocol):
    """One connection with at most one request in flight."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 8 and len(buffer) >= 4 + (size := struct.unpack_from(">I", buffer)[0]):
            header_bytes = struct.unpack_from(">I", buffer, 4)[0] & 0xFFFFFF
            header = json.loads(buffer[8 : 8 + header_bytes])
            del buffer[: 4 + size]
            self.answered(header)

    def answered(self, header: dict[str, Any]) -> None:
        """Handle an answer."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(header)

    def write(self, frame: bytes) -> None:
        """Send a request."""
        assert self._transport is not None, "connected"
        self._transport.write(frame)

    async def request(self, frame: bytes) -> dict[str, Any]:
        """Send a request and return the header of its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self.write(frame)
        return await asyncio.wait_for(self._answer, _ANSWER_SECONDS)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


class _Group(RawClient):
    """A group that pulls again after each answer."""

    def __init__(self, number: int, fan: _Fan) -> None:
        super().__init__()
        self._number = number
        self._fan = fan

    def pull(self, offset: int) -> None:
        """Send a long-polling pull for the offset."""
        self.write(
            frame(
                _PULL,
                {
                    "consumerGroup": f"bench-{self._number}",
                    "topic": TOPIC,
                    "queueId": 0,
                    "queueOffset": offset,
                    "maxMsgNums": 32,
                    "sysFlag": _SUSPEND_AND_SUBSCRIPTION,
                    "commitOffset": 0,
                    "suspendTimeoutMillis": 15_000,
                    "subscription": "*",
                    "subVersion": 0,
                    "expressionType": "TAG",
                },
            )
        )

    def answered(self, header: dict[str, Any]) -> None:
        if header["code"] == _FOUND:
            self._fan.delivered()
        self.pull(int(header["extFields"]["nextBeginOffset"]))


class _Fan:
    """The groups and the producer of one server."""

    def __init__(self) -> None:
        self._missing = 0
        self._all_received = asyncio.Event()
        self.deliveries = 0

    def delivered(self) -> None:
        """Count one delivery."""
        self.deliveries += 1
        self._missing -= 1
        if self._missing <= 0:
            self._all_received.set()

    async def run(self, address: str, pids: Sequence[int], seconds: float) -> float:
        """Return the CPU time of the processes in us per delivery."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, producer = await loop.create_connection(RawClient, host, int(port))
        await producer.request(frame(_CREATE_TOPIC, {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }))  # fmt: skip
        end = await producer.request(frame(_MAX_OFFSET, {"topic": TOPIC, "queueId": 0}))
        groups = []
        for number in range(GROUPS):
            _, group = await loop.create_connection(partial(_Group, number, self), host, int(port))
            group.pull(int(end["extFields"]["offset"]))
            groups.append(group)
        try:
            for _ in range(_WARM_MESSAGES):
                await self._send(producer)
            self.deliveries, before_s = 0, _cpu_s(pids)
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                await self._send(producer)
            return (_cpu_s(pids) - before_s) * 1e6 / self.deliveries
        finally:
            for client in (producer, *groups):
                client.close()

    async def _send(self, producer: RawClient) -> None:
        """Send one message, and wait until all groups have received it."""
        self._missing = GROUPS
        self._all_received.clear()
        await producer.request(frame(_SEND, {
            "a": "bench", "b": TOPIC, "c": "TBW102", "d": 1, "e": 0, "f": 0,
            "g": int(time.time() * 1000), "h": 0, "i": "WAIT\x01true\x02", "j": 0, "k": "false",
            "m": "false",
        }, _BODY))  # fmt: skip
        await asyncio.wait_for(self._all_received.wait(), _ANSWER_SECONDS)


def _cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU time that the processes have used, in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _measure(turn: Turn) -> Values | None:
    if not turn.supports("pull"):
        return None
    server = turn.stage.server(turn.peer, "async")
    return {"server CPU": asyncio.run(_Fan().run(server.broker_addr, server.pids, turn.seconds))}


QUESTIONS: Final = (
    Question(
        name="fan-out",
        text=f"one message to {GROUPS} groups with held pulls",
        figures=(Figure("server CPU", "us/delivery", limit=16),),
        measure=_measure,
    ),
)

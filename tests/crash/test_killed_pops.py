"""After kills of a broker between pop, ack and revive, nothing is lost or comes back."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from kourou.client.sending.producer import Producer
from kourou.clock import SystemClock
from kourou.disk import OsDisk
from kourou.model.message import Message
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.frame import decode_frame, encode_frame
from kourou.protocol.popping.headers import (
    AckMessageRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from kourou.protocol.popping.info_strings import parse_offsets, parse_start_offsets
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.protocol.popping.topic_names import retry_topic_v1
from kourou.protocol.record.decode import decode_message
from kourou.protocol.record.scan import split_records
from kourou.store.tools.check import check_store
from kourou.testing.process import Serving
from tests.effort import some

pytestmark = pytest.mark.slow

TOPIC, GROUP, BROKER = "Killed", "poppers", "broker-a"
INVISIBLE_MS = 4_000
MESSAGES = 200


class Popper:
    """A consumer that pops by raw requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._opaque = 0

    @classmethod
    async def connect(cls, serving: Serving) -> Popper:
        host, _, port = serving.broker.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, code: int, header: object) -> RemotingCommand:
        """Return the answer to a request.

        Raises:
            OSError, asyncio.IncompleteReadError: the broker is gone.
        """
        command = request(code, header)
        self._opaque += 1
        command.opaque = self._opaque
        self._writer.write(encode_frame(command))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return decode_frame(await self._reader.readexactly(size))

    async def pop(self, count: int = 32) -> list[tuple[bytes, AckMessageRequestHeader]]:
        """Return messages, each with its ack."""
        now_ms = SystemClock().now_ms()
        header = PopMessageRequestHeader(GROUP, TOPIC, -1, count, INVISIBLE_MS, 1_000, now_ms, 0)
        answer = await self.ask(RequestCode.POP_MESSAGE, header)
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code == ResponseCode.POLLING_TIMEOUT, answer
            return []
        found = answer.header(PopMessageResponseHeader)
        starts = parse_start_offsets(found.start_offset_info or "")
        acks = [
            AckMessageRequestHeader(
                GROUP,
                retry_topic_v1(GROUP, TOPIC) if kind == "1" else TOPIC,
                int(queue),
                ReceiptHandle(
                    starts[kind, queue], found.pop_time, found.invisible_time, found.revive_qid,
                    kind, BROKER, int(queue), offset,
                ).encode(),
                offset,
            )
            for (kind, queue), offsets in parse_offsets(found.msg_offset_info or "").items()
            for offset in offsets
        ]  # fmt: skip
        bodies = [decode_message(record).body for record in split_records(answer.body)]
        return list(zip(bodies, acks, strict=True))

    async def ack(self, header: AckMessageRequestHeader) -> None:
        """Acknowledge a message."""
        answer = await self.ask(RequestCode.ACK_MESSAGE, header)
        assert answer.code == ResponseCode.SUCCESS, answer


async def consume_until_killed(
    serving: Serving, acked: set[bytes], kill_after: int, *, share: int
) -> None:
    """Pop, acknowledge one message of `share`, and kill the broker after some requests."""
    popper = await Popper.connect(serving)
    requests = 0
    try:
        while True:
            for number, (body, ack) in enumerate(await popper.pop(8)):
                assert body not in acked, "it was acknowledged"
                if number % share == 0:
                    await popper.ack(ack)
                    acked.add(body)
                requests += 1
                if requests == kill_after:
                    serving.process.send_signal(signal.SIGKILL)
    except (OSError, asyncio.IncompleteReadError):
        return
    finally:
        await popper.close()


async def drain(serving: Serving, acked: set[bytes]) -> list[bytes]:
    """Pop and acknowledge all that is left; return the bodies that came."""
    popper = await Popper.connect(serving)
    came: list[bytes] = []
    loop = asyncio.get_running_loop()
    idle_since = loop.time()
    while loop.time() - idle_since < 2 * INVISIBLE_MS / 1000 + 2:
        for body, ack in await popper.pop():
            assert body not in acked, "it was acknowledged"
            await popper.ack(ack)
            acked.add(body)
            came.append(body)
            idle_since = loop.time()
    await popper.close()
    return came


@pytest.mark.parametrize("flush", some(["sync", "async"], 1))
def test_no_message_is_lost_or_comes_back_after_kills(tmp_path: Path, flush: str) -> None:
    async def send(serving: Serving) -> None:
        async with Producer("senders", serving.namesrv) as producer:
            for number in range(MESSAGES):
                await producer.send(Message(TOPIC, b"%d" % number))

    acked: set[bytes] = set()
    for life, kill_after in enumerate((10, 40, 25)):
        with Serving.start(tmp_path, "--flush", flush) as serving:
            if life == 0:
                asyncio.run(send(serving))
            asyncio.run(consume_until_killed(serving, acked, kill_after, share=2 + life))
    with Serving.start(tmp_path, "--flush", flush) as serving:
        came = asyncio.run(drain(serving, acked))
    assert acked == {b"%d" % number for number in range(MESSAGES)}
    assert len(came) == len(set(came))
    disk = OsDisk(tmp_path)
    try:
        assert not check_store(disk).findings
    finally:
        disk.close()

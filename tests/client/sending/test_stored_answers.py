"""Answers decoded by the fast path give the results of the general path."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from kourou.client.send_receipt import Durability
from kourou.client.sending.first_try import FirstTry
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import encode_frame
from kourou.remoting.connection import Request
from kourou.testing.inspection import (
    disable_fast_path,
    in_flight_of,
    operations_of,
    sender_of,
)
from tests.client.sending.test_first_try import OFFSET_MSG_ID, Broker, against, stored

Members = dict[str, Any]
Change = Callable[[Members], object]


def members_of(request: Request) -> Members:
    """Return the header of an answer as brokers write it."""
    queue_id = request.command.ext_fields["e"]
    return {
        "code": 0,
        "extFields": {
            "msgId": OFFSET_MSG_ID,
            "queueId": queue_id,
            "queueOffset": "17",
            "transactionId": "AC11000200010000000000000000002A",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "KOUROU_DURABILITY": "DISK",
        },
        "flag": 1,
        "language": "JAVA",
        "opaque": request.command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }


def frame_of(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def end_of(answer: Callable[[Request], bytes], *, is_fast: bool) -> tuple[object, ...]:
    """Return the observable results of a send whose first answer has these bytes."""
    seen: list[object] = []

    def scripted(request: Request) -> RemotingCommand | None:
        request.connection.send_frames(answer(request))
        return None

    async def body(producer: Producer, broker: Broker) -> None:
        if not is_fast:
            disable_fast_path(producer)
        future = await producer.submit(Message("T", b"body"), timeout_ms=300)
        try:
            receipt = await future
            first = int(broker.requests[0].command.ext_fields["e"])
            moved = (receipt.queue.queue_id - first) % 4
            seen.append((moved, receipt.queue_offset, receipt.durability, receipt.status))
            seen.append((receipt.offset_msg_id, receipt.msg_id in str(broker.requests[0].command)))
        except KourouError as error:
            seen.append((type(error), str(error)))
        stats = producer.stats()
        seen.append((stats.sent_total, stats.failed_total, stats.retries_total, stats.in_flight))
        seen.append((len(in_flight_of(producer)), len(broker.requests)))

    against([scripted, stored], body, attempt_timeout_ms=100)
    return tuple(seen)


def in_fields(**fields: object) -> Change:
    return lambda members: members["extFields"].update(fields)


CHANGES: dict[str, Change] = {
    "nothing": lambda _: None,
    "other members first": lambda members: members.update(code=members.pop("code")),
    "no code": lambda members: members.pop("code"),
    "no flag": lambda members: members.pop("flag"),
    "a flag of other bits": lambda members: members.update(flag=5),
    "a request": lambda members: members.update(flag=0),
    "no fields": lambda members: members.pop("extFields"),
    "fields that are null": lambda members: members.update(extFields=None),
    "no place": lambda members: members["extFields"].pop("msgId"),
    "no queue": lambda members: members["extFields"].pop("queueId"),
    "no offset": lambda members: members["extFields"].pop("queueOffset"),
    "an offset that is a number": in_fields(queueOffset=17),
    "an offset below 0": in_fields(queueOffset="-1"),
    "an offset of other digits": in_fields(queueOffset="\u0661\u0667"),
    "no durability": lambda members: members["extFields"].pop("KOUROU_DURABILITY"),
    "a durability that is null": in_fields(KOUROU_DURABILITY=None),
    "a durability that is a number": in_fields(KOUROU_DURABILITY=1),
    "copies": in_fields(KOUROU_DURABILITY="REPLICATED", KOUROU_COPIES="3"),
    "copies that are no number": in_fields(KOUROU_DURABILITY="REPLICATED", KOUROU_COPIES="many"),
    "copies that are null": in_fields(KOUROU_COPIES=None),
    "another queue": in_fields(queueId="77"),
    "a queue that is no number": in_fields(queueId="x"),
    "a queue with a sign": lambda members: members["extFields"].update(
        queueId="+" + members["extFields"]["queueId"]
    ),
    "an unknown language": lambda members: members.update(language="KLINGON"),
    "a language that is a number": lambda members: members.update(language=3),
    "an opaque that is a text": lambda members: members.update(opaque=str(members["opaque"])),
    "another's opaque": lambda members: members.update(opaque=members["opaque"] + 1_000),
    "a huge opaque": lambda members: members.update(opaque=1 << 40),
    "a remark": lambda members: members.update(remark="ä\u0001"),
    "a remark of 5,000 characters": lambda members: members.update(remark="r" * 5_000),
    "a code": lambda members: members.update(code=10),
}


@pytest.mark.parametrize("change", CHANGES)
def test_unusual_answer_gives_the_result_of_the_general_path(change: str) -> None:
    def answer(request: Request) -> bytes:
        members = members_of(request)
        CHANGES[change](members)
        return frame_of(json.dumps(members).encode())

    assert end_of(answer, is_fast=True) == end_of(answer, is_fast=False)


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "with a body": lambda header: frame_of(header, b"body"),
    "of the binary kind": lambda header: frame_of(header)[:4] + b"\1" + frame_of(header)[5:],
    "without header": lambda _: frame_of(b""),
    "twice": lambda header: frame_of(header) * 2,
    "behind another's": lambda header: (
        encode_frame(RemotingCommand(0, flag=1, opaque=9_999_999)) + frame_of(header)
    ),
    "in bad Unicode": lambda header: frame_of(header.replace(b"DISK", b"D\xffSK")),
    "with a lone surrogate": lambda header: frame_of(header.replace(b"DISK", rb"\ud800")),
    "with a field twice": lambda header: frame_of(
        header.replace(b'"17"', b'"x", "queueOffset":"5"')
    ),
    "cut off": lambda header: frame_of(header[:-1]),
    "nested without end": lambda header: frame_of(header[:-1] + b',"x":' + b"[" * 2_000 + b"}"),
}


@pytest.mark.parametrize("kind", BYTES)
def test_unusual_frame_gives_the_result_of_the_general_path(kind: str) -> None:
    def answer(request: Request) -> bytes:
        return BYTES[kind](json.dumps(members_of(request)).encode())

    assert end_of(answer, is_fast=True) == end_of(answer, is_fast=False)


@pytest.mark.parametrize("seed", range(40))
def test_frames_with_flipped_bits_give_the_result_of_the_general_path(seed: int) -> None:
    def answer(request: Request) -> bytes:
        rng = random.Random(seed)
        header = bytearray(json.dumps(members_of(request)).encode())
        for _ in range(rng.choice([1, 1, 3])):
            header[rng.randrange(len(header))] ^= 1 << rng.randrange(7)
        return frame_of(bytes(header))

    assert end_of(answer, is_fast=True) == end_of(answer, is_fast=False)


def test_answers_split_at_any_byte_are_all_processed() -> None:
    requests: asyncio.Queue[Request] = asyncio.Queue()

    async def body(producer: Producer, broker: Broker) -> None:
        rng = random.Random(7)
        for count in range(1, 8):
            futures = [await producer.submit(Message("T", b"x")) for _ in range(count)]
            for _ in range(count):
                request = await requests.get()
                stream = frame_of(json.dumps(members_of(request)).encode())
                if rng.random() < 0.5:
                    stream += encode_frame(RemotingCommand(0, flag=1, opaque=9_999_999))
                at = rng.randrange(len(stream))
                for part in (stream[:at], stream[at:]):
                    request.connection.send_frames(part)
                    await asyncio.sleep(rng.choice([0, 0, 0.01]))
            receipts = await asyncio.gather(*futures)
            assert len({receipt.msg_id for receipt in receipts}) == count
        assert producer.stats().sent_total == 1 + sum(range(1, 8))
        assert producer.stats().in_flight == len(in_flight_of(producer)) == 0

    against([requests.put_nowait], body)


def test_sends_and_submits_answered_in_one_read_are_all_released() -> None:
    requests: asyncio.Queue[Request] = asyncio.Queue()

    async def body(producer: Producer, broker: Broker) -> None:
        ends: list[asyncio.Future[Any]] = []
        for number in range(10):
            message = Message("T", b"%d" % number * 7)
            if number % 3:
                ends.append(await producer.submit(message))
            else:
                ends.append(asyncio.create_task(producer.send(message)))
        closing = asyncio.create_task(producer.close())
        for request in [await requests.get() for _ in range(10)]:
            request.connection.send(stored(request))
        await closing
        assert all(end.done() and end.exception() is None for end in ends)
        stats = sender_of(producer).stats.snapshot(asyncio.get_running_loop().time())
        assert (stats.sent_total, stats.in_flight) == (11, 0)
        assert 0 < stats.send_time_mean_ms <= stats.send_time_max_ms
        in_flight = in_flight_of(producer)
        assert (len(in_flight), in_flight.size_bytes, operations_of(producer).count) == (0, 0, 0)

    against([requests.put_nowait], body)


def test_broker_answers_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above depend on this; for both kinds of broker."""

    def fail(_first: FirstTry, answer: RemotingCommand) -> None:
        raise AssertionError(answer)

    def as_java(request: Request) -> None:
        members = members_of(request)
        del members["extFields"]["KOUROU_DURABILITY"]
        request.connection.send_frames(frame_of(json.dumps(members).encode()))

    async def body(producer: Producer, broker: Broker) -> None:
        for durability in (Durability.UNKNOWN, Durability.DISK):
            receipt = await producer.send(Message("T", b"x"))
            assert (receipt.queue_offset, receipt.durability) == (17, durability)

    def as_kourou(request: Request) -> RemotingCommand:
        answer = stored(request)
        answer.ext_fields["KOUROU_DURABILITY"] = "DISK"
        return answer

    monkeypatch.setattr(FirstTry, "on_answer", fail)
    against([as_java, as_kourou], body)

"""Garbage for the gRPC port: mutated frames and messages, floods, calls that never end.

Each connection sends one conversation, built from recorded calls:

    conversation         content
    mutated_frames       calls in which some frames are mutated
    mutated_messages     valid calls of all methods with mutated messages
    mutated_commands     mutated messages on Telemetry streams
    trickle              a call in pieces of a few bytes
    flood                frames that cost the server more than the peer
    too_large            bodies of 4 MiB and a byte; more data than announced
    announced            sizes of messages that do not follow
    cancelled            receives and other calls that the client resets at a random time
    bombs                gzip messages that inflate to a thousand times their size
"""

from __future__ import annotations

import functools
import gzip
import random
from collections.abc import Callable, Iterator
from typing import Final

from bench.hostile_peers import Write
from kourou.http2 import frames
from kourou.http2.frames import ErrorCode, Setting
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import methods
from kourou.proxy.times import duration
from tests.fuzz.mutate import mutate
from tests.golden_calls import calls
from tests.http2.peer import frame, message, settings

TOPICS: Final = {
    "GrpcNormal": "NORMAL",
    "GrpcFifo": "FIFO",
    "GrpcDelay": "DELAY",
    "GrpcTran": "TRANSACTION",
    "GrpcPriority": "PRIORITY",
    "GrpcConsume": "NORMAL",
    "GrpcConsumeFifo": "FIFO",
    "GrpcEmpty": "NORMAL",
}
"""Topics of the recorded calls, and their types."""
BROKER: Final = "broker-a"
"""Name of the broker in the recorded calls."""

_SERVICE: Final = "apache.rocketmq.v2.MessagingService"
_REFLECTION: Final = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
_PATHS: Final = (*(method.path for method in methods(_SERVICE)), _REFLECTION)
_CLIENTS: Final = 1_000
_CALLS: Final = 25
_STREAMS: Final = 20
_PIECE_BYTES: Final = frames.FRAME_BYTES_MAX
_SEED_BYTES_MAX: Final = 2_000
_MIB: Final = 1024 * 1024
_BODY_BYTES: Final = 4 * _MIB + 1
_ANNOUNCED: Final = (70_000, 300_000, _BODY_BYTES, 130 * _MIB, 2**32 - 1)
_BOMBS_MIB: Final = (1, 7, 16, 130)
_FLOOD_FRAMES: Final = (300, 300, 300, 1_000, 1_000, 3_000, 12_000)
"""Sizes of floods; the largest has more than the server accepts at once."""
_TIMEOUTS: Final = ("50m", "2S", "30S", "99999999H")
_MUTATED: Final = 0.3
"""Share of mutated frames among valid ones."""
_SIZED: Final = 0.9
"""Share of mutated frames with a corrected size field."""


def conversation(dice: random.Random) -> Iterator[Write]:
    """Return what one connection sends."""
    window = 1 << dice.randrange(31)
    yield frames.PREFACE + settings((Setting.INITIAL_WINDOW_SIZE, window)), 1
    (chosen,) = dice.choices(list(_CONVERSATIONS), list(_CONVERSATIONS.values()))
    yield from chosen(_Client(dice))


class _Client:
    """Builds the frames of one client."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self._id = f"hostile-{dice.randrange(_CLIENTS)}"

    def rpc(self) -> str:
        """Return the path of any method."""
        return self.dice.choice(_PATHS)

    def headers(self, stream_id: int, path: str, flags: int = 0, encoding: str = "") -> bytes:
        """Return the first frame of a call.

        It changes no table of HPACK, so that mutations of one frame do not affect the next ones.
        """
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "proxy",
            "content-type": "application/grpc",
            "te": "trailers",
            "grpc-timeout": self.dice.choice(_TIMEOUTS),
            "x-mq-client-id": self._id,
            "x-mq-language": "JAVA",
            "x-mq-client-version": "5.0.7",
        }
        if encoding:
            fields["grpc-encoding"] = encoding
        block = b"".join(
            b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode())
            for name, value in fields.items()
        )
        return frame(frames.HEADERS, flags | frames.END_HEADERS, stream_id, block)

    def call(self, stream_id: int, path: str, data: bytes) -> bytes:
        """Return a call with one message."""
        return self.headers(stream_id, path) + _data(stream_id, message(data), ends=True)

    def seed(self, path: str) -> bytes:
        """Return a valid message of a method."""
        return self.dice.choice(_seeds(path))

    def mutated(self, path: str) -> bytes:
        """Return a mutated message of a method."""
        return mutate(self.dice, _seeds(path))

    def telemetry(self) -> bytes:
        """Return stream 1: a Telemetry stream with the settings of a consumer."""
        data = _consumer().SerializeToString()
        return self.headers(1, _path("Telemetry")) + _data(1, message(data))


def _mutated_frames(client: _Client) -> Iterator[Write]:
    dice = client.dice
    for stream_id in range(1, 2 * _CALLS, 2):
        path = client.rpc()
        window = (1 << dice.randrange(31)).to_bytes(4, "big")
        for valid in (
            client.headers(stream_id, path),
            _data(stream_id, message(client.seed(path)), ends=dice.random() < 0.9),
            frame(frames.WINDOW_UPDATE, 0, stream_id, window),
        ):
            yield (_mutated(dice, valid) if dice.random() < _MUTATED else valid), 1


def _mutated(dice: random.Random, valid: bytes) -> bytes:
    data = mutate(dice, (valid,))
    size = len(data) - frames.HEAD_BYTES
    if size < 0 or dice.random() > _SIZED:
        return data
    return size.to_bytes(3, "big") + data[3:]


def _mutated_messages(client: _Client) -> Iterator[Write]:
    yield client.telemetry(), 1
    for stream_id in range(3, 2 * _CALLS, 2):
        path = client.rpc()
        yield client.call(stream_id, path, client.mutated(path)), 1


def _mutated_commands(client: _Client) -> Iterator[Write]:
    path = _path("Telemetry")
    for stream_id in range(1, 10, 2):
        yield client.headers(stream_id, path), 1
        for _ in range(client.dice.randrange(10)):
            command = message(client.mutated(path))
            yield _data(stream_id, command * client.dice.choice((1, 1, 1, 100))), 1


def _trickle(client: _Client) -> Iterator[Write]:
    path = client.rpc()
    data = client.call(1, path, client.seed(path))
    at = 0
    while at < len(data) - 1:
        size = client.dice.randint(1, 8)
        yield data[at : min(at + size, len(data) - 1)], 1
        at += size


def _flood(client: _Client) -> Iterator[Write]:
    yield client.telemetry(), 1
    count = client.dice.choice(_FLOOD_FRAMES)
    one = client.dice.choice(_FLOODS)
    if one is _continuation:
        yield frame(frames.HEADERS, 0, 3, b"\x82"), 1
    yield b"".join(one(client, 2 * number + 3) for number in range(count)), count


def _continuation(_: _Client, __: int) -> bytes:
    return frame(frames.CONTINUATION, 0, 3, b"\0")


def _receive_reset(client: _Client, stream_id: int) -> bytes:
    call = client.call(stream_id, _path("ReceiveMessage"), _receive())
    return call + _reset(stream_id)


_FLOODS: Final[tuple[Callable[[_Client, int], bytes], ...]] = (
    lambda _, __: frame(frames.PING, 0, 0, bytes(8)),
    lambda _, __: frame(frames.PING, frames.ACK, 0, bytes(8)),
    lambda _, n: settings((Setting.INITIAL_WINDOW_SIZE, n)),
    lambda _, __: settings(*((Setting.MAX_FRAME_SIZE, frames.FRAME_BYTES_MAX),) * 100),
    lambda _, __: frame(frames.SETTINGS, frames.ACK, 0),
    lambda _, __: frame(frames.DATA, 0, 1),
    lambda _, __: frame(frames.DATA, frames.PADDED, 1, b"\xff" + bytes(255)),
    lambda _, __: frame(frames.PRIORITY, 0, 1, bytes(4) + b"\1"),
    lambda _, __: frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    lambda _, __: frame(0xBB, 0, 1, b"x"),
    _continuation,
    lambda client, n: client.headers(n, _path("ReceiveMessage")),
    lambda client, n: client.headers(n, "/NoSuchService/Method", frames.END_STREAM),
    lambda client, n: client.headers(n, _path("ReceiveMessage")) + _reset(n),
    lambda client, n: client.call(n, _path("QueryRoute"), b""),
    _receive_reset,
)
"""Frames of a flood, by their stream."""


def _too_large(client: _Client) -> Iterator[Write]:
    whole = _large_send()
    if client.dice.random() < 0.5:  # the announced size is half of what follows
        whole = whole[:1] + (len(whole) // 2).to_bytes(4, "big") + whole[5:]
    yield client.headers(1, _path("SendMessage")), 1
    for at in range(0, len(whole), _PIECE_BYTES):
        is_last = at + _PIECE_BYTES >= len(whole)
        yield _data(1, whole[at : at + _PIECE_BYTES], ends=is_last), 1


def _announced(client: _Client) -> Iterator[Write]:
    dice = client.dice
    for stream_id in range(1, 2 * _STREAMS, 2):
        begin = b"\0" + dice.choice(_ANNOUNCED).to_bytes(4, "big")
        sent = begin + bytes(dice.choice((0, 100, 60_000)))
        yield client.headers(stream_id, _path("SendMessage")) + _data(stream_id, sent), 2


def _cancelled(client: _Client) -> Iterator[Write]:
    dice = client.dice
    yield client.telemetry(), 1
    resets = []
    for stream_id in range(3, 2 * _STREAMS, 2):
        path = _path("ReceiveMessage") if dice.random() < 0.5 else client.rpc()
        data = _receive() if path == _path("ReceiveMessage") else client.seed(path)
        yield client.call(stream_id, path, data), 1
        resets.append(_reset(stream_id))
        while resets and dice.random() < 0.4:
            yield resets.pop(dice.randrange(len(resets))), 1


def _bombs(client: _Client) -> Iterator[Write]:
    for stream_id in range(1, 6, 2):
        bomb = _bomb(client.dice.choice(_BOMBS_MIB))
        path = _path(client.dice.choice(("SendMessage", "Telemetry")))
        head = client.headers(stream_id, path, encoding="gzip")
        data = head + _data(stream_id, message(bomb, flag=1), ends=True)
        yield data, 2 + len(bomb) // _PIECE_BYTES


_CONVERSATIONS: Final[dict[Callable[[_Client], Iterator[Write]], float]] = {
    _mutated_frames: 8,
    _mutated_messages: 8,
    _mutated_commands: 4,
    _trickle: 4,
    _flood: 1,
    _too_large: 0.5,
    _announced: 2,
    _cancelled: 4,
    _bombs: 1,
}
"""Conversations by their weights; most frames are mutated, or part of floods."""


def _path(name: str) -> str:
    return f"/{_SERVICE}/{name}"


def _data(stream_id: int, data: bytes, *, ends: bool = False) -> bytes:
    """Return DATA frames."""
    pieces = [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)] or [b""]
    last = len(pieces) - 1
    return b"".join(
        frame(frames.DATA, frames.END_STREAM if ends and at == last else 0, stream_id, piece)
        for at, piece in enumerate(pieces)
    )


def _reset(stream_id: int) -> bytes:
    return frame(frames.RST_STREAM, 0, stream_id, ErrorCode.CANCEL.to_bytes(4, "big"))


@functools.cache
def _seeds(path: str) -> tuple[bytes, ...]:
    """Return recorded messages of a method."""
    if path == _REFLECTION:
        name = _SERVICE.encode()
        return (b"\x22%c%b" % (len(name), name), b"\x3a\1*")
    rpc = path.rpartition("/")[2]
    parts = [part for call in calls().values() if call.rpc == rpc for part in call.parts]
    found = {part.data for part in parts if part.sender == "client"}
    return tuple(sorted(one for one in found if len(one) <= _SEED_BYTES_MAX))


@functools.cache
def _receive() -> bytes:
    """Return a receive that the broker holds."""
    return bytes(
        v2.ReceiveMessageRequest(
            group=v2.Resource(name="grpc_group"),
            message_queue=v2.MessageQueue(
                topic=v2.Resource(name="GrpcEmpty"), id=-1, broker=v2.Broker(name=BROKER)
            ),
            filter_expression=v2.FilterExpression(type=v2.FilterType.TAG, expression="*"),
            batch_size=32,
            auto_renew=True,
            long_polling_timeout=duration(20_000),
        ).SerializeToString()
    )


def _consumer() -> v2.TelemetryCommand:
    every = v2.FilterExpression(type=v2.FilterType.TAG, expression="*")
    entries = [
        v2.SubscriptionEntry(topic=v2.Resource(name=topic), expression=every)
        for topic in ("GrpcConsume", "GrpcEmpty")
    ]
    subscription = v2.Subscription(group=v2.Resource(name="grpc_group"), subscriptions=entries)
    return v2.TelemetryCommand(
        settings=v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER, subscription=subscription)
    )


@functools.cache
def _large_send() -> bytes:
    sent = v2.Message(topic=v2.Resource(name="GrpcNormal"), body=bytes(_BODY_BYTES))
    return message(v2.SendMessageRequest(messages=[sent]).SerializeToString())


@functools.cache
def _bomb(size_mib: int) -> bytes:
    """Return a send that inflates to some MiB, of a topic that does not exist."""
    sent = v2.Message(topic=v2.Resource(name="GrpcNone"), body=bytes(size_mib * _MIB - 1000))
    return gzip.compress(v2.SendMessageRequest(messages=[sent]).SerializeToString(), mtime=0)

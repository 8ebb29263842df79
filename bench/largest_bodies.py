"""Measures how long the largest accepted request of each code blocks the event loop.

    python -m bench.largest_bodies [--codes 25,34] [--goal-ms 50] [--all] [--dir DIR]

Runs a name server and a broker on one loop, as `kourou serve` does, in a separate process. Each
request code that one of them serves is sent with its largest body, in all shapes that are expensive
to decode, and then with its largest header, one text field after another. Prints, for the slowest
request of each code, the code, the shape, and the longest CPU time of the loop's thread within one
iteration; `--all` prints all requests. The exit code is 1 if one is above the goal.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import socket
import sys
import tempfile
import typing
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.stalls import Client, serve
from kourou.model.message import Message
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.fields import camel_case
from kourou.protocol.frame import FRAME_SIZE_MAX, encode_frame
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.unserved import ALL_REQUESTS
from kourou.remoting.limits import ConnectionLimits

TOPIC: Final = "largest"
MESSAGES: Final = 1_000
"""Number of messages in the topic, for filtered reads."""
TIMEOUT_S: Final = 60.0
HEADER_SIZE_MAX: Final = ConnectionLimits().header_bytes_max
_FRAME_REST: Final = 4096
"""Bytes of the largest frame that are reserved for the header."""

BATCH_BYTES_MAX: Final = 4 << 20
"""Largest accepted batch (`max_message_size_bytes`)."""
_LINE: Final = ("", "k{}=v\n", "")
_BODIES: Final[dict[str, tuple[str, str, str]]] = {
    "lines": _LINE,
    "continued lines": ("", "\\\n{}", ""),
    "escaped lines": ("", "k{}=\\u0061\n", ""),
    "numbers": ("[", "{},", "0]"),
    "empty objects": ("[", "{{}},", "0]"),
    "members": ("{{", '"{}":"",', '"z":""}}'),
    "bare keys": ("{{", "{}:0,", "1:0}}"),
    "object keys": ("{{", '{{"a":{}}}:0,', "1:0}}"),
    "consumers": (
        '{{"clientID":"c","consumerDataSet":[',
        '{{"groupName":"g{}","consumeType":"CONSUME_PASSIVELY","subscriptionDataSet":[]}},',
        '{{"groupName":"z"}}]}}',
    ),
    "producers": (
        '{{"clientID":"c","producerDataSet":[',
        '{{"groupName":"g{}"}},',
        '{{"groupName":"z"}}]}}',
    ),
    "subscriptions": (
        '{{"clientID":"c","consumerDataSet":[{{"groupName":"g","subscriptionDataSet":[',
        '{{"topic":"t{}","subString":"*"}},',
        '{{"topic":"z"}}]}}]}}',
    ),
    "tags": (
        '{{"clientID":"c","clientId":"c","group":"g","subscriptionData":{{"topic":"t","tagsSet":[',
        '"{}",',
        '"z"]}},"consumerDataSet":[{{"groupName":"g","subscriptionDataSet":[{{"topic":"t"}}]}}]}}',
    ),
    "queues": (
        '{{"consumerGroup":"g","clientId":"c","mqSet":[',
        '{{"topic":"largest","brokerName":"broker-a","queueId":{}}},',
        '{{"topic":"t","brokerName":"b","queueId":0}}]}}',
    ),
    "topics": (
        '{{"topicConfigList":[',
        (
            '{{"topicName":"t{}","readQueueNums":1,"writeQueueNums":1,"perm":6,'
            '"topicFilterType":"SINGLE_TAG"}},'
        ),
        '{{"topicName":"z"}}]}}',
    ),
    "topic table": (
        (
            '{{"topicConfigSerializeWrapper":{{"dataVersion":{{"counter":1,"timestamp":1}},'
            '"topicConfigTable":{{'
        ),
        '"t{0}":{{"topicName":"t{0}","readQueueNums":1,"writeQueueNums":1,"perm":6}},',
        '"z":{{"topicName":"z"}}}}}},"filterServerList":[]}}',
    ),
    "groups": (
        '{{"groupConfigList":[',
        '{{"groupName":"g{}"}},',
        '{{"groupName":"z"}}]}}',
    ),
    "attributes": (
        '{{"groupName":"g","attributes":{{',
        '"+a{}":"",',
        '"z":""}}}}',
    ),
    "route": (
        '{{"queueDatas":[',
        '{{"brokerName":"b{}","readQueueNums":1,"writeQueueNums":1,"perm":6}},',
        '{{"brokerName":"z"}}],"brokerDatas":[]}}',
    ),
}
"""Shape -> prefix, item that is repeated with a number, and suffix."""

_FIELDS: Final[dict[str, str]] = {
    "x": "x{}",
    "tags": "t{}||",
    "attributes": "+a{}=b,",
    "properties": "k{}\x01v\x02",
    "keys": "k{} ",
    "sql or": "a = {} OR ",
    "sql in": "a IN ('{}') OR ",
    "numbers": "{},",
    "escapes": "\x01\x02",
    "members": '{{"{}":0}}',
}
_FIELD_ENDS: Final = {"sql or": "b = 1", "sql in": "b = 1"}
_VALUES: Final = {
    "topic": TOPIC, "queueId": "0", "perm": "6", "readQueueNums": "8", "writeQueueNums": "8",
    "topicFilterType": "SINGLE_TAG", "sysFlag": "4", "maxMsgNums": "32", "maxNum": "64",
    "subscription": "*", "expressionType": "TAG", "statsName": "TOPIC_PUT_NUMS",
    "defaultTopic": "TBW102", "defaultTopicQueueNums": "8", "a": "p", "b": TOPIC, "c": "TBW102",
    "d": "8", "e": "0", "endTimestamp": "9999999999999", "commitLogOffset": "0",
    "producerGroup": "p", "consumerGroup": "g", "group": "g", "key": "k",
}  # fmt: skip


class Sent(NamedTuple):
    """One request and its cost.

    Attributes:
        code: the request code.
        shape: the shape of its largest part.
        size: size of the body or header in bytes.
        used_ms: the longest CPU time of the loop's thread within one iteration.
        answer: code and remark of the answer, or the error.
    """

    code: int
    shape: str
    size: int
    used_ms: float
    answer: str


def repeated(shape: tuple[str, str, str], size_max: int) -> bytes:
    """Return a text of this shape, of at most `size_max` bytes."""
    first, item, last = (part for part in shape)
    head, tail = first.format().encode(), last.format().encode()
    longest = len(item.format(size_max))
    count = max(0, size_max - len(head) - len(tail)) // longest
    return head + "".join(map(item.format, range(count))).encode() + tail


def bodies(code: int, size_max: int) -> Iterator[tuple[str, bytes]]:
    """Yield the largest bodies of a request."""
    yield "zeros", bytes(size_max)
    for name, shape in _BODIES.items():
        yield name, repeated(shape, size_max)
    yield "nested arrays", b"[" * (size_max // 2) + b"]" * (size_max // 2)
    yield "nested objects", b'{"a":' * (size_max // 6) + b"0" + b"}" * (size_max // 6)
    if code == RequestCode.REGISTER_BROKER:
        text = repeated(_BODIES["topic table"], min(size_max * 20, 64 << 20))
        yield "compressed", zlib.compress(text)[:size_max]
    for count in (1_000, 2_000, 4_000, 20_000, 182_000):
        item = BatchItem(0, b"x", b"")
        body = encode_batch([item]) * count
        if len(body) <= size_max:
            yield f"batch of {count:,}", body
    for size in (1_000, 2_000, 10_000, 14_000):
        rest = "".join(f"k{number:x}\x01v\x02" for number in range(size // 7))
        texts = (f"n{number}\x01v\x02{rest}".encode() for number in range(BATCH_BYTES_MAX))
        items = (BatchItem(0, b"x", text) for text in texts)
        count = min(size_max, BATCH_BYTES_MAX) // (size + 100)
        yield f"batch, properties of {size:,}", encode_batch(list(islice(items, count)))


def field_texts(size_max: int) -> Iterator[tuple[str, str]]:
    """Yield the longest texts of a header field; JSON may encode them longer, or refuse them."""
    for name, item in _FIELDS.items():
        end = _FIELD_ENDS.get(name, "")
        written = max(len(json.dumps(item.format(size_max))) - 2, 1)
        yield name, "".join(map(item.format, range((size_max - 300) // written))) + end


def headers(code: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield header fields up to the largest size that a header may have."""
    header = ALL_REQUESTS[code].header
    usual = usual_fields(header)
    yield "fields", usual | {f"{n:x}": "" for n in range((HEADER_SIZE_MAX - 1000) // 9)}
    for name in texts_of(header):
        for size in (2_000, 8_000, 32_000, 64_000, HEADER_SIZE_MAX - 1000):
            for shape, text in field_texts(size):
                fields = usual | {name: text}
                if name == "subscription" and "sql" in shape:
                    fields["expressionType"] = "SQL92"
                yield f"{name}: {shape}", fields


def usual_fields(header: type | None) -> dict[str, str]:
    """Return the fields of a typical request."""
    fields = {}
    for field in dataclasses.fields(header) if header is not None else ():
        wire = field.metadata.get("wire") or camel_case(field.name)
        if wire in _VALUES:
            fields[wire] = _VALUES[wire]
        elif field.default is dataclasses.MISSING:
            fields[wire] = "0"
    return fields


def texts_of(header: type | None) -> list[str]:
    """Return the wire names of the text fields."""
    if header is None:
        return []
    hints = typing.get_type_hints(header)
    return [
        field.metadata.get("wire") or camel_case(field.name)
        for field in dataclasses.fields(header)
        if hints[field.name] in (str, str | None)
    ]


class Walk:
    """Sends the requests to one server, and records their costs."""

    def __init__(self, address: tuple[str, int], pipe: typing.Any) -> None:  # noqa: ANN401
        self._address = address
        self._pipe = pipe
        self.sent: list[Sent] = []

    def all_of(self, code: int) -> None:
        """Send all largest requests of a code."""
        limit = min(ALL_REQUESTS[code].body_bytes_max, FRAME_SIZE_MAX - _FRAME_REST)
        usual = usual_fields(ALL_REQUESTS[code].header)
        for shape, body in bodies(code, limit):
            fields = usual | ({"m": "true"} if "batch" in shape else {})
            self._send(shape, len(body), RemotingCommand(code, fields, body))
        for shape, fields in headers(code):
            size = sum(map(len, fields.values()))
            self._send(shape, size, RemotingCommand(code, fields, b"x"))

    def _send(self, shape: str, size: int, command: RemotingCommand) -> None:
        try:
            frame = encode_frame(command)
        except ValueError:
            return
        self._pipe.send("reset")
        self._pipe.recv()
        answer = self._answer(frame)
        self._pipe.send("read")
        used_s = self._pipe.recv()[1]
        self.sent.append(Sent(command.code, shape, size, used_s * 1000, answer))

    def _answer(self, frame: bytes) -> str:
        with contextlib.closing(Client(self._address)) as client:
            try:
                answer = client.answer(frame)
            except (RuntimeError, OSError) as error:
                return str(error)[:60]
        return f"{answer.code} {(answer.remark or '')[:60]}"


def fill(client: Client) -> None:
    """Send messages to the topic."""
    client.create(TOPIC)
    properties = "".join(f"k{number}\x01v\x02" for number in range(20))
    item = BatchItem(0, Message(TOPIC, b"x" * 100).body, (properties + "a\x01x\x02").encode())
    fields = usual_fields(ALL_REQUESTS[RequestCode.SEND_BATCH_MESSAGE].header) | {"m": "true"}
    for _ in range(MESSAGES // 100):
        command = RemotingCommand(
            RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch([item] * 100)
        )
        answer = client.answer(encode_frame(command))
        assert not answer.code, answer.remark


def served_codes(address: tuple[str, int]) -> list[int]:
    """Return the codes that a server serves, found by sending each."""
    found = []
    for code in sorted(map(int, ALL_REQUESTS)):
        with (
            contextlib.closing(Client(address)) as client,
            contextlib.suppress(RuntimeError, OSError),
        ):
            if client.answer(encode_frame(RemotingCommand(code))).code != 3:
                found.append(code)
    return found


def walk(arguments: argparse.Namespace, root: Path) -> list[Sent]:
    """Return all requests with their costs."""
    pipe, child_pipe = multiprocessing.Pipe()
    options = {"enable_property_filter": True, "enable_mixed_message_type": True}
    process = multiprocessing.get_context("fork").Process(
        target=serve, args=(child_pipe, root), kwargs=options
    )
    process.start()
    sent: list[Sent] = []
    try:
        broker, names, _ = pipe.recv()
        fill(Client(broker))
        for address in (broker, names):
            one = Walk(address, pipe)
            for code in served_codes(address):
                if arguments.codes is None or code in arguments.codes:
                    print(f"{RequestCode(code).name} ({code})", file=sys.stderr, flush=True)
                    one.all_of(code)
            sent += one.sent
    finally:
        pipe.send("stop")
        process.join(30)
        process.kill()
    return sent


def report(sent: list[Sent], *, is_all: bool) -> Table:
    """Return a table of the slowest request of each code, or of all requests."""
    if not is_all:
        slowest: dict[int, Sent] = {}
        for one in sent:
            if one.code not in slowest or one.used_ms > slowest[one.code].used_ms:
                slowest[one.code] = one
        sent = list(slowest.values())
    table = Table("code", "request", "largest", "bytes", "ms", "answer")
    for one in sorted(sent, key=lambda one: -one.used_ms):
        name = RequestCode(one.code).name
        table.add_row(
            str(one.code), name, one.shape, f"{one.size:,}", f"{one.used_ms:,.1f}", one.answer
        )
    return table


def main() -> None:
    """Measure, print, and exit with 1 if a request is above the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codes", type=lambda text: set(map(int, text.split(","))), default=None)
    parser.add_argument("--goal-ms", type=float, default=50.0)
    parser.add_argument(
        "--all", action="store_true", help="print all requests, not only the slowest"
    )
    parser.add_argument("--dir", type=Path, default=None, help="parent directory of the store")
    arguments = parser.parse_args()
    socket.setdefaulttimeout(TIMEOUT_S)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        sent = walk(arguments, Path(directory))
    Console(width=150).print(report(sent, is_all=arguments.all))
    above = [one for one in sent if one.used_ms > arguments.goal_ms]
    print(f"{len(above)} of {len(sent)} requests exceed the goal of {arguments.goal_ms:.0f} ms")
    sys.exit(1 if above else 0)


if __name__ == "__main__":
    main()

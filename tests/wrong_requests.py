"""Invalid requests, derived from a valid one, and a connection to send them.

Each header field is missing, empty, not a number, negative, too large for its type, or long; the
body is empty, random, not JSON, JSON of another kind, deeply nested, or long; the version does not
exist. `check_answers` describes the required answers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import REMARK_CHARS_MAX, RemotingCommand
from kourou.protocol.fields import Int, Long, camel_case
from kourou.protocol.frame import encode_frame
from kourou.protocol.registry import REQUESTS
from kourou.remoting.dispatch import Handler
from kourou.testing.lone_connection import LoneConnection
from tests.golden_exchanges import exchanges

MIB: Final = 1 << 20
NOBODY: Final = "nobody"
"""Name of objects that do not exist."""
ANSWER_MAX_S: Final = 100.0
"""Maximum virtual time of an answer, longer than any wait for a client or a message."""

_TEXTS: Final = ("", "x", "-1", "9" * 5_000, "x" * 70_000, "\0", "\u00e9\u4e2d", "%RETRY%", "[[{")
_NUMBERS: Final[dict[object, tuple[str, ...]]] = {
    Int: ("-1", str(-(2**31)), str(2**31 - 1), "0"),
    Long: ("-1", str(-(2**63)), str(2**63 - 1), "0"),
}
_NO_NUMBERS: Final[dict[object, tuple[str, ...]]] = {
    Int: ("", "x", "1.0", "0x1", "\0", "9" * 5_000, str(2**31), str(-(2**31) - 1)),
    Long: ("", "x", "1e3", "9" * 5_000, str(2**63), str(-(2**63) - 1)),
}
_SOME: Final[dict[object, str]] = {str: "x", bool: "false"}
_BODIES: Final = {
    "empty": b"",
    "random": random.Random(1).randbytes(500),
    "null": b"null",
    "a number": b"7",
    "a list": b"[1, 2]",
    "an object": b'{"a": {}}',
    "wrong types": b'{"groupName": 7, "clientID": {}, "topicConfigList": 7, "producerDataSet": "x",'
    b'"consumerDataSet": {"a": 1}, "groupConfigList": "x", "subscriptionData": []}',
    "nested lists": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "1 MiB": b"x" * MIB,
}
_FILLED_IN: Final = {"bornTime"}
"""Wire names of fields that brokers fill in if they are missing, as in Java."""
_NOTHING_FOUND: Final = {ResponseCode.POLLING_TIMEOUT}
"""Codes of answers without messages, which are no refusals: a pop may have skipped some."""
_VERSIONS: Final = (-(2**31), -1, 0, 99_999, 2**31 - 1)


@dataclass(frozen=True)
class Wrong:
    """One invalid request.

    Attributes:
        what: the invalid part.
        command: the request.
        field: field that the answer must refuse and name; None if it need not be refused.
    """

    what: str
    command: RemotingCommand
    field: str | None = None


def right_request(code: int, values: Mapping[str, str]) -> RemotingCommand:
    """Return a valid request of this code.

    Args:
        code: the request code.
        values: values of header fields by their names in the dataclass; other required fields
            are `x`, 0 or false.
    """
    fields = {}
    for name, wire, kind, is_required in _fields_of(code):
        if name in values:
            fields[wire] = values[name]
        elif is_required:
            fields[wire] = _SOME.get(kind, "0")
    return RemotingCommand(code, fields, _recorded_body(code))


def wrong_requests(right: RemotingCommand) -> Iterator[Wrong]:
    """Yield all invalid variants of `right`."""
    for _, wire, kind, is_required in _fields_of(right.code):
        rest = {name: text for name, text in right.ext_fields.items() if name != wire}
        yield Wrong(
            f"{wire} missing",
            dataclasses.replace(right, ext_fields=rest),
            wire if is_required and wire not in _FILLED_IN else None,
        )
        for text in _NUMBERS.get(kind, _TEXTS):
            yield Wrong(
                f"{wire}={text[:30]!r}", dataclasses.replace(right, ext_fields=rest | {wire: text})
            )
        for text in _NO_NUMBERS.get(kind, ()):
            yield Wrong(
                f"{wire}={text[:30]!r}",
                dataclasses.replace(right, ext_fields=rest | {wire: text}),
                wire,
            )
    for what, body in _BODIES.items():
        yield Wrong(f"body: {what}", dataclasses.replace(right, body=body))
    for version in _VERSIONS:
        yield Wrong(f"version {version}", dataclasses.replace(right, version=version))


class Requester:
    """A client of request handlers, on a connection without a network, in virtual time."""

    def __init__(self, handlers: Mapping[int, Handler]) -> None:
        self._lone = LoneConnection(handlers)
        self._opaque = 0

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """Send a request, and return the answer.

        Raises:
            AssertionError: the connection was closed, or no answer came within `ANSWER_MAX_S`.
        """
        self._opaque += 1
        self._lone.transport.writes.clear()
        self._lone.receive_bytes(encode_frame(dataclasses.replace(command, opaque=self._opaque)))
        loop = asyncio.get_running_loop()
        ends_at_s, pause_s = loop.time() + ANSWER_MAX_S, 0.01
        while loop.time() < ends_at_s:
            for sent in self._lone.sent():
                if sent.is_response and sent.opaque == self._opaque:
                    return sent
            assert not self._lone.transport.ending, "the connection was closed"
            await asyncio.sleep(pause_s)
            pause_s *= 2  # many short pauses would take most of the time of a held request
        raise AssertionError("no answer came")

    def end(self) -> None:
        """Close the connection."""
        self._lone.end()


async def check_answers(
    asker: Requester,
    right: RemotingCommand,
    *,
    state: Callable[[], object],
    restore: Callable[[], Awaitable[None]],
    ignores_fields: bool,
) -> None:
    """Send all invalid variants of `right`, one after the other, and check each answer.

    A refused request must have a remark of bounded length, and change nothing. The remark must name
    a field that is missing or is not a number of its type. Variants that the server need not detect
    may be accepted.

    Args:
        asker: the client.
        right: the valid request; `NOBODY` in it is replaced by a new name in each variant.
        state: returns all state that a request can change, for comparison.
        restore: restores the state after an accepted request.
        ignores_fields: whether the server ignores the header of this request.
    """
    before = state()
    for number, wrong in enumerate(wrong_requests(right)):
        answer = await asker.ask(_renamed(wrong.command, f"{NOBODY}-{number}"))
        reported = (wrong.what, answer.code, answer.remark)
        if answer.code:
            assert answer.remark, reported
            assert len(answer.remark) <= REMARK_CHARS_MAX, reported
        if answer.code and answer.code not in _NOTHING_FOUND:
            assert state() == before, reported
        elif state() != before:
            await restore()
            before = state()
        if wrong.field is not None and not ignores_fields:
            assert answer.code, reported
            assert wrong.field in str(answer.remark), reported


def _renamed(command: RemotingCommand, name: str) -> RemotingCommand:
    fields = {wire: name if text == NOBODY else text for wire, text in command.ext_fields.items()}
    return dataclasses.replace(command, ext_fields=fields)


def _fields_of(code: int) -> Iterator[tuple[str, str, object, bool]]:
    """Yield (name, wire name, type, required) of each header field."""
    header = REQUESTS[RequestCode(code)].header
    if header is None:
        return
    hints: dict[str, Any] = typing.get_type_hints(header, include_extras=True)
    for field in dataclasses.fields(header):
        hint = hints[field.name]
        kind = hint if hint in (Int, Long, str, bool) else typing.get_args(hint)[0]
        wire = field.metadata.get("wire") or camel_case(field.name)
        yield field.name, wire, kind, field.default is dataclasses.MISSING


def _recorded_body(code: int) -> bytes:
    """Return the body of a recorded request that Java accepted; empty if there is none."""
    for exchange in exchanges().values():
        answer = exchange.response
        if exchange.code == code and (answer is None or answer.command.code == 0):
            body = exchange.request.command.body
            if body:
                return body
    return b""

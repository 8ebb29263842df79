"""Reader of the recorded exchanges in the packed archives.

Each line of `golden/remoting/exchanges.jsonl.xz` holds one request and its answer; each line of
`sessions.jsonl.xz` holds all frames of one scenario. `golden/PROVENANCE.md` describes their origin.
"""

from __future__ import annotations

import base64
import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import decode_frame

_FOLDER = Path(__file__).parent / "golden" / "remoting"


@dataclass(frozen=True, slots=True)
class Side:
    """One recorded command.

    Attributes:
        code: the request code, also for an answer.
        frame: the whole frame, including the length field.
        header: its header as parsed by the recorder.
        serialize: JSON or ROCKETMQ.
    """

    code: int
    frame: bytes
    header: dict[str, Any]
    serialize: str

    @property
    def command(self) -> RemotingCommand:
        """The decoded frame."""
        return decode_frame(self.frame[4:])


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer; None if it was one-way."""

    name: str
    code: int
    request: Side
    response: Side | None

    @property
    def sides(self) -> list[Side]:
        """The request and, if there is one, the answer."""
        return [self.request] if self.response is None else [self.request, self.response]


@dataclass(frozen=True, slots=True)
class SessionFrame:
    """One frame of a session; `kind` is request, oneway or response, `code` the request's."""

    connection: int
    sender: str
    kind: str
    code: int
    opaque: int
    frame: bytes


@cache
def exchanges() -> dict[str, Exchange]:
    """Return all exchanges by name; a name begins with the request code."""
    return {
        line["name"]: Exchange(
            line["name"],
            line["code"],
            _side(line["code"], line["request"]),
            line["response"] and _side(line["code"], line["response"]),
        )
        for line in _lines("exchanges.jsonl.xz")
    }


def recorded(name: str, side: str) -> RemotingCommand:
    """Return one command of an exchange; `side` is "request" or "response"."""
    exchange = exchanges()[name]
    found = {"request": exchange.request, "response": exchange.response}[side]
    assert found is not None, f"{name} was one-way"
    return found.command


@cache
def sessions() -> dict[str, list[SessionFrame]]:
    """Return all sessions by name."""
    return {
        line["name"]: [
            SessionFrame(
                frame["connection"],
                frame["from"],
                frame["kind"],
                frame["code"],
                frame["opaque"],
                base64.b64decode(frame["raw_b64"]),
            )
            for frame in line["frames"]
        ]
        for line in _lines("sessions.jsonl.xz")
    }


def _side(code: int, data: dict[str, Any]) -> Side:
    return Side(code, base64.b64decode(data["raw_b64"]), data["header"], data["serialize"])


def _lines(name: str) -> list[dict[str, Any]]:
    text = lzma.decompress((_FOLDER / name).read_bytes())
    return [json.loads(line) for line in text.splitlines()]

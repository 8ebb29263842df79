"""What tests share of the recorded exchanges: reading the packed archives beside them.

`golden/remoting/exchanges.jsonl.xz` holds one request and its answer a line, `sessions.jsonl.xz`
all frames of one scenario a line; `golden/PROVENANCE.md` says where they come from.
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
    """One command as it was recorded.

    Attributes:
        code: the request's, also of its answer.
        frame: the whole frame, length field included.
        header: its fields as the recorder read them.
        serialize: JSON or ROCKETMQ.
    """

    code: int
    frame: bytes
    header: dict[str, Any]
    serialize: str

    @property
    def command(self) -> RemotingCommand:
        """What the frame says."""
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
        """Both, or the one there is."""
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
    """Return all exchanges by their names, which begin with the request's code."""
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
    """Return the request or the response of an exchange: `side` is one of these words."""
    exchange = exchanges()[name]
    found = {"request": exchange.request, "response": exchange.response}[side]
    assert found is not None, f"{name} was one-way"
    return found.command


@cache
def sessions() -> dict[str, list[SessionFrame]]:
    """Return all sessions by their names."""
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

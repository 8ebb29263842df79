"""Reader of the recorded gRPC calls in `golden/grpc/calls.jsonl.xz`.

Each line holds one call of a client to RocketMQ's proxy: `local/...` with the broker inside the
proxy, `cluster/...` with a broker apart. `golden/PROVENANCE.md` describes their origin.
"""

from __future__ import annotations

import base64
import json
import lzma
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "golden" / "grpc" / "calls.jsonl.xz"


@dataclass(frozen=True, slots=True)
class Part:
    """One message of a call; `sender` is client or server."""

    sender: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Attributes:
        name: `local/SendMessage_normal`.
        rpc: `SendMessage`.
        metadata: of the request.
        timeout_s: the deadline; None without one.
        parts: all messages in order.
        grpc_status: `OK` unless the call failed.
        grpc_details: of a failed call.
    """

    name: str
    rpc: str
    metadata: dict[str, str]
    timeout_s: float | None
    parts: tuple[Part, ...]
    grpc_status: str
    grpc_details: str | None

    @property
    def request(self) -> bytes:
        """The first message of the client."""
        return next(part.data for part in self.parts if part.sender == "client")

    @property
    def responses(self) -> list[bytes]:
        """All messages of the server."""
        return [part.data for part in self.parts if part.sender == "server"]


@cache
def calls() -> dict[str, Call]:
    """Return all calls by name."""
    lines = lzma.decompress(_FILE.read_bytes()).splitlines()
    return {call.name: call for call in map(_call, map(json.loads, lines))}


def _call(line: dict[str, Any]) -> Call:
    if "conversation" in line:
        parts = [Part(part["direction"], _data(part)) for part in line["conversation"]]
    else:
        answers = [Part("server", _data(part)) for part in line["responses"]]
        parts = [Part("client", _data(line["request"])), *answers]
    return Call(
        line["name"],
        line["rpc"],
        line["metadata"],
        line["timeout_s"],
        tuple(parts),
        line["grpc_status"],
        line["grpc_details"],
    )


def _data(part: dict[str, str]) -> bytes:
    if "raw_zlib_b64" in part:
        return zlib.decompress(base64.b64decode(part["raw_zlib_b64"]))
    return base64.b64decode(part["raw_b64"])

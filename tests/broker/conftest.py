"""What tests of the broker share: exchanges of the Java broker, as recorded."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import decode_frame

_FOLDER = Path(__file__).parent.parent / "golden" / "remoting"


@pytest.fixture(scope="session")
def golden() -> Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]:
    """Return request and response of a recorded exchange, by its name; None if it was oneway."""

    def read(name: str) -> tuple[RemotingCommand, RemotingCommand | None]:
        data = json.loads((_FOLDER / f"{name}.json").read_text())
        return _decode(data["request"]), data["response"] and _decode(data["response"])

    return read


def _decode(part: dict[str, Any]) -> RemotingCommand:
    if "raw_b64" in part:
        raw = base64.b64decode(part["raw_b64"])
    else:
        raw = zlib.decompress(base64.b64decode(part["raw_zlib_b64"]))
    return decode_frame(raw[4:])

"""Seeds of the fuzzer: bytes recorded from Java, and encoded by this package."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from pathlib import Path
from typing import Any, Final

from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import decode_frame

_GOLDEN: Final = Path(__file__).parent.parent / "golden"


@functools.cache
def frames() -> tuple[bytes, ...]:
    """Return one recorded frame for each code, side, and request or answer, without its length."""
    packed = json.loads(gzip.decompress((_GOLDEN / "fuzz_seeds.json.gz").read_bytes()))
    return tuple(base64.b64decode(frame["raw_b64"])[4:] for frame in packed)


@functools.cache
def commands() -> tuple[RemotingCommand, ...]:
    """Return the recorded frames, decoded."""
    return tuple(map(decode_frame, frames()))


@functools.cache
def header_frames() -> dict[str, tuple[bytes, ...]]:
    """Return the frames of a request by the name of its header class, in both serializations."""
    path = _GOLDEN / "vectors" / "headers_binary.json.gz"
    by_name: dict[str, list[bytes]] = {}
    for case in json.loads(gzip.decompress(path.read_bytes()))["cases"]:
        pair = (bytes.fromhex(case["json_hex"])[4:], bytes.fromhex(case["binary_hex"])[4:])
        by_name.setdefault(case["header"], []).extend(pair)
    return {name: tuple(pairs) for name, pairs in by_name.items()}


@functools.cache
def bodies() -> tuple[bytes, ...]:
    """Return the bodies of all recorded frames that have one."""
    return tuple({command.body for command in commands() if command.body})


@functools.cache
def records() -> tuple[bytes, ...]:
    """Return message records, including compressed ones and inner batches."""
    cases = _vectors("message_encode.json")["cases"]
    return tuple(bytes.fromhex(case["store_encoder_hex"]) for case in cases)


@functools.cache
def batches() -> tuple[bytes, ...]:
    """Return bodies of batches."""
    return tuple(
        bytes.fromhex(case["hex"]) for case in _vectors("message_encode.json")["batch_body"]
    )


@functools.cache
def traces() -> tuple[bytes, ...]:
    """Return bodies of trace messages: each record alone, and all of them joined."""
    texts = [case["result"]["data"].encode() for case in _vectors("trace.json")["cases"]]
    return (*texts, b"".join(texts))


@functools.cache
def revive_records(*kinds: str) -> tuple[bytes, ...]:
    """Return bodies of checkpoints or acks, in both forms."""
    return tuple(
        record[form].encode()
        for record in _vectors("pop.json")["records"]
        for form in ("fastjson1", "fastjson2")
        if record.get("kind", "").startswith(kinds)
    )


@functools.cache
def compressed() -> tuple[bytes, ...]:
    """Return compressed bodies, each after a byte with the number of its compression type."""
    cases = _vectors("compression.json")["cases"]
    return tuple(bytes((c["value"],)) + base64.b64decode(c["compressed_b64"]) for c in cases)


@functools.cache
def properties() -> tuple[bytes, ...]:
    """Return property texts."""
    cases = _vectors("message_encode.json")["cases"]
    return tuple(bytes.fromhex(c["properties_string_hex"]) for c in cases if "input" in c)


def _vectors(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((_GOLDEN / "vectors" / name).read_text())
    return value

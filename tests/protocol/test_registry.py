"""The request registry is complete and consistent, and contains all served requests."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from kourou.errors import MalformedBodyError, ProtocolError
from kourou.protocol import registry
from kourou.protocol.codes import RequestCode
from kourou.protocol.fields import RpcHeader, TopicHeader
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.registry import REQUESTS
from kourou.protocol.request_spec import TEXT_CODEC, RequestSpec
from kourou.protocol.unserved import ALL_REQUESTS, UNUSED
from tests.documented_errors import only_raises
from tests.protocol_modules import header_classes, protocol_modules

SOURCE = Path(registry.__file__).parents[1]


def specs() -> list[tuple[RequestSpec, ...]]:
    """Return the specifications that each module declares."""
    return [module.SPECS for module in protocol_modules() if hasattr(module, "SPECS")]


def test_every_code_has_one_specification() -> None:
    assert set(ALL_REQUESTS) == set(RequestCode)
    assert sum(map(len, specs())) + len(UNUSED) == len(ALL_REQUESTS)


def test_served_requests_are_not_listed_as_unserved() -> None:
    tables = [
        path
        for name in ("broker", "namesrv", "controller")
        for path in (SOURCE / name).glob("*.py")
    ]
    served = {
        RequestCode[name]
        for table in tables
        for name in re.findall(r"RequestCode\.(\w+): ", table.read_text(encoding="utf-8"))
    }

    assert len(served) > 30
    assert served <= set(REQUESTS)


@pytest.mark.parametrize("spec", ALL_REQUESTS.values(), ids=lambda s: s.code.name)
def test_specification_has_its_code_and_header_classes(spec: RequestSpec) -> None:
    assert ALL_REQUESTS[spec.code] is spec
    assert RequestCode(spec.code) is spec.code
    for header in (spec.header, spec.response_header):
        assert header is None or dataclasses.is_dataclass(header)
    carries = (spec.header, spec.response_header, spec.request_body, spec.response_body)
    assert spec.code not in UNUSED or carries == (None, None, None, None)


def test_every_header_class_is_used() -> None:
    inherited: set[Any] = {RpcHeader, TopicHeader}
    used = {spec.header for spec in ALL_REQUESTS.values()}
    used |= {spec.response_header for spec in ALL_REQUESTS.values()}

    assert {header for _, header in header_classes()} - inherited == used - {None}


def test_every_decoder_of_a_body_has_an_encoder() -> None:
    modules = [module for module in protocol_modules() if hasattr(module, "SPECS")]
    names = {name for module in modules for name in vars(module)}
    decoders = {name for name in names if name.startswith("decode_")}

    assert {name.replace("decode", "encode") for name in decoders} <= names


@pytest.mark.parametrize("spec", ALL_REQUESTS.values(), ids=lambda s: s.code.name)
@pytest.mark.parametrize("body", [b"\xff", b"{", b"[1]", b'{"a":{{}:1}}', b"null", b"7"])
def test_malformed_body_raises_only_protocol_errors(spec: RequestSpec, body: bytes) -> None:
    for codec in (spec.request_body, spec.response_body):
        if codec is not None:
            with only_raises(ProtocolError):
                codec.decode(body)


def test_a_text_body_is_utf_8() -> None:
    assert TEXT_CODEC.decode("gruppe-\u00fc".encode()) == "gruppe-\u00fc"
    with pytest.raises(MalformedBodyError, match="UTF-8"):
        TEXT_CODEC.decode(b"\xff")


def test_limits_of_bodies_decoded_on_the_loop_are_small() -> None:
    """Decoding time is proportional to the size: see `bench/largest_bodies.py`."""
    large = {spec.code for spec in ALL_REQUESTS.values() if spec.body_bytes_max > 256 * 1024}

    assert large == {
        # User-defined bodies, which are not decoded; the number of messages of a batch is limited.
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        # Sent by brokers to clients; brokers relay 309 unchanged.
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        # Decoded off the loop.
        RequestCode.REGISTER_BROKER,
    }
    assert all(0 < spec.body_bytes_max <= FRAME_SIZE_MAX for spec in ALL_REQUESTS.values())

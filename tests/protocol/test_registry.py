"""The table of requests is consistent in itself and covers what this version serves."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from kourou.protocol import (
    bodies,
    headers_admin,
    headers_consume,
    headers_route,
    headers_send,
    registry,
)
from kourou.protocol.codes import RequestCode
from kourou.protocol.registry import REQUESTS, RequestSpec

SOURCE = Path(registry.__file__).parents[1]


def test_what_is_served_and_asked_is_listed_and_nothing_else() -> None:
    tables = (SOURCE / "broker" / "handlers.py", SOURCE / "namesrv" / "handlers.py")
    served = {
        RequestCode[name]
        for table in tables
        for name in re.findall(r"RequestCode\.(\w+): ", table.read_text(encoding="utf-8"))
    }
    refused = {RequestCode.RECALL_MESSAGE}
    asked_by_brokers = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}

    assert len(served) > 30
    assert set(REQUESTS) == served - refused | asked_by_brokers


@pytest.mark.parametrize("spec", REQUESTS.values(), ids=lambda s: s.code.name)
def test_an_entry_is_found_by_its_code_and_names_header_classes(spec: RequestSpec) -> None:
    assert REQUESTS[spec.code] is spec
    assert RequestCode(spec.code) is spec.code
    for header in (spec.header, spec.response_header):
        assert header is None or dataclasses.is_dataclass(header)


def test_every_header_class_is_used() -> None:
    inherited = {headers_send.RpcHeader, headers_send.TopicHeader}
    defined = {
        member
        for module in (headers_send, headers_consume, headers_route, headers_admin)
        for _, member in inspect.getmembers(module, dataclasses.is_dataclass)
    }
    used = {spec.header for spec in REQUESTS.values()}
    used |= {spec.response_header for spec in REQUESTS.values()}

    assert defined - inherited == used - {None}


def test_every_body_that_is_decoded_can_be_encoded() -> None:
    names = set(bodies.__all__)
    decoders = {name for name in names if name.startswith("decode_")}

    assert {name.replace("decode", "encode") for name in decoders} <= names

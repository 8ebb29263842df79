"""The table of requests is consistent in itself and covers what this version serves."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from kourou.protocol import (
    bodies,
    headers_admin,
    headers_consume,
    headers_route,
    headers_send,
)
from kourou.protocol.codes import RequestCode
from kourou.protocol.registry import REQUESTS, RequestSpec

SERVED = [10, 11, 14, 15, 17, 21, 29, 30, 31, 32, 33, 34, 35, 36, 38, 40, 46]
SERVED += [103, 104, 105, 106, 200, 201, 202, 206, 207, 208, 215, 216, 224, 304, 310, 320, 322]
SERVED += [351, 352, 904]


def test_what_this_version_serves_is_listed() -> None:
    assert sorted(REQUESTS) == SERVED


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

"""Requests and responses are constructed from headers, and return their headers by class."""

from __future__ import annotations

import pytest

from kourou.errors import MalformedHeaderError
from kourou.protocol.codes import LanguageCode, RequestCode, ResponseCode
from kourou.protocol.command import REMARK_CHARS_MAX, request, response
from kourou.protocol.offsets import GetMaxOffsetResponseHeader
from kourou.protocol.routes import GetRouteInfoRequestHeader
from kourou.protocol.sending import SendMessageRequestHeaderV2


def test_request_contains_header_fields_as_texts() -> None:
    command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader("T"), b"body")

    assert command.ext_fields == {"topic": "T"}
    assert command.body == b"body"
    assert command.language is LanguageCode.PYTHON
    assert not command.is_response
    assert not command.is_oneway


def test_oneway_request_has_the_oneway_flag() -> None:
    command = request(RequestCode.HEART_BEAT, oneway=True)

    assert command.is_oneway
    assert not command.is_response
    assert command.ext_fields == {}


def test_response_has_opaque_and_serialization_of_its_request() -> None:
    command = request(RequestCode.GET_MAX_OFFSET)
    command.opaque = 77
    answer = response(command, header=GetMaxOffsetResponseHeader(5), body=b"b", remark="r")

    assert answer.is_response
    assert not answer.is_oneway
    assert (answer.opaque, answer.code, answer.remark) == (77, ResponseCode.SUCCESS, "r")
    assert answer.header(GetMaxOffsetResponseHeader) == GetMaxOffsetResponseHeader(5)
    assert response(command, ResponseCode.SYSTEM_ERROR).ext_fields == {}


def test_error_of_an_invalid_header_names_request_and_field() -> None:
    with pytest.raises(
        MalformedHeaderError, match=r"SEND_MESSAGE_V2 \(310\): field a \(producer_group\) is miss"
    ):
        request(RequestCode.SEND_MESSAGE_V2).header(SendMessageRequestHeaderV2)
    with pytest.raises(MalformedHeaderError, match=r"response 0: field offset \(offset\) is miss"):
        response(request(30)).header(GetMaxOffsetResponseHeader)


def test_long_remark_is_truncated() -> None:
    asked = request(RequestCode.GET_MAX_OFFSET)

    whole = response(asked, ResponseCode.SYSTEM_ERROR, "x" * REMARK_CHARS_MAX).remark
    cut = response(asked, ResponseCode.SYSTEM_ERROR, "x" * 100_000).remark

    assert whole == "x" * REMARK_CHARS_MAX
    assert cut is not None
    assert len(cut) == REMARK_CHARS_MAX
    assert cut.endswith("x... (100000 characters)")

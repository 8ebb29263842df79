"""Codes equal Java's, and common response codes have their own error classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kourou.errors import RemoteError
from kourou.protocol.codes import (
    VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
    language_of,
    request_name,
)

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
CODES = json.loads((VECTORS / "codes.json").read_text())


def test_codes_equal_javas() -> None:
    assert {code.name: code.value for code in RequestCode} == CODES["request"]
    assert {code.name: code.value for code in ResponseCode} == CODES["response"]
    assert {code.name: code.value for code in LanguageCode} == CODES["language"]
    assert CODES["current_version"] == VERSION


@pytest.mark.parametrize("language", LanguageCode)
def test_language_is_found_by_name_and_by_code(language: LanguageCode) -> None:
    assert language_of(language.name) is language
    assert language_of(language.value) is language


@pytest.mark.parametrize("value", ["KOUROU", "", 14, -1, 1 << 40])
def test_an_unknown_language_is_other(value: str | int) -> None:
    assert language_of(value) is LanguageCode.OTHER


def test_request_name_contains_name_and_code() -> None:
    assert request_name(310) == "SEND_MESSAGE_V2 (310)"
    assert request_name(4711) == "request 4711"


@pytest.mark.parametrize("code", [1, 2, 3, 10, 13, 14, 16, 17, 22, 23, 24, 25, 26, 29])
def test_common_response_code_has_its_own_error_class(code: int) -> None:
    assert type(RemoteError.from_response(code, "")) is not RemoteError

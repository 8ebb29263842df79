"""The code tables are Java's, and every answer's code has an error or needs none."""

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


def test_all_codes_are_those_of_java() -> None:
    assert {code.name: code.value for code in RequestCode} == CODES["request"]
    assert {code.name: code.value for code in ResponseCode} == CODES["response"]
    assert {code.name: code.value for code in LanguageCode} == CODES["language"]
    assert CODES["current_version"] == VERSION


@pytest.mark.parametrize("language", LanguageCode)
def test_a_language_is_known_by_name_and_by_code(language: LanguageCode) -> None:
    assert language_of(language.name) is language
    assert language_of(language.value) is language


@pytest.mark.parametrize("value", ["KOUROU", "", 14, -1, 1 << 40])
def test_an_unknown_language_is_other(value: str | int) -> None:
    assert language_of(value) is LanguageCode.OTHER


def test_a_request_is_named_for_people() -> None:
    assert request_name(310) == "SEND_MESSAGE_V2 (310)"
    assert request_name(4711) == "request 4711"


@pytest.mark.parametrize("code", [1, 2, 3, 10, 13, 14, 16, 17, 22, 23, 24, 25, 26, 29])
def test_a_common_refusal_has_an_error_of_its_own(code: int) -> None:
    assert type(RemoteError.from_response(code, "")) is not RemoteError

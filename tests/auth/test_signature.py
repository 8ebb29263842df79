"""Requests are signed as RocketMQ's Java client signs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kourou.auth.credentials import Credentials
from kourou.auth.signature import sign, signature
from tests.golden_exchanges import recorded

VECTORS = Path(__file__).parents[1] / "golden" / "vectors" / "acl.json"
CASES = json.loads(VECTORS.read_text())["cases"]
ALICE = Credentials("alice", "12345")


def body_of(case: dict[str, Any]) -> bytes:
    return bytes.fromhex(case["body_hex"] or "")


@pytest.mark.parametrize("case", CASES, ids=lambda one: f"{one['name']}-{one['token']}")
def test_signature_equals_that_of_javas_client(case: dict[str, Any]) -> None:
    fields = dict(case["fields"])
    token = case["fields_sent"].get("SecurityToken")
    credentials = Credentials(case["fields_sent"]["AccessKey"], case["secret"], token)

    sign(fields, body_of(case), credentials)

    assert fields == case["fields_sent"]
    assert case["signature"] == fields["Signature"]


def test_signature_equals_one_verified_by_a_broker() -> None:
    fields = {"topic": "T", "b": "x"}
    sign(fields, b"hi", ALICE)
    assert fields["Signature"] == "7rkL3IeBMlXbzJiZ+lhLK3HJrVI="


@pytest.mark.parametrize("name", ["send-signed", "send-signed-with-token"])
def test_signature_equals_that_of_a_recorded_request(name: str) -> None:
    command = recorded(f"310_SEND_MESSAGE_V2_{name}", "request")
    assert (
        signature(command.ext_fields, command.body, "goldenSecret12")
        == (command.ext_fields["Signature"])
    )


def test_signing_again_replaces_an_earlier_signature_and_token() -> None:
    once, twice = {"topic": "T"}, {"topic": "T"}
    sign(once, b"hi", ALICE)
    sign(twice, b"hi", Credentials("bob", "secret", "token"))
    sign(twice, b"hi", ALICE)
    assert twice == once


def test_field_names_are_sorted_by_utf_16_code_units() -> None:
    """U+FFFD is behind U+1F600 in Java, whose surrogates begin at U+D800."""
    fields = {"\ufffd": "1", "\U0001f600": "2", "a": "3"}
    ordered = {"a": "3", "b": "2", "c": "1"}
    assert signature(fields, b"", "k") == signature(ordered, b"", "k")

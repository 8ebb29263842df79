"""Recall handles have the text of Java's."""

from __future__ import annotations

import pytest

from kourou.errors import UsageError
from kourou.model.recall_handle import RecallHandle, decode_recall_handle
from tests.protocol.popping.vectors import VECTORS

CASES = VECTORS["recall_handles"]


@pytest.mark.parametrize("case", [case for case in CASES if "handle" in case])
def test_handle_is_written_and_read_as_by_java(case: dict[str, str]) -> None:
    handle = RecallHandle(case["topic"], case["broker"], case["timestamp"], case["message_id"])

    assert handle.encode() == case["handle"]
    assert decode_recall_handle(case["handle"]) == handle


@pytest.mark.parametrize("case", [case for case in CASES if "without_padding" in case])
def test_handle_without_padding_is_read(case: dict[str, dict[str, str] | str]) -> None:
    decoded = case["decoded"]
    assert isinstance(decoded, dict)
    handle = decode_recall_handle(str(case["without_padding"]))

    assert handle == (
        decoded["topic"],
        decoded["brokerName"],
        decoded["timestampStr"],
        decoded["messageId"],
    )


@pytest.mark.parametrize("case", [case for case in CASES if "bad_handle" in case])
def test_malformed_handle_is_refused_as_by_java(case: dict[str, dict[str, str] | str]) -> None:
    result = case["result"]
    assert isinstance(result, dict)
    if "error" in result:
        with pytest.raises(UsageError, match="recall handle is invalid"):
            decode_recall_handle(str(case["bad_handle"]))
    else:
        assert decode_recall_handle(str(case["bad_handle"])).topic == result["topic"]

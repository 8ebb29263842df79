"""Traces are encoded as by Java's clients and decoded as by Java's tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedBodyError
from kourou.protocol.trace_text import (
    ConsumedTrace,
    ConsumingTrace,
    RecallTrace,
    SentTrace,
    TracedKind,
    TracedOutcome,
    TraceRecord,
    TransactionEndTrace,
    decode_traces,
    encode_trace,
)

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
CASES = json.loads((VECTORS / "trace.json").read_text())["cases"]
MESSAGE: dict[str, Any] = {
    "at_ms": 1_700_000_000_000,
    "region": "DefaultRegion",
    "group": "golden_group",
    "topic": "GoldenTopic",
    "msg_id": "MSG0001",
}
OF_JAVA: dict[str, Callable[[bool], TraceRecord]] = {
    "Pub": lambda ok: SentTrace(
        **MESSAGE,
        tags="TagA",
        keys="k1 k2",
        store_host="10.0.0.1:10911",
        body_bytes=5,
        cost_ms=12,
        offset_msg_id="7F00000100002A9F0000000000000003",
        is_success=ok,
    ),
    "Recall": lambda ok: RecallTrace(**MESSAGE, is_success=ok),
    "SubBefore": lambda _: ConsumingTrace(
        at_ms=MESSAGE["at_ms"],
        region="DefaultRegion",
        group="golden_group",
        request_id="REQ0001",
        msg_id="MSG0001",
        retries=2,
        keys="k1 k2",
    ),
    "SubAfter": lambda ok: ConsumedTrace(
        request_id="REQ0001",
        msg_id="MSG0001",
        cost_ms=12,
        is_success=ok,
        keys="k1 k2",
        outcome=TracedOutcome.RETURNED_NOTHING,
        at_ms=MESSAGE["at_ms"],
        group="golden_group",
    ),
    "EndTransaction": lambda _: TransactionEndTrace(
        **MESSAGE,
        tags="TagA",
        keys="k1 k2",
        store_host="10.0.0.1:10911",
        kind=TracedKind.NORMAL,
        transaction_id="TX1",
        state="COMMIT_MESSAGE",
        is_from_check=True,
    ),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['type']}-{case['success']}")
def test_trace_records_are_encoded_and_decoded_as_in_java(case: dict[str, Any]) -> None:
    text = case["result"]["data"]
    record = OF_JAVA[case["type"]](case["success"])
    assert encode_trace(record) == text
    assert decode_traces(text.encode()) == [record]


def test_all_records_of_a_message_are_decoded() -> None:
    text = "".join(case["result"]["data"] for case in CASES)
    assert len(decode_traces(text.encode())) == len(CASES)


def pub(*rest: str) -> bytes:
    first = ("Pub", "1", "r", "g", "t", "id", "null", "", "h:1", "5", "3", "3")
    return "\1".join((*first, *rest)).encode()


def test_older_and_longer_records_of_sends_are_decoded() -> None:
    twelve, thirteen, fifteen = (
        decode_traces(pub(*rest))[0] for rest in ((), ("false",), ("oid", "true", "10.0.0.7"))
    )
    assert isinstance(twelve, SentTrace)
    assert (twelve.offset_msg_id, twelve.is_success, twelve.keys) == (None, True, None)
    assert twelve.kind is TracedKind.DELAY
    assert isinstance(thirteen, SentTrace)
    assert (thirteen.offset_msg_id, thirteen.is_success) == (None, False)
    assert isinstance(fifteen, SentTrace)
    assert (fifteen.offset_msg_id, fifteen.client_host) == ("oid", "10.0.0.7")


def test_fields_that_cloud_clients_omit_are_optional() -> None:
    short, shorter = decode_traces(
        b"SubAfter\1req\1id\x013\1true\1k\x014\1\2SubAfter\1req\1id\x013\1true\1k\2"
    )
    assert isinstance(short, ConsumedTrace)
    assert (short.outcome, short.at_ms, short.group) == (TracedOutcome.FAILED, None, None)
    assert isinstance(shorter, ConsumedTrace)
    assert shorter.outcome is None


def test_unknown_records_are_omitted() -> None:
    assert decode_traces(b"Later\1x\2\2" + pub()) == decode_traces(pub())
    assert decode_traces(b"") == []


@pytest.mark.parametrize(
    "body",
    [
        b"Pub\x011",
        pub().replace(b"\x015\x01", b"\1five\1"),
        pub().replace(b"h:1\x015\x013\x013", b"h:1\x015\x013\x019"),
        b"Recall\1now\1r\1g\1t\1id\1true",
        b"SubAfter\1r\1i\x011\1true\1k\x01-\2",
    ],
)
def test_malformed_trace_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        decode_traces(body)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\1\2"), min_size=1).filter(
    lambda text: text != "null"
)
MAYBE = st.none() | WORDS
NUMBERS = st.integers(-(10**17), 10**17)


@st.composite
def records(draw: st.DrawFn) -> TraceRecord:
    fields: dict[str, Any] = {
        "at_ms": draw(NUMBERS),
        "region": draw(MAYBE),
        "group": draw(MAYBE),
        "msg_id": draw(MAYBE),
    }
    topic = draw(MAYBE)
    message: dict[str, Any] = {"tags": draw(MAYBE), "keys": draw(MAYBE), "store_host": draw(MAYBE)}
    ok = draw(st.booleans())
    kind = draw(st.sampled_from(TracedKind))
    any_of: list[TraceRecord] = [
        SentTrace(
            **fields,
            **message,
            topic=topic,
            body_bytes=draw(NUMBERS),
            cost_ms=draw(NUMBERS),
            kind=kind,
            offset_msg_id=draw(MAYBE),
            is_success=ok,
            client_host=draw(MAYBE),
        ),
        ConsumingTrace(**fields, request_id=draw(MAYBE), retries=draw(NUMBERS), keys=draw(MAYBE)),
        ConsumedTrace(
            request_id=draw(MAYBE),
            msg_id=fields["msg_id"],
            cost_ms=draw(NUMBERS),
            is_success=ok,
            keys=draw(MAYBE),
            outcome=draw(st.none() | st.sampled_from(TracedOutcome)),
            at_ms=draw(st.none() | NUMBERS),
            group=draw(MAYBE),
        ),
        TransactionEndTrace(
            **fields,
            **message,
            topic=topic,
            kind=kind,
            transaction_id=draw(MAYBE),
            state=draw(MAYBE),
            is_from_check=ok,
        ),
        RecallTrace(**fields, topic=topic, is_success=ok),
    ]
    return draw(st.sampled_from(any_of))


@given(st.lists(records(), max_size=5))
def test_encoded_values_decode_to_the_same(written: list[TraceRecord]) -> None:
    text = "".join(map(encode_trace, written))
    assert decode_traces(text.encode()) == written


@given(st.text())
def test_separators_in_values_are_replaced(value: str) -> None:
    value = value.encode(errors="replace").decode()
    written = SentTrace(**MESSAGE, tags=value, keys=value)
    (read,) = decode_traces(encode_trace(written).encode())
    assert isinstance(read, SentTrace)
    assert (read.topic, read.offset_msg_id, read.is_success) == ("GoldenTopic", None, True)

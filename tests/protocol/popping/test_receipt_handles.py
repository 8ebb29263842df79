"""Receipt handles are read as by Java's broker and proxy, and written like Java's."""

from __future__ import annotations

import pytest

from kourou.errors import MalformedHeaderError
from kourou.protocol.codes import RequestCode
from kourou.protocol.popping.headers import PopMessageResponseHeader
from kourou.protocol.popping.info_strings import parse_offsets, parse_start_offsets
from kourou.protocol.popping.receipt_handles import ReceiptHandle, decode_receipt_handle
from kourou.protocol.record.decode import decode_messages
from tests.golden_exchanges import exchanges
from tests.protocol.popping.vectors import VECTORS

TOPIC, GROUP = "GoldenTopic", "golden_group"
COMPLETE = [case for case in VECTORS["cases"] if "is_order" in case]
OF_PROXIES = [case for case in VECTORS["receipt_handles"] if "real_topic" in case]


@pytest.mark.parametrize("case", COMPLETE, ids=lambda case: case["extra_info"])
def test_extra_info_has_the_fields_that_java_reads(case: dict[str, object]) -> None:
    text = str(case["extra_info"])
    handle = decode_receipt_handle(text)

    assert handle == ReceiptHandle(
        100, 1700000000000, 60000, handle.revive_queue, handle.kind, "broker-a", 3, handle.offset
    )
    assert handle.revive_queue == case["revive_queue"]
    assert handle.kind == case["retry"]
    assert handle.offset == case["offset"]
    assert handle.is_ordered is case["is_order"]
    assert handle.real_topic(TOPIC, GROUP) == case["real_topic"]
    assert handle.encode() == text


@pytest.mark.parametrize("case", OF_PROXIES, ids=lambda case: case["handle"])
def test_handle_of_a_proxy_has_a_commit_log_offset(case: dict[str, object]) -> None:
    handle = decode_receipt_handle(str(case["handle"]))

    assert handle.commit_log_offset == case["commit_log_offset"]
    assert handle.revive_at_ms == case["next_visible_time"]
    assert handle.is_retry is case["is_retry"]
    assert handle.real_topic(TOPIC, GROUP) == case["real_topic"]
    assert handle.encode() == case["handle"]


def test_handle_without_offset_is_accepted() -> None:
    [text] = [case["without_message_offset"] for case in VECTORS["cases"] if len(case) == 1]
    handle = decode_receipt_handle(text)

    assert handle.offset is None
    assert handle.encode() == text


def test_further_words_and_signs_are_accepted() -> None:
    handle = decode_receipt_handle("100 1700000000000 60000 2 0 broker-a 3 +105 123 9")

    assert (handle.offset, handle.commit_log_offset) == (105, 123)
    assert decode_receipt_handle("-1 1 2 3 0  4 5").broker_name == ""
    assert decode_receipt_handle(f"{2**63 - 1} 1 2 3 0 b 4 5").start_offset == 2**63 - 1


REFUSED = [
    *(case["bad_extra_info"] for case in VECTORS["cases"] if "bad_extra_info" in case),
    *("1 2 3 4 5 6 x", "1 2 3 4 5 6 7 1_0", "1 2 3 4 5 6 7 \u0663", "1  2 3 4 5 6 7 8"),
    *(f"{2**63} 2 3 4 5 6 7 8", "1 2 3 2147483648 5 6 7 8", f"1 2 3 4 5 6 7 8 {2**63}"),
]


@pytest.mark.parametrize("text", [text for text in REFUSED if text != "1 2 3 4 5 6 7"])
def test_malformed_handle_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(MalformedHeaderError, match=r"receipt handle is invalid: .*POP_CK") as error:
        decode_receipt_handle(text)

    assert repr(text[:80]) in str(error.value)


def test_handles_that_java_clients_sent_are_read_and_written_unchanged() -> None:
    sent = [
        exchange.request.header["extFields"]["extraInfo"]
        for exchange in exchanges().values()
        if "extraInfo" in exchange.request.header.get("extFields", {})
    ]
    malformed = [text for text in sent if text.count(" ") < 7]

    assert malformed == ["1 2 3"]
    assert len(sent) > 25
    for text in sent:
        if text not in malformed:
            assert decode_receipt_handle(text).encode() == text


def test_handles_in_recorded_messages_agree_with_the_header_of_the_pop() -> None:
    kinds = set()
    for exchange in exchanges().values():
        if exchange.code != RequestCode.POP_MESSAGE or exchange.response is None:
            continue
        for message in decode_messages(exchange.response.command.body):
            text = message.properties.get("POP_CK")
            if text is None:
                continue
            handle = decode_receipt_handle(text)
            header = exchange.response.command.header(PopMessageResponseHeader)
            key = handle.kind, str(handle.queue_id)
            kinds.add(handle.kind)
            assert handle[1:4] == (header.pop_time, header.invisible_time, header.revive_qid)
            assert handle.broker_name == "broker-a"
            assert handle.start_offset == parse_start_offsets(header.start_offset_info or "")[key]
            assert handle.offset in parse_offsets(header.msg_offset_info or "")[key]
    assert "1" in kinds

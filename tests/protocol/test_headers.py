"""Every header class has Java's members, of Java's types, under Java's names."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from kourou.errors import MalformedHeaderError
from kourou.protocol import headers_admin, headers_consume, headers_route, headers_send
from kourou.protocol.fields import encode_fields
from kourou.protocol.frame import decode_frame
from kourou.protocol.headers_send import SendMessageRequestHeader, SendMessageRequestHeaderV2

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
CASES = json.loads((VECTORS / "remoting_headers.json").read_text())["cases"]
CLASSES: dict[str, Any] = {
    # Java writes one class with a capital inside a word.
    name.replace("UnregisterBroker", "UnRegisterBroker"): member
    for module in (headers_send, headers_consume, headers_route, headers_admin)
    for name, member in inspect.getmembers(module, dataclasses.is_dataclass)
}
SHORT_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["filled"]], ids=lambda c: c["header"]
)
def test_a_full_header_of_java_is_read_and_written_with_all_its_fields(
    case: dict[str, Any],
) -> None:
    command = decode_frame(bytes.fromhex(case["json_hex"])[4:])
    assert command.ext_fields == case["fields"]

    assert encode_fields(command.header(CLASSES[case["header"]])) == case["fields"]


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case["filled"]], ids=lambda c: c["header"]
)
def test_an_empty_header_of_java_is_read_or_names_what_it_lacks(case: dict[str, Any]) -> None:
    command = decode_frame(bytes.fromhex(case["json_hex"])[4:])
    header_class = CLASSES[case["header"]]
    required = [
        field for field in dataclasses.fields(header_class) if field.default is dataclasses.MISSING
    ]
    written = {field.metadata.get("wire", camel_case(field.name)) for field in required}
    if written <= command.ext_fields.keys():
        header = command.header(header_class)
        assert encode_fields(header).items() >= command.ext_fields.items()
    else:
        with pytest.raises(MalformedHeaderError, match="is missing"):
            command.header(header_class)


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def test_the_short_names_stand_for_the_long_ones() -> None:
    values = ("g", "T", "TBW102", 4, 1, 2, 3, 5)
    optional: dict[str, Any] = {
        "properties": "k\x01v\x02",
        "reconsume_times": 6,
        "unit_mode": True,
        "batch": True,
        "max_reconsume_times": 7,
        "broker_name": "b",
    }
    long = encode_fields(SendMessageRequestHeader(*values, **optional))
    short = encode_fields(SendMessageRequestHeaderV2(*values, **optional))

    assert short == {SHORT_NAMES[name]: text for name, text in long.items()}

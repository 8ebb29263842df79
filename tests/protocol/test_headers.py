"""Header classes have Java's members, types and names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import pytest

from kourou.errors import MalformedHeaderError
from kourou.protocol.command import RemotingCommand
from kourou.protocol.fields import Int, Long, camel_case, encode_fields
from kourou.protocol.frame import decode_frame
from kourou.protocol.sending import SendMessageRequestHeader, SendMessageRequestHeaderV2
from tests.protocol_modules import header_classes

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
# Headers that no request uses or that have no member; they need no class.
WITHOUT_CLASS: Final = {
    "CheckTransactionStateResponseHeader",
    "EndTransactionResponseHeader",
    "GetConsumerListByGroupResponseHeader",
    "InitConsumerOffsetRequestHeader",
    "RegisterOrderTopicRequestHeader",
    "StatisticsMessagesRequestHeader",
    "UnregisterClientResponseHeader",
    "UpdateConsumerOffsetResponseHeader",
    "ViewMessageResponseHeader",
}
ALL_CASES = json.loads((VECTORS / "remoting_headers.json").read_text())["cases"]
CASES = [case for case in ALL_CASES if case["header"] not in WITHOUT_CLASS]
CLASSES: dict[str, Any] = {
    # Java spells one class with a capital letter within a word.
    name.replace("UnregisterBroker", "UnRegisterBroker"): member
    for name, member in header_classes()
}
# Members that Java adds to the map outside of its class; here they belong to the class.
BESIDE: Final = {
    "MSG_REGION", "TRACE_ON", "_UNIQUE_KEY_QUERY", "kourouUnclean", "kourouUncleanEpoch",
    "kourouFailsafeEpoch", "kourouFailsafeMember", "kourouFailsafeMs", "kourouRoleEpoch",
    "kourouRoleMaster",
}  # fmt: skip
TYPES: Final[dict[Any, set[str]]] = {
    Int: {"int", "Integer"},
    Long: {"long", "Long"},
    bool: {"boolean", "Boolean"},
    str: {"String", "BoundaryType"},
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


def header_of(case: dict[str, Any], form: str) -> RemotingCommand:
    return decode_frame(bytes.fromhex(case[form])[4:])


@pytest.mark.parametrize("form", ["json_hex", "binary_hex"])
@pytest.mark.parametrize(
    "case", [case for case in CASES if case["filled"]], ids=lambda c: c["header"]
)
def test_full_header_of_java_is_decoded_and_encoded_unchanged(
    case: dict[str, Any], form: str
) -> None:
    command = header_of(case, form)
    assert command.ext_fields == case["fields"]

    assert encode_fields(command.header(CLASSES[case["header"]])) == case["fields"]


@pytest.mark.parametrize("form", ["json_hex", "binary_hex"])
@pytest.mark.parametrize(
    "case", [case for case in CASES if not case["filled"]], ids=lambda c: c["header"]
)
def test_empty_header_of_java_is_decoded_or_the_missing_field_is_named(
    case: dict[str, Any], form: str
) -> None:
    command = header_of(case, form)
    header_class = CLASSES[case["header"]]
    required = [
        field for field in dataclasses.fields(header_class) if field.default is dataclasses.MISSING
    ]
    if {wire_name(field) for field in required} <= command.ext_fields.keys():
        header = command.header(header_class)
        assert encode_fields(header).items() >= command.ext_fields.items()
    else:
        with pytest.raises(MalformedHeaderError, match="is missing"):
            command.header(header_class)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["filled"]], ids=lambda c: c["header"]
)
def test_members_have_javas_types(case: dict[str, Any]) -> None:
    header_class = CLASSES[case["header"]]
    hints = get_type_hints(header_class, include_extras=True)
    for field in dataclasses.fields(header_class):
        hint = hints[field.name]
        kind = hint if hint in TYPES else get_args(hint)[0]
        if wire_name(field) not in BESIDE:
            assert case["types"][wire_name(field)] in TYPES[kind], field.name


def test_every_header_of_a_request_in_java_has_a_class() -> None:
    names = {case["header"] for case in ALL_CASES}

    assert names - CLASSES.keys() == WITHOUT_CLASS


def wire_name(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("wire", camel_case(field.name)))


def test_short_names_stand_for_the_long_ones() -> None:
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

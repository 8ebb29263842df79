"""The proxy answers the calls of a recorded session as RocketMQ's proxy does."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kourou.http2.grpc_messages import GrpcStatus
from kourou.proxy.pb.v2 import Code
from tests.proxy.grpc_client import METHODS
from tests.proxy.recorded_session import names, recorded, replayed

_VOLATILE: Final = frozenset(
    ("delivery_timestamp", "offset", "receipt_handle", "recall_handle", "store_host",
     "store_timestamp", "born_timestamp"),
)  # fmt: skip
"""Fields whose values differ in every session."""

_JAVA_STACK: Final = "RocketMQ's text is an exception of Java with a line of its source"
_REMEDY: Final = "our text names the value and the remedy"
_UNKNOWN_TOPIC: Final = "our text names the name servers and the remedy"
OTHER_TEXTS: Final = {
    "AckMessage_bad_handle": _JAVA_STACK,
    "AckMessage_bad_handle_eight_words": _JAVA_STACK,
    "AckMessage_empty_handle": _JAVA_STACK,
    "ChangeInvisibleDuration_bad_handle": _JAVA_STACK,
    "EndTransaction_unknown_transaction_id": _REMEDY,
    "ForwardMessageToDeadLetterQueue_bad_handle": _JAVA_STACK,
    "QueryAssignment_unknown_topic": _UNKNOWN_TOPIC,
    "QueryRoute_unknown_topic": _UNKNOWN_TOPIC,
    "RecallMessage_bad_handle": _REMEDY,
    "RecallMessage_empty_handle": _REMEDY,
    "ReceiveMessage_lite": _JAVA_STACK,
    "ReceiveMessage_no_deadline": _JAVA_STACK,
    "ReceiveMessage_no_settings": _JAVA_STACK,
}
"""Calls whose codes are as recorded, and whose texts are not: the reason."""

_NO_TOPIC: Final = "an unknown topic is reported as such, not as an internal error"
_NO_LITE: Final = "lite topics are refused; RocketMQ accepts them, and cannot deliver them here"
OTHER_CODES: Final[dict[str, tuple[list[list[int]], str]]] = {
    "AckMessage_unknown_topic": ([[Code.TOPIC_NOT_FOUND] * 2], _NO_TOPIC),
    "ForwardMessageToDeadLetterQueue_unknown_topic": ([[Code.TOPIC_NOT_FOUND]], _NO_TOPIC),
    "Heartbeat_lite_push_consumer": ([[Code.UNRECOGNIZED_CLIENT_TYPE]], _NO_LITE),
    "ReceiveMessage_unknown_topic": ([[Code.TOPIC_NOT_FOUND], []], _NO_TOPIC),
    **{
        f"SendMessage_{case}": ([[Code.INTERNAL_SERVER_ERROR]], _NO_LITE)
        for case in ("lite", "lite_0", "lite_1", "lite_2")
    },
}
"""Calls whose codes are not as recorded: ours, and the reason."""

_NO_SYNC: Final = "the method fails in every call of the recording"
OTHER_GRPC_STATUSES: Final = {
    "Telemetry_consumer_settings_unknown_group": (
        GrpcStatus.OK, "a consumer creates its group (autoCreateSubscriptionGroup)",
    ),
    "Telemetry_lite_push_consumer_session": (GrpcStatus.INTERNAL, _NO_LITE),
    **{
        name: (GrpcStatus.UNIMPLEMENTED, _NO_SYNC)
        for name in names()
        if name.startswith("SyncLiteSubscription")
    },
}  # fmt: skip
"""Calls that end with another status of gRPC: ours, and the reason."""

OTHER_FIELDS: Final = {
    "SendMessage_batch_of_two": "the id of a batch is that of its first message",
    "QueryRoute_domain_endpoints": "endpoints are those by which the client reached the proxy",
    "Telemetry_transaction_session": "queues of sends are chosen at random",
}
"""Calls whose statuses are as recorded, and other fields are not: the reason."""
_OTHER: Final = OTHER_TEXTS.keys() | OTHER_CODES.keys() | OTHER_GRPC_STATUSES.keys()


def expected(name: str) -> list[Any]:
    """Return the recorded answers."""
    response = METHODS[recorded(name).rpc].response
    return [response.FromString(data) for data in recorded(name).responses]


def codes(messages: list[Any]) -> list[list[int]]:
    """Return the code of each answer, and of its entries."""
    return [
        [
            holder.status.code
            for holder in (message, *getattr(message, "entries", ()))
            if holder.HasField("status")
        ]
        for message in messages
    ]


def stable(message: Any) -> Any:
    """Return the fields of a message that are the same in every session."""
    if not hasattr(message, "ListFields"):
        return message
    values = {field.name: value for field, value in message.ListFields()}
    return {
        name: dict(value)
        if hasattr(value, "items")
        else [stable(one) for one in value]
        if hasattr(value, "append")
        else stable(value)
        for name, value in values.items()
        if name not in _VOLATILE
    }


@pytest.mark.parametrize(
    "name", [name for name in names() if name not in _OTHER | OTHER_FIELDS.keys()]
)
def test_answer_is_as_recorded(name: str) -> None:
    outcome, recording = replayed()[name], recorded(name)
    assert outcome.status is not None
    assert outcome.status.name == recording.grpc_status
    assert outcome.text == (recording.grpc_details or "")
    assert list(map(stable, outcome.answers)) == list(map(stable, expected(name)))


@pytest.mark.parametrize("name", sorted(OTHER_TEXTS.keys() | OTHER_FIELDS.keys()))
def test_codes_are_as_recorded_where_texts_differ(name: str) -> None:
    outcome = replayed()[name]
    assert codes(outcome.answers) == codes(expected(name))
    assert list(map(stable, outcome.answers)) != list(map(stable, expected(name)))


@pytest.mark.parametrize("name", OTHER_CODES)
def test_codes_differ_as_intended(name: str) -> None:
    ours, reason = OTHER_CODES[name]
    assert codes(replayed()[name].answers) == ours != codes(expected(name)), reason


@pytest.mark.parametrize("name", OTHER_GRPC_STATUSES)
def test_calls_end_otherwise_as_intended(name: str) -> None:
    ours, reason = OTHER_GRPC_STATUSES[name]
    assert replayed()[name].status is ours, reason
    assert ours.name != recorded(name).grpc_status

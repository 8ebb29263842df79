"""The proxy answers the calls of a recorded session as RocketMQ's proxy does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest

from kourou.http2.grpc_messages import GrpcStatus
from kourou.proxy.pb.v2 import Code
from tests.proxy.grpc_client import METHODS
from tests.proxy.proxy_rig import Mode
from tests.proxy.recorded_session import names, recorded, replayed

ANY_ORDER: Final = frozenset(("ReceiveMessage_redelivered_after_expiry",))
"""Receives of messages that were revived by several revive queues, in any order."""
_VOLATILE: Final = frozenset(
    ("delivery_timestamp", "offset", "receipt_handle", "recall_handle", "store_host",
     "store_timestamp", "born_timestamp"),
)  # fmt: skip
"""Fields whose values differ in every session."""

_LITE_CALLS: Final = (
    "complete_add", "complete_add_again", "complete_remove", "partial_add", "partial_remove",
)  # fmt: skip
_JAVA_STACK: Final = "RocketMQ's text is an exception of Java with a line of its source"
_REMEDY: Final = "our text names the value and the remedy"
_UNKNOWN_TOPIC: Final = "our text names the name servers and the remedy"
_TEXTS: Final = {
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
    "ReceiveMessage_no_deadline": _JAVA_STACK,
    "ReceiveMessage_no_settings": _JAVA_STACK,
    "SendMessage_transaction_to_normal_topic": _REMEDY,
    "SendMessage_type_mismatch_delay_to_normal": _REMEDY,
    "SendMessage_type_mismatch_fifo_to_normal": _REMEDY,
    "SendMessage_type_mismatch_normal_to_fifo": _REMEDY,
    "SendMessage_unknown_topic_auto_create_on": _REMEDY,
}
OTHER_TEXTS: Final = {
    Mode.LOCAL: {
        **_TEXTS,
        "ReceiveMessage_lite": _JAVA_STACK,
        **{f"SyncLiteSubscription_{case}": _JAVA_STACK for case in _LITE_CALLS},
    },
    Mode.CLUSTER: {**_TEXTS, "ReceiveMessage_unknown_topic": _UNKNOWN_TOPIC},
}
"""Calls whose codes are as recorded, and whose texts are not: the reason."""

_NO_TOPIC: Final = "an unknown topic is reported as such, not as an internal error"
_NO_LITE: Final = "lite topics are refused until the broker has them"
_CODES: Final[dict[str, tuple[list[list[int]], str]]] = {
    "AckMessage_unknown_topic": ([[Code.TOPIC_NOT_FOUND] * 2], _NO_TOPIC),
    "ForwardMessageToDeadLetterQueue_unknown_topic": ([[Code.TOPIC_NOT_FOUND]], _NO_TOPIC),
    "Heartbeat_lite_push_consumer": ([[Code.UNRECOGNIZED_CLIENT_TYPE]], _NO_LITE),
    **{
        f"SendMessage_{case}": ([[Code.INTERNAL_SERVER_ERROR]], _NO_LITE)
        for case in ("lite", "lite_0", "lite_1", "lite_2")
    },
    "SyncLiteSubscription_no_lite_settings": ([[Code.INTERNAL_SERVER_ERROR]], _NO_LITE),
}
OTHER_CODES: Final[dict[Mode, dict[str, tuple[list[list[int]], str]]]] = {
    Mode.LOCAL: {
        **_CODES,
        "ReceiveMessage_unknown_topic": ([[Code.TOPIC_NOT_FOUND], []], _NO_TOPIC),
    },
    Mode.CLUSTER: {
        **_CODES,
        "ReceiveMessage_lite": ([[Code.INTERNAL_SERVER_ERROR], []], _NO_LITE),
        **{
            f"SyncLiteSubscription_{case}": ([[Code.INTERNAL_SERVER_ERROR]], _NO_LITE)
            for case in _LITE_CALLS
        },
    },
}
"""Calls whose codes are not as recorded: ours, and the reason."""


_NO_SESSION: Final = {"Telemetry_lite_push_consumer_session": (GrpcStatus.INTERNAL, _NO_LITE)}
OTHER_GRPC_STATUSES: Final = {
    Mode.LOCAL: {
        **_NO_SESSION,
        "Telemetry_consumer_settings_unknown_group": (
            GrpcStatus.OK, "a consumer creates its group (autoCreateSubscriptionGroup)",
        ),
    },
    Mode.CLUSTER: _NO_SESSION,
}  # fmt: skip
"""Calls that end with another status of gRPC: ours, and the reason."""

_FIELDS: Final = {
    "SendMessage_batch_of_two": "the id of a batch is that of its first message",
    "QueryRoute_domain_endpoints": "endpoints are those by which the client reached the proxy",
    "Telemetry_transaction_session": "queues of sends are chosen at random",
}
_REACHED: Final = "a request without endpoints gets the address that it came to, not none"
OTHER_FIELDS: Final = {
    Mode.LOCAL: _FIELDS,
    Mode.CLUSTER: {
        **_FIELDS,
        "QueryRoute_no_endpoints": _REACHED,
        "QueryRoute_empty_endpoints": _REACHED,
    },
}
"""Calls whose statuses are as recorded, and other fields are not: the reason."""


def _cases(chosen: Callable[[Mode], Iterable[str]]) -> list[Any]:
    """Return a test's parameters: each mode, and the names that are chosen in it."""
    return [
        pytest.param(mode, name, id=f"{mode.value}-{name}")
        for mode in Mode
        for name in sorted(chosen(mode))
    ]


def _others(mode: Mode) -> set[str]:
    return {*OTHER_TEXTS[mode], *OTHER_CODES[mode], *OTHER_GRPC_STATUSES[mode]}


def expected(mode: Mode, name: str) -> list[Any]:
    """Return the recorded answers."""
    recording = recorded(mode, name)
    response = METHODS[recording.rpc].response
    return [response.FromString(data) for data in recording.responses]


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


def in_queue_order(answers: list[Any]) -> list[Any]:
    """Return the answers of a receive with its messages in the order of their queue offsets."""
    return sorted(answers, key=lambda one: one.message.system_properties.queue_offset)


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
    ("mode", "name"),
    _cases(lambda mode: set(names(mode)) - _others(mode) - OTHER_FIELDS[mode].keys()),
)
def test_answer_is_as_recorded(mode: Mode, name: str) -> None:
    outcome, recording = replayed(mode)[name], recorded(mode, name)
    assert outcome.status is not None
    assert outcome.status.name == recording.grpc_status
    assert outcome.text == (recording.grpc_details or "")
    answers, wanted = outcome.answers, expected(mode, name)
    if name in ANY_ORDER:
        answers, wanted = in_queue_order(answers), in_queue_order(wanted)
    assert list(map(stable, answers)) == list(map(stable, wanted))


@pytest.mark.parametrize(
    ("mode", "name"), _cases(lambda mode: OTHER_TEXTS[mode].keys() | OTHER_FIELDS[mode].keys())
)
def test_codes_are_as_recorded_where_texts_differ(mode: Mode, name: str) -> None:
    answers = replayed(mode)[name].answers
    assert codes(answers) == codes(expected(mode, name))
    assert list(map(stable, answers)) != list(map(stable, expected(mode, name)))


@pytest.mark.parametrize(("mode", "name"), _cases(OTHER_CODES.__getitem__))
def test_codes_differ_as_intended(mode: Mode, name: str) -> None:
    ours, reason = OTHER_CODES[mode][name]
    assert codes(replayed(mode)[name].answers) == ours != codes(expected(mode, name)), reason


@pytest.mark.parametrize(("mode", "name"), _cases(OTHER_GRPC_STATUSES.__getitem__))
def test_calls_end_otherwise_as_intended(mode: Mode, name: str) -> None:
    ours, reason = OTHER_GRPC_STATUSES[mode][name]
    outcome = replayed(mode)[name]
    assert outcome.status is ours, reason
    assert ours.name != recorded(mode, name).grpc_status

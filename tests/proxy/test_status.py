"""Statuses equal those of recorded calls, for errors and for brokers' response codes."""

from __future__ import annotations

import pytest

from kourou.errors import (
    CallRefusedError,
    ConnectionLostError,
    FilterSyntaxError,
    InternalError,
    NoRouteError,
    RemoteError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from kourou.protocol.codes import ResponseCode
from kourou.proxy import status
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import Code
from tests.golden_calls import calls


def recorded(name: str, kind: type[v2.QueryRouteResponse] = v2.QueryRouteResponse) -> v2.Status:
    """Return the status of a recorded answer; it is field 1 of every answer."""
    return parse(kind, calls()[name].responses[0]).status


def test_success_has_the_name_of_its_code() -> None:
    assert status.ok() == recorded("cluster/QueryRoute_ok")
    assert status.status(Code.OK) == status.ok()
    assert status.code_name(77) == "77"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, Code.OK),
        (2, Code.TOO_MANY_REQUESTS),
        (3, Code.NOT_IMPLEMENTED),
        (26, Code.CONSUMER_GROUP_NOT_FOUND),
        (2017, Code.LITE_TOPIC_QUOTA_EXCEEDED),
        (2018, Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
        (1, Code.INTERNAL_SERVER_ERROR),
        (23, Code.INTERNAL_SERVER_ERROR),
        (9999, Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_response_codes_have_statuses(code: int, expected: Code) -> None:
    assert status.response_status(code, "text") == v2.Status(code=expected, message="text")
    if code not in (0, 17):
        error = RemoteError.from_response(code, "text")
        assert status.error_status(error) == v2.Status(code=expected, message="text")


def test_response_without_remark_has_its_number_as_text() -> None:
    expected = recorded("local/ForwardMessageToDeadLetterQueue_ok")

    assert expected.message == "0"
    assert status.response_status(ResponseCode.SUCCESS, None) == expected


def test_unknown_topic_is_recorded_with_the_name_servers_remark() -> None:
    expected = recorded("cluster/QueryRoute_unknown_topic")
    remark = expected.message.removeprefix("CODE: 17  DESC: ")

    error = RemoteError.from_response(ResponseCode.TOPIC_NOT_EXIST, remark)

    assert status.error_status(error) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CallRefusedError(Code.ILLEGAL_TOPIC, "text"), Code.ILLEGAL_TOPIC),
        (NoRouteError("text"), Code.TOPIC_NOT_FOUND),
        (RequestTimeoutError("text"), Code.PROXY_TIMEOUT),
        (TooManyRequestsError("text"), Code.TOO_MANY_REQUESTS),
        (ConnectionLostError("text"), Code.INTERNAL_SERVER_ERROR),
        (InternalError("text"), Code.INTERNAL_SERVER_ERROR),
        (ValueError("text"), Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_errors_have_statuses(error: Exception, expected: Code) -> None:
    assert status.error_status(error) == v2.Status(code=expected, message="text")


def test_filter_that_does_not_parse_has_its_own_code() -> None:
    failure = status.error_status(FilterSyntaxError("no operand", 3))

    assert failure.code == Code.ILLEGAL_FILTER_EXPRESSION
    assert failure.message == "no operand (at character 3)"


def test_error_without_text_is_named() -> None:
    assert status.error_status(KeyError()).message == "KeyError"


def test_local_mode_hides_the_brokers_codes() -> None:
    refused = RemoteError.from_response(23, "parse the consumer's subscription failed")
    local = recorded("local/ReceiveMessage_bad_sql", v2.ReceiveMessageResponse)  # type: ignore[arg-type]
    cluster = recorded("cluster/ReceiveMessage_bad_sql", v2.ReceiveMessageResponse)  # type: ignore[arg-type]

    assert status.local_error_status(refused) == local
    assert status.error_status(refused) == cluster
    assert status.local_error_status(RequestTimeoutError("late")).code == Code.PROXY_TIMEOUT


@pytest.mark.parametrize(
    ("code", "expected", "text"),
    [
        (0, Code.OK, "OK"),
        (10, Code.MASTER_PERSISTENCE_TIMEOUT, "FLUSH_DISK_TIMEOUT"),
        (11, Code.HA_NOT_AVAILABLE, "SLAVE_NOT_AVAILABLE"),
        (12, Code.SLAVE_PERSISTENCE_TIMEOUT, "FLUSH_SLAVE_TIMEOUT"),
    ],
)
def test_outcomes_of_stored_messages_have_statuses(code: int, expected: Code, text: str) -> None:
    entry = status.send_status(code)

    assert entry.code == expected
    assert entry.message == (text if code == 0 else f"send message failed, sendStatus={text}")


def test_refused_send_has_the_status_of_its_response() -> None:
    assert status.send_status(2).code == Code.TOO_MANY_REQUESTS


@pytest.mark.parametrize("case", ["mixed", "ok", "expired_handle", "no_entries"])
def test_combined_statuses_equal_the_recorded_ones(case: str) -> None:
    for mode in ("local", "cluster"):
        (data,) = calls()[f"{mode}/AckMessage_{case}"].responses
        answer = parse(v2.AckMessageResponse, data)
        codes = [entry.status.code for entry in answer.entries]

        assert status.combined_status(codes, "ack message result is empty") == answer.status


def test_refused_settings_end_the_stream_as_recorded() -> None:
    call = calls()["local/Telemetry_consumer_settings_illegal_group"]
    text = call.grpc_details or ""
    reason = text.removeprefix("process client telemetryCommand failed. ")
    assert call.grpc_status == "INVALID_ARGUMENT"

    error = CallRefusedError(Code.ILLEGAL_CONSUMER_GROUP, reason)
    assert status.telemetry_failure(error) == (status.GRPC_INVALID_ARGUMENT, text)
    assert status.telemetry_failure(ValueError("x"))[0] == status.GRPC_INTERNAL

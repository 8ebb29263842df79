"""Checks refuse the recorded calls with the recorded codes and texts, and accept the others."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import CallRefusedError
from kourou.proxy import checks
from kourou.proxy.checks import CallLimits
from kourou.proxy.convert import sent_message, type_of
from kourou.proxy.metadata import check_client_id, read_context
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import Code
from kourou.proxy.queue_choice import sending_queue
from kourou.proxy.status import error_status, ok
from kourou.proxy.times import duration, duration_ms, timestamp
from tests.documented_errors import only_raises
from tests.golden_calls import Call, calls

LIMITS = CallLimits()
TYPES = {
    "GrpcNormal": "NORMAL",
    "GrpcPlain": "NORMAL",
    "GrpcFifo": "FIFO",
    "GrpcDelay": "DELAY",
    "GrpcTran": "TRANSACTION",
    "GrpcPriority": "PRIORITY",
    "GrpcLite": "LITE",
    "GrpcReadOnly": "NORMAL",
}
"""Types of the topics with which the calls were recorded."""


def named(prefix: str) -> list[str]:
    return [name for name in calls() if name.partition("/")[2].startswith(prefix)]


def refusal_of_send(call: Call) -> v2.Status:
    """Return the status of a send up to the choice of its queue."""
    try:
        check_client_id(read_context(call.metadata))
        request = parse(v2.SendMessageRequest, call.request)
        topic = checks.check_same_topic(request)
        for message in request.messages:
            now_ms = message.system_properties.born_timestamp.seconds * 1_000
            checks.check_message(message, LIMITS, now_ms)
            properties = sent_message(message, "127.0.0.1", now_ms).properties
            topic_type = TYPES.get(topic.name, checks.UNSPECIFIED)
            checks.check_sent_type(topic.name, topic_type, type_of(properties))
        if topic.name == "GrpcReadOnly":
            sending_queue([], "", 0)
    except CallRefusedError as error:
        return error_status(error)
    return ok()


@pytest.mark.parametrize("name", named("SendMessage_"))
def test_sends_are_refused_as_recorded(name: str) -> None:
    call = calls()[name]
    (answer,) = call.responses

    refusal, recorded = refusal_of_send(call), parse(v2.SendMessageResponse, answer).status
    if recorded.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE:
        refusal.message = refusal.message.partition("; `kourou topic ")[0]  # the remedy
    assert refusal == recorded


@pytest.mark.parametrize(
    ("topic_type", "remedy"),
    [
        ("NORMAL", "`kourou topic update T --type fifo` declares it"),
        (checks.UNSPECIFIED, "`kourou topic create T --type fifo` declares it"),
    ],
)
def test_refusal_of_a_type_names_the_remedy(topic_type: str, remedy: str) -> None:
    with pytest.raises(CallRefusedError, match=re.escape(remedy)):
        checks.check_sent_type("T", topic_type, "FIFO")


def refusal_of_receive(call: Call) -> v2.Status:
    """Return the status of a receive up to its pop."""
    request = parse(v2.ReceiveMessageRequest, call.request)
    context = read_context(call.metadata)
    remaining_ms = None if call.timeout_s is None else int(call.timeout_s * 1_000)
    try:
        checks.polling_ms(request, remaining_ms, 3_000, context.client_version, LIMITS)
        checks.check_topic(request.message_queue.topic.name)
        checks.check_group(request.group.name)
        if not request.auto_renew:
            invisible_ms = duration_ms(request.invisible_duration)
            checks.check_invisible(invisible_ms, LIMITS, LIMITS.invisible_ms_min)
    except CallRefusedError as error:
        return error_status(error)
    return ok()


LATER = ("bad_sql", "lite", "no_settings", "unknown_topic")
"""Receives that are refused by the settings, the route or the broker."""


@pytest.mark.parametrize("name", named("ReceiveMessage_"))
def test_receives_are_refused_as_recorded(name: str) -> None:
    call = calls()[name]
    recorded = parse(v2.ReceiveMessageResponse, call.responses[0]).status
    refusal = refusal_of_receive(call)

    if name.endswith("_no_deadline"):
        assert refusal.code == recorded.code  # the text is a Java exception's
    elif name.endswith(LATER) or recorded.code == Code.MESSAGE_NOT_FOUND:
        assert refusal == ok()
    else:
        assert refusal == recorded


@pytest.mark.parametrize(
    "name", [*named("ChangeInvisibleDuration_n"), *named("ChangeInvisibleDuration_too")]
)
def test_changes_are_refused_as_recorded(name: str) -> None:
    request = parse(v2.ChangeInvisibleDurationRequest, calls()[name].request)
    (answer,) = calls()[name].responses

    with pytest.raises(CallRefusedError) as refused:
        checks.check_invisible(duration_ms(request.invisible_duration), LIMITS)

    assert error_status(refused.value) == parse(v2.ChangeInvisibleDurationResponse, answer).status


@pytest.mark.parametrize("name", named("QueryRoute_"))
def test_routes_are_refused_as_recorded(name: str) -> None:
    request = parse(v2.QueryRouteRequest, calls()[name].request)
    (answer,) = calls()[name].responses
    refusal = ok()
    try:
        check_client_id(read_context(calls()[name].metadata))
        checks.check_topic(request.topic.name)
    except CallRefusedError as error:
        refusal = error_status(error)

    recorded = parse(v2.QueryRouteResponse, answer).status
    assert refusal == (ok() if recorded.code == Code.TOPIC_NOT_FOUND else recorded)


@pytest.mark.parametrize("name", [*named("Heartbeat_ill"), *named("Heartbeat_no_g")])
def test_groups_are_refused_as_recorded(name: str) -> None:
    request = parse(v2.HeartbeatRequest, calls()[name].request)
    (answer,) = calls()[name].responses

    with pytest.raises(CallRefusedError) as refused:
        checks.check_group(request.group.name)

    assert error_status(refused.value) == parse(v2.HeartbeatResponse, answer).status


def test_names_at_their_limits() -> None:
    checks.check_topic("t" * 127)
    checks.check_group("g" * 120)
    with pytest.raises(CallRefusedError, match="group max length: 120"):
        checks.check_group("g" * 121)
    with pytest.raises(CallRefusedError, match="topic max length 127"):
        checks.check_topic("t" * 128)
    with pytest.raises(CallRefusedError, match="cannot use system consumer group"):
        checks.check_group("CID_RMQ_SYS_x")


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\x1c", "\u2003", "\u3000"])
def test_white_space_of_java_is_blank(text: str) -> None:
    assert checks.is_blank(text)


@pytest.mark.parametrize("text", ["x", " x", "\xa0", "\u202f", "\u2007", "\x85", "\0"])
def test_no_break_spaces_are_not_blank(text: str) -> None:
    assert not checks.is_blank(text)


def sendable(**fields: object) -> v2.Message:
    """Return a valid message with other system properties."""
    return v2.Message(
        topic=v2.Resource(name="T"),
        body=b"x",
        system_properties=v2.SystemProperties(**{"message_id": "1", **fields}),  # type: ignore[arg-type]
    )


def test_limits_of_a_message_can_be_switched_off() -> None:
    limits = CallLimits(
        body_bytes_max=0,
        refuse_empty_body=False,
        group_bytes_max=0,
        delay_ms_max=0,
        recovery_s_max=0,
        invisible_ms_max=0,
    )
    message = sendable(
        message_group="g" * 500,
        delivery_timestamp=timestamp(10**12),
        message_type=v2.MessageType.TRANSACTION,
        orphaned_transaction_recovery_duration=duration(10**9),
    )
    message.body = b""

    checks.check_message(message, limits, 0)
    checks.check_invisible(10**12, limits)


def test_delivery_time_at_the_limit() -> None:
    day_ms = LIMITS.delay_ms_max
    checks.check_message(sendable(delivery_timestamp=timestamp(5 + day_ms)), LIMITS, 5)

    with pytest.raises(CallRefusedError) as refused:
        checks.check_message(sendable(delivery_timestamp=timestamp(6 + day_ms)), LIMITS, 5)
    assert refused.value.code == Code.ILLEGAL_DELIVERY_TIME


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"lite_topic": " "}, "lite topic cannot be the char sequence of whitespace"),
        ({"lite_topic": "a.b"}, "lite topic can only contain alphanumeric"),
        ({"message_group": "a\x07"}, "message group cannot contain control character"),
        ({"message_group": "é" * 32}, "message group exceed the max size 64"),
        ({"priority": -1}, "priority must be greater than or equal to 0"),
    ],
)
def test_further_values_are_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(CallRefusedError, match=text):
        checks.check_message(sendable(**fields), LIMITS, 0)


def test_empty_texts_are_not_checked() -> None:
    checks.check_message(
        sendable(tag="", keys=[""], message_group="", lite_topic="", priority=0), LIMITS, 0
    )


def test_mixed_topics_accept_all_types() -> None:
    checks.check_type(checks.MIXED, "FIFO")
    with pytest.raises(CallRefusedError, match="expected type is MIXED, but actual type is UNSP"):
        checks.check_type(checks.MIXED, checks.UNSPECIFIED)


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_retry_and_dead_letter_topics_accept_all_types(topic: str) -> None:
    checks.check_sent_type(topic, checks.UNSPECIFIED, "FIFO")


@pytest.mark.parametrize("name", named("RecallMessage_"))
def test_recalls_are_refused_as_recorded(name: str) -> None:
    request = parse(v2.RecallMessageRequest, calls()[name].request)
    (answer,) = calls()[name].responses
    recorded = parse(v2.RecallMessageResponse, answer).status
    refusal = ok()
    try:
        topic_type = TYPES.get(request.topic.name, checks.UNSPECIFIED)
        checks.check_type(topic_type, "DELAY")
    except CallRefusedError as error:
        refusal = error_status(error)

    is_handle_refused = name.endswith(("bad_handle", "empty_handle"))
    assert refusal == (ok() if is_handle_refused else recorded)


@pytest.mark.parametrize(
    ("asked_ms", "remaining_ms", "expected_ms"),
    [
        (5_000, 9_000, 5_000),
        (1_000, 9_000, 5_000),  # the shortest
        (60_000, 90_000, 20_000),  # the longest
        (20_000, 9_000, 9_000),  # as much as is left
        (None, 9_000, 7_500),  # half the request timeout is kept for the answer
        (None, 60_000, 20_000),
    ],
)
def test_polling_time(asked_ms: int | None, remaining_ms: int, expected_ms: int) -> None:
    asked = None if asked_ms is None else duration(asked_ms)
    request = v2.ReceiveMessageRequest(long_polling_timeout=asked)

    assert checks.polling_ms(request, remaining_ms, 3_000, "5.1.0", LIMITS) == expected_ms


@pytest.mark.parametrize("version", ["", "5.0.2", "4.9"])
def test_old_clients_get_a_code_that_they_know(version: str) -> None:
    with pytest.raises(CallRefusedError) as refused:
        checks.polling_ms(v2.ReceiveMessageRequest(), 1_000, 3_000, version, LIMITS)
    assert refused.value.code == Code.BAD_REQUEST


@given(st.binary(max_size=200), st.integers(0, 2**40))
def test_any_message_is_accepted_or_refused(data: bytes, now_ms: int) -> None:
    message = v2.Message(body=b"x", system_properties=v2.SystemProperties(message_id="1"))
    with only_raises(Exception):
        message.MergeFromString(data)
    with only_raises(CallRefusedError):
        checks.check_message(message, LIMITS, now_ms)
        sent_message(message, "", now_ms)

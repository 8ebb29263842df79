"""Messages convert as recorded: what the proxy sends to the broker, and what clients receive."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.model import properties as names
from kourou.model.message import MessageExt
from kourou.model.properties import decode_properties
from kourou.protocol.codes import LanguageCode
from kourou.protocol.record.decode import decode_messages
from kourou.protocol.sending import SendMessageRequestHeaderV2
from kourou.proxy.convert import received_message, sent_message, type_of
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import MessageType
from kourou.proxy.pb.wire import Timestamp
from kourou.proxy.times import timestamp
from tests.golden_calls import calls
from tests.golden_exchanges import exchanges

SENT = "310_SEND_MESSAGE_V2_grpc-SendMessage-"
POPPED = "200050_POP_MESSAGE_grpc-ReceiveMessage-"
MESSAGE = MessageExt(
    topic="T",
    body=b"body",
    properties={},
    flag=0,
    queue_id=3,
    queue_offset=7,
    physical_offset=100,
    sys_flag=0,
    born_at_ms=1_700_000_000_001,
    born_host=("10.0.0.9", 5),
    store_at_ms=1_700_000_000_002,
    store_host=("10.0.0.1", 10911),
    reconsume_times=0,
    prepared_transaction_offset=0,
    store_size=200,
    body_crc=0,
)


def cases(prefix: str) -> list[str]:
    return [
        name.removeprefix(prefix).replace("-", "_")
        for name, exchange in exchanges().items()
        if name.startswith(prefix) and exchange.response and exchange.response.command.code == 0
    ]


@pytest.mark.parametrize("case", cases(SENT))
def test_sends_reach_the_broker_as_recorded(case: str) -> None:
    recorded = exchanges()[SENT + case.replace("_", "-")].request.command
    header = recorded.header(SendMessageRequestHeaderV2)
    request = parse(v2.SendMessageRequest, calls()[f"cluster/SendMessage_{case}"].request)

    sent = sent_message(request.messages[0], "10.0.0.9", 5)

    assert sent.properties == decode_properties((header.properties or "").encode())
    assert (sent.topic, sent.body) == (header.topic, recorded.body)
    assert (sent.sys_flag, sent.born_at_ms) == (header.sys_flag, header.born_timestamp)


@pytest.mark.parametrize("case", cases(POPPED))
def test_popped_records_reach_clients_as_recorded(case: str) -> None:
    exchange = exchanges()[POPPED + case.replace("_", "-")]
    assert exchange.response is not None
    records = decode_messages(exchange.response.command.body, decompress=False)
    answers = calls()[f"cluster/ReceiveMessage_{case}"].responses
    parsed = (parse(v2.ReceiveMessageResponse, data) for data in answers)
    recorded = [answer.message for answer in parsed if answer.HasField("message")]

    assert records
    for record, expected in zip(records, recorded, strict=True):
        handle = expected.system_properties.receipt_handle
        assert received_message(record, handle, LanguageCode.PYTHON, 0) == expected


def test_born_host_is_the_peer_unless_it_is_named() -> None:
    message = v2.Message(system_properties=v2.SystemProperties(born_host=" "))

    assert sent_message(message, "10.0.0.9", 5).properties[names.BORN_HOST] == "10.0.0.9"
    message.system_properties.born_host = "named"
    assert sent_message(message, "10.0.0.9", 5).properties[names.BORN_HOST] == "named"


def test_invalid_born_time_is_replaced_by_the_time_of_the_send() -> None:
    born = Timestamp(nanos=-1)
    message = v2.Message(system_properties=v2.SystemProperties(born_timestamp=born))

    sent = sent_message(message, "", 5)

    assert sent.born_at_ms == 5
    assert names.BORN_TIMESTAMP not in sent.properties


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, "NORMAL"),
        ({names.SHARDING_KEY: "g"}, "FIFO"),
        ({names.DELAY: "3", names.SHARDING_KEY: "g"}, "DELAY"),
        ({names.TIMER_DELAY_MS: "3"}, "DELAY"),
        ({names.TRAN_MSG: "true", names.DELAY: "1"}, "TRANSACTION"),
        ({names.TRAN_MSG: "false"}, "NORMAL"),
        ({names.PRIORITY: "3"}, "PRIORITY"),
        ({names.LITE_TOPIC: "a"}, "LITE"),
        ({names.LITE_TOPIC: "a", names.SHARDING_KEY: "g"}, "FIFO"),
    ],
)
def test_type_follows_from_the_properties(properties: dict[str, str], expected: str) -> None:
    assert type_of(properties) == expected
    received = received_message(with_properties(properties), None, None, 0)
    assert received.system_properties.message_type == MessageType[expected]


def with_properties(properties: dict[str, str]) -> MessageExt:
    return dataclasses.replace(MESSAGE, properties=properties)


def test_optional_fields_are_absent_without_their_properties() -> None:
    system = received_message(MESSAGE, None, None, 0).system_properties

    for name in ("tag", "receipt_handle", "message_group", "priority", "dead_letter_queue"):
        assert not system.HasField(name)
    assert system.message_id == MESSAGE.offset_msg_id
    assert system.born_host == "10.0.0.9"
    assert system.store_host == "10.0.0.1:10911"
    assert system.queue_offset == 7
    assert system.delivery_attempt == 1


@pytest.mark.parametrize(
    ("text", "priority"), [("0", 0), ("2147483647", 2**31 - 1), ("2147483648", None)]
)
def test_priority_is_any_that_the_field_can_have(text: str, priority: int | None) -> None:
    message = received_message(with_properties({names.PRIORITY: text}), None, None, 0)
    system = message.system_properties
    assert (system.priority if system.HasField("priority") else None) == priority


def test_properties_become_fields() -> None:
    properties = {
        names.TAGS: "TagA",
        names.KEYS: "k1  k2 ",
        names.PRIORITY: "4",
        names.DLQ_ORIGIN_TOPIC: "T0",
        names.DLQ_ORIGIN_MESSAGE_ID: "id0",
        names.TIMER_DELIVER_MS: "1700000000500",
        names.DLQ_REASON: "broken",
        "color": "red",
    }

    message = received_message(with_properties(properties), "1 2 3", None, 0)

    system = message.system_properties
    assert (system.tag, list(system.keys), system.priority) == ("TagA", ["k1", "", "k2"], 4)
    assert system.dead_letter_queue == v2.DeadLetterQueue(topic="T0", message_id="id0")
    assert system.delivery_timestamp == timestamp(1_700_000_000_500)
    assert system.receipt_handle == "1 2 3"
    # Names that are not reserved by RocketMQ are the user's.
    assert dict(message.user_properties) == {"color": "red", names.DLQ_REASON: "broken"}


def test_delay_in_seconds_gives_a_time_from_now() -> None:
    message = with_properties({names.TIMER_DELAY_SEC: "3"})

    system = received_message(message, None, None, 10_000).system_properties

    assert system.delivery_timestamp == timestamp(13_000)


@pytest.mark.parametrize(
    ("name", "namespace", "plain"),
    [
        ("T", "", "T"),
        ("ns%T", "ns", "T"),
        ("%RETRY%ns%g", "ns", "%RETRY%g"),
        ("%DLQ%g", "", "%DLQ%g"),
    ],
)
def test_topics_have_their_namespace_apart(name: str, namespace: str, plain: str) -> None:
    received = received_message(dataclasses.replace(MESSAGE, topic=name), None, None, 0)

    assert received.topic == v2.Resource(resource_namespace=namespace, name=plain)


texts = st.text(st.characters(codec="utf-8"), max_size=20)
property_names = st.sampled_from([*sorted(names.RESERVED), names.SHARDING_KEY, "a"]) | texts
int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)


@given(
    st.dictionaries(property_names, texts | st.integers().map(str), max_size=8),
    st.tuples(int32, int32, int32, int64, int64),
    st.binary(max_size=40),
    st.sampled_from([None, *LanguageCode]),
)
def test_any_stored_message_converts(
    properties: dict[str, str],
    numbers: tuple[int, int, int, int, int],
    body: bytes,
    language: LanguageCode | None,
) -> None:
    sys_flag, queue_id, reconsume_times, queue_offset, born_at_ms = numbers
    message = dataclasses.replace(
        MESSAGE,
        properties=properties,
        body=body,
        sys_flag=sys_flag,
        queue_id=queue_id,
        reconsume_times=reconsume_times,
        queue_offset=queue_offset,
        born_at_ms=born_at_ms,
    )

    received = received_message(message, None, language, 0)

    assert parse(v2.Message, received.SerializeToString()) == received
    assert received.system_properties.queue_offset == queue_offset
    assert len(received.system_properties.body_digest.checksum) == 32


@given(
    st.dictionaries(texts, texts, max_size=4),
    st.lists(texts, max_size=3),
    texts,
    st.integers(0, 2**40),
)
def test_user_properties_and_group_survive_the_broker(
    users: dict[str, str], keys: list[str], group: str, born_at_ms: int
) -> None:
    taken = {*names.RESERVED, names.SHARDING_KEY}  # the latter is the group, for whoever sets it
    users = {name: text for name, text in users.items() if name and name not in taken}
    system = v2.SystemProperties(
        message_id="id", keys=keys, message_group=group, born_timestamp=timestamp(born_at_ms)
    )
    message = v2.Message(
        topic=v2.Resource(name="T"), user_properties=users, system_properties=system, body=b"x"
    )

    sent = sent_message(message, "10.0.0.9", 0)
    stored = dataclasses.replace(
        with_properties(sent.properties), sys_flag=sent.sys_flag, born_at_ms=sent.born_at_ms
    )
    received = received_message(stored, None, None, 0)

    expected = dict(users)
    if group:
        expected[names.SHARDING_KEY] = group
    assert dict(received.user_properties) == expected
    assert received.system_properties.message_group == group
    assert received.system_properties.born_timestamp == timestamp(born_at_ms)

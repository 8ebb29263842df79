"""Fuzz seeds and parsers of gRPC calls: messages, headers and receipt handles."""

from __future__ import annotations

import functools
import json
from typing import Any, Final

from kourou.model.group import SubscriptionGroup
from kourou.model.properties import VARYING, encode_properties
from kourou.model.route import BrokerData, QueueData, TopicRoute
from kourou.protocol.codes import LanguageCode
from kourou.protocol.hashing import java_string_hash
from kourou.protocol.record.decode import decode_messages
from kourou.proxy import checks
from kourou.proxy.client_settings import ProducerDefaults, answered_settings, remembered_settings
from kourou.proxy.convert import received_message, sent_message, type_of
from kourou.proxy.metadata import read_authorization
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import methods, parse
from kourou.proxy.plain_messages import encode_delivery
from kourou.proxy.plain_requests import Shapes, read_plain
from kourou.proxy.queue_choice import ordering_key
from kourou.proxy.receipts import offsets_by_checkpoint, read_handle
from kourou.proxy.routes import message_queues, route_endpoints
from kourou.proxy.times import duration_ms
from tests.golden_calls import calls

LIMITS: Final = checks.CallLimits()
_SHAPES: Final = Shapes(LIMITS)
_NOW_MS: Final = 1_795_228_890_000
_BODY_BYTES_MAX: Final = 1 << 16
_SEEDS_MAX: Final = 24
_SEED_BYTES_MAX: Final = 2_000
_ROUTE: Final = TopicRoute(
    [QueueData("broker-a", 3, 2, 6)], [BrokerData("c", "broker-a", {0: "10.0.0.1:10911"})]
)
_KINDS: Final[dict[str, Any]] = {
    method.path.rpartition("/")[2]: method.request
    for method in methods("apache.rocketmq.v2.MessagingService")
}

AUTHORIZATIONS: Final = (
    b"MQv2-HMAC-SHA1 Credential=a//Rocketmq, SignedHeaders=x-mq-date-time, Signature=" + b"0f" * 20,
    b"MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=",
)
HANDLES: Final = (
    b"0 1795228890829 30000 0 0 broker-a 0 2 4202783",
    b"0 1795228890829 30000 0 1 broker-a 0 2",
)


@functools.cache
def requests(rpc: str) -> tuple[bytes, ...]:
    """Return recorded requests of one RPC, without very long ones."""
    found = {call.request for call in calls().values() if call.rpc == rpc}
    return tuple(sorted(one for one in found if len(one) <= _SEED_BYTES_MAX)[:_SEEDS_MAX])


@functools.cache
def first_requests() -> tuple[bytes, ...]:
    """Return one request of each RPC, after a byte with the number of its RPC."""
    return tuple(
        bytes((number,)) + requests(rpc)[0] for number, rpc in enumerate(_KINDS) if requests(rpc)
    )


def any_request(data: bytes) -> None:
    """Parse a request of the RPC that the first byte selects."""
    kinds = list(_KINDS.values())
    kind = kinds[data[0] % len(kinds) if data else 0]
    message = parse(kind, data[1:])
    assert parse(kind, message.SerializeToString()).SerializeToString(
        deterministic=True
    ) == message.SerializeToString(deterministic=True)


def plain_send(data: bytes) -> None:
    """Read a request as a plain one; if it is, the general code must find the same."""
    plain = read_plain(data)
    shape = None if plain is None else _SHAPES.get(plain, "10.0.0.9")
    if plain is None or shape is None:
        return
    [message] = parse(v2.SendMessageRequest, data).messages
    checks.check_topic(message.topic.name)
    checks.check_message(message, LIMITS, _NOW_MS)
    sent = sent_message(message, "10.0.0.9", _NOW_MS)
    text = encode_properties(sent.properties).decode()
    assert json.loads(shape.json.of(plain)) == shape.text.of(plain).decode() == text
    constant = {k: v for k, v in sent.properties.items() if k not in VARYING}
    assert shape.constant == encode_properties(constant).decode()
    assert (shape.topic, plain.body, plain.born_at_ms) == (sent.topic, sent.body, sent.born_at_ms)
    assert type_of(sent.properties) == shape.type
    key = ordering_key([message])
    assert shape.group_hash == (java_string_hash(key) if key else None)
    assert not sent.sys_flag


def send(data: bytes) -> None:
    """Check and convert the messages of a send."""
    request = parse(v2.SendMessageRequest, data)
    topic = checks.check_same_topic(request)
    for message in request.messages:
        checks.check_message(message, LIMITS, _NOW_MS)
        sent = sent_message(message, "10.0.0.9", _NOW_MS)
        assert sent.topic == topic.name
        assert sent.properties["PGROUP"] == topic.name
    ordering_key(request.messages)


def receive(data: bytes) -> None:
    """Check a receive."""
    request = parse(v2.ReceiveMessageRequest, data)
    waited_ms = checks.polling_ms(request, 9_000, 3_000, "5.0.9", LIMITS)
    assert LIMITS.polling_ms_min <= waited_ms <= LIMITS.polling_ms_max
    checks.check_topic(request.message_queue.topic.name)
    checks.check_group(request.group.name)
    if not request.auto_renew:
        invisible_ms = duration_ms(request.invisible_duration)
        checks.check_invisible(invisible_ms, LIMITS, LIMITS.invisible_ms_min)


def settings(data: bytes) -> None:
    """Merge the values of the server into the settings of a client."""
    sent = parse(v2.TelemetryCommand, data).settings
    remembered = remembered_settings(sent, LIMITS)
    group = SubscriptionGroup("g")
    answer = answered_settings(remembered, group, LIMITS, ProducerDefaults())
    again = answered_settings(answer, group, LIMITS, ProducerDefaults())
    assert again.SerializeToString(deterministic=True) == answer.SerializeToString(
        deterministic=True
    )


def route(data: bytes) -> None:
    """Build a route for the endpoints of a request."""
    request = parse(v2.QueryRouteRequest, data)
    checks.check_topic(request.topic.name)
    endpoints = route_endpoints(request.endpoints, None, ("10.0.0.5", 8081))
    queues = message_queues(_ROUTE, request.topic, endpoints, "NORMAL")
    assert len(queues) == 3
    assert endpoints.addresses


def record(data: bytes) -> None:
    """Convert stored records for clients of all languages, as all messages and as plain ones."""
    for number, message in enumerate(decode_messages(data, decompress=False)):
        language = LanguageCode(number % len(LanguageCode))
        delivery = encode_delivery(message, "handle", language, _NOW_MS, _BODY_BYTES_MAX)
        received = received_message(message, "handle", language, _NOW_MS, _BODY_BYTES_MAX)
        response = v2.ReceiveMessageResponse(message=received)
        assert parse(v2.ReceiveMessageResponse, delivery) == response


def authorization(data: bytes) -> None:
    """Parse and verify a signature."""
    text = data.decode(errors="replace")
    found = read_authorization({"authorization": text, "x-mq-date-time": "20261128T032116Z"})
    assert found is None or not found.is_signed_with("secret")


def handle(data: bytes) -> None:
    """Parse a receipt handle, also by its checkpoint."""
    text = data.decode(errors="replace")
    offsets = offsets_by_checkpoint([text])
    receipt = read_handle(text)
    assert list(offsets.values()) in ([], [[receipt.offset]])
    assert read_handle(receipt.encode()) == receipt

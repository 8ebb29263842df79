"""The proxy's own messages equal those of the official client and of recorded calls."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from kourou.errors import MalformedBodyError
from kourou.proxy.pb import health, reflection_v1, reflection_v1alpha, v2
from kourou.proxy.pb.pool import POOL, methods, parse
from kourou.proxy.pb.wire import Duration, Timestamp, WireMessage
from tests import proxy_messages
from tests.golden_calls import calls

SERVICE = "apache.rocketmq.v2.MessagingService"
METHODS = {method.path.rpartition("/")[2]: method for method in methods(SERVICE)}

OWN = tuple(
    POOL.FindFileByName(f"apache/rocketmq/v2/{name}.proto") for name in ("definition", "service")
)

ADDED_AFTER_5_5_0 = {
    "Settings.client_properties",  # 9
    "Code.INVALID_CLIENT_PROPERTIES",  # 40021
}
"""Names that newer official clients have and the proxy of RocketMQ 5.5.0 does not know."""


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """Return the generated modules of the official client, loaded beside ours."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # it writes a log there
        names = ("definition_pb2", "service_pb2")
        return tuple(importlib.import_module(f"rocketmq.grpc_protocol.{name}") for name in names)


def described(files: tuple[Any, ...]) -> dict[str, object]:
    """Return number, type and label of each field, value and call by its name."""
    return dict(entry for file in files for entry in _entries(file))


def _entries(file: Any) -> Iterator[tuple[str, object]]:
    for message in file.message_types_by_name.values():
        yield message.name, "message"
        for field in message.fields:
            named = field.message_type or field.enum_type
            yield (
                f"{message.name}.{field.name}",
                (
                    *(field.number, field.type, field.is_repeated, field.has_presence),
                    named and named.full_name,
                    field.containing_oneof and field.containing_oneof.name,
                ),
            )
        for enum in message.enum_types:
            yield from _values(f"{message.name}.{enum.name}", enum)
    for name, enum in file.enum_types_by_name.items():
        yield from _values(name, enum)
    for service in file.services_by_name.values():
        for method in service.methods:
            yield (
                f"{service.name}/{method.name}",
                (
                    *(method.input_type.full_name, method.output_type.full_name),
                    *(method.client_streaming, method.server_streaming),
                ),
            )


def _values(name: str, enum: Any) -> Iterator[tuple[str, object]]:
    yield from ((f"{name}.{value.name}", value.number) for value in enum.values)


def test_messages_equal_those_of_the_official_client(official: tuple[Any, ...]) -> None:
    own, theirs = described(OWN), described(tuple(module.DESCRIPTOR for module in official))

    assert len(own) > 300
    assert own == {name: entry for name, entry in theirs.items() if name not in ADDED_AFTER_5_5_0}


def test_official_client_uses_another_pool(official: tuple[Any, ...]) -> None:
    definition_pb2, _ = official

    assert definition_pb2.DESCRIPTOR.pool is not POOL
    assert v2.Message.DESCRIPTOR.full_name == definition_pb2.Message.DESCRIPTOR.full_name
    assert v2.Message is not definition_pb2.Message


def test_recorded_messages_parse_completely() -> None:
    parsed = 0
    for call in calls().values():
        method = METHODS[call.rpc]
        for part in call.parts:
            kind = method.request if part.sender == "client" else method.response
            message = parse(kind, part.data)
            # Java writes the entries of a map in its own order.
            assert len(message.SerializeToString()) == len(part.data), call.name
            assert len(UnknownFieldSet(message)) == 0, call.name
            parsed += 1
    assert parsed > 900


def test_messages_without_maps_are_encoded_as_recorded() -> None:
    call = calls()["cluster/QueryRoute_ok"]

    assert parse(v2.QueryRouteRequest, call.request).SerializeToString() == call.request
    (answer,) = call.responses
    assert parse(v2.QueryRouteResponse, answer).SerializeToString() == answer


def test_unknown_fields_and_enum_values_survive() -> None:
    sent = b"\x08\x63" + b"\x4a\x02\x0a\x00"  # client_type 99; field 9, an empty map entry

    settings = parse(v2.Settings, sent)

    assert settings.client_type == 99
    assert settings.SerializeToString() == sent


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\x12\x01"])
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBodyError, match="bytes are not a valid QueryRouteRequest"):
        parse(v2.QueryRouteRequest, data)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(MalformedBodyError):
        parse(v2.Resource, b"\x12\x01\xff")


def test_methods_have_their_paths_and_streams() -> None:
    streams = {
        name: (method.streams_requests, method.streams_responses)
        for name, method in METHODS.items()
        if method.streams_requests or method.streams_responses
    }

    assert METHODS["SendMessage"].path == f"/{SERVICE}/SendMessage"
    assert METHODS["SendMessage"].request is v2.SendMessageRequest
    assert streams == {
        "Telemetry": (True, True),
        "ReceiveMessage": (False, True),
        "PullMessage": (False, True),
    }


def test_health_and_reflection_have_grpcs_numbers() -> None:
    serving = health.HealthCheckResponse(status=health.HealthCheckResponseServingStatus.SERVING)
    assert serving.SerializeToString() == b"\x08\x01"
    for module in (reflection_v1, reflection_v1alpha):
        request = module.ServerReflectionRequest(list_services="")
        assert request.SerializeToString() == b"\x3a\x00"
        assert request.WhichOneof("message_request") == "list_services"
    paths = [one.path for one in methods("grpc.reflection.v1alpha.ServerReflection")]
    assert paths == ["/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]


def test_times_share_the_pool() -> None:
    assert Timestamp(seconds=1).DESCRIPTOR.file.pool is POOL
    assert isinstance(Duration(nanos=5), WireMessage)
    assert v2.SystemProperties(born_timestamp=Timestamp(seconds=7)).born_timestamp.seconds == 7


def test_descriptors_and_stubs_are_up_to_date() -> None:
    descriptors = proxy_messages.compiled()

    assert proxy_messages.DESCRIPTORS.read_bytes() == descriptors, "run make proto"
    for path, text in proxy_messages.stubs(descriptors).items():
        assert path.read_text() == text, f"{path.name} is out of date: run make proto"

"""gRPC's health checks, and the reflection by which tools learn the services."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kourou.http2.grpc_messages import GrpcStatus
from kourou.proxy.pb import reflection_v1, reflection_v1alpha
from kourou.proxy.pb.health import HealthCheckRequest, HealthCheckResponseServingStatus
from kourou.proxy.pb.pool import Method, methods
from kourou.proxy.server import SERVICE
from tests.proxy.proxy_rig import Rig, with_rig

STATUS = HealthCheckResponseServingStatus
VERSIONS = [(reflection_v1, "v1"), (reflection_v1alpha, "v1alpha")]


@pytest.mark.parametrize("service", ["", SERVICE])
def test_services_of_a_running_proxy_are_up(service: str) -> None:
    async def test(rig: Rig) -> None:
        client = await rig.connect("")
        answer = await client.grpc.call("Check", HealthCheckRequest(service=service))
        assert answer.status == STATUS.SERVING

    with_rig(test)


@pytest.mark.parametrize("rpc", ["Check", "Watch", *methods("grpc.reflection.v1.ServerReflection")])
def test_bytes_that_are_no_request_are_invalid(rpc: str | Method) -> None:
    async def test(rig: Rig) -> None:
        call = (await rig.connect("")).grpc.open(rpc)
        call.send(b"\xff\xff", ends=True)
        assert await call.rest() == []
        assert call.status is GrpcStatus.INVALID_ARGUMENT

    with_rig(test)


def test_health_of_an_unknown_service_is_not_found() -> None:
    async def test(rig: Rig) -> None:
        client = await rig.connect("")
        call = client.grpc.open("Check")
        call.send(HealthCheckRequest(service="other"), ends=True)
        assert await call.rest() == []
        assert call.status is GrpcStatus.NOT_FOUND
        watch = client.grpc.open("Watch", None)
        watch.send(HealthCheckRequest(service="other"), ends=True)
        assert (await watch.next()).status == STATUS.SERVICE_UNKNOWN
        assert not watch.is_over

    with_rig(test)


def test_watching_client_is_told_of_a_stop() -> None:
    async def test(rig: Rig) -> None:
        client = await rig.connect("")
        left, watch = (client.grpc.open("Watch", None) for _ in range(2))
        for call in (left, watch):
            call.send(HealthCheckRequest(), ends=True)
            assert (await call.next()).status == STATUS.SERVING
        left.cancel()
        await asyncio.sleep(0.1)
        await rig.proxy.stop()
        assert [answer.status for answer in await watch.rest()] == [STATUS.NOT_SERVING]
        assert watch.status is GrpcStatus.OK

    with_rig(test)


async def reflected(rig: Rig, messages: Any, version: str, **asked: str) -> Any:
    """Return the answer to one request of reflection."""
    [method] = methods(f"grpc.reflection.{version}.ServerReflection")
    client = await rig.connect("")
    call = client.grpc.open(method, None)
    call.send(messages.ServerReflectionRequest(**asked), ends=True)
    [answer] = await call.rest()
    assert call.status is GrpcStatus.OK
    return answer


@pytest.mark.parametrize(("messages", "version"), VERSIONS)
def test_reflection_lists_the_services(messages: ModuleType, version: str) -> None:
    async def test(rig: Rig) -> None:
        answer = await reflected(rig, messages, version, list_services="")
        assert {one.name for one in answer.list_services_response.service} == {
            SERVICE,
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        }

    with_rig(test)


@pytest.mark.parametrize(("messages", "version"), VERSIONS)
def test_reflection_returns_the_files_of_a_service(messages: ModuleType, version: str) -> None:
    async def test(rig: Rig) -> None:
        answer = await reflected(rig, messages, version, file_containing_symbol=SERVICE)
        data = answer.file_descriptor_response.file_descriptor_proto
        files = {file.name: file for file in map(FileDescriptorProto.FromString, data)}
        first = FileDescriptorProto.FromString(data[0])
        assert [one.name for one in first.service if one.name in SERVICE] == ["MessagingService"]
        assert {name for file in files.values() for name in file.dependency} <= files.keys()
        again = await reflected(rig, messages, version, file_by_filename=first.name)
        assert again.file_descriptor_response == answer.file_descriptor_response

    with_rig(test)


@pytest.mark.parametrize(
    "asked",
    [
        {"file_by_filename": "no.proto"},
        {"file_containing_symbol": "no.Symbol"},
        {"all_extension_numbers_of_type": "no.Type"},
        {},
    ],
)
def test_reflection_of_unknown_names_is_not_found(asked: dict[str, str]) -> None:
    async def test(rig: Rig) -> None:
        answer = await reflected(rig, reflection_v1, "v1", **asked)
        assert answer.error_response.error_code == GrpcStatus.NOT_FOUND

    with_rig(test)

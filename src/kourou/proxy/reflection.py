"""Server reflection, by which tools such as grpcurl learn the services of the proxy.

The services `grpc.reflection.v1` and `v1alpha` have the same messages under different names.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kourou.http2.calls import Call, Kind, Method
from kourou.http2.grpc_messages import GrpcStatus
from kourou.proxy.health import request_of
from kourou.proxy.pb import reflection_v1, reflection_v1alpha
from kourou.proxy.pb.pool import POOL

REFLECTION: Final = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
"""Names of the services, newest first."""


class ReflectionService:
    """Serves ServerReflectionInfo of all versions.

    Args:
        services: full names of the services that are listed.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = sorted(services)

    def methods(self) -> dict[str, Method]:
        """Return the methods by path."""
        modules = (reflection_v1, reflection_v1alpha)
        return {
            f"/{name}/ServerReflectionInfo": Method(Kind.BIDI, partial(self._serve, module))
            for name, module in zip(REFLECTION, modules, strict=True)
        }

    def _serve(self, module: ModuleType, call: Call, _: bytes) -> None:
        messages: Any = module

        def on_message(data: bytes) -> None:
            asked = request_of(messages.ServerReflectionRequest, data)
            answer = messages.ServerReflectionResponse(
                valid_host=asked.host, original_request=asked
            )
            self._fill(asked, answer)
            call.send(answer.SerializeToString())

        call.on_message = on_message
        call.on_end = call.finish

    def _fill(self, asked: Any, answer: Any) -> None:  # noqa: ANN401 - messages of either version
        kind = asked.WhichOneof("message_request")
        try:
            if kind == "list_services":
                for name in self._services:
                    answer.list_services_response.service.add(name=name)
            elif kind == "file_by_filename":
                _fill_files(answer, POOL.FindFileByName(asked.file_by_filename))
            elif kind == "file_containing_symbol":
                _fill_files(answer, POOL.FindFileContainingSymbol(asked.file_containing_symbol))
            elif kind == "all_extension_numbers_of_type":
                name = asked.all_extension_numbers_of_type
                POOL.FindMessageTypeByName(name)
                answer.all_extension_numbers_response.base_type_name = name  # none has extensions
            else:  # extensions, and requests of later versions
                _fill_error(answer, f"{kind} is not supported")
        except KeyError as error:
            _fill_error(answer, str(error))


def _fill_error(answer: Any, text: str) -> None:  # noqa: ANN401 - as above
    answer.error_response.error_code = GrpcStatus.NOT_FOUND
    answer.error_response.error_message = text


def _fill_files(answer: Any, file: Any) -> None:  # noqa: ANN401 - as above
    """Add a file and all that it imports, each after the file that needs it."""
    found = {file.name: file}
    waiting = [file]
    while waiting:
        for needed in waiting.pop().dependencies:
            if needed.name not in found:
                found[needed.name] = needed
                waiting.append(needed)
    for one in found.values():
        proto = FileDescriptorProto()
        one.CopyToProto(proto)
        answer.file_descriptor_response.file_descriptor_proto.append(proto.SerializeToString())

"""Message and enum classes of the checked-in descriptors, in a descriptor pool of their own.

Protobuf's default pool refuses a second definition of a message. With their own pool, the classes
do not collide with those of the official client, which a program may load as well.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from kourou.errors import MalformedBodyError

DESCRIPTORS: Final = Path(__file__).with_name("descriptors.binpb")
"""Serialized FileDescriptorSet of `protos/`, and of the timestamps and durations it imports."""


class Parsable(Protocol):
    """A message class, as `parse` uses it."""

    @classmethod
    def FromString(cls, data: bytes, /) -> Self:  # noqa: N802 - protobuf's name
        """Return the message that the bytes encode."""


M = TypeVar("M", bound=Parsable)


class Method(NamedTuple):
    """One call of a service.

    Attributes:
        path: `/package.Service/Name`, as in HTTP/2.
        request: message class.
        response: message class.
        streams_requests: the client sends any number of requests.
        streams_responses: the server sends any number of responses.
    """

    path: str
    request: Any
    response: Any
    streams_requests: bool
    streams_responses: bool


def parse(kind: type[M], data: bytes) -> M:
    """Return the message that the bytes encode; unknown fields are kept.

    Raises:
        MalformedBodyError: the bytes do not encode a message of this class.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise MalformedBodyError(
            f"{len(data)} bytes are not a valid {kind.__name__}: {error}"
        ) from None


def package_names(package: str) -> dict[str, Any]:
    """Return the classes of a package by name, for the namespace of its module.

    Enums become an `IntEnum`; the name of a nested enum follows that of its message. Fields hold
    plain numbers, because a peer may know more values.
    """
    names: dict[str, Any] = {}
    for file in _files(package):
        for message in file.message_types_by_name.values():
            names[message.name] = message_class(message)
            for nested in message.enum_types:
                names[message.name + nested.name] = _enum_class(message.name + nested.name, nested)
        for enum in file.enum_types_by_name.values():
            names[enum.name] = _enum_class(enum.name, enum)
    return names


def message_class(descriptor: Any) -> Any:  # noqa: ANN401 - protobuf has no types
    """Return the class of a message descriptor of the pool."""
    return message_factory.GetMessageClass(descriptor)


def methods(service: str) -> list[Method]:
    """Return the calls of a service, given by its full name.

    Raises:
        KeyError: the pool has no such service.
    """
    return [
        Method(
            f"/{service}/{method.name}",
            message_class(method.input_type),
            message_class(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )
        for method in POOL.FindServiceByName(service).methods
    ]


def _files(package: str) -> list[Any]:
    return [POOL.FindFileByName(name) for name in _FILE_NAMES.get(package, ())]


def _enum_class(name: str, descriptor: Any) -> type[IntEnum]:  # noqa: ANN401
    members = {value.name: value.number for value in descriptor.values}
    return IntEnum(name, members)  # type: ignore[return-value]  # the functional form


def _load() -> tuple[Any, dict[str, list[str]]]:
    """Return the pool of all descriptors, and the names of the files of each package."""
    pool = DescriptorPool()
    names: dict[str, list[str]] = {}
    for file in FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
        names.setdefault(file.package, []).append(file.name)
    return pool, names


POOL, _FILE_NAMES = _load()

"""Writes the descriptors and stubs of `kourou.proxy.pb` from its `.proto` files: `make proto`."""

from __future__ import annotations

import importlib.resources
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc

FOLDER: Final = Path(__file__).parent.parent / "src" / "kourou" / "proxy" / "pb"
PROTOS: Final = FOLDER / "protos"
DESCRIPTORS: Final = FOLDER / "descriptors.binpb"
PACKAGES: Final = {
    "v2": "apache.rocketmq.v2",
    "health": "grpc.health.v1",
    "reflection_v1": "grpc.reflection.v1",
    "reflection_v1alpha": "grpc.reflection.v1alpha",
}
"""Module of `kourou.proxy.pb` to the package that it holds."""

_SCALARS: Final = {1: "float", 2: "float", 8: "bool", 9: "str", 12: "bytes"}
"""Python type by number of the field type; all others are numbers."""
_MESSAGE: Final = 11
_IMPORTED: Final = {
    "collections.abc": ("Iterable", "Mapping"),
    "enum": ("IntEnum",),
    "typing": ("Literal",),
    "kourou.proxy.pb.wire": (
        *("Duration", "RepeatedMessage", "RepeatedScalar", "ScalarMap", "Timestamp"),
        "WireMessage",
    ),
}
"""Names that stubs import, if they use them, by module."""


def compiled() -> bytes:
    """Return the descriptors of all `.proto` files, serialized, dependencies first.

    Raises:
        RuntimeError: a file does not compile; the compiler has printed the reason.
    """
    sources = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.rglob("*.proto"))
    bundled = importlib.resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "set"
        arguments = [
            "protoc",
            f"-I{PROTOS}",
            f"-I{bundled}",
            "--include_imports",
            f"--descriptor_set_out={output}",
        ]
        if protoc.main([*arguments, *sources]) != 0:
            raise RuntimeError(f"{PROTOS} does not compile")
        # Serialized once more, so that the bytes do not depend on the compiler's version.
        return bytes(FileDescriptorSet.FromString(output.read_bytes()).SerializeToString())


def stubs(descriptors: bytes) -> dict[Path, str]:
    """Return the stub of each module by its path."""
    pool: Any = DescriptorPool()
    files: dict[str, list[Any]] = {}
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
        files.setdefault(file.package, []).append(pool.FindFileByName(file.name))
    return {FOLDER / f"{module}.pyi": _stub(files[package]) for module, package in PACKAGES.items()}


def _stub(files: list[Any]) -> str:
    enums = [(e.name, e) for file in files for e in file.enum_types_by_name.values()]
    messages = [m for file in files for m in file.message_types_by_name.values()]
    enums += [(message.name + e.name, e) for message in messages for e in message.enum_types]
    parts = [*(_enum(name, enum) for name, enum in enums), *map(_message, messages)]
    body = "\n\n".join(parts)
    return "\n".join([*_imports(body), "", body, ""])


def _imports(body: str) -> Iterator[str]:
    for module, names in _IMPORTED.items():
        used = [name for name in names if re.search(rf"\b{name}\b", body)]
        if used:
            yield f"from {module} import {', '.join(used)}"


def _enum(name: str, enum: Any) -> str:
    lines = [f"    {value.name} = {value.number}" for value in enum.values]
    return "\n".join([f"class {name}(IntEnum):", *lines])


def _message(message: Any) -> str:
    lines = [f"class {message.name}(WireMessage):"]
    for field in message.fields:
        if field.is_repeated or field.type == _MESSAGE:
            lines += ["    @property", f"    def {field.name}(self) -> {_type(field)}: ..."]
        else:
            lines.append(f"    {field.name}: {_type(field)}")
    parameters = [f"        {field.name}: {_argument(field)} = ...," for field in message.fields]
    if parameters:
        lines += [
            "    def __init__(",
            "        self,",
            "        *,",
            *parameters,
            "    ) -> None: ...",
        ]
    present = [field.name for field in message.fields if field.has_presence]
    if present:
        lines += _method("HasField", "field_name", present, "bool")
    oneofs = [oneof for oneof in message.oneofs if not _is_synthetic(oneof)]
    if oneofs:
        names = [field.name for oneof in oneofs for field in oneof.fields]
        answers = f"{_literal(names)} | None"
        lines += _method("WhichOneof", "oneof", [oneof.name for oneof in oneofs], answers)
    return "\n".join(lines)


def _method(name: str, parameter: str, names: list[str], answer: str) -> list[str]:
    return [f"    def {name}(self, {parameter}: {_literal(names)}, /) -> {answer}: ..."]


def _literal(names: list[str]) -> str:
    return f"Literal[{', '.join(repr(name) for name in names)}]".replace("'", '"')


def _is_synthetic(oneof: Any) -> bool:
    """Return whether the group stands for one optional field."""
    return len(oneof.fields) == 1 and oneof.name == f"_{oneof.fields[0].name}"


def _type(field: Any) -> str:
    if _is_map(field):
        key, value = field.message_type.fields
        return f"ScalarMap[{_element(key)}, {_element(value)}]"
    if field.is_repeated:
        kind = "RepeatedMessage" if field.type == _MESSAGE else "RepeatedScalar"
        return f"{kind}[{_element(field)}]"
    return _element(field)


def _argument(field: Any) -> str:
    if _is_map(field):
        key, value = field.message_type.fields
        return f"Mapping[{_element(key)}, {_element(value)}] | None"
    if field.is_repeated:
        return f"Iterable[{_element(field)}] | None"
    return f"{_element(field)} | None"


def _element(field: Any) -> str:
    if field.type == _MESSAGE:
        return str(field.message_type.name)
    return _SCALARS.get(field.type, "int")


def _is_map(field: Any) -> bool:
    return field.type == _MESSAGE and bool(field.message_type.GetOptions().map_entry)


def main() -> None:
    """Write all files."""
    descriptors = compiled()
    DESCRIPTORS.write_bytes(descriptors)
    for path, text in stubs(descriptors).items():
        path.write_text(text)
        print(path, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()

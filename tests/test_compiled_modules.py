"""Compiled modules (hatch_build.py) do what their sources do."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest import mock

import msgspec
import pytest

from bench import compiled_install
from kourou.errors import KourouError
from kourou.protocol.codes import LanguageCode
from kourou.testing.loop import run_virtual
from tests.fuzz import http2_bytes, proxy_calls
from tests.fuzz.mutate import mutate
from tests.proxy.test_convert import MESSAGE
from tests.proxy.test_plain_messages import record

SOURCE: Final = Path(__file__).parents[1] / "src"
TYPED: Final = sorted(
    path.relative_to(SOURCE).with_suffix("").as_posix() for path in SOURCE.rglob("*.pxd")
)
TESTS: Final = (
    "tests/http2",
    *(
        f"tests/proxy/test_plain_{one}.py"
        for one in ("acks", "messages", "receives", "requests", "sends")
    ),
)
"""Tests of all functions in compiled modules."""
CASES: Final = 5_000
TIMEOUT_S: Final = 300
CLIENTS: Final = (b"x-mq-client-id=host@1@0;x-mq-language=GO", b"te=trailers;x-mq-language=JAVA;=")
PROPERTY_TEXTS: Final = (
    b"UNIQ_KEY\x017F01\x02TAGS\x01a\x02KEYS\x01k1 k2\x02color\x01red\x02__CRC32#\x010123456789\x02",
    b"__BORNHOST\x01h\x02BORN_TIMESTAMP\x0117\x02CLUSTER\x01c\x02n\x012\x02__SHARDINGKEY\x01o\x02",
)
_COMPILER: Final = (sysconfig.get_config_var("CC") or "cc").split()[0]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(_COMPILER) is None, reason=f"no C compiler: {_COMPILER}"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the packages of the compiled wheel."""
    directory = tmp_path_factory.mktemp("compiled")
    assert compiled_install.build(directory) is None
    return directory


def load(path: Path, name: str) -> ModuleType:
    """Return a module of its own from a source or an extension module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {name: module}):  # its classes look for their module there
        spec.loader.exec_module(module)
    return module


def pair(installed: Path, typed: str) -> tuple[ModuleType, ModuleType]:
    """Return the module of the source and the compiled one."""
    [binary] = (installed / typed).parent.glob(f"{Path(typed).name}.*.so")
    name = typed.replace("/", ".")
    return load(SOURCE / f"{typed}.py", name), load(binary, name)


def result(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns or raises; Python's own errors have other texts in C."""
    try:
        return function(*args)
    except KourouError as error:
        return type(error), str(error)
    except IndexError:
        return IndexError


def parts(struct: msgspec.Struct | None) -> Any:
    """Return the fields of a struct: those of two modules are never equal."""
    return struct and msgspec.structs.astuple(struct)


def blocks(module: ModuleType, data: bytes) -> list[Any]:
    """Return what the header blocks of one connection give, each after its size."""
    decoder, found = module.HeaderDecoder(), []
    while data:
        size = data[0]
        fields = result(decoder.decode, data[1 : 1 + size])
        found.append(fields)
        if isinstance(fields, list):
            found += [parts(module.request_head(fields)), module.are_trailers(fields)]
        data = data[1 + size :]
    return found


def varints(module: ModuleType, data: bytes) -> list[Any]:
    number = int.from_bytes(data[:8], "little") >> (1 + len(data) % 63)
    read = [result(module.read_varint, data, at) for at in range(len(data) + 2)]
    return [module.encode_varint(number), *read]


def passed(module: ModuleType, data: bytes) -> list[tuple[int, float]]:
    """Return the items of deadlines that have passed, with their times."""
    found: list[tuple[int, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        deadlines = module.Deadlines(loop, lambda item: found.append((item, loop.time())))
        for item, late in enumerate(data):
            change = deadlines.discard if late % 4 == 0 else deadlines.add
            change(item % 9, began_s + late / 100)
            if late % 7 == 0:
                await asyncio.sleep(late / 1_000)
        await asyncio.sleep(9)

    run_virtual(main())
    return found


def client(module: ModuleType, data: bytes) -> Any:
    fields = [(*one.partition(b"=")[::2], 0, 0) for one in data.split(b";")]
    return module.client_of(SimpleNamespace(head=SimpleNamespace(fields=fields)))


def plain(module: ModuleType, data: bytes) -> Any:
    return parts(module.read_plain(data))


def acks(module: ModuleType, data: bytes) -> Any:
    plain = module.read_ack(data)
    return plain and (plain.head, [parts(entry) for entry in plain.entries])


def deliveries(module: ModuleType, data: bytes) -> list[bytes]:
    """Return the deliveries of a message with these properties, and of one that was read."""
    return [
        module.encode_delivery(record(data), "handle", LanguageCode.GO, 0),
        module.encode_delivery(MESSAGE, data.hex(), None, 0),
    ]


def random_seeds() -> tuple[bytes, ...]:
    return (bytes(range(1, 250, 3)), b"\x80\xff\xff\xff\x7f" * 3)


PARITY: Final[dict[str, tuple[Callable[[ModuleType, bytes], Any], tuple[bytes, ...]]]] = {
    "kourou/http2/deadlines": (passed, random_seeds()),
    "kourou/http2/headers": (blocks, http2_bytes.header_blocks()),
    "kourou/proxy/metadata": (client, CLIENTS),
    "kourou/proxy/plain_acks": (acks, proxy_calls.requests("AckMessage")),
    "kourou/proxy/plain_messages": (deliveries, PROPERTY_TEXTS),
    "kourou/proxy/plain_requests": (plain, proxy_calls.requests("SendMessage")),
    "kourou/proxy/varints": (varints, random_seeds()),
}


CONNECTION: Final = frozenset({
    "kourou/http2/calls", "kourou/http2/connection", "kourou/http2/open_calls",
    "kourou/http2/outgoing", "kourou/http2/streams",
})  # fmt: skip
"""Modules of a connection, which share types: they are compared in processes of their own."""
CONNECTION_CASES: Final = 2_000


def print_connections() -> None:
    """Print what connections do with mutated bytes, one to a line."""
    source = random.Random(1)
    for number in range(CONNECTION_CASES):
        data = mutate(source, http2_bytes.conversations())
        function = http2_bytes.echoed if number % 2 else http2_bytes.served
        sys.stdout.write(f"{number} {data.hex()} {function(data)}\n")


def printed(function: Callable[[], None], **environ: str) -> list[str]:
    """Return the lines that a function of this module prints in a process of its own."""
    code = f"from {function.__module__} import {function.__name__} as f; f()"
    said = subprocess.run(
        (sys.executable, "-c", code), cwd=SOURCE.parent, env={**os.environ, **environ},
        check=True, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    return said.stdout.splitlines()


def test_each_module_with_c_types_is_compared() -> None:
    assert sorted({*PARITY, *CONNECTION}) == TYPED


def test_compiled_connections_do_with_bytes_what_their_sources_do(installed: Path) -> None:
    compiled = printed(print_connections, PYTHONPATH=str(installed))
    assert len(compiled) == CONNECTION_CASES
    for ours, theirs in zip(compiled, printed(print_connections), strict=True):
        assert ours == theirs


@pytest.mark.parametrize("typed", sorted(PARITY))
def test_compiled_functions_return_and_raise_what_their_sources_do(
    installed: Path, typed: str
) -> None:
    call, seeds = PARITY[typed]
    source, compiled = pair(installed, typed)
    random_source = random.Random(1)
    for _ in range(CASES):
        data = mutate(random_source, seeds)
        assert call(compiled, data) == call(source, data), data.hex()


def test_the_tests_of_compiled_modules_pass_with_them(installed: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    check = f"import {', '.join(TYPED)} as last; print(last.__file__)".replace("/", ".")
    words = (sys.executable, "-c", check)
    said = subprocess.run(words, env=environ, check=True, capture_output=True, text=True)
    assert said.stdout.strip().endswith(".so")
    tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    done = subprocess.run(
        tests, cwd=SOURCE.parent, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]

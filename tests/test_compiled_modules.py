"""Compiled modules (hatch_build.py) do what their sources do."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from bench import compiled_install
from kourou.errors import KourouError
from kourou.http2 import headers
from kourou.http2.deadlines import Deadlines
from kourou.protocol.codes import LanguageCode
from kourou.proxy import varints
from kourou.proxy.metadata import client_of
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.plain_acks import read_ack
from kourou.proxy.plain_messages import encode_delivery
from kourou.proxy.plain_requests import read_plain
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
CASES: Final = 3_000
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


def result(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns or raises; Python's own errors have other texts in C."""
    try:
        return function(*args)
    except KourouError as error:
        return type(error), str(error)
    except IndexError:
        return IndexError


def blocks(data: bytes) -> list[Any]:
    """Return what the header blocks of one connection give, each after its size."""
    decoder, found = headers.HeaderDecoder(), []
    while data:
        size = data[0]
        fields = result(decoder.decode, data[1 : 1 + size])
        found.append(fields)
        if isinstance(fields, list):
            found += [headers.request_head(fields), headers.are_trailers(fields)]
        data = data[1 + size :]
    return found


def numbers(data: bytes) -> list[Any]:
    number = int.from_bytes(data[:8], "little") >> (1 + len(data) % 63)
    read = [result(varints.read_varint, data, at) for at in range(len(data) + 2)]
    return [varints.encode_varint(number), *read]


def passed(data: bytes) -> list[tuple[int, float]]:
    """Return the items of deadlines that have passed, with their times."""
    found: list[tuple[int, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        deadlines = Deadlines(loop, lambda item: found.append((item, loop.time())))
        for item, late in enumerate(data):
            change = deadlines.discard if late % 4 == 0 else deadlines.add
            change(item % 9, began_s + late / 100)
            if late % 7 == 0:
                await asyncio.sleep(late / 1_000)
        await asyncio.sleep(9)

    run_virtual(main())
    return found


def client(data: bytes) -> Any:
    fields = [(*one.partition(b"=")[::2], 0, 0) for one in data.split(b";")]
    call: Any = SimpleNamespace(head=SimpleNamespace(fields=fields))
    return client_of(call)


def deliveries(data: bytes) -> list[bytes]:
    """Return the deliveries of a message with these properties, and of one that was read."""
    encoded = (
        encode_delivery(record(data), "handle", LanguageCode.GO, 0),
        encode_delivery(MESSAGE, data.hex(), None, 0),
    )
    # The order of protobuf's maps differs from process to process.
    parsed = [parse(v2.ReceiveMessageResponse, one) for one in encoded]
    return [one.SerializeToString(deterministic=True) for one in parsed]


def connections(data: bytes) -> list[Any]:
    """Return what connections answer to these bytes."""
    return [http2_bytes.echoed(data), http2_bytes.served(data)]


def random_seeds() -> tuple[bytes, ...]:
    return (bytes(range(1, 250, 3)), b"\x80\xff\xff\xff\x7f" * 3)


class Parity(NamedTuple):
    """A task that sources and compiled modules must do alike.

    Attributes:
        run: does it with some bytes, and returns the result.
        seeds: the bytes, before they are mutated.
        modules: those that it runs.
        cases: number of mutations.
    """

    run: Callable[[bytes], Any]
    seeds: tuple[bytes, ...]
    modules: tuple[str, ...]
    cases: int = CASES


PARITY: Final = {
    "headers": Parity(blocks, http2_bytes.header_blocks(), ("http2/headers",)),
    "connections": Parity(
        connections, http2_bytes.conversations(),
        ("http2/calls", "http2/connection", "http2/open_calls", "http2/outgoing", "http2/streams"),
        700,
    ),
    "deadlines": Parity(passed, random_seeds(), ("http2/deadlines",), 500),
    "client": Parity(client, CLIENTS, ("proxy/metadata",)),
    "acks": Parity(read_ack, proxy_calls.requests("AckMessage"), ("proxy/plain_acks",)),
    "deliveries": Parity(deliveries, PROPERTY_TEXTS, ("proxy/plain_messages",)),
    "sends": Parity(read_plain, proxy_calls.requests("SendMessage"), ("proxy/plain_requests",)),
    "varints": Parity(numbers, random_seeds(), ("proxy/varints",)),
}  # fmt: skip


def print_results(name: str) -> None:
    """Print what the modules do with mutated bytes, one to a line."""
    run, seeds, _, cases = PARITY[name]
    source = random.Random(1)
    for _ in range(cases):
        data = mutate(source, seeds)
        sys.stdout.write(f"{data.hex()} {run(data)}\n")


def results(name: str, **environ: str) -> list[str]:
    """Return what `print_results` prints in a process of its own."""
    code = f"from {__name__} import print_results; print_results({name!r})"
    said = subprocess.run(
        (sys.executable, "-c", code), cwd=SOURCE.parent, env={**os.environ, **environ},
        check=True, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    return said.stdout.splitlines()


def test_each_module_with_c_types_is_compared() -> None:
    compared = [f"kourou/{module}" for parity in PARITY.values() for module in parity.modules]
    assert sorted(compared) == TYPED


@pytest.mark.parametrize("name", PARITY)
def test_compiled_modules_do_with_bytes_what_their_sources_do(installed: Path, name: str) -> None:
    compiled = results(name, PYTHONPATH=str(installed))
    assert len(compiled) == PARITY[name].cases
    for ours, theirs in zip(compiled, results(name), strict=True):
        assert ours == theirs


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

"""Tests of the key-value configuration: durability, the limit, and the file format."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kourou.errors import CorruptRecordError, RemoteSystemError
from kourou.namesrv.kv_config import FILE_NAME, KvConfig, parse_kv_config
from kourou.store.state.config_file import ConfigFile, unseal
from kourou.testing.disk import SimDisk
from kourou.testing.runtime import call_directly


def opened(disk: SimDisk, bytes_max: int = 1000) -> KvConfig:
    file = ConfigFile(disk, FILE_NAME, parse_kv_config)
    return KvConfig(file, call_directly, bytes_max=bytes_max)


def text_of(disk: SimDisk) -> bytes:
    return unseal(disk.read(FILE_NAME, 0, disk.size(FILE_NAME))).data


def test_persisted_changes_survive_a_power_cut() -> None:
    disk = SimDisk()
    kv = opened(disk)
    kv.put("ns", "k", "v")
    asyncio.run(kv.persist())
    kv.put("ns", "lost", "v")

    disk.crash()

    after = opened(disk)
    assert after.namespace("ns") == {"k": "v"}
    assert text_of(disk) == b'{"configTable":{"ns":{"k":"v"}}}'


def test_previous_content_stays_as_backup() -> None:
    disk = SimDisk()
    kv = opened(disk)
    for value in ("1", "2"):
        kv.put("ns", "k", value)
        asyncio.run(kv.persist())

    backup = f"{FILE_NAME}.bak"
    assert parse_kv_config(disk.read(backup, 0, disk.size(backup))) == {"ns": {"k": "1"}}


def test_deleted_key_leaves_its_namespace() -> None:
    disk = SimDisk()
    kv = opened(disk)
    kv.put("ns", "k", "v")
    kv.delete("ns", "k")
    kv.delete("ns", "unknown")
    kv.delete("unknown", "k")
    asyncio.run(kv.persist())

    assert opened(disk).namespace("ns") == {}
    assert opened(disk).namespace("unknown") is None


def test_changes_made_during_a_write_share_the_next() -> None:
    writes: list[bytes] = []

    class Slow:
        def load(self) -> None:
            return None

        def save(self, data: bytes) -> None:
            writes.append(data)

    async def test() -> None:
        gate = asyncio.Event()

        async def offload(function: object, *args: object) -> None:
            await gate.wait()
            function(*args)  # type: ignore[operator]

        kv = KvConfig(Slow(), offload)  # type: ignore[arg-type]
        tasks = []
        for number in range(10):
            kv.put("ns", str(number), "v")
            tasks.append(asyncio.create_task(kv.persist()))
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(test())
    assert len(writes) == 2
    assert len(parse_kv_config(writes[-1])["ns"]) == 10


def test_failed_write_is_retried_by_the_next_persist() -> None:
    disk = SimDisk()
    failing = [True]

    async def offload(function: object, *args: object) -> None:
        if failing.pop() if failing else False:
            raise OSError(28, "No space left on device")
        function(*args)  # type: ignore[operator]

    kv = KvConfig(ConfigFile(disk, FILE_NAME, parse_kv_config), offload)  # type: ignore[arg-type]
    kv.put("ns", "k", "v")
    with pytest.raises(OSError, match="No space"):
        asyncio.run(kv.persist())
    asyncio.run(kv.persist())

    assert opened(disk).get("ns", "k") == "v"


def test_more_than_the_limit_is_refused_and_changes_nothing() -> None:
    kv = opened(SimDisk(), bytes_max=410)
    kv.put("ns", "k", "1234567")

    with pytest.raises(RemoteSystemError, match="would take 411 bytes, the limit is 410"):
        kv.put("ns", "k", "12345678")

    assert kv.get("ns", "k") == "1234567"
    kv.put("ns", "k", "")
    kv.delete("ns", "k")
    kv.put("ns", "é", "123456")
    assert kv.get("ns", "é") == "123456"


def test_empty_namespaces_count_towards_the_limit() -> None:
    kv = opened(SimDisk(), bytes_max=1_100)
    for name in "abcd":
        kv.put(name, "", "")
        kv.delete(name, "")

    with pytest.raises(RemoteSystemError):
        kv.put("e", "", "")


def test_text_is_encoded_off_the_loop_from_a_snapshot() -> None:
    disk = SimDisk()

    async def later(function: Callable[..., Any], *args: Any) -> Any:
        kv.put("ns", "k", "changed meanwhile")
        return function(*args)

    kv = KvConfig(ConfigFile(disk, FILE_NAME, parse_kv_config), later)  # type: ignore[arg-type]
    kv.put("ns", "k", "v")
    asyncio.run(kv.persist())
    assert text_of(disk) == b'{"configTable":{"ns":{"k":"v"}}}'


def test_loaded_keys_count_towards_the_limit() -> None:
    disk = SimDisk()
    kv = opened(disk, bytes_max=410)
    kv.put("ns", "k", "1234567")
    asyncio.run(kv.persist())

    with pytest.raises(RemoteSystemError):
        opened(disk, bytes_max=410).put("ns", "l", "1")


def test_a_file_that_does_not_parse_is_not_overwritten() -> None:
    disk = SimDisk()
    disk.make_directory("namesrv")
    disk.write(FILE_NAME, 0, [b"{"])

    with pytest.raises(CorruptRecordError):
        opened(disk)


def test_java_file_is_read() -> None:
    assert parse_kv_config(
        b'{"configTable":{"ORDER_TOPIC_CONFIG":{"GoldenFifo":"broker-a:4"}}}'
    ) == {"ORDER_TOPIC_CONFIG": {"GoldenFifo": "broker-a:4"}}


def test_without_a_file_changes_stay_in_memory() -> None:
    kv = KvConfig(None, call_directly)
    kv.put("ns", "k", "v")
    asyncio.run(kv.persist())

    assert kv.get("ns", "k") == "v"

"""Bit maps exclude messages that do not match from pulls, and never exclude a match."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import cast

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.pulling.consumer_filters import FILE_NAME
from kourou.broker.pulling.message_filters import FilterBits, MessageFilter
from kourou.filter.bloom import BloomFilter
from kourou.filter.sql92 import compile_sql
from kourou.model.subscription import SubscriptionData
from kourou.protocol.brokers import QueryConsumeQueueRequestHeader, decode_consume_queue
from kourou.protocol.consumer_filter_file import decode_consumer_filters, encode_consumer_filters
from kourou.protocol.record.decode import decode_messages
from kourou.store.config import StoreConfig
from kourou.store.queues.queue_extension import ExtensionUnit, decode_unit, unit_position
from kourou.store.state.config_file import ConfigFile
from kourou.testing.broker_parts import BrokerParts, run_with_parts, small_config
from kourou.testing.clock import LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from tests.broker.pulling.test_pull import subscribe
from tests.broker.pulling.test_sql_pull import draft, sql


def config(**options: object) -> BrokerConfig:
    store = StoreConfig(
        commitlog_segment_bytes=1 << 20,
        consumequeue_file_bytes=20 * 1000,
        batch_queue_file_bytes=46 * 100,
        consumequeue_extension=True,
        extension_file_bytes=1 << 16,
    )
    defaults = {"enable_property_filter": True, "enable_calc_filter_bit_map": True, "store": store}
    return small_config(**defaults | options)


async def store(parts: BrokerParts, *numbers: int) -> None:
    """Store messages later than any filter's birth, so that their bit maps are valid for it."""
    await asyncio.sleep(0.01)
    await parts.store_messages([draft(parts, number) for number in numbers])


def bit_maps(parts: BrokerParts) -> list[str]:
    """Return the bit maps of queue 0 of topic T, from the files."""
    parts.store.writer.flush(parts.clock.now_ms())
    name = "consumequeue_ext/T/0/00000000000000000000"
    found = []
    for offset in range(parts.store.reader.max_offset("T", 0)):
        entry = parts.store.reader.entry("T", 0, offset)
        assert entry is not None
        unit = decode_unit(parts.disk.read(name, unit_position(entry.tags_code), 64))
        assert unit is not None
        found.append(unit.bit_map.hex())
    return found


def pulled(parts: BrokerParts) -> list[bytes]:
    answer = parts.pull(FakePeer(), flags=0)
    assert answer is not None
    return [message.body for message in decode_messages(answer.body)]


def reads(parts: BrokerParts) -> list[int]:
    """Record how many bytes each batch of a pull reads, from now on."""
    noted: list[int] = []
    read_resident = parts.reads.read_resident

    def noting(*args: object) -> object:
        found = read_resident(*args)  # type: ignore[arg-type]
        if found is not None:
            noted.append(len(found.body))
        return found

    parts.reads.read_resident = noting  # type: ignore[method-assign,assignment]
    return noted


def test_a_message_has_the_bits_of_the_groups_whose_filters_it_passes() -> None:
    async def test(parts: BrokerParts) -> None:
        bloom = BloomFilter()
        await store(parts, 1)
        parts.tables.filters.register("g", [sql("a > 5", 1)])
        parts.tables.filters.register("h", [sql("a = 7", 1)])
        await store(parts, 1, 6, 7)

        assert bit_maps(parts) == [
            "",
            bytes(14).hex(),
            bloom.bit_map(["g#T"]).hex(),
            bloom.bit_map(["g#T", "h#T"]).hex(),
        ]

    run_with_parts(test, config=config())


def test_a_pull_reads_no_record_excluded_by_its_bit_map() -> None:
    async def test(parts: BrokerParts) -> None:
        subscribe(parts, sql("a > 5", 1))
        await store(parts, *[1] * 20, 7)
        noted = reads(parts)
        assert pulled(parts) == [b"7"]
        assert sum(noted) < 400, "one record was read"

    run_with_parts(test, config=config())


def test_messages_stored_before_the_filters_birth_are_evaluated() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.tables.filters.register("other", [sql("a = 1", 1)])
        await store(parts, 1, 7)
        subscribe(parts, sql("a > 5", 1))
        assert pulled(parts) == [b"7"]

    run_with_parts(test, config=config())


def test_messages_stored_before_the_clock_was_set_back_are_evaluated() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.tables.filters.register("other", [sql("a = 1", 1)])
        await store(parts, 1, 7)
        cast(LoopClock, parts.clock).step(-3_600_000)
        subscribe(parts, sql("a > 5", 1))
        await store(parts, 8)
        assert pulled(parts) == [b"7", b"8"]

    run_with_parts(test, config=config())


@pytest.mark.parametrize(("later_ms", "may_match"), [(-1, True), (0, True), (1, False)])
def test_a_bit_map_of_the_millisecond_of_the_filters_birth_excludes_nothing(
    later_ms: int, *, may_match: bool
) -> None:
    bloom = BloomFilter()
    bits = FilterBits(bloom, bloom.positions("g#T"), born_at_ms=1_000)
    unit = ExtensionUnit(0, 1_000 + later_ms, bytes(bloom.bit_count // 8))
    assert MessageFilter(compile_sql("a > 5"), bits).may_match(unit) is may_match


def test_a_filter_from_a_file_that_does_not_compile_hides_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimDisk()

    async def java(parts: BrokerParts) -> None:
        subscribe(parts, sql("a > 5", 1))

    async def after(parts: BrokerParts) -> None:
        assert "consumer_filter.unreadable group=g topic=T reason=" in caplog.text
        subscribe(parts, sql("a !> 5", 1))
        await store(parts, 1, 7)
        assert bit_maps(parts) == [BloomFilter().bit_map(["g#T"]).hex()] * 2
        assert pulled(parts) == [b"1", b"7"]

    run_with_parts(java, disk, config=config())
    file = ConfigFile(disk, FILE_NAME, decode_consumer_filters)
    (known,) = decode_consumer_filters(file.load() or b"")
    file.save(encode_consumer_filters([known._replace(expression="a !> 5")]))
    run_with_parts(after, disk, config=config(), later_ms=60_000)


def test_bit_maps_are_valid_after_a_restart() -> None:
    disk = SimDisk()

    async def before(parts: BrokerParts) -> None:
        subscribe(parts, sql("a > 5", 1))
        await store(parts, 1, 7, 2)

    async def after(parts: BrokerParts) -> None:
        subscribe(parts, sql("a > 5", 1))
        await store(parts, 3, 9)
        noted = reads(parts)
        assert pulled(parts) == [b"7", b"9"]
        assert sum(noted) < 600, "two records were read"

    run_with_parts(before, disk, config=config())
    run_with_parts(after, disk, config=config(), later_ms=60_000)


def test_bit_maps_of_a_filter_lost_in_a_crash_hide_no_message() -> None:
    disk = SimDisk()

    async def crashed() -> None:
        parts = BrokerParts(disk, config=config())
        subscribe(parts, sql("a > 5", 1))
        await store(parts, 1)
        await parts.tables.persist()
        await parts.tables.filters.persist()
        subscribe(parts, sql("a < 5", 2))  # not in the file
        await store(parts, 7, 3)
        for _ in range(3):
            parts.commit.flush(parts.clock.now_ms())
            await asyncio.sleep(11)
        parts.abandon()

    run_virtual(crashed())

    async def after(parts: BrokerParts) -> None:
        none = bytes(14).hex()
        assert bit_maps(parts) == [none, none, ""], "the last entry was rebuilt"
        subscribe(parts, sql("a > 5", 1))
        assert pulled(parts) == [b"7"]

    run_with_parts(after, disk, config=config(), later_ms=60_000)


def test_without_bit_maps_every_message_is_evaluated() -> None:
    async def test(parts: BrokerParts) -> None:
        subscribe(parts, sql("a > 5", 1))
        await store(parts, 1, 7)
        assert bit_maps(parts) == ["", ""]
        assert pulled(parts) == [b"7"]

    run_with_parts(test, config=config(enable_calc_filter_bit_map=False))


def test_tags_filter_an_extended_queue_beside_bit_maps() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.tables.filters.register("other", [sql("a = 1", 1)])
        await asyncio.sleep(0.01)
        await parts.store_messages([parts.draft(b"x", tags="x"), parts.draft(b"y", tags="y")])
        subscribe(parts, SubscriptionData("T", "x", frozenset("x"), frozenset({ord("x")})))
        assert pulled(parts) == [b"x"]

    run_with_parts(test, config=config())


def test_an_administrator_sees_the_filter_and_the_bit_maps() -> None:
    async def test(parts: BrokerParts) -> None:
        subscribe(parts, sql("a > 5", 1))
        await store(parts, 1, 7)
        header = QueryConsumeQueueRequestHeader("T", 0, 0, 5, "g")

        answer = await parts.ask(parts.admin.store.on_query_consume_queue, header)

        found = decode_consume_queue(answer.body)
        assert '"expression":"a > 5"' in str(found.filter_data)
        assert [one.eval for one in found.queue_data] == [False, True]
        bits = str(found.queue_data[1].bit_map)
        assert (bits.count("1"), len(bits), bits.count("\n")) == (3, 112 + 2, 2)
        said = json.loads(str(found.queue_data[1].extend_data_json))
        assert base64.b64decode(said["filterBitMap"]) == BloomFilter().bit_map(["g#T"])
        assert (said["size"], said["tagsCode"], found.queue_data[1].tags_code) == (34, 0, 0)

    run_with_parts(test, config=config())

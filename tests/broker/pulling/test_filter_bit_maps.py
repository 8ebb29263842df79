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
from kourou.testing.clock import LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
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


async def store(broker: SimulatedBroker, *numbers: int) -> None:
    """Store messages later than any filter's birth, so that their bit maps are valid for it."""
    await asyncio.sleep(0.01)
    await broker.store_messages([draft(broker, number) for number in numbers])


def bit_maps(broker: SimulatedBroker) -> list[str]:
    """Return the bit maps of queue 0 of topic T, from the files."""
    broker.store.writer.flush(broker.clock.now_ms())
    name = "consumequeue_ext/T/0/00000000000000000000"
    found = []
    for offset in range(broker.store.reader.max_offset("T", 0)):
        entry = broker.store.reader.entry("T", 0, offset)
        assert entry is not None
        unit = decode_unit(broker.disk.read(name, unit_position(entry.tags_code), 64))
        assert unit is not None
        found.append(unit.bit_map.hex())
    return found


def pulled(broker: SimulatedBroker) -> list[bytes]:
    answer = broker.pull(FakePeer(), flags=0)
    assert answer is not None
    return [message.body for message in decode_messages(answer.body)]


def reads(broker: SimulatedBroker) -> list[int]:
    """Record how many bytes each batch of a pull reads, from now on."""
    noted: list[int] = []
    read_resident = broker.reads.read_resident

    def noting(*args: object) -> object:
        found = read_resident(*args)  # type: ignore[arg-type]
        if found is not None:
            noted.append(len(found.body))
        return found

    broker.reads.read_resident = noting  # type: ignore[method-assign,assignment]
    return noted


def test_a_message_has_the_bits_of_the_groups_whose_filters_it_passes() -> None:
    async def test(broker: SimulatedBroker) -> None:
        bloom = BloomFilter()
        await store(broker, 1)
        broker.tables.filters.register("g", [sql("a > 5", 1)])
        broker.tables.filters.register("h", [sql("a = 7", 1)])
        await store(broker, 1, 6, 7)

        assert bit_maps(broker) == [
            "",
            bytes(14).hex(),
            bloom.bit_map(["g#T"]).hex(),
            bloom.bit_map(["g#T", "h#T"]).hex(),
        ]

    run_with_broker(test, config=config())


def test_a_pull_reads_no_record_excluded_by_its_bit_map() -> None:
    async def test(broker: SimulatedBroker) -> None:
        subscribe(broker, sql("a > 5", 1))
        await store(broker, *[1] * 20, 7)
        noted = reads(broker)
        assert pulled(broker) == [b"7"]
        assert sum(noted) < 400, "one record was read"

    run_with_broker(test, config=config())


def test_messages_stored_before_the_filters_birth_are_evaluated() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.tables.filters.register("other", [sql("a = 1", 1)])
        await store(broker, 1, 7)
        subscribe(broker, sql("a > 5", 1))
        assert pulled(broker) == [b"7"]

    run_with_broker(test, config=config())


def test_messages_stored_before_the_clock_was_set_back_are_evaluated() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.tables.filters.register("other", [sql("a = 1", 1)])
        await store(broker, 1, 7)
        cast(LoopClock, broker.clock).step(-3_600_000)
        subscribe(broker, sql("a > 5", 1))
        await store(broker, 8)
        assert pulled(broker) == [b"7", b"8"]

    run_with_broker(test, config=config())


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

    async def java(broker: SimulatedBroker) -> None:
        subscribe(broker, sql("a > 5", 1))

    async def after(broker: SimulatedBroker) -> None:
        assert "consumer_filter.unreadable group=g topic=T reason=" in caplog.text
        subscribe(broker, sql("a !> 5", 1))
        await store(broker, 1, 7)
        assert bit_maps(broker) == [BloomFilter().bit_map(["g#T"]).hex()] * 2
        assert pulled(broker) == [b"1", b"7"]

    run_with_broker(java, disk, config=config())
    file = ConfigFile(disk, FILE_NAME, decode_consumer_filters)
    (known,) = decode_consumer_filters(file.load() or b"")
    file.save(encode_consumer_filters([known._replace(expression="a !> 5")]))
    run_with_broker(after, disk, config=config(), later_ms=60_000)


def test_bit_maps_are_valid_after_a_restart() -> None:
    disk = SimDisk()

    async def before(broker: SimulatedBroker) -> None:
        subscribe(broker, sql("a > 5", 1))
        await store(broker, 1, 7, 2)

    async def after(broker: SimulatedBroker) -> None:
        subscribe(broker, sql("a > 5", 1))
        await store(broker, 3, 9)
        noted = reads(broker)
        assert pulled(broker) == [b"7", b"9"]
        assert sum(noted) < 600, "two records were read"

    run_with_broker(before, disk, config=config())
    run_with_broker(after, disk, config=config(), later_ms=60_000)


def test_bit_maps_of_a_filter_lost_in_a_crash_hide_no_message() -> None:
    disk = SimDisk()

    async def crashed() -> None:
        broker = SimulatedBroker(disk, config=config())
        subscribe(broker, sql("a > 5", 1))
        await store(broker, 1)
        await broker.tables.persist()
        await broker.tables.filters.persist()
        subscribe(broker, sql("a < 5", 2))  # not in the file
        await store(broker, 7, 3)
        for _ in range(3):
            broker.commit.flush(broker.clock.now_ms())
            await asyncio.sleep(11)
        broker.abandon()

    run_virtual(crashed())

    async def after(broker: SimulatedBroker) -> None:
        none = bytes(14).hex()
        assert bit_maps(broker) == [none, none, ""], "the last entry was rebuilt"
        subscribe(broker, sql("a > 5", 1))
        assert pulled(broker) == [b"7"]

    run_with_broker(after, disk, config=config(), later_ms=60_000)


def test_without_bit_maps_every_message_is_evaluated() -> None:
    async def test(broker: SimulatedBroker) -> None:
        subscribe(broker, sql("a > 5", 1))
        await store(broker, 1, 7)
        assert bit_maps(broker) == ["", ""]
        assert pulled(broker) == [b"7"]

    run_with_broker(test, config=config(enable_calc_filter_bit_map=False))


def test_tags_filter_an_extended_queue_beside_bit_maps() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.tables.filters.register("other", [sql("a = 1", 1)])
        await asyncio.sleep(0.01)
        await broker.store_messages([broker.draft(b"x", tags="x"), broker.draft(b"y", tags="y")])
        subscribe(broker, SubscriptionData("T", "x", frozenset("x"), frozenset({ord("x")})))
        assert pulled(broker) == [b"x"]

    run_with_broker(test, config=config())


def test_an_administrator_sees_the_filter_and_the_bit_maps() -> None:
    async def test(broker: SimulatedBroker) -> None:
        subscribe(broker, sql("a > 5", 1))
        await store(broker, 1, 7)
        header = QueryConsumeQueueRequestHeader("T", 0, 0, 5, "g")

        answer = await broker.ask(broker.admin.store.on_query_consume_queue, header)

        found = decode_consume_queue(answer.body)
        assert '"expression":"a > 5"' in str(found.filter_data)
        assert [one.eval for one in found.queue_data] == [False, True]
        bits = str(found.queue_data[1].bit_map)
        assert (bits.count("1"), len(bits), bits.count("\n")) == (3, 112 + 2, 2)
        reported = json.loads(str(found.queue_data[1].extend_data_json))
        assert base64.b64decode(reported["filterBitMap"]) == BloomFilter().bit_map(["g#T"])
        assert (reported["size"], reported["tagsCode"], found.queue_data[1].tags_code) == (34, 0, 0)

    run_with_broker(test, config=config())

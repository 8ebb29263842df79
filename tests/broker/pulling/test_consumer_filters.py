"""Filters of groups: registration by heartbeats, Java's file, removal a day after death."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from kourou.broker.pulling import consumer_filters
from kourou.broker.pulling.consumer_filters import (
    COMPILED_LENGTH_MAX,
    FILE_NAME,
    ConsumerFilter,
    ConsumerFilters,
)
from kourou.filter.bloom import BloomFilter
from kourou.model.subscription import SubscriptionData
from kourou.protocol.consumer_filter_file import decode_consumer_filters
from kourou.store.state.config_file import ConfigFile
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime

DAY_MS = 24 * 3600 * 1000


def sql(expression: str, version: int = 1, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(topic, expression, sub_version=version, expression_type="SQL92")


class Rig:
    """The filters of a broker over restarts."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.later_ms = 0
        self.start()

    def start(self, *, was_clean: bool = True, bloom: BloomFilter | None = None) -> None:
        self.runtime = sim_runtime(0, epoch_ms=EPOCH_MS + self.later_ms)
        self.filters = ConsumerFilters(
            ConfigFile(self.disk, FILE_NAME, decode_consumer_filters, restores=True),
            self.runtime.offload,
            self.runtime.clock,
            bloom or BloomFilter(),
            was_clean=was_clean,
        )

    def get(self, topic: str = "T", group: str = "g") -> ConsumerFilter:
        found = self.filters.get(topic, group)
        assert found is not None
        return found

    def text(self) -> dict[str, Any]:
        data = self.disk.read(FILE_NAME, 0, self.disk.size(FILE_NAME))
        content: dict[str, Any] = json.loads(data)
        return content


def run(test: Any) -> None:
    async def main() -> None:
        await test(Rig())

    run_virtual(main())


def test_a_filter_is_registered_and_its_file_is_javas() -> None:
    async def test(rig: Rig) -> None:
        rig.filters.register("g", [sql("a > 5", 7), SubscriptionData("Tags", "x || y")])
        await rig.filters.persist()

        positions = list(BloomFilter().positions("g#T"))
        assert rig.text()["filterDataByTopic"] == {
            "T": {
                "groupFilterData": {
                    "g": {
                        "bloomFilterData": {"bitNum": 112, "bitPos": positions},
                        "bornTime": EPOCH_MS,
                        "clientVersion": 7,
                        "consumerGroup": "g",
                        "dead": False,
                        "deadTime": 0,
                        "expression": "a > 5",
                        "expressionType": "SQL92",
                        "topic": "T",
                    }
                },
                "topic": "T",
            }
        }

    run(test)


def test_a_filter_comes_back_dead_and_lives_with_the_next_heartbeat() -> None:
    async def test(rig: Rig) -> None:
        rig.filters.register("g", [sql("a > 5", 7)])
        await rig.filters.persist()
        rig.later_ms = 60_000
        rig.start()

        one = rig.get()
        assert (one.born_at_ms, one.dead_at_ms, one.is_dead) == (EPOCH_MS, EPOCH_MS + 30_000, True)
        assert one.compiled is not None
        rig.filters.register("g", [sql("a > 5", 7)])
        assert not rig.get().is_dead

    run(test)


def test_filters_get_a_new_birth_time_after_a_crash() -> None:
    async def test(rig: Rig) -> None:
        rig.filters.register("g", [sql("a > 5", 7)])
        await rig.filters.persist()
        rig.later_ms = 60_000
        rig.start(was_clean=False)
        assert rig.get().born_at_ms == EPOCH_MS + 60_000

    run(test)


def test_a_new_subscription_replaces_the_filter_whatever_its_version() -> None:
    async def test(rig: Rig) -> None:
        for expression, version in (("a > 5", 7), ("a > 5", 8), ("a > 9", 9), ("a > 1", 6)):
            rig.filters.register("g", [sql(expression, version)])
            assert (rig.get().expression, rig.get().client_version) == (expression, version)
        await rig.filters.persist()
        rig.start()
        rig.filters.register("g", [sql("a > 2", 5)])
        assert (rig.get().expression, rig.get().client_version) == ("a > 2", 5)
        assert not rig.get().is_dead

    run(test)


def test_an_invalid_new_expression_removes_the_filter_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(rig: Rig) -> None:
        rig.filters.register("g", [sql("a > 5", 7)])
        with caplog.at_level(logging.WARNING):
            rig.filters.register("g", [sql("a >> 5", 8)])
        assert rig.filters.get("T", "g") is None
        assert "consumer_filter.refused group=g topic=T reason=" in caplog.text

    run(test)


def test_an_unknown_kind_of_expression_is_no_filter() -> None:
    async def test(rig: Rig) -> None:
        kind = SubscriptionData("T", "x", sub_version=1, expression_type="GROOVY")
        rig.filters.register("g", [kind])
        assert rig.filters.get("T", "g") is None

    run(test)


def test_a_filter_missing_from_a_heartbeat_is_dead() -> None:
    async def test(rig: Rig) -> None:
        rig.filters.register("g", [sql("a > 5"), sql("a > 6", topic="U")])
        rig.filters.register("g", [sql("a > 5")])
        assert (rig.get().is_dead, rig.get("U").is_dead) == (False, True)
        rig.filters.unregister("g")
        assert rig.get().is_dead

    run(test)


def test_dead_filters_are_kept_for_a_day_with_their_bits() -> None:
    async def test(rig: Rig) -> None:
        rig.filters.register("g", [sql("a > 5")])
        rig.filters.unregister("g")
        await rig.filters.persist()
        rig.later_ms = DAY_MS - 1
        rig.start()
        await rig.filters.persist()
        assert len(rig.filters.of_topic("T")) == 1
        rig.later_ms = DAY_MS
        rig.start()
        await rig.filters.persist()
        assert len(rig.filters.of_topic("T")) == 0
        assert rig.text()["filterDataByTopic"] == {}

    run(test)


def test_a_file_of_another_bloom_filter_is_ignored() -> None:
    async def test(rig: Rig) -> None:
        rig.filters.register("g", [sql("a > 5")])
        await rig.filters.persist()
        rig.start(bloom=BloomFilter(10, 64))
        assert rig.filters.get("T", "g") is None

    run(test)


def test_expressions_beyond_the_memory_limit_are_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: Rig) -> None:
        monkeypatch.setattr(consumer_filters, "EXPRESSIONS_LENGTH_MAX", 12)
        rig.filters.register("g", [sql("a > 5")])
        rig.filters.register("h", [sql("a > 5")])
        with caplog.at_level(logging.WARNING):
            rig.filters.register("i", [sql("a > 5")])
        assert rig.filters.get("T", "i") is None
        assert "2 filters of 10 characters are registered" in caplog.text
        rig.filters.register("g", [SubscriptionData("T")])
        monkeypatch.setattr(consumer_filters, "FILTERS_MAX", 2)
        monkeypatch.setattr(consumer_filters, "EXPRESSIONS_LENGTH_MAX", 100)
        rig.filters.register("i", [sql("a > 5")])
        assert rig.filters.get("T", "i") is not None, "dead filters are removed"

    run(test)


def test_a_replaced_filter_frees_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        monkeypatch.setattr(consumer_filters, "EXPRESSIONS_LENGTH_MAX", 12)
        for version in range(1, 10):
            rig.filters.register("g", [sql(f"a > {version}", version)])
        assert rig.get().expression == "a > 9"

    run(test)


def test_the_file_of_a_java_broker_is_read() -> None:
    text = b"""{
\t"filterDataByTopic":{"GoldenSql":{"groupFilterData":{"golden_sql":{
\t\t"bloomFilterData":{"bitNum":112,"bitPos":[1,2,3]},"bornTime":1795228450042,
\t\t"clientVersion":1795228451788,"consumerGroup":"golden_sql","dead":false,"deadTime":0,
\t\t"expression":"a > 1","expressionType":"SQL92","topic":"GoldenSql"}},"topic":"GoldenSql"}}
}"""
    (one,) = decode_consumer_filters(text)
    assert (one.group, one.topic, one.expression) == ("golden_sql", "GoldenSql", "a > 1")
    assert (one.bit_count, one.positions) == (112, (1, 2, 3))
    assert (one.born_at_ms, one.dead_at_ms) == (1795228450042, 0)
    assert decode_consumer_filters(b'{\n\t"filterDataByTopic":{}\n}') == []


def test_expressions_beyond_a_heartbeats_limit_are_compiled_with_the_next() -> None:
    async def test(rig: Rig) -> None:
        long = "a = 1" + " " * (COMPILED_LENGTH_MAX - 5)
        wanted = [sql(long, topic="T"), sql("b = 2", topic="U"), sql("c = 3", topic="V")]

        rig.filters.begin_heartbeat()
        assert not rig.filters.register("g", wanted)
        assert rig.filters.get("T", "g") is not None
        assert rig.filters.get("U", "g") is None

        rig.filters.begin_heartbeat()
        assert rig.filters.register("g", wanted)
        assert rig.filters.get("U", "g") is not None
        assert rig.filters.get("V", "g") is not None

    run(test)
